"""For each mutating ATen overload, the functional overload that computes what it writes.

aten.add_.Tensor(self, other)            aten.add.Tensor(self, other)                       -> self
aten.add.out(self, other, out=out)       aten.add.Tensor(self, other)                       -> out
aten.normal_(self, mean, std)            aten.normal_functional(self, mean, std)            -> self
aten.native_batch_norm(x, ..., mean, var, True, ...)
                                         aten._native_batch_norm_legit_functional(...) -> mean, var
mylib.push(x, n)                         flambeau.mylib_push(x, n)                          -> x
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.functional_custom import functional_custom
from flambeau_autograd.reasons import NoFunctionalForm
from flambeau_prims.kernel_launches import launch_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from flambeau_prims.graph import Node

aten = torch.ops.aten


@dataclass(frozen=True)
class FunctionalForm:
    """`op` takes the arguments of the mutating operator less `dropped`; its results, in order, are
    those of the mutating operator that are not written arguments, then the new values of the
    parameters named in `written`.
    """

    op: OpOverload
    written: tuple[str, ...]
    dropped: tuple[str, ...] = ()

    def with_defaults(self, node: Node) -> tuple[Any, ...]:
        """The positional arguments, with the mutating operator's defaults filled in."""
        args = list(node.args)
        for parameter in node.op._schema.arguments[len(args) :]:
            if (
                parameter.kwarg_only
                or parameter.name in node.kwargs
                or not parameter.has_default_value()
            ):
                break
            args.append(parameter.default_value)
        return tuple(args)


_NAMED = {
    aten.normal_.default: aten.normal_functional.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update.default: aten._batch_norm_with_update_functional.default,
    aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default,
    # conj_physical gives a real tensor back as it is.
    aten.conj_physical_.default: aten._conj_physical.default,
    aten.conj_physical.out: aten._conj_physical.default,
}
"""Overloads whose functional form, with fresh results, does not follow from the name."""

_STATISTICS = ("running_mean", "running_var")

UNDECLARED: dict[OpOverload, FunctionalForm] = {
    aten.native_batch_norm.default: FunctionalForm(
        aten._native_batch_norm_legit_functional.default, _STATISTICS
    )
}
"""Overloads that write to arguments, though not by their schema (statistics in training)."""


@cache
def functional_form(op: OpOverload) -> FunctionalForm:
    """The functional form of an overload that its schema says mutates, or NoFunctionalForm."""
    mutated = [argument for argument in op._schema.arguments if _is_written(argument)]
    names = tuple(argument.name for argument in mutated)
    if op in _NAMED:
        out = tuple(argument.name for argument in mutated if argument.is_out)
        return FunctionalForm(_NAMED[op], names, dropped=out)
    base = op._schema.name.split("::")[1]
    if all(argument.is_out for argument in mutated):
        wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
        result = _overload_taking(op.namespace, base, wanted)
        if result in UNDECLARED:
            raise NoFunctionalForm(f"{op} writes to arguments besides out=", op)
        if result is not None:
            return FunctionalForm(result, names, dropped=names)
    elif base.endswith("_"):
        wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
        result = _overload_taking(op.namespace, base[:-1], wanted)
        if result is not None:
            return FunctionalForm(result, names)
    launch = launch_of(op)
    if launch is not None:
        return FunctionalForm(launch.functional, names)
    custom = functional_custom(op)
    if custom is not None:
        return FunctionalForm(custom, names)
    raise NoFunctionalForm(f"{op} mutates its arguments and has no functional form", op)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _overload_taking(namespace: str, base: str, wanted: list[tuple[str, str]]) -> OpOverload | None:
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None:
        return None
    for name in packet.overloads():
        op = getattr(packet, name)
        arguments = op._schema.arguments
        if [(a.name, str(a.type)) for a in arguments] == wanted and not any(
            map(_is_written, arguments)
        ):
            return op
    return None
