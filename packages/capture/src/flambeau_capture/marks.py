"""Marks on tensors that say which of their sizes are to be dynamic or static, made before the first
compiled call.

    # dimension 0 is symbolic from the first capture on; CaptureError if it cannot be
    mark_dynamic(x, 0, min=2, max=512)
    maybe_mark_dynamic(x, 0)             # symbolic where that costs nothing
    mark_static(x)                       # never symbolic

A mark is an attribute of the tensor object (`_flambeau_marks`), so a tensor computed from a marked
one has none. The marks of torch's own functions (torch._dynamo.mark_dynamic and its like) are read
from the attributes those leave, and mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Break
from flambeau_capture.sources import Source
from flambeau_prims import sizes
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.wrapper_subclasses import SubclassSpec

if TYPE_CHECKING:
    from flambeau_capture.record import Capture
    from flambeau_prims.size_ranges import SizeGuard

_ATTRIBUTE = "_flambeau_marks"


@dataclass(frozen=True, slots=True)
class Mark:
    """What is said of one dimension: `kind` is "unbacked" (nothing may depend on it), "dynamic"
    (must be), "maybe" (where it costs nothing) or "static".
    """

    kind: str
    min: int | None = None
    max: int | None = None

    @property
    def must_be_symbolic(self) -> bool:
        """Whether a certain size is an error."""
        return self.kind in ("dynamic", "unbacked")


def mark_dynamic(
    tensor: torch.Tensor,
    dim: int | list[int] | tuple[int, ...],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Have dimension `dim` (or several) of a tensor be symbolic in every capture that reads it,
    from the first one on.

    min, max: the captured graph serves sizes in this range only (guards say so); a marked tensor
    outside of it is a CaptureError. A size of 0 or 1 is captured for itself, as always; so marked
    tensors of other sizes make a second graph. If the program needs one certain size, the compiled
    call raises CaptureError, which names the line that does.
    """
    if min is not None and max is not None and min > max:
        raise ValueError(f"min ({min}) is greater than max ({max})")
    _mark(tensor, dim, Mark("dynamic", min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...]) -> None:
    """Make dimension `dim` symbolic where the program permits; no error where it is fixed."""
    _mark(tensor, dim, Mark("maybe"))


def mark_static(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...] | None = None) -> None:
    """Have dimension `dim` (all of them without) never be symbolic, with `dynamic=True` neither;
    mark_dynamic takes precedence.

    Called inside a compiled function, it specialises the size.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_static takes a tensor, not a {type(tensor).__name__}")
    _mark(tensor, tuple(range(tensor.dim())) if dim is None else dim, Mark("static"))


def mark_unbacked(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...]) -> None:
    """Have dimension `dim` (or several) of a tensor be a size that nothing in the program may
    depend on, but other sizes that must agree with it.

    A program that branches on it, converts it to an int, or slices at a place that a smaller size
    would not have, gets a CaptureError which names the line; `torch._check(condition)` states what
    always holds. A size of 0 or 1 is captured for itself.
    """
    _mark(tensor, dim, Mark("unbacked"))


def _mark(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...], mark: Mark) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"marks are for tensors, not for a {type(tensor).__name__}")
    found = dict(getattr(tensor, _ATTRIBUTE, {}))
    for one in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.dim() <= one < tensor.dim():
            raise IndexError(f"dimension {one} of a tensor with {tensor.dim()} dimensions")
        at = one % tensor.dim()
        if not (mark.kind == "static" and at in found and found[at].must_be_symbolic):
            found[at] = mark
    setattr(tensor, _ATTRIBUTE, found)


MarksBySource: TypeAlias = tuple[tuple[str, tuple[tuple[int, Mark], ...]], ...]
"""Marks by the text of a tensor's source: `compile(dynamic_shapes=...)` as (dim, Mark) pairs."""


def marks_by_source(dynamic_shapes: Mapping[str, Mapping[int, Any]]) -> MarksBySource:
    """`{"x": {0: True, 1: (2, 64)}}` as marks: a key is a parameter's name, or a whole source as
    guards print it (`L['self'].weight`).

    True: the size must be dynamic; (min, max): in this range, None for no bound; "unbacked": and
    nothing may depend on it; "maybe": dynamic where that costs nothing; False: static. Raises
    TypeError and ValueError for anything else.
    """
    found = []
    for name, dims in dynamic_shapes.items():
        if not isinstance(name, str) or not isinstance(dims, Mapping):
            raise TypeError(
                f"dynamic_shapes maps names to mappings of dimensions, not {name!r} to {dims!r}"
            )
        text = f"L[{name!r}]" if name.isidentifier() else name
        found.append((text, tuple((dim, _declared(name, dim, said)) for dim, said in dims.items())))
    return tuple(found)


def _declared(name: str, dim: Any, said: Any) -> Mark:
    if type(dim) is not int:
        raise TypeError(f"dynamic_shapes of {name}: a dimension is an int, not {dim!r}")
    if isinstance(said, bool):
        return Mark("dynamic" if said else "static")
    if said in ("maybe", "unbacked"):
        return Mark(said)
    if isinstance(said, tuple) and len(said) == 2:
        low, high = said
        if all(limit is None or type(limit) is int for limit in said):
            if low is not None and high is not None and low > high:
                raise ValueError(f"dynamic_shapes of {name}: {low} is greater than {high}")
            return Mark("dynamic", low, high)
    raise TypeError(
        f"dynamic_shapes of {name}: dimension {dim} is True, False, 'maybe', 'unbacked' or "
        f"(min, max), not {said!r}"
    )


def marks_of(
    tensor: torch.Tensor, source: Source, declared: MarksBySource | None
) -> Mapping[int, Mark]:
    """The marks of a tensor's dimensions, by our functions, torch's, or its source."""
    if declared is None:
        return {}
    attributes = tensor.__dict__
    marks: dict[int, Mark] = {}
    if attributes:
        for name in ("_dynamo_weak_dynamic_indices", "_dynamo_propagated_dynamic_indices"):
            marks |= {dim: Mark("maybe") for dim in attributes.get(name, ())}
        marks |= {dim: Mark("static") for dim in attributes.get("_dynamo_static_indices", ())}
        marks |= {dim: Mark("dynamic") for dim in attributes.get("_dynamo_dynamic_indices", ())}
        for name in ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"):
            marks |= {dim: Mark("unbacked") for dim in attributes.get(name, ())}
        for limits in attributes.get("_dynamo_dynamic_range", ()):
            marks[limits.dim] = Mark("dynamic", limits.min, limits.max)
        marks |= attributes.get(_ATTRIBUTE, {})
    if declared:
        marks |= dict(dict(declared).get(source.text(), ()))
    if not marks:
        return marks
    rank = tensor.dim()
    outside = [dim for dim in marks if not -rank <= dim < rank]
    if outside:
        raise GraphBreak(
            "dynamic-mark",
            f"dimension {outside[0]} of {source.text()} is marked, which has {rank} dimensions",
        )
    return {dim % rank: mark for dim, mark in marks.items()}


def bound(size: Expr, mark: Mark, source: Source, dim: int) -> None:
    """Take a mark's range as guards on the symbol; GraphBreak if the size at hand lies outside."""
    within = (mark.min is None or size.hint >= mark.min) and (
        mark.max is None or size.hint <= mark.max
    )
    if not within:
        lower = "-inf" if mark.min is None else mark.min
        limits = f"{lower} to {'inf' if mark.max is None else mark.max}"
        raise GraphBreak(
            "dynamic-mark",
            f"dimension {dim} of {source.text()} is marked as dynamic from {limits}, but "
            f"is {size.hint}",
        )
    if mark.min is not None:
        sizes.ge(size, mark.min)
    if mark.max is not None:
        sizes.le(size, mark.max)


def violation(capture: Capture, declared: MarksBySource | None) -> Break | None:
    """Why a capture breaks the marks of its inputs: a dynamic dimension became concrete, or
    operators compared an unbacked one with a number.
    """
    env = capture.size_env
    if env is None:
        return None
    wrappers = {item.source for item in capture.inputs if isinstance(item.spec, SubclassSpec)}
    for item in capture.inputs:
        if getattr(item.source, "base", None) in wrappers:
            continue  # its class has marked an inner tensor, not the program
        if isinstance(item.example, torch.Tensor):
            for dim, mark in marks_of(item.example, item.source, declared).items():
                size = item.spec.shape[dim]  # type: ignore[union-attr]
                if mark.kind == "unbacked" and isinstance(size, Expr):
                    found = next(_depending(env, size), None)
                    if found is not None:
                        return depends(item.source, dim, f"whether {found}").to_break(found.where)
                elif mark.kind == "dynamic" and isinstance(size, Expr):
                    now, upper = env.ranges.bounds(size)
                    if now is not None and now == upper:
                        where = next(_specialising(env, size), "")
                        text = (
                            f"dimension {dim} of {item.source.text()} is marked as "
                            f"dynamic, but the program needs it to be {now}"
                            + ("" if where else " (found out by the backend)")
                        )
                        return GraphBreak("dynamic-mark", text).to_break(where)
    return None


def depends(source: Source, dim: int, question: str) -> GraphBreak:
    """The error for a question that a program asks of a dimension that is marked as unbacked."""
    return GraphBreak(
        "dynamic-mark",
        f"dimension {dim} of {source.text()} is marked as unbacked, but the program asks "
        f"{question}",
    )


def _depending(env: SizeEnv, size: Expr) -> Iterator[SizeGuard]:
    """Guards on a symbol, except >= 2, required equalities, and the program's own checks."""
    for guard in env.guards:
        sides = [side for side in (guard.lhs, guard.rhs) if isinstance(side, Expr)]
        agree = guard.op == "==" and len(sides) == 2
        by_itself = guard.where and guard.where not in env.stated
        if by_itself and not agree and any(side.symbols() & size.symbols() for side in sides):
            yield guard


def _specialising(env: SizeEnv, size: Expr) -> Iterator[str]:
    """Where guards were taken that leave a symbol but one value."""
    for guard in env.guards:
        if guard.op == "==" and guard.where:
            for side in (guard.lhs, guard.rhs):
                if isinstance(side, Expr) and side.symbols() & size.symbols():
                    yield guard.where
