"""Lower random words: the place of an element in eager's grid of threads, from its linear index,
and the generator there.

random_words(state, (512, 64), 32768, "strided", 0) at (i0, i1):
  v0 = index 64*i0 + i1 :i32                     # the thread: each draws one element
  v1 = index buf0_seed :i64;  v2 = index buf0_offset :i64
  v5 = philox v1 v2 v3 v4 v3                     # v3 = 0: call and lane; v4 = v0 as int64

The state is on the host; a launch passes seed and offset as it passes sizes. Places are int32: a
draw has fewer than 2**31 elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from flambeau_inductor.indexing.expressions import linear
from flambeau_inductor.lowering.registry import element_rule
from flambeau_prims.philox import PATTERNS, WORDS
from flambeau_prims.sizes import known_le

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.lowering.elements import Elements, Index
    from flambeau_prims.graph import Node
    from flambeau_prims.philox import Pattern
    from flambeau_prims.spec import Size

STATE = ("seed", "offset")


@element_rule("random_words")
def lower_random_words(elements: Elements, node: Node, index: Index) -> str:
    """The word, as int64."""
    state, shape, threads, name, word, _ = node.args
    pattern = PATTERNS[name]
    places = _Places(elements, pattern, shape, threads)
    turn, member, thread = places.of(index)
    position = places.scaled(places.quotient(member, pattern.group), pattern.words, word)
    calls = places.quotient(position, WORDS) if pattern.calls > 1 else places.constant(0)
    lane = places.rest(position, WORDS) if pattern.calls > 1 else position
    call = places.sum(places.scaled(turn, pattern.calls, 0), calls)
    builder = elements.builder
    seed, offset = (elements.host_value(state, number) for number in range(len(STATE)))
    wide = [builder.cast(place, torch.int64) for place in (call, thread, lane)]
    return builder.pointwise("philox", seed, offset, *wide)


@element_rule("random_member")
def lower_random_member(elements: Elements, node: Node, index: Index) -> str:
    """The place in the group, as int64."""
    shape, threads, name, _ = node.args
    pattern = PATTERNS[name]
    places = _Places(elements, pattern, shape, threads)
    _, member, _ = places.of(index)
    return elements.builder.cast(places.rest(member, pattern.group), torch.int64)


class _Places:
    """Arithmetic on nonnegative int32 values, by constants mostly."""

    def __init__(
        self, elements: Elements, pattern: Pattern, shape: Sequence[Size], threads: Size
    ) -> None:
        self.elements = elements
        self.builder = elements.builder
        self.pattern = pattern
        self.shape = shape
        self.threads = threads
        self.numel: Size = 1
        for size in shape:
            self.numel = size * self.numel

    def of(self, index: Index) -> tuple[str, str, str]:
        """Of an element: its thread's turn, its place among the turn's elements, its thread."""
        own = self.builder.index_value(self._linear(index), torch.int32)
        count = self.pattern.elements
        if self.pattern.contiguous:
            first = self.quotient(own, count)
            member = self.rest(own, count)
            if self._at_most(self.numel, self.threads * count):
                return self.constant(0), member, first
            turn = self.quotient(first, self.threads)
            return turn, member, self._minus(first, turn, self.threads)
        if self._at_most(self.numel, self.threads):
            return self.constant(0), self.constant(0), own
        turn, rest = self.constant(0), own
        if not self._at_most(self.numel, self.threads * count):
            turn = self.quotient(own, self.threads * count)
            rest = self._minus(own, turn, self.threads * count)
        member = self.quotient(rest, self.threads)
        return turn, member, self._minus(rest, member, self.threads)

    def _linear(self, index: Index) -> sympy.Expr:
        strides = []
        running: Size = 1
        for size in reversed(self.shape):
            strides.append(running)
            running = size * running
        converted = self.elements.sizes.convert_all(reversed(strides))
        return linear(index, converted, sympy.S.Zero)

    @staticmethod
    def _at_most(a: Size, b: Size) -> bool:
        return known_le(a, b)

    def constant(self, number: int) -> str:
        """A number."""
        return self.builder.constant(number, torch.int32)

    def size(self, size: Size) -> str:
        """A size."""
        return self.builder.index_value(self.elements.sizes.convert(size), torch.int32)

    def quotient(self, value: str, divisor: Size) -> str:
        """value // divisor."""
        if self._is(value, 0):
            return value
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            # A shift of adjacent indices is seen to give one value, so they share the words.
            bits = divisor.bit_length() - 1
            shifted = self.builder.pointwise("shift_right", value, self.constant(bits))
            return shifted if bits else value
        return self.builder.pointwise("trunc_divide", value, self.size(divisor))

    def rest(self, value: str, divisor: int) -> str:
        """value % divisor, for a power of two."""
        if self._is(value, 0):
            return value
        return self.builder.pointwise("bitwise_and", value, self.constant(divisor - 1))

    def scaled(self, value: str, factor: int, shift: int) -> str:
        """value * factor + shift."""
        if factor != 1 and not self._is(value, 0):
            value = self.builder.pointwise("mul", value, self.constant(factor))
        return self.sum(value, self.constant(shift))

    def sum(self, a: str, b: str) -> str:
        """a + b."""
        if self._is(a, 0):
            return b
        return a if self._is(b, 0) else self.builder.pointwise("add", a, b)

    def _minus(self, value: str, times: str, size: Size) -> str:
        if self._is(times, 0):
            return value
        product = self.builder.pointwise("mul", times, self.size(size))
        return self.builder.pointwise("sub", value, product)

    def _is(self, value: str, number: int) -> bool:
        statement: Any = self.builder.by_name[value]
        return getattr(statement, "value", None) == number
