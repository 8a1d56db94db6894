"""Random draws from a default generator: eager's numbers, bit for bit.

    y = aten.uniform.default(x)   ->   state = flambeau.reserve_random(4, cuda:0)
                                       bits = prims.random_words(state, [n], threads, "strided", 0)
                                       y = cast(bits) * 2**-32 + 2**-33, with 1 taken as 0

So a draw is computed in the kernel that reads it, and again in a backward that needs it: what is
saved is the state. Draws stay ATen's where eager's numbers do not come from such a formula (a CPU's
generator is serial: only what is made of its coins is computed in the kernel that reads them),
where a generator is given, and where the size decides which kernel draws.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import sizes
from flambeau_prims.builder import compute_dtype, memory_of
from flambeau_prims.decompositions.registry import decomposition
from flambeau_prims.gpu_draws import (
    gpu_facts,
    grid_threads,
    offset_increment,
    reserve_random,
)
from flambeau_prims.graph import Node, Value
from flambeau_prims.philox import PATTERNS
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_dense

if TYPE_CHECKING:
    from flambeau_prims.builder import Builder
    from flambeau_prims.spec import Size

aten = torch.ops.aten

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_OF_ONE_WORD = _FLOATS - {torch.float64}
"""Dtypes whose coins are those of bools in each of a CPU's ways to draw."""
_LARGEST_INDEX = 2**31 - 1
_SMALL_RANGE = 1 << 28
"""Eager draws integers of a smaller range from one word each."""


class _Draw:
    """A draw of eager, as the words of each element; in eager's order, which `shape` is the
    row-major order of.
    """

    def __init__(self, b: Builder, device: torch.device, pattern: str, threads: Size) -> None:
        self.b = b
        self.device = device
        self.pattern = pattern
        self.threads = threads
        self.shape: tuple[Size, ...] = ()
        self.order: tuple[int, ...] = ()
        self.state: Value | None = None

    def reserve(self, numel: Size, elements: int) -> None:
        """Append the step that advances the generator."""
        increment = offset_increment(numel, self.threads, elements)
        node = Node(reserve_random, (increment, self.device), {}, (), self.b.line)
        self.state = Value(self.b.fresh_name(), Spec.of((2,), dtype=torch.int64), node)
        node.outputs = (self.state,)
        self.b.nodes.append(node)

    def words(self, number: int) -> Value:
        """A word of each element: int64 in [0, 2**32)."""
        b = self.b
        return b.random_words(
            self.state, self.shape, self.threads, self.pattern, number, self.device
        )

    def uniform(self, dtype: torch.dtype) -> Value:
        """Numbers in (0, 1], in float32 from one word, in float64 from two."""
        b = self.b
        if not PATTERNS[self.pattern].words > 1:
            word = b.cast(self.words(0), torch.float32)
            return b.cast(b.add(b.mul(word, 2.0**-32), 2.0**-33), dtype)
        high = b.shift_left(self.words(1), 21)
        bits = b.cast(b.bitwise_xor(self.words(0), high), torch.float64)
        return b.add(b.mul(bits, 2.0**-53), 2.0**-54)

    def laid_out(self, x: Value) -> Value:
        """What was computed in eager's order, as the result's dims are."""
        if self.order == tuple(range(len(self.order))):
            return x
        return self.b.permute(x, tuple(self.order.index(dim) for dim in range(len(self.order))))


def _dims_in_memory(spec: Spec) -> tuple[int, ...] | None:
    """The dims of a tensor without gaps, outermost first; None if it has gaps or overlaps."""
    if not is_dense(spec):
        return None
    return tuple(sorted(range(spec.ndim), key=lambda dim: -sizes.hint_of(spec.stride[dim])))


def _fill(b: Builder, spec: Spec, pattern: str) -> _Draw | None:
    """The draw of eager's kernel that fills a tensor; None if it is left to ATen."""
    facts = gpu_facts(spec.device)
    order = _dims_in_memory(spec)
    numel = spec.numel
    if facts is None or order is None or sizes.eq(numel, 0):
        return None
    if sizes.gt(numel * spec.dtype.itemsize, _LARGEST_INDEX):
        return None  # eager cuts it, and draws for each part
    draw = _Draw(b, spec.device, pattern, grid_threads(facts, numel))
    draw.order = order
    draw.shape = tuple(spec.shape[dim] for dim in order)
    draw.reserve(numel, PATTERNS[pattern].elements)
    return draw


# 1. Uniform


@decomposition(aten.rand.default, aten.rand.generator)
def rand(b: Builder, size: Any, *, generator: Any = None, **options: Any) -> Value:
    """Uniform in [0, 1)."""
    return _uniform(b, 0.0, 1.0, generator)


@decomposition(aten.rand_like.default, aten.rand_like.generator)
def rand_like(b: Builder, x: Value, *, generator: Any = None, **options: Any) -> Value:
    """Uniform in [0, 1), in the shape of another tensor."""
    return _uniform(b, 0.0, 1.0, generator)


@decomposition(aten.uniform.default)
def uniform(
    b: Builder, x: Value, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None
) -> Value:
    """Uniform in [low, high)."""
    return _uniform(b, low, high, generator)


def _uniform(b: Builder, low: Any, high: Any, generator: Any) -> Value:
    spec = b.result
    dtype = spec.dtype
    if generator is not None or dtype not in _FLOATS or not _are_numbers(low, high):
        return NotImplemented
    start, end = (torch.tensor(number, dtype=torch.float64).to(dtype) for number in (low, high))
    span = (end - start).item()
    if not (low <= high and math.isfinite(span)):
        return NotImplemented  # eager raises
    draw = _fill(b, spec, "strided_wide" if dtype is torch.float64 else "strided")
    if draw is None:
        return NotImplemented
    drawn = draw.uniform(compute_dtype(dtype))
    if (start.item(), span) != (0.0, 1.0):
        drawn = b.fma(drawn, span, start.item())
    # Eager compares what it has rounded to the result's dtype with the end, and takes the start.
    least, most = _rounded_to(end.item(), dtype)
    if least == most:
        is_end = b.eq(drawn, most)
    else:
        is_end = b.bitwise_and(b.ge(drawn, least), b.le(drawn, most))
    # The selection last: a later cast back must see what was rounded.
    return draw.laid_out(b.where(is_end, start.item(), b.cast(drawn, dtype)))


def _rounded_to(number: float, dtype: torch.dtype) -> tuple[float, float]:
    """The least and the greatest float32 that round to this number of the dtype; the number itself
    if the dtype is no smaller.
    """
    if dtype.itemsize > 2:
        return number, number
    bounds = []
    for side in (-torch.inf, torch.inf):
        beyond = torch.tensor(number, dtype=dtype).nextafter(torch.tensor(side, dtype=dtype))
        middle = torch.tensor((beyond.double().item() + number) / 2, dtype=torch.float32)
        if middle.to(dtype).item() != number:
            middle = middle.nextafter(torch.tensor(-side))
        bounds.append(middle.item())
    return bounds[0], bounds[1]


def _are_numbers(*numbers: Any) -> bool:
    return all(isinstance(number, (int, float)) for number in numbers)


# 2. Coins


@decomposition(aten.bernoulli.p)
def bernoulli(b: Builder, x: Value, p: Any = 0.5, *, generator: Any = None) -> Value:
    """1 with probability p, else 0; a CPU's coins are bools, from the same words."""
    spec = b.result
    if generator is not None or not _are_numbers(p):
        return NotImplemented
    dtype = torch.float64 if spec.dtype is torch.float64 else torch.float32
    draw = _fill(b, spec, "strided_wide" if dtype is torch.float64 else "strided")
    if draw is not None:
        return draw.laid_out(b.cast(b.lt(draw.uniform(dtype), _rounded(p, dtype)), spec.dtype))
    if spec.device.type == "cpu" and spec.dtype in _OF_ONE_WORD:
        return b.cast(_coins(b, spec, p), spec.dtype)
    return NotImplemented


def _coins(b: Builder, spec: Spec, p: float) -> Value:
    """Bools that ATen draws."""
    like = b.empty(spec.shape, torch.bool, spec.device)
    node = Node(aten.bernoulli.p, (like, p), {}, (), b.line)
    coins = Value(b.fresh_name(), Spec.of(spec.shape, dtype=torch.bool, device=spec.device), node)
    node.outputs = (coins,)
    b.nodes.append(node)
    return coins


@decomposition(aten.native_dropout.default)
def native_dropout(b: Builder, x: Value, p: Any, train: bool | None) -> Any:
    """x * mask / (1 - p), and the mask."""
    spec = b.result
    if gpu_facts(spec.device) is None or not _are_numbers(p):
        return NotImplemented
    if train is False:
        return b.clone(x), b.full(spec.shape, True, torch.bool, spec.device)
    if p == 1:
        return (
            b.full(spec.shape, 0.0, spec.dtype, spec.device),
            b.full(spec.shape, False, torch.bool, spec.device),
        )
    draw = _dropout(b, x)
    if draw is None:
        return NotImplemented
    dtype = torch.float64 if spec.dtype is torch.float64 else torch.float32
    keep = _rounded(1.0 - p, dtype)
    mask = draw.laid_out(b.lt(draw.uniform(dtype), keep))
    kept = b.mul(b.cast(x, dtype), b.cast(mask, dtype))
    return b.mul(kept, _rounded(1.0 / keep, dtype)), mask


def _dropout(b: Builder, x: Value) -> _Draw | None:
    """The draw of eager's dropout; None if it is left to ATen.

    From aligned memory without gaps it reads 16 bytes at a time, and draws for these elements
    together; otherwise it draws as if it filled a row-major tensor.
    """
    spec = x.spec
    facts = gpu_facts(spec.device)
    if facts is None or spec.dtype not in _FLOATS or sizes.eq(spec.numel, 0):
        return None
    if sizes.gt(spec.numel, _LARGEST_INDEX):
        return None
    order = _dims_in_memory(spec)
    adjacent = 1 if order is None else 16 // spec.dtype.itemsize
    memory = memory_of(x)
    # Behind the memory that is checked to be aligned: a later input may have another offset.
    offset = spec.offset - memory.spec.offset
    while adjacent > 1 and not (
        sizes.eq(spec.numel % adjacent, 0) and sizes.eq(offset % adjacent, 0)
    ):
        adjacent //= 2
    if adjacent > 1 and memory.producer is None:
        if memory not in b.aligned:
            return None
        b.aligned[memory] = True
    pattern = f"adjacent{adjacent}" if adjacent > 1 else "strided"
    draw = _Draw(b, spec.device, pattern, grid_threads(facts, spec.numel))
    draw.order = order if adjacent > 1 and order is not None else tuple(range(spec.ndim))
    draw.shape = tuple(spec.shape[dim] for dim in draw.order)
    draw.reserve(spec.numel, 4)
    return draw


def _rounded(number: float, dtype: torch.dtype) -> float:
    return torch.tensor(number, dtype=torch.float64).to(dtype).item()


# 3. Integers


@decomposition(aten.randint.default, aten.randint.generator)
def randint(b: Builder, high: Any, size: Any, *, generator: Any = None, **options: Any) -> Value:
    """Integers in [0, high)."""
    return _integers(b, 0, high, generator)


@decomposition(aten.randint.low, aten.randint.low_generator)
def randint_low(
    b: Builder, low: Any, high: Any, size: Any, *, generator: Any = None, **options: Any
) -> Value:
    """Integers in [low, high)."""
    return _integers(b, low, high, generator)


@decomposition(getattr(aten.random, "from"))
def random_from(b: Builder, x: Value, low: Any, high: Any, *, generator: Any = None) -> Value:
    """Integers in [low, high)."""
    return _integers(b, low, high, generator)


@decomposition(aten.random.to)
def random_to(b: Builder, x: Value, high: Any, *, generator: Any = None) -> Value:
    """Integers in [0, high)."""
    return _integers(b, 0, high, generator)


def _integers(b: Builder, low: Any, high: Any, generator: Any) -> Value:
    spec = b.result
    if generator is not None or type(low) is not int or type(high) is not int:
        return NotImplemented
    if spec.dtype not in (torch.int64, torch.int32) or not 0 < high - low < _SMALL_RANGE:
        return NotImplemented
    limits = torch.iinfo(spec.dtype)
    if low < limits.min or high - 1 > limits.max:
        return NotImplemented  # eager raises
    draw = _fill(b, spec, "strided")
    if draw is None:
        return NotImplemented
    return draw.laid_out(b.cast(b.add(b.fmod(draw.words(0), high - low), low), spec.dtype))


# 4. Normal and exponential numbers

_TURN = 6.2831854820251465 * 2.0**-32
"""2 pi in float32, over the range of a word."""


@decomposition(aten.randn.default, aten.randn.generator)
def randn(b: Builder, size: Any, *, generator: Any = None, **options: Any) -> Value:
    """Normal numbers."""
    return _normal(b, 0.0, 1.0, generator)


@decomposition(aten.randn_like.default, aten.randn_like.generator)
def randn_like(b: Builder, x: Value, *, generator: Any = None, **options: Any) -> Value:
    """Normal numbers in the shape of another tensor."""
    return _normal(b, 0.0, 1.0, generator)


@decomposition(aten.normal_functional.default)
def normal(
    b: Builder, x: Value, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None
) -> Value:
    """Normal numbers around a mean."""
    return _normal(b, mean, std, generator)


@decomposition(aten.normal.float_float)
def normal_numbers(
    b: Builder, mean: Any, std: Any, size: Any, *, generator: Any = None, **options: Any
) -> Value:
    """Normal numbers around a mean."""
    return _normal(b, mean, std, generator)


def _normal(b: Builder, mean: Any, std: Any, generator: Any) -> Value:
    """By Box and Muller, "A note on the generation of random normal deviates", 1958."""
    spec = b.result
    if generator is not None or not _are_numbers(mean, std) or not std >= 0:
        return NotImplemented
    if spec.dtype not in _FLOATS or spec.dtype is torch.float64:
        return NotImplemented
    draw = _fill(b, spec, "strided_pairs")
    if draw is None:
        return NotImplemented
    single = torch.float32
    radius = b.add(b.mul(b.cast(draw.words(0), single), 2.0**-32), 2.0**-33)
    radius = b.sqrt(b.mul(b.log(radius), -2.0))
    angle = b.fma(b.cast(draw.words(1), single), _TURN, _TURN / 2)
    member = b.random_member(draw.shape, draw.threads, draw.pattern, draw.device)
    is_first = b.eq(member, 0)
    drawn = b.mul(b.where(is_first, b.fast_sin(angle), b.fast_cos(angle)), radius)
    drawn = b.fma(drawn, _rounded(std, single), _rounded(mean, single))
    return draw.laid_out(_rounded_for_good(b, drawn, spec.dtype))


@decomposition(aten.exponential.default)
def exponential(b: Builder, x: Value, rate: Any = 1.0, *, generator: Any = None) -> Value:
    """Exponential numbers."""
    spec = b.result
    if generator is not None or not _are_numbers(rate) or not rate > 0:
        return NotImplemented
    if spec.dtype not in _FLOATS or spec.dtype is torch.float64:
        return NotImplemented
    draw = _fill(b, spec, "strided")
    if draw is None:
        return NotImplemented
    single = torch.float32
    drawn = draw.uniform(single)
    half = torch.finfo(single).eps / 2
    logarithm = b.where(b.ge(drawn, 1.0 - half), -half, b.fast_log(drawn))
    scale = (torch.tensor(-1.0) / torch.tensor(rate, dtype=torch.float64).to(single)).item()
    return draw.laid_out(_rounded_for_good(b, b.mul(logarithm, scale), spec.dtype))


def _rounded_for_good(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """x in a dtype. A later cast back sees what was rounded: the last operator is no cast."""
    if dtype is x.spec.dtype:
        return x
    return b.where(b.isnan(x), math.nan, b.cast(x, dtype))
