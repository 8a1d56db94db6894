"""Elementwise operators: arithmetic, comparisons, logic, selection."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from one_op import Make, check, decomposed

from flambeau_prims.decompositions.pointwise import COMPARISONS, FLOAT_UNARY, ROUNDING
from flambeau_prims.evaluate import run_graph
from flambeau_prims.primitives import PRIMS

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REAL = (*FLOATS, *INTEGERS, torch.bool)
SHAPES = ((), (1,), (7,), (3, 5), (2, 1, 4), (0, 3))
PAIRS = (
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((3, 1), (1, 4)),
    ((), (3, 2)),
    ((2, 3), ()),
    ((), ()),
    ((0, 3), (3,)),
    ((2, 1, 3, 4), (3, 1, 4)),
)
EXACT_UNARY = (
    "neg",
    "abs",
    "sign",
    "sgn",
    "positive",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "square",
)


def makes(dtypes: tuple[torch.dtype, ...]) -> list[Make]:
    return [Make(seed, dtype, special=bool(seed % 2)) for dtype in dtypes for seed in (0, 1)]


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_unary(name: str) -> None:
    for make in makes(REAL):
        for shape in SHAPES:
            check(getattr(aten, name).default, make(*shape))


@pytest.mark.parametrize("name", EXACT_UNARY)
def test_exact_unary(name: str) -> None:
    for make in makes(
        REAL
        if name not in ("abs", "frac", "neg", "positive", *ROUNDING)
        else FLOATS
        if name == "frac"
        else (*FLOATS, *INTEGERS)
    ):
        for shape in SHAPES:
            check(getattr(aten, name).default, make(*shape), exact=True)


@pytest.mark.parametrize(
    "name",
    [
        "isnan",
        "isinf",
        "isposinf",
        "isneginf",
        "signbit",
        "logical_not",
        "nan_to_num",
        "deg2rad",
        "rad2deg",
        "sinc",
        "special_entr",
    ],
)
def test_other_unary(name: str) -> None:
    dtypes = FLOATS if name == "sinc" else REAL
    for make in makes(dtypes):
        check(getattr(aten, name).default, make(4, 9))
    if name == "nan_to_num":
        check(
            aten.nan_to_num.default,
            Make(3, torch.float32, special=True)(50),
            1.0,
            2.0,
            -3.0,
            exact=True,
        )


def test_bitwise_not() -> None:
    for make in makes((*INTEGERS, torch.bool)):
        check(aten.bitwise_not.default, make(3, 4))


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_round_decimals(decimals: int) -> None:
    for make in makes((torch.float32, torch.float64)):
        check(aten.round.decimals, make(3, 7), decimals=decimals)


ARITHMETIC = {
    "add": (REAL, ("Tensor", "Scalar")), "sub": ((*FLOATS, *INTEGERS), ("Tensor", "Scalar")),
    "rsub": ((*FLOATS, *INTEGERS), ("Tensor", "Scalar")), "mul": (REAL, ("Tensor", "Scalar")),
    "div": (REAL, ("Tensor", "Scalar")),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    dtypes, which = ARITHMETIC[name]
    for make in makes(dtypes):
        for left, right in PAIRS:
            check(getattr(getattr(aten, name), which[0]), make(*left), make(*right))
        for number in (3, 2.5, -1, 0, True):
            if (name, number) != ("div", 0) and not (name in ("sub", "rsub") and number is True):
                check(getattr(getattr(aten, name), which[1]), make(3, 4), number)


@pytest.mark.parametrize("name", ["add", "sub"])
def test_alpha(name: str) -> None:
    for make in makes((*FLOATS, *INTEGERS)):
        check(getattr(aten, name).Tensor, make(3, 4), make(4), alpha=3)
    check(aten.add.Tensor, Make(0, torch.float32)(3, 4), Make(1, torch.float32)(3, 1), alpha=0.3)
    check(aten.add.Scalar, Make(0, torch.float32)(3, 4), 1.5, 2)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.int32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.bool, torch.int8),
        (torch.uint8, torch.int8),
        (torch.int64, torch.bfloat16),
        (torch.float32, torch.float64),
    ],
)
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    for shapes in (((3, 4), (3, 4)), ((3, 4), ()), ((), (4,)), ((), ())):
        for a, b in ((left, right), (right, left)):
            x, y = Make(0, a)(*shapes[0]), Make(1, b)(*shapes[1])
            check(aten.add.Tensor, x, y)
            check(aten.mul.Tensor, x, y)
            check(aten.div.Tensor, x, y)
            check(aten.lt.Tensor, x, y)
            check(aten.maximum.default, x, y)
            check(aten.where.self, Make(2, torch.bool)(3, 4), x, y)


def nonzero(make: Make, *shape: int) -> torch.Tensor:
    made = make(*shape)
    return torch.where(made == 0, torch.ones_like(made), made)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "div_floor", "div_trunc"])
def test_quotients(name: str) -> None:
    for make in makes((*FLOATS, *INTEGERS)):
        if make.dtype.itemsize == 2 and make.dtype.is_floating_point:
            factor = (
                1e9 if make.special else 4.0
            )  # eager's half-precision steps differ near integers
        else:
            factor = 4.0
        for left, right in PAIRS:
            x, y = make(*left), nonzero(make, *right)
            if name.startswith("div_"):
                check(aten.div.Tensor_mode, x, y, rounding_mode=name[4:], factor=factor)
            else:
                op = (
                    aten.floor_divide.default
                    if name == "floor_divide"
                    else getattr(aten, name).Tensor
                )
                check(op, x, y, factor=factor)
        for number in (3, -2, 2.5):
            if name.startswith("div_"):
                check(aten.div.Scalar_mode, make(7), number, rounding_mode=name[4:], factor=factor)
            else:
                check(getattr(aten, name).Scalar, make(7), number, factor=factor)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 7, 0.5, -0.5, -1, -2, 2.5, -3, 1 / 3])
def test_pow_scalar(exponent: float) -> None:
    for make in makes(FLOATS):
        check(aten.pow.Tensor_Scalar, make(3, 7), exponent)
    for make in makes(INTEGERS):
        if not (isinstance(exponent, int) and exponent < 0):
            check(aten.pow.Tensor_Scalar, make(3, 7), exponent)


def test_pow_tensor() -> None:
    for make in makes(FLOATS):
        for left, right in PAIRS:
            check(aten.pow.Tensor_Tensor, make(*left), make(*right))
        check(aten.pow.Scalar, 2, make(5))
        check(aten.pow.Scalar, 0.3, make(5))
    for make in makes(INTEGERS):
        check(aten.pow.Tensor_Tensor, make(3, 4), make(3, 4, low=0, high=5))


@pytest.mark.parametrize("name", ["atan2", "copysign", "xlogy", "special_xlog1py"])
def test_float_binary(name: str) -> None:
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    for make in makes((*FLOATS, torch.int64, torch.bool)):
        for left, right in PAIRS:
            check(op, make(*left), make(*right), exact=name == "copysign")


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_logaddexp(name: str) -> None:
    for make in makes((torch.float32, torch.float64, torch.bfloat16)):
        check(getattr(aten, name).default, make(5, 9), make(9))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "heaviside"])
def test_extremes(name: str) -> None:
    for make in makes(REAL):
        for left, right in PAIRS:
            check(getattr(aten, name).default, make(*left), make(*right))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name: str) -> None:
    for make in makes(REAL):
        for left, right in PAIRS:
            check(getattr(aten, name).Tensor, make(*left), make(*right))
        check(getattr(aten, name).Scalar, make(3, 5), 1)
        check(getattr(aten, name).Scalar, make(3, 5), 0.5)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(name: str) -> None:
    for make in makes((*INTEGERS, torch.bool)):
        for left, right in PAIRS:
            check(getattr(aten, name).Tensor, make(*left), make(*right))
        check(getattr(aten, name).Scalar, make(3, 4), 5 if make.dtype is not torch.bool else True)
        check(getattr(aten, f"__{name.removeprefix('bitwise_')}__").Tensor, make(3, 4), make(4))


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name: str) -> None:
    for make in makes(INTEGERS):
        check(getattr(aten, name).Tensor, make(3, 4), make(3, 4, low=0, high=7))
        check(getattr(aten, name).Tensor_Scalar, make(3, 4), 2)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical(name: str) -> None:
    for make in makes(REAL):
        for left, right in PAIRS:
            check(getattr(aten, name).default, make(*left), make(*right))
    check(getattr(aten, name).default, Make(0, torch.int64)(3), Make(0, torch.float32)(3))


def test_where_and_masked_fill() -> None:
    for make in makes(REAL):
        mask = make(3, 4, dtype=torch.bool)
        check(aten.where.self, mask, make(3, 4), make(4), exact=True)
        check(aten.where.self, make(4, dtype=torch.bool), make(3, 1), make(), exact=True)
        check(aten.where.ScalarOther, mask, make(3, 4), 1, exact=True)
        check(aten.where.ScalarSelf, mask, 1, make(3, 4), exact=True)
        check(aten.masked_fill.Scalar, make(3, 4), mask, 1, exact=True)
        check(aten.masked_fill.Tensor, make(3, 4), make(3, 1, dtype=torch.bool), make(), exact=True)
    check(aten.where.Scalar, Make(0, torch.bool)(5), 1.0, 2, exact=True)
    check(
        aten.masked_fill.Scalar,
        Make(0, torch.float32)(2, 3),
        Make(1, torch.bool)(2, 3),
        float("-inf"),
        exact=True,
    )


def bounds() -> list[tuple[Any, Any]]:
    return [(0, 2), (None, 1), (-1, None), (2, -2), (0.5, None), (float("-inf"), float("nan"))]


def test_clamp() -> None:
    for make in makes((*FLOATS, *INTEGERS)):
        for low, high in bounds():
            if make.dtype.is_floating_point or not (
                low != low or high != high or low == float("-inf")
            ):
                check(aten.clamp.default, make(3, 5), low, high)
        check(aten.clamp.Tensor, make(3, 5), make(5), make(3, 1))
        check(aten.clamp.Tensor, make(3, 5), None, make(3, 1))
        check(aten.clamp_min.default, make(3, 5), 1)
        check(aten.clamp_max.default, make(3, 5), 1)
        check(aten.clamp_min.Tensor, make(3, 5), make(5))
        check(aten.clamp_max.Tensor, make(3, 5), make(5))


def test_addcmul_addcdiv_lerp() -> None:
    for make in makes(FLOATS):
        check(aten.addcmul.default, make(3, 5), make(5), make(3, 1), value=0.3)
        check(aten.addcmul.default, make(3, 5), make(3, 5), make(3, 5))
        check(aten.addcdiv.default, make(3, 5), make(5), nonzero(make, 3, 1), value=-2)
        for weight in (0.1, 0.5, 0.9):
            check(aten.lerp.Scalar, make(3, 5), make(3, 5), weight)
        check(aten.lerp.Tensor, make(3, 5), make(3, 5), make(3, 5))
    for make in makes(INTEGERS):
        check(aten.addcmul.default, make(3, 5), make(5), make(3, 1), value=2)


def test_addr() -> None:
    for dtype in (torch.float32, torch.float64):
        make = Make(0, dtype)
        check(aten.addr.default, make(3, 4), make(3), make(4), beta=0.5, alpha=2)
        check(
            aten.addr.default,
            torch.full((3, 4), float("nan"), dtype=dtype),
            make(3),
            make(4),
            beta=0,
        )


def test_sinc_beside_0_where_sines_of_subnormal_numbers_are_0() -> None:
    """As those of a GPU are."""
    tiny = torch.finfo(torch.float32).tiny
    x = torch.tensor([1e-45, -1e-40, 3e-39, 1e-38, 1e-30, 1e-20, 0.0, -0.0])
    graph, tensors = decomposed(aten.sinc.default, (x,), {}, [x])
    (sine,) = (node for node in graph.nodes if node.op is PRIMS["sin"])
    sine.op = dataclasses.replace(
        PRIMS["sin"], reference=lambda x: torch.where(x.abs() < tiny, 0.0, x).sin()
    )
    (result,) = run_graph(graph, tensors)
    assert torch.equal(result, torch.ones(8))
