"""Find common axes for two groups: split both so that every axis of one is an axis of the other, in
some order.

a: i0 < 512, i1 < 768      b: i0 < 8, i1 < 64 | r0 < 768      ->      i0 < 8, i1 < 64 | r0 < 768
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import sympy

from flambeau_inductor.indexing.expressions import int_if_known, linear_parts, quotient, symbol
from flambeau_inductor.ir import Axis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_inductor.scheduler.groups import Group, Mapping

Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Axes for the union of two groups, and how each group's axes are expressed in them."""

    outer: Axes
    inner: Axes
    a: Mapping
    b: Mapping


def numel(axes: Axes) -> sympy.Expr:
    """The number of points."""
    total: sympy.Expr = sympy.S.One
    for axis in axes:
        total = sympy.expand(total * axis.size)
    return total


def matches(
    a: Group, b: Group, shared: list[str], hint: Callable[[sympy.Expr], int]
) -> Iterator[Match]:
    """Ways to run two groups over the same axes, likely ones first.

    First dims are paired in loop order; then in the order of the strides with which both access a
    buffer that they share.
    """
    pairs = _pairs(a, b)
    if pairs is None:
        return
    seen = set()
    for key_a, key_b in _orders(a, b, shared, hint):
        match = _match(a, b, pairs, key_a, key_b)
        if match is not None and _keeps_positions(match, a, b):
            signature = (match.outer, match.inner, tuple(match.a.items()), tuple(match.b.items()))
            if signature not in seen:
                seen.add(signature)
                yield match


def _pairs(a: Group, b: Group) -> list[tuple[Axes, Axes]] | None:
    """Which axes of `a` face which of `b`; None if their numbers of points cannot agree."""
    if a.inner and b.inner:
        pairs = [(a.outer, b.outer), (a.inner, b.inner)]
    elif a.inner:
        pairs = [(a.outer + a.inner, b.outer)]
        if numel(pairs[0][0]) != numel(b.outer):
            pairs = [(a.outer, b.outer)]
    elif b.inner:
        pairs = [(a.outer, b.outer + b.inner)]
        if numel(pairs[0][1]) != numel(a.outer):
            pairs = [(a.outer, b.outer)]
    else:
        pairs = [(a.outer, b.outer)]
    return pairs if all(numel(x) == numel(y) for x, y in pairs) else None


Key: TypeAlias = "Callable[[Axis], int] | None"


def _orders(
    a: Group, b: Group, shared: list[str], hint: Callable[[sympy.Expr], int]
) -> Iterator[tuple[Key, Key]]:
    """Sort keys for the axes of both groups: none, then by the strides in each shared buffer."""
    yield None, None
    for name in shared:
        for index_a in _accesses(a, name):
            strides_a = _strides(a, index_a, hint)
            if strides_a is None:
                continue
            for index_b in _accesses(b, name):
                strides_b = _strides(b, index_b, hint)
                if strides_b is not None:
                    yield strides_a, strides_b


def _accesses(group: Group, name: str) -> list[sympy.Expr]:
    result = group.stores.get(name) or group.loads.get(name) or frozenset()
    return sorted(result, key=sympy.default_sort_key)[:1]


def _strides(group: Group, index: sympy.Expr, hint: Callable[[sympy.Expr], int]) -> Key:
    parts = linear_parts(
        index, frozenset(axis.symbol.name for axis in (*group.outer, *group.inner))
    )
    if parts is None:
        return None
    strides = {name: hint(coefficient) for name, coefficient in parts[0].items()}
    return lambda axis: -strides.get(axis.symbol.name, 1 << 62)


def _match(
    a: Group, b: Group, pairs: list[tuple[Axes, Axes]], key_a: Key, key_b: Key
) -> Match | None:
    pieces_a: dict[sympy.Symbol, list[int]] = {}
    pieces_b: dict[sympy.Symbol, list[int]] = {}
    sizes: list[sympy.Expr] = []
    for axes_a, axes_b in pairs:
        sorted_a = sorted(axes_a, key=key_a) if key_a else list(axes_a)
        sorted_b = sorted(axes_b, key=key_b) if key_b else list(axes_b)
        if not _refine(sorted_a, sorted_b, pieces_a, pieces_b, sizes):
            return None
    # The group with inner axes says which pieces are inner, and their order, above all one that
    # finds positions; else the first group does.
    leads_b = bool(b.inner) and (not a.inner or (b.finds_positions and not a.finds_positions))
    lead, pieces = (b, pieces_b) if leads_b else (a, pieces_a)
    names: dict[int, sympy.Symbol] = {}
    groups = []
    for axes, prefix in ((lead.outer, "i"), (lead.inner, "r")):
        result: list[Axis] = []
        for axis in axes:
            for piece in pieces.get(axis.symbol) or [_own_piece(axis, pieces, sizes)]:
                names[piece] = symbol(f"{prefix}{len(result)}")
                result.append(Axis(names[piece], int_if_known(sizes[piece])))
        groups.append(tuple(result))
    return Match(
        groups[0], groups[1], _mapping(pieces_a, names, sizes), _mapping(pieces_b, names, sizes)
    )


def _keeps_positions(match: Match, a: Group, b: Group) -> bool:
    """Whether each argmax and argmin still counts the points of its inner axes in their order."""
    counted = _position(match.inner, {})
    return all(
        sympy.expand(_position(group.inner, mapping) - counted) == 0
        for group, mapping in ((a, match.a), (b, match.b))
        if group.finds_positions
    )


def _position(axes: Axes, mapping: Mapping) -> sympy.Expr:
    """The row-major position of a point of these axes."""
    position: sympy.Expr = sympy.S.Zero
    for axis in axes:
        position = position * axis.size + mapping.get(axis.symbol, axis.symbol)
    return position


def _own_piece(axis: Axis, pieces: dict[sympy.Symbol, list[int]], sizes: list[sympy.Expr]) -> int:
    """A piece for an axis that faces none of the other group."""
    sizes.append(sympy.sympify(axis.size))
    pieces[axis.symbol] = [len(sizes) - 1]
    return len(sizes) - 1


def _refine(
    axes_a: list[Axis], axes_b: list[Axis], pieces_a: dict[sympy.Symbol, list[int]],
    pieces_b: dict[sympy.Symbol, list[int]], sizes: list[sympy.Expr],
) -> bool:  # fmt: skip
    """Cut both lists of axes into common pieces, from the innermost on; False if they have none."""
    left, right = list(axes_a), list(axes_b)
    have: sympy.Expr = sympy.S.One
    want: sympy.Expr = sympy.S.One
    a = b = None
    while True:
        if have is sympy.S.One and left:
            a = left.pop()
            have = sympy.sympify(a.size)
            pieces_a[a.symbol] = []
            continue
        if want is sympy.S.One and right:
            b = right.pop()
            want = sympy.sympify(b.size)
            pieces_b[b.symbol] = []
            continue
        if a is None or b is None or have is sympy.S.One or want is sympy.S.One:
            return have is sympy.S.One and want is sympy.S.One
        piece = have if have == want or quotient(want, have) is not None else want
        rest_a, rest_b = quotient(have, piece), quotient(want, piece)
        if rest_a is None or rest_b is None:
            return False
        sizes.append(piece)
        pieces_a[a.symbol].insert(0, len(sizes) - 1)
        pieces_b[b.symbol].insert(0, len(sizes) - 1)
        have, want = rest_a, rest_b


def _mapping(
    pieces: dict[sympy.Symbol, list[int]], names: dict[int, sympy.Symbol], sizes: list[sympy.Expr]
) -> Mapping:
    """Each axis as the sum of its pieces times their strides."""
    mapping: Mapping = {}
    for axis, numbers in pieces.items():
        total: sympy.Expr = sympy.S.Zero
        stride: sympy.Expr = sympy.S.One
        for number in reversed(numbers):
            total = total + names[number] * stride
            stride = stride * sizes[number]
        mapping[axis] = sympy.expand(total)
    return mapping
