"""What a program says to the compiler through functions: torch.compiler's, with the same names and
meanings.

The marks that these leave on functions are the ones torch's leave, so that one reading serves both:

| attribute of a function | left by | meaning |
|---|---|---|
| `_torchdynamo_disable` | `disable` | calls are not captured: a graph break |
| `_torchdynamo_disable_recursive` | `disable` | whether what the function calls is left alone, too
|
| `_torchdynamo_disable_msg` | `disable` | the reason given, or None |
| `_torchdynamo_orig_callable`, `_torchdynamo_wrapper_id` | `disable` | the function itself; the id
of the object that carries the mark |
| `_dynamo_marked_constant` | `assume_constant_result` | the result is taken as a constant |

Functions that must work for C functions, which have no attributes, are kept in tables:
`allow_in_graph`, `disallow_in_graph`, `substitute_in_graph`. What they say holds for captures that
begin later.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch

from flambeau_capture.core import core
from flambeau_capture.frame_hook import call_with_handler, is_capturing
from flambeau_prims.fork_safety import fork_safe_lock

Function = TypeVar("Function", bound="Callable[..., Any]")


def is_compiling() -> bool:
    """Whether this thread captures a program, or runs inside torch.compile or torch.export."""
    return is_capturing() or bool(torch.compiler.is_compiling())


def is_dynamo_compiling() -> bool:
    """The same as is_compiling, but not inside torch.export."""
    return is_capturing() or bool(torch.compiler.is_dynamo_compiling())


def is_exporting() -> bool:
    """Whether the program is being exported."""
    return bool(torch.compiler.is_exporting())


def cudagraph_mark_step_begin() -> None:
    """Does nothing: later calls never overwrite the results of compiled callables."""


def graph_break(message: str = "") -> None:
    """End the graph here, in compiled code; `message` is part of the reason, else no effect."""


def assume_constant_result(fn: Function) -> Function:
    """Mark a function whose result on constant arguments is a constant of the graph, unchecked."""
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn


def nested_compile_region(fn: Function | None = None, **arguments: Any) -> Any:
    """Mark a function as a frequent region, also as a decorator; the region is captured inline."""
    return (lambda function: function) if fn is None else fn


# ---------------------------------------------------------------- disable


def disable_function(
    fn: Callable[..., Any], recursive: bool = True, reason: str | None = None
) -> Any:
    """A callable that behaves as `fn` and is never captured: a call of it from captured code is a
    graph break.

    recursive: what it calls runs as it is, too; else frames below it that can be captured are.
    Compiled callables stay compiled either way.
    """
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(disable_function(fn.__func__, recursive, reason))
    fn = innermost(fn)
    if isinstance(fn, types.MethodType):
        return types.MethodType(disable_function(fn.__func__, recursive, reason), fn.__self__)
    disabled: Any = _left_alone(fn) if recursive else _skipped(fn)
    disabled._torchdynamo_disable = True
    disabled._torchdynamo_disable_msg = reason
    disabled._torchdynamo_disable_recursive = recursive
    disabled._torchdynamo_orig_callable = fn
    disabled._torchdynamo_wrapper_id = id(disabled)
    return disabled


def innermost(fn: Any) -> Any:
    """The function given to torch.compile or `disable`; the outermost wrapper decides."""
    while _wraps(fn):
        fn = fn._torchdynamo_orig_callable
    return fn


def _wraps(fn: Any) -> bool:
    attributes = getattr(fn, "__dict__", {})
    # functools.wraps copies the attributes to functions that are no wrappers of that kind.
    return (
        "_torchdynamo_orig_callable" in attributes
        and attributes.get("_torchdynamo_wrapper_id") == id(fn)
        and not isinstance(fn, torch.nn.Module)
    )


def disabled_reason(function: Any) -> tuple[str, str] | None:
    """Why calls of a function are not captured, as (reason id, text); None if they are."""
    attributes = getattr(function, "__dict__", {})
    if "__wrapped__" in attributes and _disables_in_each_call(function):
        return "compiler-disable", f"call of {function.__qualname__}, a hook of fully_shard"
    if not attributes.get("_torchdynamo_disable") or _is_marked_for_torch(function):
        return None
    if attributes.get("_torchdynamo_wrapper_id", id(function)) != id(function):
        return None
    # Without this attribute, a wrapper is one of `disable`, and a mark on the function itself one
    # of torch._dynamo.skip.
    recursive = attributes.get(
        "_torchdynamo_disable_recursive", "_torchdynamo_orig_callable" in attributes
    )
    reason = attributes.get("_torchdynamo_disable_msg")
    detail = f"call of {function.__qualname__}" + (f" ({reason})" if reason else "")
    return "compiler-disable" if recursive else "compiler-skip", detail


def _disables_in_each_call(function: Any) -> bool:
    """Whether a function is what `fully_shard` wraps around its hooks: it asks for `disable` when
    it is called, and calls the result.
    """
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and code.co_qualname == "_dynamo_disable.<locals>.wrapper"
        and function.__globals__["__name__"].startswith("torch.distributed.fsdp.")
    )


def _is_marked_for_torch(function: Any) -> bool:
    """Whether torch.compile marked a function for itself: its first use disables torch.optim's."""
    return function.__module__.startswith("torch.optim.") and function.__name__.startswith("_")


def _left_alone(fn: Callable[..., Any]) -> types.FunctionType:
    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return call_with_handler(None, fn, *args, **kwargs)

    return _skip(disabled)


def _skipped(fn: Callable[..., Any]) -> types.FunctionType:
    """A function whose own frame the hook leaves alone: a copy with another code object."""
    if not isinstance(fn, types.FunctionType):

        @functools.wraps(fn)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return _skip(disabled)
    copy = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    copy.__kwdefaults__ = fn.__kwdefaults__
    return _skip(functools.update_wrapper(copy, fn))


def _skip(function: Any) -> types.FunctionType:
    if core is not None:
        core.mark_skip(function.__code__)
    return function  # type: ignore[no-any-return]


# ---------------------------------------------------------------- tables of functions

_TABLES_LOCK = fork_safe_lock()
_ALLOWED: dict[int, Any] = {}
_DISALLOWED: dict[int, Any] = {}
_SUBSTITUTED: dict[int, tuple[Any, types.FunctionType]] = {}


def _key(fn: Any) -> Any:
    """The function itself: each read of a bound method makes a new one."""
    return fn.__func__ if isinstance(fn, types.MethodType) else fn


@overload
def allow_in_graph(fn: list[Any] | tuple[Any, ...]) -> list[Any]: ...
@overload
def allow_in_graph(fn: Function) -> Function: ...
def allow_in_graph(fn: Any) -> Any:
    """Have calls of a function (or several) become one node of the graph each, not followed by
    capture; the backend still sees inside.

    Its arguments and results must be tensors, numbers and containers of these; tensors it reads
    otherwise are not seen.
    """
    return _enter(fn, _ALLOWED, _DISALLOWED, "allow_in_graph")


def disallow_in_graph(fn: Any) -> Any:
    """Have calls of a function (or several) break the graph."""
    return _enter(fn, _DISALLOWED, _ALLOWED, "disallow_in_graph")


def _enter(fn: Any, table: dict[int, Any], opposite: dict[int, Any], what: str) -> Any:
    """Add functions to a table, or only remove them from the opposite one."""
    if isinstance(fn, (list, tuple)):
        return [_enter(one, table, opposite, what) for one in fn]
    if not callable(fn):
        raise TypeError(f"{what} takes a callable, not a {type(fn).__name__}")
    key = _key(fn)
    with _TABLES_LOCK:
        if opposite.pop(id(key), None) is None:
            table[id(key)] = key
    return fn


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Function], Function]:
    """Decorator: in captured code, the decorated Python function is followed in place of
    `original_fn`, usually a C function.

    can_constant_fold_through: accepted; a call with constant arguments is computed while capturing
    in any case. skip_signature_check: do not compare the two signatures.

    Raises TypeError if either is no function or the signatures differ, ValueError if `original_fn`
    has a substitute already.
    """
    if not isinstance(
        original_fn, (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
    ):
        raise TypeError(f"substitute_in_graph takes a function, not a {type(original_fn).__name__}")

    def register(traceable_fn: Function) -> Function:
        if not isinstance(traceable_fn, types.FunctionType):
            raise TypeError(
                f"substitute_in_graph takes a Python function, not a {type(traceable_fn).__name__}"
            )
        if not skip_signature_check:
            _compare_signatures(original_fn, traceable_fn)
        with _TABLES_LOCK:
            if id(original_fn) in _SUBSTITUTED:
                raise ValueError(f"{original_fn!r} has a substitute already")
            _SUBSTITUTED[id(original_fn)] = (original_fn, traceable_fn)
        return traceable_fn

    return register


def _compare_signatures(original: Callable[..., Any], traceable: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original)
    except ValueError:  # a C function that does not say
        return
    found = inspect.signature(traceable)
    if _signature_facts(wanted) != _signature_facts(found):
        name = getattr(original, "__qualname__", repr(original))
        raise TypeError(
            f"{traceable.__qualname__}{found} cannot stand in for {name}{wanted}: the "
            f"signatures differ"
        )


def _signature_facts(signature: inspect.Signature) -> list[tuple[Any, ...]]:
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        (item.kind,) if item.kind in stars else (item.kind, item.name, item.default)
        for item in signature.parameters.values()
    ]


# ---------------------------------------------------------------- what the program has said so far


@dataclass(frozen=True, slots=True)
class OverriddenFunctions:
    """What the program has said about functions, here or through torch's functions: ids of those
    allowed and disallowed in graphs, and (original, substitute).
    """

    allowed: frozenset[int]
    disallowed: frozenset[int]
    substituted: tuple[tuple[Any, types.FunctionType], ...]
    """Those of torch first: ours take precedence."""
    invoke_subgraph: Any
    """The function that torch.compiler.nested_compile_region has its regions called by."""


def overridden_functions() -> OverriddenFunctions:
    """The current overrides. Torch's tables are read if torch has loaded them, never imported."""
    rules = "torch._dynamo.trace_rules"
    with _TABLES_LOCK:
        return OverriddenFunctions(
            _ids(_loaded(rules, "_allowed_callable_ids")) | _ALLOWED.keys(),
            _ids(_loaded(rules, "_disallowed_callable_ids")) | _DISALLOWED.keys(),
            (*_substituted_for_torch(), *_SUBSTITUTED.values()),
            _loaded("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"),
        )


def _loaded(module: str, name: str) -> Any:
    """An attribute of one of torch's modules, or None where the program has not loaded it."""
    return getattr(sys.modules.get(module), name, None)


def _ids(table: Any) -> frozenset[int]:
    return frozenset(getattr(table, "function_ids", None) or ())


def _substituted_for_torch() -> tuple[tuple[Any, types.FunctionType], ...]:
    """What the program has registered with torch.compiler.substitute_in_graph, not torch itself."""
    kind = _loaded("torch._dynamo.variables", "PolyfilledFunctionVariable")
    return () if kind is None else _of_the_programs(kind, len(kind._get_polyfill_handlers()))


@functools.lru_cache(maxsize=1)
def _of_the_programs(kind: Any, size: int) -> tuple[tuple[Any, types.FunctionType], ...]:
    """The program's own among `size` substitutes; the table only grows, and is read again then."""
    pairs = []
    for original, wrapped in list(kind._get_polyfill_handlers().items()):
        substitute = getattr(wrapped, "__torch_dynamo_polyfill__", None)
        if isinstance(substitute, types.FunctionType):
            if not (substitute.__module__ or "").startswith("torch."):
                pairs.append((original, substitute))
    return tuple(pairs)
