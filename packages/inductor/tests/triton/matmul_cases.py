"""Matrix products of the loop IR in every form that their writer knows, for `cases.all_cases`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import sympy
import torch

from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
from flambeau_inductor.indexing.expressions import FloorDiv, Mod, symbol
from flambeau_inductor.ir import TILE, Axis, LoopKernel, Param
from flambeau_inductor.lowering.body_builder import BodyBuilder
from flambeau_inductor.lowering.row_groups import search_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cases import Case

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
I8, I32, I64 = torch.int8, torch.int32, torch.int64

SMALL = MatmulTiling(16, 32, 32, warps=1, stages=2)
FLOAT8_ERROR = 0.3
"""A GPU keeps some 14 bits of sums of float8 products: of 0.03, if sums are of order 10."""

STATISTICS = ("sum", "max", "min", "argmax", "argmin", "sum_exp", "squared_deviations")
EPILOGUES = ("none", "bias_gelu", "gelu", "residual_two_outputs", "relu_row_scale")


def matmul_cases() -> Iterator[Case]:
    """Odd sizes, one row, one lane, transposed operands, batches, prologues, epilogues, dtypes."""
    for (m, n, k), epilogue in product(((32, 64, 64), (37, 45, 51)), EPILOGUES):
        yield matmul(m, n, k, F16, epilogue=epilogue)
    for m, n, k in ((1, 40, 33), (40, 1, 33), (17, 19, 2), (100, 70, 100)):
        yield matmul(m, n, k, F16, epilogue="bias_gelu")
    for left, right in product((False, True), repeat=2):
        yield matmul(37, 45, 51, F16, transposed=(left, right))
    yield matmul(37, 45, 51, BF16, epilogue="bias_gelu")
    yield matmul(37, 45, 51, F32, epilogue="bias_gelu")
    yield matmul(37, 45, 64, I8)
    yield matmul(20, 45, 51, F16, batch=3, epilogue="residual_two_outputs")
    yield matmul(20, 45, 51, F16, batch=3, transposed=(False, True))
    yield matmul(37, 45, 51, F16, prologue=True)
    yield matmul(20, 45, 51, F16, prologue=True, batch=2, epilogue="bias_gelu")
    yield matmul(37, 45, 51, F16, dynamic=True, epilogue="bias_gelu")
    yield matmul(0, 45, 51, F16, dynamic=True)
    persistent = MatmulTiling(16, 32, 32, warps=4, stages=2, programs=3)
    yield matmul(100, 70, 51, F16, epilogue="bias_gelu", tiling=persistent)
    described = MatmulTiling(64, 64, 64, warps=4, stages=2, programs=3, descriptors=True)
    for left, right in product((False, True), repeat=2):
        yield matmul(136, 72, 152, F16, transposed=(left, right), epilogue="bias_gelu",
                     tiling=described)  # fmt: skip
    for epilogue in ("none", "bias_gelu", "residual_two_outputs"):
        yield matmul(136, 72, 152, F16, epilogue=epilogue,
                     tiling=replace(described, described_stores=True))  # fmt: skip
    # A program a tile; more programs than multiprocessors; few rows in deep steps.
    alone = replace(described, programs=0, described_stores=True)
    yield matmul(136, 72, 152, F16, epilogue="residual_two_outputs", tiling=alone)
    yield matmul(136, 72, 152, F16, tiling=replace(described, programs=264))
    for m, tiling in ((1, (16, 16, 512)), (8, (16, 32, 256)), (64, (64, 32, 256))):
        deep = MatmulTiling(*tiling, warps=2, stages=3)
        yield matmul(m, 70, 600, BF16, epilogue="bias_gelu", transposed=(False, True), tiling=deep)
    # Digits of bytes and words, scales of groups: shorter than a step, as long, with a rest.
    thin = MatmulTiling(16, 32, 128, warps=2, stages=2)
    for (n, k), digits, group in product(((64, 256), (45, 192)), (1, 2, 4, 8), (32, 64)):
        yield matmul(20, n, k, F16, digits=digits, group=group, transposed=(False, digits < 4),
                     tiling=replace(thin, kblock=min(128, max(group, 16 * digits))))  # fmt: skip
    for ends in ((37,), (0, 5, 5, 37), (16, 32, 37), (3, 5, 20), (2,), (37, 37, 37)):
        yield matmul(37, 45, 51, F16, ends=ends, epilogue="relu_row_scale")
    yield matmul(100, 64, 96, BF16, ends=(1, 64, 64, 65, 100), tiling=thin, gathered=True)
    wide = MatmulTiling(64, 32, 64, warps=4, stages=2)
    for m, tiling in ((37, replace(wide, rough=True)), (128, replace(wide, kblock=128))):
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            yield matmul(m, 64, 192, dtype, transposed=(False, True), tiling=tiling)
    described = replace(described, rblock=64, kblock=128)
    yield matmul(128, 64, 256, torch.float8_e4m3fn, transposed=(False, True), tiling=described)
    for (m, n, k), dtype in product(((32, 64, 64), (37, 45, 51), (1, 40, 33)), (F16, F32)):
        yield matmul(m, n, k, dtype, epilogue="row_statistics")
    yield matmul(37, 45, 64, I8, epilogue="row_statistics")
    yield matmul(20, 45, 51, BF16, batch=3, epilogue="row_statistics")
    yield matmul(37, 45, 51, F16, dynamic=True, epilogue="row_statistics")
    yield matmul(100, 70, 51, F16, epilogue="row_statistics", tiling=persistent)
    yield matmul(136, 72, 152, F16, transposed=(False, True), epilogue="row_statistics",
                 tiling=replace(alone, programs=3))  # fmt: skip
    yield matmul(37, 45, 51, F16, ends=(0, 5, 37), epilogue="row_statistics")
    for m, tiling in ((37, SMALL), (100, thin)):
        yield matmul(m, 45, 51, F16, gathered=True, epilogue="relu_row_scale", tiling=tiling)
    yield matmul(20, 45, 51, F16, gathered=True, dynamic=True)


def matmul(
    m: int, n: int, k: int, dtype: torch.dtype, *, epilogue: str = "none", batch: int = 1,
    transposed: tuple[bool, bool] = (False, False), prologue: bool = False, dynamic: bool = False,
    tiling: MatmulTiling = SMALL, digits: int = 0, group: int = 0, gathered: bool = False,
    ends: tuple[int, ...] = (),
) -> Case:  # fmt: skip
    """One product, as a kernel and buffers. `digits`: the right factor is so many numbers in each
    loaded one, with a scale for each `group` of the inner axis; `gathered`: rows are looked up;
    `ends`: where groups of rows end, each with its right factor.
    """
    from cases import Case

    total = I32 if dtype is I8 else F32
    sizes = {"b": batch, "m": m, "n": n, "k": k}
    names = [name for name in "bmn" if sizes[name] != 1]
    at = {name: symbol(f"i{number}") for number, name in enumerate(names)}
    at["k"] = symbol("r0")
    rows = symbol("k0") if dynamic else m
    extents = sizes | {"m": rows}

    def index(order: str):
        """A contiguous index over dims, the last one fastest."""
        result, stride = 0, 1
        for name in reversed(order):
            result, stride = result + at.get(name, 0) * stride, stride * extents[name]
        return result + symbol("zero") * 0

    def tensor(order: str, dtype: torch.dtype) -> torch.Tensor:
        count = 1
        for name in order:
            count *= sizes[name]
        if not dtype.is_floating_point:
            return torch.randint(-5, 5, (count,), dtype=dtype)
        return torch.randn(count).to(dtype)

    builder = BodyBuilder()
    params: list[Param] = []
    buffers: list[torch.Tensor] = []

    def load(order: str, dtype: torch.dtype) -> str:
        params.append(Param(f"b{len(params)}", dtype, "read"))
        buffers.append(tensor(order, dtype))
        return builder.load(params[-1].name, index(order), dtype)

    def store(value: str, dtype: torch.dtype) -> None:
        params.append(Param(f"b{len(params)}", dtype, "write"))
        buffers.append(tensor("bmn", dtype))
        builder.store(params[-1].name, index("bmn"), builder.cast(value, dtype))

    parts = _Parts(builder, params, buffers, at, dtype)
    if gathered:
        left = parts.looked_up(m, k)
    else:
        left = load("bkm" if transposed[0] else "bmk", dtype)
    if digits:
        right = parts.dequantised(n, k, digits, group, transposed[1])
    elif ends:
        right = parts.of_groups(n, k, ends)
    else:
        right = load("bnk" if transposed[1] else "bkn", dtype)
    if prologue:
        wide = builder.cast(left, F32)
        wide = builder.pointwise("reciprocal", builder.pointwise("exp", wide))
        left = builder.compute("cast", (builder.pointwise("add", wide, wide),), dtype)
        scaled = builder.pointwise(
            "mul", builder.cast(right, F32), builder.cast(load("n", I8), F32)
        )
        right = builder.compute("cast", (scaled,), dtype)
    factors = [builder.compute("cast", (x,), total) if dtype is not total else x
               for x in (left, right)]  # fmt: skip
    value = builder.reduce("sum", builder.pointwise("mul", *factors), total)
    if epilogue == "bias_gelu":
        value = builder.pointwise("add", value, builder.cast(load("n", dtype), F32))
        value = builder.pointwise("mul", value, builder.pointwise("erf", value))
    elif epilogue == "gelu":
        erf = builder.pointwise("erf", builder.pointwise("mul", value, builder.constant(0.5, F32)))
        one = builder.constant(1.0, F32)
        value = builder.pointwise("mul", value, builder.pointwise("add", erf, one))
    elif epilogue == "residual_two_outputs":
        store(value, F32)
        value = builder.pointwise("add", value, builder.cast(load("bmn", dtype), F32))
    elif epilogue == "row_statistics":
        parts.reduced(value, at.get("b", 0) * rows + at.get("m", 0), batch * m, n, tiling.rblock)
    elif epilogue == "relu_row_scale":
        zero = builder.constant(0.0, F32)
        value = builder.pointwise("maximum", value, zero)
        value = builder.pointwise("mul", value, load("m", F32))
    store(value, total if dtype.itemsize == 1 else dtype)
    outer = tuple(Axis(at[name], extents[name]) for name in names)
    kernel = LoopKernel(
        "cuda", tuple(params), (symbol("k0"),) if dynamic else (), outer,
        (Axis(at["k"], k),), builder.finish(),
    )  # fmt: skip
    name = "-".join(
        ["matmul", f"{batch}x{m}x{n}x{k}", str(dtype), epilogue, str(transposed), str(tiling)]
        + ["prologue"] * prologue + ["dynamic"] * dynamic + ["gathered"] * gathered
        + [f"{digits} digits, groups of {group}"] * bool(digits) + [f"to {ends}"] * bool(ends)
    )  # fmt: skip
    error = {F16: 2e-3, BF16: 2e-2, F32: 1e-4, I8: 0.0}.get(dtype, FLOAT8_ERROR)
    return Case(name, kernel, buffers, (m,) if dynamic else (), error, tiling)


@dataclass
class _Parts:
    """A kernel that grows: its body, its parameters and what they hold; the places of its axes."""

    builder: BodyBuilder
    params: list[Param]
    buffers: list[torch.Tensor]
    at: dict[str, sympy.Symbol]
    dtype: torch.dtype

    def read(self, tensor: torch.Tensor, index: sympy.Expr) -> str:
        """An element of one more parameter."""
        self.params.append(Param(f"b{len(self.params)}", tensor.dtype, "read"))
        self.buffers.append(tensor)
        return self.builder.load(self.params[-1].name, index, tensor.dtype)

    def dequantised(self, n: int, k: int, digits: int, group: int, turned: bool) -> str:
        """A factor of whose numbers so many share an element, and a `group` a scale."""
        builder, lane, depth = self.builder, self.at["n"], self.at["k"]
        kind = {1: I8, 2: torch.uint8, 4: I32, 8: I32}[digits]
        bits = 8 * kind.itemsize // digits
        words, word = k // digits, FloorDiv(depth, digits)
        high = 2 ** (8 * kind.itemsize - 1) - 1
        tensor = torch.randint(0, high, (n * words,), dtype=kind)
        value = self.read(tensor, lane * words + word if turned else word * n + lane)
        if digits > 1:
            shift = builder.index_value(Mod(depth, digits) * bits, kind)
            value = builder.pointwise("shift_right", value, shift)
            value = builder.pointwise("bitwise_and", value, builder.constant(2**bits - 1, kind))
        scale = self.read(
            torch.rand(n * (k // group)), lane * (k // group) + FloorDiv(depth, group)
        )
        value = builder.pointwise("mul", builder.cast(value, F32), scale)
        return builder.compute("cast", (value,), self.dtype)

    def of_groups(self, n: int, k: int, ends: tuple[int, ...]) -> str:
        """A factor that is another matrix for each group of rows."""
        bounds = torch.tensor(ends, dtype=I32)
        self.params.append(Param(f"b{len(self.params)}", I32, "read"))
        self.buffers.append(bounds)
        group = search_group(
            self.builder, self.params[-1].name, len(ends), self.at["m"], sympy.S.Zero
        )
        index = symbol(group) * (n * k) + self.at["k"] * n + self.at["n"]
        return self.read(torch.randn(len(ends) * n * k).to(self.dtype), index)

    def reduced(self, value: str, row: sympy.Expr, rows: int, n: int, points: int) -> None:
        """Each reduction of tiles of so many points, of rows of n."""
        dtype, tiles = self.builder.dtypes[value], -(-n // points)
        for kind in STATISTICS if dtype.is_floating_point else ("sum", "max", "argmin"):
            partial = I64 if kind.startswith("arg") else dtype
            self.params.append(Param(f"b{len(self.params)}", partial, "write"))
            self.buffers.append(torch.zeros(rows * tiles, dtype=partial))
            factor = value
            if kind == "prod":  # of numbers that are not about 0: these have no exact digit
                factor = self.builder.pointwise("abs", value)
                factor = self.builder.pointwise("add", factor, self.builder.constant(1.0, dtype))
            result = self.builder.reduce_tile(kind, factor, partial, points)
            self.builder.store(self.params[-1].name, row * tiles + TILE, result)

    def looked_up(self, m: int, k: int) -> str:
        """A factor whose rows an index names."""
        count = 11
        which = self.read(torch.randint(0, count, (m,)), self.at["m"])
        self.builder.check_index(which, count)
        rows = torch.randn(count * k).to(self.dtype)
        return self.read(rows, symbol(which) * k + self.at["k"])
