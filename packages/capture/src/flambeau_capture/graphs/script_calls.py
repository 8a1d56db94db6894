"""Calls of functions and modules that torch.jit has scripted or traced.

    scripted(x, 2)   ->   ScriptCall scripted(x, 2)
    module(x)        ->   ScriptModuleCall forward([weight, bias], x)

A tracer sees the ATen calls that TorchScript's interpreter makes on fake tensors. The tensors that
a module reads are arguments of the call: they are inputs of the graph as other parameters are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from flambeau_prims.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

Path: TypeAlias = tuple[str, ...]
"""Names of attributes, from a module to what one of its submodules holds."""


def _holds_fakes(arguments: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(arguments))


def _traced(function: Any, module: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
    """What a function of TorchScript, or a method of a `module`, gives for fake tensors.

    A new function of the same code makes the calls: what TorchScript has compiled for earlier calls
    differentiates itself, and makes calls when a backward runs.
    """
    values, named = [*module, *args], dict(kwargs)
    for argument in function.schema.arguments[len(values) :]:
        if argument.name in named:
            values.append(named.pop(argument.name))
        elif argument.has_default_value():
            values.append(argument.default_value)
    if named or len(values) != len(function.schema.arguments):
        return function(*args, **kwargs)  # raises
    new = torch._C._create_function_from_graph(function.name, function.inlined_graph)
    with torch.jit.optimized_execution(False):
        return new(*values)


@dataclass(frozen=True)
class ScriptCall:
    """`function`, a `torch.jit.ScriptFunction`."""

    function: Any

    @property
    def __name__(self) -> str:
        return str(self.function.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _holds_fakes((args, kwargs)):
            return _traced(self.function, (), args, kwargs)
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class ScriptModuleCall:
    """A method of a module of TorchScript (its `torch._C.ScriptModule`), which reads the tensors
    at `paths`.
    """

    module: Any
    method: str
    paths: tuple[Path, ...]

    @property
    def __name__(self) -> str:
        return self.method

    def __call__(self, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        module = self._module(tensors)
        method = module._get_method(self.method)
        if _holds_fakes((tensors, args, kwargs)):
            return _traced(method, (module,), args, kwargs)
        return method(*args, **kwargs)

    def _module(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The module, or a copy that holds other tensors: threads may be running the module."""
        own = [value_at(self.module, path) for path in self.paths]
        if all(x is y for x, y in zip(tensors, own, strict=True)):
            return self.module
        copied = _Copied(self.module)
        for path, tensor in zip(self.paths, tensors, strict=True):
            copied.at(path[:-1]).setattr(path[-1], tensor)
        return copied.copy


class _Copied:
    """A copy of a module that shares all but the submodules on the way to what is set in it."""

    def __init__(self, module: Any) -> None:
        self.copy = module._replicate_for_data_parallel()
        self._known: dict[Path, Any] = {(): self.copy}

    def at(self, path: Path) -> Any:
        """The copy of the submodule at a path."""
        found = self._known.get(path)
        if found is None:
            parent = self.at(path[:-1])
            found = self._known[path] = parent.getattr(path[-1])._replicate_for_data_parallel()
            parent.setattr(path[-1], found)
        return found


def value_at(module: Any, path: Path) -> Any:
    """What a `torch._C.ScriptModule` holds at a path."""
    for name in path:
        module = module.getattr(name)
    return module
