"""Calls of every pointwise operator that has a decomposition, on operands of one form: the values
are random, special (zeros of both signs, infinities, NaN, subnormal numbers, ends of ranges) and
fill rows of odd length.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.bitwise import _is_pointwise
from flambeau_prims.decompositions.registry import registered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (
    *FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
FORMS = ("same", "strided", "mixed", "number", "transposed", "broadcast")
"""Operands of one dtype in rows; with gaps; of several dtypes; 0-dim float64 behind the first; in
another order of dims; repeated.
"""
LENGTH = 7 * 587
MOST_ARGUMENTS = 5

_CHOICES: dict[str, list[Any]] = {
    "alpha": [1, 3, 0.3], "beta": [1, 0.3], "value": [1, 0.3, 2], "input_scale": [1, 1.3],
    "scale": [1, 1.3], "eps": [None, 1e-3], "threshold": [0.5, 0], "lambd": [0.5],
    "decimals": [0, 2, -1], "rounding_mode": [None, "trunc", "floor"],
    "approximate": ["none", "tanh"], "is_result": [False], "dim": [-1], "nan": [None, 1.5],
    "posinf": [None, 1.5], "neginf": [None], "negative_slope": [0.01, 0.25],
    "min": [-0.6, 0], "min_val": [-0.6, 0], "max": [0.7, 0], "max_val": [0.7, 6],
    "exponent": [2, 3, 0.5, -0.5, -1, -2, 2.5, 1, 0, -3],
}  # fmt: skip
"""What arguments other than tensors are, by name."""
_NUMBERS = [3, 0.7, -2, 0.1]


@dataclass
class Call:
    """An operator, its operands, and what stands beside them."""

    op: OpOverload
    operands: list[torch.Tensor]
    others: tuple[Any, ...]

    def __post_init__(self) -> None:
        # Schemas are read here, since a graph holds no call of theirs.
        named = list(zip(self.op._schema.arguments, self.others, strict=True))
        self.args = [value for argument, value in named if not argument.kwarg_only]
        self.kwargs = {argument.name: value for argument, value in named if argument.kwarg_only}

    def __call__(self, *operands: torch.Tensor) -> Any:
        given = iter(operands)
        args = [next(given) if value is ... else value for value in self.args]
        kwargs = {name: next(given) if v is ... else v for name, v in self.kwargs.items()}
        return self.op(*args, **kwargs)

    def __str__(self) -> str:
        operands = [f"{x.dtype}{list(x.shape)}{x.stride()}" for x in self.operands]
        return f"{self.op}({', '.join(map(str, self.others))}) on {' '.join(operands)}"


def calls(dtype: torch.dtype, form: str) -> Iterator[Call]:
    """The calls that eager performs."""
    for op in registered():
        if not _is_pointwise(op) or "foreach" in str(op) or "loss" in str(op):
            continue
        if form not in ("same", "strided") and _count(op) < 2:
            continue
        operands = _operands(op, dtype, form)
        for others in _arguments(op):
            call = Call(op, operands, others)
            try:
                call(*operands)
            except (RuntimeError, NotImplementedError):
                continue
            yield call


def _count(op: OpOverload) -> int:
    """How many operands are tensors."""
    kinds = [str(argument.type) for argument in op._schema.arguments]
    return sum(kind in ("Tensor", "Optional[Tensor]") for kind in kinds)


def _arguments(op: OpOverload) -> list[tuple[Any, ...]]:
    choices: list[list[Any]] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            choices.append([...])
        elif kind == "bool":
            choices.append([True, False])
        elif "shift" in str(op):
            choices.append([1, 3])
        elif "Memory" in kind:
            choices.append([None])
        else:
            choices.append(_CHOICES.get(argument.name, _NUMBERS))
    combined = list(itertools.product(*choices))
    most = max(MOST_ARGUMENTS, *map(len, choices), 0)
    return combined[:: -(-len(combined) // most)]


_OTHERS = {
    torch.float32: torch.float64, torch.float64: torch.float32, torch.float16: torch.float32,
    torch.bfloat16: torch.int64, torch.int64: torch.float32, torch.int32: torch.int64,
    torch.int16: torch.uint8, torch.int8: torch.bfloat16, torch.uint8: torch.int8,
    torch.bool: torch.float32,
}  # fmt: skip


def _operands(op: OpOverload, dtype: torch.dtype, form: str) -> list[torch.Tensor]:
    name = op._schema.name.partition("::")[2]
    result = []
    for place in range(_count(op)):
        mine = _OTHERS[dtype] if form == "mixed" and place else dtype
        mine = torch.float64 if form == "number" and place else mine
        if (name, place) in (("where", 0), ("masked_fill", 1)):
            mine = torch.bool
        if form == "number" and place:
            result.append(torch.tensor(0.1).to(mine))
            continue
        x = values(mine, 2 * LENGTH if form == "strided" else LENGTH, place)
        if place and not mine.is_floating_point and mine is not torch.bool:
            x = _second(name, x)
        if form == "strided":
            x = x[::2]
        elif form == "transposed":
            x = x.reshape(-1, 7).t() if place else x.reshape(7, -1)
        elif form == "broadcast":
            x = x.reshape(7, -1)[:, :1] if place else x.reshape(7, -1)
        result.append(x)
    if name.startswith("glu"):  # of even length
        result = [x.flatten()[:-1] for x in result]
    if name == "glu_backward":
        result[0] = result[0][: len(result[1]) // 2]
    if name == "addr":  # an outer product
        result = [x.flatten()[:61] for x in result]
    return result


def _second(name: str, x: torch.Tensor) -> torch.Tensor:
    """A divisor, shift count or exponent that is defined."""
    if "div" in name or name in ("remainder", "fmod"):
        # The least integer has no quotient by -1.
        return torch.where((x == 0) | (x == -1), 3, x).to(x.dtype)
    if "shift" in name:
        return (x & 6).to(x.dtype)
    return (x & 3).to(x.dtype) if "pow" in name else x


@functools.cache
def values(dtype: torch.dtype, length: int, seed: int) -> torch.Tensor:
    """Random and special values; pairs of special ones meet in operands of seeds 0 and 1."""
    random = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(length, generator=random) < 0.5
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        x = torch.randint(max(limits.min, -50), 100, (length,), generator=random)
        x[::97], x[5::101], x[3::89] = limits.max, limits.min, 0
        return x.to(dtype)
    limits = torch.finfo(dtype)
    x = torch.randn(length, generator=random, dtype=torch.float64)
    x *= torch.tensor([1.0, 10.0, 0.01, 1.0]).repeat(length // 4 + 1)[:length]
    special = torch.tensor([
        0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, 2, 3, -3, 6, -6, math.inf, -math.inf, math.nan,
        limits.max, limits.min, limits.tiny, -limits.tiny, limits.tiny / 4, limits.eps,
        1 + limits.eps, 1 - limits.eps / 2, 20.0, 88.8, -104.0, 0.7, -0.6, 0.1, 0.01, 7.25,
    ], dtype=torch.float64)  # fmt: skip
    count = len(special)
    number = torch.arange(min(length, count * count))
    places = torch.randperm(length, generator=torch.Generator().manual_seed(99))[: len(number)]
    x[places] = special[number // count ** (seed % 2) % count]
    return x.to(dtype)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether tensors are equal, in the signs of zeros, too; NaNs are equal."""
    if (got.dtype, got.shape, got.stride()) != (want.dtype, want.shape, want.stride()):
        return False
    if not want.dtype.is_floating_point:
        return torch.equal(got, want)
    equal = (got == want) & (torch.signbit(got) == torch.signbit(want))
    return bool((equal | (got.isnan() & want.isnan())).all())
