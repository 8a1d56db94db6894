"""The error of second derivatives that cannot be compiled (see `gradient_graph.py`): gradients that
a backward gives under create_graph=True raise when they are differentiated.

    y = c(x);  g, = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.autograd.grad(g.sum(), x)     ->     RuntimeError: g is computed from x by kernels that
                                               autograd does not see

A gradient is an error only to what it depends on: that of `x @ w` to x depends on w alone, and that
of `x * 2` on nothing, so that it does not even require grad, as in eager. Autograd goes back only
to what a tensor is connected to, so the error is connected to the inputs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.graph import Graph, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.graph import Node


@dataclass(frozen=True)
class Dependence:
    """`gradients` are computed from `inputs` (of the differentiable ones) and `tangents`."""

    gradients: tuple[int, ...]
    inputs: tuple[int, ...]
    tangents: tuple[int, ...]


def dependences(
    forward: Graph,
    backward: Graph,
    saved: Sequence[tuple[str, Any]],
    differentiable: Sequence[Value],
    tangents: int,
) -> list[Dependence]:
    """The dependencies of each gradient that `backward` gives; equal ones are grouped.

    `saved` is where its inputs come from (`partition.Partition`). `differentiable` are inputs of
    the forward, `tangents` counts the tangents, of which the backward may read some.
    """
    count = len(differentiable)
    bits: dict[Any, int] = {}
    for number, leaf in enumerate(differentiable):
        bits[leaf] = bits.get(leaf, 0) | 1 << number
    _spread(bits, forward.nodes)
    given: dict[str, Sequence[Any]] = {"input": forward.inputs, "output": forward.outputs}
    for (kind, at), value in zip(saved, backward.inputs, strict=True):
        if kind == "tangent":
            bits[value] = 1 << (count + at)
        elif kind != "size":
            bits[value] = bits.get(given[kind][at], 0)
    _spread(bits, backward.nodes)
    groups: dict[int, list[int]] = {}
    for number, out in enumerate(backward.outputs):
        if isinstance(out, Value) and bits.get(out, 0):
            groups.setdefault(bits[out], []).append(number)
    return [
        Dependence(
            tuple(gradients),
            tuple(index for index in range(count) if result >> index & 1),
            tuple(index for index in range(tangents) if result >> (count + index) & 1),
        )
        for result, gradients in groups.items()
    ]


def _spread(bits: dict[Any, int], nodes: Sequence[Node]) -> None:
    """Give the results of calls the bits of their operands."""
    for node in nodes:
        result = 0
        for value in node.operands():
            result |= bits.get(value, 0)
        if result:
            bits.update((out, result) for out in node.outputs if out is not None)


def message(name: str, where: str, reason: str) -> str:
    """The error of a second derivative through the graph of `name`, first called at `where`, which
    there is none of for some `reason`.
    """
    place = f" (in the graph that begins at {where})" if where else ""
    return (
        f"{f'the compiled function {name!r}' if name else 'a compiled function'}{place} was "
        f"differentiated twice, which Flambeau cannot do for it: {reason}. Compute second "
        "derivatives (a Hessian, a gradient penalty) of the function itself: leave it uncompiled, "
        "or mark it with flambeau.compiler.disable. If no second derivative is wanted, leave out "
        "create_graph=True."
    )


def raising_twice(
    grads: Sequence[Any],
    found: Sequence[Dependence],
    edges: Sequence[tuple[Any, int]],
    handles: dict[int, torch.Tensor],
    tangents: Sequence[Any],
    text: str,
) -> list[Any]:
    """`grads`, connected to what they depend on by a node that raises.

    `edges` lead to the differentiable inputs: to a leaf itself, and else to where it comes from;
    `handles` are inputs of the latter sort, by position.
    """
    guarded = list(grads)
    for each in found:
        operands = [_input(edges[index][0], handles.get(index), text) for index in each.inputs]
        operands += [
            tangent
            for index in each.tangents
            if (tangent := tangents[index]) is not None and tangent.requires_grad
        ]
        if not operands:
            continue
        own = [index for index in each.gradients if isinstance(grads[index], torch.Tensor)]
        given = [grads[index] for index in own] + operands
        result = torch._C._functions.DelayedError(text, len(given))(*given)
        for index, grad in zip(own, result, strict=False):
            guarded[index] = grad
    return guarded


def _input(node: Any, handle: torch.Tensor | None, text: str) -> torch.Tensor:
    """A tensor that is connected as an input is; raises at once where there is none to be had."""
    leaf = getattr(node, "variable", None)
    if leaf is None and handle is None:
        raise RuntimeError(text)
    return leaf if leaf is not None else handle  # type: ignore[return-value]
