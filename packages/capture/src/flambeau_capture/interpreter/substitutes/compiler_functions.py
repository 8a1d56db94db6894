"""What a program says to the compiler: `compiler_functions`, torch.compiler and torch._dynamo."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._config_module as config_module

from flambeau_capture import compiler_functions, marks, stance
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.semantics.items import load_item
from flambeau_capture.interpreter.substitute_registry import (
    answering,
    breaking,
    compiling,
    substitute_for,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes.collectives import breaking_contexts
from flambeau_capture.interpreter.substitutes.fully_shard import hooks_of_fully_shard
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.substitute_registry import CodeSubstitute, Substitute


def _exporting(machine: Machine, args: Any, kwargs: Any) -> bool:
    return machine.options.exporting


def _breaks(name: str) -> Substitute:
    return breaking("compiler-function", f"call of {name}")


def _explicit_break(name: str) -> Substitute:
    def break_here(machine: Machine, args: Any, kwargs: Any) -> Any:
        message = next((text for text in (*args, *kwargs.values()) if isinstance(text, str)), "")
        raise GraphBreak("explicit-break", f"{name}({message!r})" if message else f"{name}()")

    return break_here


def _specialise(machine: Machine, args: Any, kwargs: Any) -> None:
    """mark_static inside captured code: the sizes become what they are."""
    given = dict(zip(("tensor", "dim"), args, strict=False)) | kwargs
    tensor = given.get("tensor", given.get("t"))
    dim = given.get("dim", given.get("index"))
    if not isinstance(tensor, torch.Tensor):
        raise GraphBreak("compiler-function", "mark_static of something that is no tensor")
    sizes = tuple(tensor.shape)
    chosen = range(len(sizes)) if dim is None else (dim,) if isinstance(dim, int) else dim
    for at in chosen:
        concrete(sizes[at])


# ---------------------------------------------------------------- functions of ours

substitute_for(compiler_functions.is_compiling, compiler_functions.is_dynamo_compiling)(compiling)
substitute_for(compiler_functions.is_exporting, torch.compiler.is_exporting)(_exporting)
substitute_for(compiler_functions.cudagraph_mark_step_begin)(answering(None))
substitute_for(compiler_functions.graph_break)(_explicit_break("flambeau.compiler.graph_break"))
substitute_for(marks.mark_static)(_specialise)
for _function in (
    compiler_functions.disable_function, compiler_functions.allow_in_graph,
    compiler_functions.disallow_in_graph, compiler_functions.substitute_in_graph,
    compiler_functions.assume_constant_result, marks.mark_dynamic, marks.maybe_mark_dynamic,
    stance.set_stance, stance.set_stance.__enter__, stance.set_stance.__exit__,
):  # fmt: skip
    substitute_for(_function)(_breaks(_function.__qualname__))

# ---------------- torch.compiler's, which import torch._dynamo when they are called

substitute_for(torch.compiler.cudagraph_mark_step_begin)(answering(None))


@substitute_for(torch.fx.traceback.annotate)
def _annotate(machine: Machine, args: Any, kwargs: Any) -> Any:
    """A mark for the nodes of torch's own tracers, of which none is at work here."""
    return contextlib.nullcontext()


for _name in (
    "allow_in_graph", "assume_constant_result", "disable", "get_default_backend",
    "list_backends", "load_cache_artifacts", "reset", "save_cache_artifacts",
    "set_default_backend", "set_enable_guard_collectives", "set_stance", "substitute_in_graph",
):  # fmt: skip
    _found = getattr(torch.compiler, _name, None)
    if isinstance(_found, types.FunctionType):
        substitute_if_new(_found, _breaks(f"torch.compiler.{_name}"))


@substitute_for(config_module.ConfigModule.patch)
def _config_patch(machine: Machine, args: Any, kwargs: Any) -> Any:
    """`with torch._dynamo.config.patch(...)`: settings of a compiler that is not this one."""
    name = args[0].__name__
    if name.startswith(("torch._dynamo", "torch._inductor", "torch._functorch")):
        return contextlib.nullcontext()
    raise GraphBreak("compiler-function", f"call of {name}.patch")


# ---------------------------------------------------------------- torch._dynamo's

_IGNORED = frozenset({"mark_static_address", "override_optimization_hint"})
"""Hints to torch's code generation."""

_SETTINGS = "DynamoConfigPatchProxy."
"""The context in which a program's `torch.export.Module` checks its arguments: settings of a
compiler that is not this one.
"""


def dynamo_substitute(function: types.FunctionType) -> Substitute:
    """A substitute for a function of torch._dynamo, known by its module; nothing imports that."""
    name = function.__name__
    if name in ("patched_init", "patched_setstate") and function.__closure__:
        # Once torch.compile has run, nn.Module's own methods are wrapped to count instances for it:
        # follow what is wrapped.
        wrapped = function.__closure__[0].cell_contents
        return lambda machine, args, kwargs: machine.call(wrapped, args, kwargs)
    if name in ("is_compiling", "is_dynamo_compiling"):
        return compiling
    if name == "graph_break":
        return _explicit_break("torch._dynamo.graph_break")
    if name == "mark_static":
        return _specialise
    if name in _IGNORED or function.__qualname__.startswith(_SETTINGS):
        return answering(None)
    if function.__qualname__ == "OptimizedModule.__call__":
        return _call_optimized_module
    # What torch.compiler.wrap_numpy and its like put around the program's functions is plain
    # Python.
    if function.__qualname__.startswith("OptimizedModule.") or function.__module__.endswith(
        ".external_utils"
    ):
        return lambda machine, args, kwargs: machine.interpret(function, args, kwargs)
    return _breaks(f"{function.__module__}.{function.__qualname__}")


def _call_optimized_module(machine: Machine, args: Any, kwargs: Any) -> Any:
    """A module compiled by torch.compile: what it compiles is captured here."""
    disabled = compiler_functions.disabled_reason(args[0].__dict__.get("forward"))
    if disabled is not None:  # by torch.compiler.disable(module)
        raise GraphBreak(*disabled)
    modules = load_attr(machine, args[0], "_modules")
    return machine.call(load_item(machine, modules, "_orig_mod"), args[1:], kwargs)


# ---------------- what the program has said beforehand


def user_overrides() -> dict[int, CodeSubstitute]:
    """What stands in, by id, for the functions that the program has said something about so far."""
    said = compiler_functions.overridden_functions()
    substitutes: dict[int, CodeSubstitute] = {
        **hooks_of_fully_shard(),
        **breaking_contexts(),
        **dict.fromkeys(said.disallowed, _disallowed),
        **dict.fromkeys(said.allowed, _opaque),
        **{id(original): _followed(traceable) for original, traceable in said.substituted},
    }
    if said.invoke_subgraph is not None:
        substitutes[id(said.invoke_subgraph)] = _region
    return substitutes


def _disallowed(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(function, "__qualname__", repr(function))
    if (getattr(function, "__module__", None) or "").startswith("torch._dynamo"):
        return dynamo_substitute(function)(machine, args, kwargs)  # graph_break and its like
    raise GraphBreak("compiler-disable", f"call of {name}, which was disallowed in graphs")


def _opaque(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """One node, whatever the function does with its arguments."""
    return machine.tape.call_function(function, args, kwargs)


def _followed(traceable: types.FunctionType) -> CodeSubstitute:
    return lambda machine, function, args, kwargs: machine.interpret(traceable, args, kwargs)


def _region(machine: Machine, function: Any, args: Any, kwargs: Any) -> Any:
    """torch.compiler.nested_compile_region: captured in line."""
    return machine.call(args[0], args[1:], kwargs)
