"""How the caller's outputs are made from what a compiled graph returns.

    return (x, y.view(-1), y, 3)        x an input, y made inside
    graph returns (y,)                  plan: Input(0), View(of result 0, [view]), Result(0),
                                        Constant(3)

Autograd and in-place writes see views: an output that views an input, or another output, must
really be such a view, taken outside of the compiled graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.version_counters import set_versions
from flambeau_prims.graph import Value
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flambeau_autograd.aliases import Alias
    from flambeau_prims.graph import Node


@dataclass(frozen=True)
class Result:
    """What the graph returns at `position`."""

    position: int


@dataclass(frozen=True)
class Input:
    """Argument number `position` itself."""

    position: int


@dataclass(frozen=True)
class Data:
    """What `.data` of an Input or Result is: its memory under another version counter.

    Those of one number have one `counter`.
    """

    base: Input | Result
    counter: int


@dataclass(frozen=True)
class Constant:
    """A Python value that does not depend on the arguments."""

    value: Any


@dataclass(frozen=True)
class ViewStep:
    """One view call, its operand left out."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int | None

    def __call__(self, base: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """The view of `base`; `sizes` are the values of the symbols."""
        result = self.op(base, *concrete(self.args, sizes), **concrete(self.kwargs, sizes))
        return result if self.index is None else result[self.index]


@dataclass(frozen=True)
class View:
    """Views taken, in order, of an Input, Result or Data; `tracked` by autograd, which records
    what is written to them, or not: those were taken under no_grad, or are detached.

    `version`: where its version counter stands, or None if that is its base's.
    """

    base: Input | Result | Data
    steps: tuple[ViewStep, ...]
    tracked: bool
    version: int | None = None


Output: TypeAlias = Result | Input | View | Constant


def view_steps(alias: Alias) -> tuple[ViewStep, ...]:
    """The calls that lead from the root of `alias` to it."""
    steps = []
    for link in alias.chain():
        node: Node | None = link.step
        assert node is not None
        several = isinstance(node.op._schema.returns[0].type, torch.ListType)
        steps.append(
            ViewStep(
                node.op, tuple(node.args[1:]), dict(node.kwargs), link.index if several else None
            )
        )
    return tuple(steps)


def concrete(arg: Any, sizes: Mapping[str, int]) -> Any:
    """A view call's argument with its symbolic sizes evaluated."""
    if isinstance(arg, Expr):
        return arg.env.evaluate(arg, sizes)
    if isinstance(arg, (tuple, list)):
        return type(arg)(concrete(item, sizes) for item in arg)
    if isinstance(arg, dict):
        return {key: concrete(item, sizes) for key, item in arg.items()}
    if isinstance(arg, Value):
        raise TypeError("a view call takes no second tensor")
    return arg


def is_plain(plan: Sequence[Output]) -> bool:
    """Whether the caller's outputs are the graph's results as they are."""
    return all(
        isinstance(out, Result) and out.position == position for position, out in enumerate(plan)
    )


def build_outputs(
    plan: Sequence[Output], args: Sequence[Any], results: Sequence[Any], sizes: Mapping[str, int]
) -> tuple[Any, ...]:
    """The caller's outputs."""
    result = []
    data: dict[Data, torch.Tensor] = {}
    for out in plan:
        if isinstance(out, Result):
            result.append(results[out.position])
        elif isinstance(out, Input):
            result.append(args[out.position])
        elif isinstance(out, View):
            base = out.base
            if isinstance(base, Data):
                source = data.get(base)
                if source is None:
                    given = args if isinstance(base.base, Input) else results
                    source = data[base] = given[base.base.position].data
            else:
                source = (args if isinstance(base, Input) else results)[base.position]
            view = _take(out, source, sizes)
            if out.version is not None:
                set_versions((view,), (out.version,))
            result.append(view)
        else:
            result.append(out.value)
    return tuple(result)


def _take(view: View, base: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
    if view.tracked or not torch.is_grad_enabled():
        for step in view.steps:
            base = step(base, sizes)
        return base
    with torch.no_grad():
        for step in view.steps:
            base = step(base, sizes)
    return base
