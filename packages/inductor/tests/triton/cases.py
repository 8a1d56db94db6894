"""Kernels of the loop IR, with inputs: run by Triton's interpreter (and on a GPU) and compared with
the reference evaluator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy
import torch
from float8_cases import float8_cases
from matmul_cases import matmul_cases
from ragged_cases import ragged_cases
from repeat_cases import repeat_cases
from row_share_cases import joined_shares, row_share_cases
from row_tile_cases import row_tile_cases

from flambeau_inductor.codegen.float8 import FLOAT8
from flambeau_inductor.codegen.triton.tiling import Tiling, choose_tiling
from flambeau_inductor.emit_program import build_kernels
from flambeau_inductor.indexing.expressions import FloorDiv, Mod, symbol
from flambeau_inductor.ir import (
    Axis,
    Compute,
    Constant,
    IndexValue,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Scan,
    Sort,
    Store,
)
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.philox import PATTERNS
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
    from flambeau_inductor.ir import Statement

F32, F64, I64, I32, BOOL, BF16 = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.bfloat16,
)  # fmt: skip

INTEGER_OPS = frozenset(
    [
        "float_of_bits",
        "philox",
        "neg",
        "abs",
        "sign",
        "add",
        "sub",
        "mul",
        "maximum",
        "minimum",
        "floor_divide",
        "trunc_divide",
        "fmod",
        "remainder",
        "pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "where",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "shift_left",
        "shift_right",
    ]
)
BOOL_OPS = frozenset(
    [
        "eq",
        "ne",
        "where",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "maximum",
        "minimum",
    ]
)
INTEGER_ONLY = frozenset(
    ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right"]
)


APPROXIMATE = ("fast_log", "fast_sin", "fast_cos")
"""Operators that are instructions of a GPU."""


@dataclass
class Case:
    """A kernel, the buffers it runs on (outputs included, filled with garbage), the ints of its
    launch, the error allowed.
    """

    name: str
    kernel: LoopKernel
    buffers: list[torch.Tensor]
    ints: tuple[int, ...] = ()
    relative_error: float = 1e-5
    tiling: Tiling | MatmulTiling | None = None
    """Tile sizes, where the kernel's own choice would not show the form that is tested."""
    absolute_error: float | None = None
    """Of sums of thousands of terms, which cancel; else a tenth of the relative error."""


def all_cases() -> Iterator[Case]:
    """Every scalar operator on every dtype it takes; reductions in each form; masks, gathers,
    symbolic sizes.
    """
    torch.manual_seed(0)
    yield from scalar_cases()
    yield from cast_cases()
    for rows, row in ((5, 7), (3, 33)):
        yield from reduction_cases(rows, row)
    yield from reduction_cases(5, 50, Tiling(2, 16))
    yield softmax(8, 32)  # tiles that fit exactly
    yield from reduction_cases(4, 64, Tiling(2, 16))
    yield from reduction_cases(3, 0)
    yield moments(5, 50)
    yield equal_rows(4095, 40)
    yield softmax(6, 37)
    yield softmax(3, 5000)
    yield softmax(3, 40001)  # reads its rows forward and backward
    yield from ragged_cases(Case)
    yield from row_share_cases(Case)
    yield from row_tile_cases(Case)
    yield column_sum(4501, 70)
    yield transposed(13, 29)
    yield transposed(45, 70)
    yield transposed(64, 128)
    across = Tiling(32, 16, lanes=("i0",), lane_first=True)
    yield replace(transposed(45, 70), name="transposed-lane-first", tiling=across)
    yield column_sum(40, 100)
    yield weight_gradient(301, 70)
    yield weight_gradient(40, 128)
    yield padded(11, 4)
    yield gathered(9, 21)
    yield scattered(50, 7, "add")
    yield scattered(1, 33, "set")
    yield resampled(5, 21)
    yield resampled(3, 40, Tiling(4, 16, lanes=("i1",), dealt=True))
    yield resampled(3, 40, Tiling(64, dealt=True))
    yield from repeat_cases(Case)
    yield pooled(3, 7, 10)
    yield pooled_gradient(3, 7, 10)
    for rows, row in ((5, 7), (3, 33)):
        yield from scan_cases(rows, row)
        yield from sort_cases(rows, row)
    yield from scan_cases(5, 50, Tiling(2, 16))
    yield from scan_cases(4, 64, Tiling(2, 16))
    yield column_scan(70, 101)
    yield from matmul_cases()
    yield from float8_cases(Case)
    yield from drawn_cases()


def drawn_cases() -> Iterator[Case]:
    """Random words in each pattern of eager's draws, for one and several turns of the threads."""
    for pattern, which in PATTERNS.items():
        for shape in ((1,), (257, 3), (40, 100), (64, 9, 8)):
            yield drawn(pattern, shape, which.words)


def drawn(pattern: str, shape: tuple[int, ...], words: int) -> Case:
    """words[i] and the place of each element among those that share them."""
    builder = Builder([], ["state"])
    state, device = Value("state", Spec.of((2,), dtype=I64)), torch.device("cuda:0")
    threads = 256 * min(3, -(-math.prod(shape) // 256))
    outputs = [
        builder.random_words(state, shape, threads, pattern, word, device) for word in range(words)
    ]
    outputs.append(builder.random_member(shape, threads, pattern, device))
    options = InductorOptions()
    graph = Graph([state], builder.nodes, list(outputs))
    (launch,) = build_kernels(schedule_graph(graph, options), options).values()
    buffers = [torch.zeros(shape, dtype=I64) for _ in launch.buffers]
    name = f"drawn-{pattern}-{'x'.join(map(str, shape))}"
    return Case(name, launch.kernel, buffers, (-(2**62) + 12345, 4 * (2**33 + 5)))


def operands(dtype: torch.dtype, count: int, op: str) -> list[torch.Tensor]:
    """Inputs inside an operator's domain, with its special values."""
    arity = SCALAR_OPS[op].arity
    if op == "where":
        return [torch.rand(count) < 0.5, *(sample(dtype, count) for _ in range(2))]
    if op == "philox":
        words = [torch.randint(-(2**63), 2**63 - 1, (count,)) for _ in range(3)]
        seed, offset, thread = words[0], words[1].abs() & -4, words[2].abs()
        return [seed, offset, torch.arange(count), thread, torch.arange(count) % 4]
    if op in APPROXIMATE:
        return [torch.rand(count, dtype=dtype) * 6]
    values = [sample(dtype, count) for _ in range(arity)]
    if dtype.is_floating_point:
        if op in ("acosh",):
            values[0] = values[0].abs() + 1
        elif op in ("asin", "acos", "atanh"):
            values[0] = values[0].tanh()
        elif op in ("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "log1p") or op == "pow":
            values[0] = values[0].abs() + 0.01
        special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], dtype=dtype)
        if op not in ("lgamma", "pow", "floor_divide", "remainder", "fmod", "atan2"):
            for index, value in enumerate(values):
                value[index : index + 5] = special
    elif dtype is not BOOL:
        if op in ("floor_divide", "trunc_divide", "fmod", "remainder"):
            values[1] = torch.where(values[1] == 0, 3, values[1])
        if op.startswith("shift"):
            values[1] = values[1].abs() % 8
        if op == "pow":
            values[1] = values[1].abs() % 6
    return values


def sample(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Random values of a dtype."""
    if dtype is BOOL:
        return torch.rand(count) < 0.5
    if dtype.is_floating_point:
        return torch.randn(count, dtype=dtype) * 2
    low = 0 if dtype is torch.uint8 else -20
    return torch.randint(low, 20, (count,), dtype=dtype)


def limits(dtype: torch.dtype) -> tuple[int, int]:
    """The smallest and the greatest integer of a dtype."""
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def scalar_cases(count: int = 83) -> Iterator[Case]:
    """y[i] = op(x[i], ...)."""
    i = symbol("i0")
    for name, op in SCALAR_OPS.items():
        if name == "cast":
            continue
        for dtype in (F32, F64, I64, I32, BOOL):
            if name in ("float_of_bits", "philox") and dtype is not I64:
                continue
            if dtype is BOOL and name not in BOOL_OPS:
                continue
            if dtype in (I64, I32) and name not in INTEGER_OPS:
                continue
            if dtype.is_floating_point and name in INTEGER_ONLY:
                continue
            if dtype is F64 and name in APPROXIMATE:
                continue
            inputs = operands(dtype, count, name)
            result = dtype if op.result == "same" else getattr(torch, op.result)
            loads = tuple(Load(f"v{n}", x.dtype, f"b{n}", i) for n, x in enumerate(inputs))
            args = tuple(load.name for load in loads)
            out = f"b{len(inputs)}"
            body = (*loads, Compute("v9", result, name, args), Store(out, i, "v9"))
            params = tuple(Param(f"b{n}", x.dtype, "read") for n, x in enumerate(inputs))
            kernel = LoopKernel(
                "cuda", (*params, Param(out, result, "write")), (), (Axis(i, count),), (), body
            )
            tolerance = 1e-5 if dtype is F32 else 1e-12
            if name in APPROXIMATE:
                tolerance = 1e-4
            yield Case(
                f"{name}-{dtype}",
                kernel,
                [*inputs, torch.zeros(count, dtype=result)],
                (),
                tolerance,
            )


def cast_cases(count: int = 41) -> Iterator[Case]:
    """y[i] = x[i] in another dtype."""
    i = symbol("i0")
    for source in (F32, F64, BF16, I64, I32, BOOL, torch.uint8):
        for to in (F32, F64, BF16, I64, I32, BOOL, torch.uint8):
            if source is to:
                continue
            x = (torch.rand(count) * 100).to(source)
            body = (
                Load("v0", source, "b0", i),
                Compute("v1", to, "cast", ("v0",)),
                Store("b1", i, "v1"),
            )
            params = (Param("b0", source, "read"), Param("b1", to, "write"))
            kernel = LoopKernel("cuda", params, (), (Axis(i, count),), (), body)
            yield Case(f"cast-{source}-{to}", kernel, [x, torch.zeros(count, dtype=to)])


def reduction_cases(rows: int, row: int, tiling: Tiling | None = None) -> Iterator[Case]:
    """y[i] = reduce over r of x[i, r], every kind that rows of this length have, and the dtypes it
    takes.
    """
    i, r = symbol("i0"), symbol("r0")
    kinds = {
        "sum": (F32, I64),
        "prod": (F32,),
        "max": (F32, I64),
        "min": (F32, I32),
        "any": (BOOL,),
        "all": (BOOL,),
        "sum_exp": (F32, F64),
        "squared_deviations": (F32, F64),
        "mean": (F32, F64),
        "argmax": (F32, I64, BOOL),
        "argmin": (F32, I32, BOOL),
    }
    for kind, dtypes in kinds.items():
        if row == 0 and kind not in ("sum", "prod", "any", "all", "squared_deviations"):
            continue
        for dtype in dtypes:
            x = sample(dtype, rows * row)
            if kind == "prod" and row:
                x = 1 + x / row / 4
            if kind in ("max", "argmax", "min", "sum_exp") and dtype is F32 and row:
                x[row // 2] = float("nan")
            if kind == "sum_exp":
                x[-2 * row :] = float("-inf")  # a row without a finite element, and one with some
                x[-2 * row :: 3] = 100 * sample(dtype, len(x[-2 * row :: 3]))
                x[-row:] = float("-inf")
            if kind in ("squared_deviations", "mean"):
                x = x + 1000
            if kind.startswith("arg") and dtype is not F32:
                ends = (False, True) if dtype is BOOL else limits(dtype)
                x[:row] = ends[kind == "argmin"]  # what running tiles begin with
            result = I64 if kind.startswith("arg") else dtype
            body = (
                Load("v0", dtype, "b0", row * i + r),
                Reduce("v1", result, kind, "v0"),
                Store("b1", i, "v1"),
            )
            params = (Param("b0", dtype, "read"), Param("b1", result, "write"))
            kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
            # An empty row stands in front of memory that is not its own.
            buffers = [x if row else sample(dtype, 64), torch.zeros(rows, dtype=result)]
            yield Case(f"{kind}-{dtype}-{rows}x{row}", kernel, buffers, (), 1e-4, tiling)


def softmax(rows: int, row: int) -> Case:
    """Two reductions and their consumers over a symbolic number of rows."""
    i, r, k = symbol("i0"), symbol("r0"), symbol("k0")
    index = row * i + r
    body = (
        Load("v0", F32, "b0", index),
        Reduce("v1", F32, "max", "v0"),
        Compute("v2", F32, "sub", ("v0", "v1")),
        Compute("v3", F32, "exp", ("v2",)),
        Reduce("v4", F32, "sum", "v3"),
        Compute("v5", F32, "div", ("v3", "v4")),
        Store("b1", index, "v5"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (k,), (Axis(i, k),), (Axis(r, row),), body)
    return Case(
        f"softmax-{rows}x{row}", kernel, [torch.randn(rows * row), torch.zeros(rows * row)], (rows,)
    )


def moments(rows: int, row: int) -> Case:
    """Sums of exponentials, squared deviations and means of rows of a symbolic length."""
    i, r, k = symbol("i0"), symbol("r0"), symbol("k0")
    body = (
        Load("v0", F32, "b0", k * i + r),
        Reduce("v1", F32, "sum_exp", "v0"),
        Reduce("v2", F32, "squared_deviations", "v0"),
        Reduce("v3", F32, "mean", "v0"),
        Compute("v4", F32, "neg", ("v0",)),
        Reduce("v5", F32, "mean", "v4"),
        *(Store(f"b{n}", i, f"v{v}") for n, v in enumerate((1, 2, 3, 5), 1)),
    )
    params = (Param("b0", F32, "read"), *(Param(f"b{n}", F32, "write") for n in (1, 2, 3, 4)))
    kernel = LoopKernel("cuda", params, (k,), (Axis(i, rows),), (Axis(r, k),), body)
    buffers = [torch.randn(rows * row) + 9, *(torch.zeros(rows) for _ in range(4))]
    return Case(f"moments-{rows}x{row}", kernel, buffers, (row,), 1e-5, Tiling(2, 16))


def column_sum(rows: int, columns: int) -> Case:
    """y[i] = sum over r of x[r, i]: neighbouring rows of the loop nest are neighbours in memory."""
    i, r = symbol("i0"), symbol("r0")
    body = (
        Load("v0", F32, "b0", columns * r + i),
        Reduce("v1", F32, "sum", "v0"),
        Store("b1", i, "v1"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, columns),), (Axis(r, rows),), body)
    return Case(
        f"columns-{rows}x{columns}",
        kernel,
        [torch.randn(rows * columns), torch.zeros(columns)],
        (),
        1e-4,
        absolute_error=1e-4,
    )


def equal_rows(rows: int, columns: int) -> Case:
    """Column sums of equal rows, whose rounding errors add up."""
    case = column_sum(rows, columns)
    x = torch.rand(columns).expand(rows, columns).reshape(-1)
    return Case(
        f"equal_rows-{rows}x{columns}", case.kernel, [x, torch.zeros(columns)], (), 1e-6,
        Tiling(32, 16),
    )  # fmt: skip


def weight_gradient(rows: int, columns: int, parts: int = 2, device: str = "cuda") -> Case:
    """y[p, i] = t[p] + sum over r of x[p, r, i] * (z[p, r, i] - m[p, r]) * t[p]: the vectors are
    read along r, but both matrices are read across.
    """
    p, i, r = symbol("i0"), symbol("i1"), symbol("r0")
    body = (
        Load("v0", F32, "b0", columns * rows * p + columns * r + i),
        Load("v1", F32, "b1", columns * rows * p + columns * r + i),
        Load("v2", F32, "b2", rows * p + r),
        Compute("v3", F32, "sub", ("v1", "v2")),
        Load("v4", F32, "b3", p),
        Compute("v5", F32, "mul", ("v3", "v4")),
        Compute("v6", F32, "mul", ("v0", "v5")),
        Reduce("v7", F32, "sum", "v6"),
        Compute("v8", F32, "add", ("v7", "v4")),
        Store("b4", columns * p + i, "v8"),
    )
    params = (*(Param(f"b{n}", F32, "read") for n in range(4)), Param("b4", F32, "write"))
    outer = (Axis(p, parts), Axis(i, columns))
    kernel = LoopKernel(device, params, (), outer, (Axis(r, rows),), body)
    matrices = [torch.randn(parts * rows * columns) for _ in range(2)]
    vectors = [torch.randn(parts * rows), torch.randn(parts)]
    return Case(
        f"weight_gradient-{rows}x{columns}",
        kernel,
        [*matrices, *vectors, torch.zeros(parts * columns)],
        (),
        1e-4,
    )


def transposed(rows: int, columns: int) -> Case:
    """y[i, j] = x[j, i] + 1 over two outer axes."""
    i, j = symbol("i0"), symbol("i1")
    body = (
        Load("v0", F32, "b0", rows * j + i),
        Constant("v1", F32, 1.0),
        Compute("v2", F32, "add", ("v0", "v1")),
        Store("b1", columns * i + j, "v2"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows), Axis(j, columns)), (), body)
    return Case(
        f"transposed-{rows}x{columns}",
        kernel,
        [torch.randn(rows * columns), torch.zeros(rows * columns)],
    )


def padded(length: int, pad: int) -> Case:
    """y[i] = x[i - pad] where that is inside, else 7."""
    i = symbol("i0")
    body = (
        IndexValue("v0", I64, i - pad),
        Constant("v1", I64, 0),
        Compute("v2", BOOL, "ge", ("v0", "v1")),
        Constant("v3", I64, length),
        Compute("v4", BOOL, "lt", ("v0", "v3")),
        Compute("v5", BOOL, "bitwise_and", ("v2", "v4")),
        Load("v6", F32, "b0", i - pad, "v5"),
        Constant("v7", F32, 7.0),
        Compute("v8", F32, "where", ("v5", "v6", "v7")),
        Store("b1", i, "v8"),
    )
    total = length + 2 * pad
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, total),), (), body)
    return Case("padded", kernel, [torch.randn(length), torch.zeros(total)])


def inside(name: str, position: sympy.Expr, size: int) -> tuple[Statement, ...]:
    """The condition `name`: 0 <= position < size."""
    return (
        IndexValue(f"{name}_at", I64, position),
        Constant(f"{name}_zero", I64, 0),
        Constant(f"{name}_size", I64, size),
        Compute(f"{name}_low", BOOL, "ge", (f"{name}_at", f"{name}_zero")),
        Compute(f"{name}_high", BOOL, "lt", (f"{name}_at", f"{name}_size")),
        Compute(name, BOOL, "bitwise_and", (f"{name}_low", f"{name}_high")),
    )


def pooled(planes: int, height: int, width: int) -> Case:
    """Maxima over windows of 3 x 3 in steps of 2 with padding of 1, and the step from the window's
    begin to each.
    """
    p, i, j = (symbol(f"i{n}") for n in range(3))
    rows, columns = (height + 1) // 2, (width + 1) // 2
    body: list[Statement] = [
        Constant("best", F32, float("-inf")),
        Constant("place", I32, 0),
    ]
    best, place = "best", "place"
    for tap in range(9):
        h, w = 2 * i + tap // 3 - 1, 2 * j + tap % 3 - 1
        body += [*inside(f"r{tap}", h, height), *inside(f"c{tap}", w, width)]
        body += [
            Compute(f"m{tap}", BOOL, "bitwise_and", (f"r{tap}", f"c{tap}")),
            Load(f"x{tap}", F32, "b0", p * height * width + h * width + w, f"m{tap}"),
            Constant(f"o{tap}", F32, float("-inf")),
            Compute(f"e{tap}", F32, "where", (f"m{tap}", f"x{tap}", f"o{tap}")),
            Compute(f"g{tap}", BOOL, "gt", (f"e{tap}", best)),
            Constant(f"n{tap}", I32, tap),
            Compute(f"p{tap}", I32, "where", (f"g{tap}", f"n{tap}", place)),
            Compute(f"q{tap}", BOOL, "isnan", (f"e{tap}",)),
            Compute(f"s{tap}", I32, "where", (f"q{tap}", f"n{tap}", f"p{tap}")),
            Compute(f"y{tap}", F32, "maximum", (f"e{tap}", best)),
        ]
        best, place = f"y{tap}", f"s{tap}"
    out = p * rows * columns + i * columns + j
    body += [Store("b1", out, best), Store("b2", out, place)]
    axes = (Axis(p, planes), Axis(i, rows), Axis(j, columns))
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"), Param("b2", I32, "write"))
    x = torch.randn(planes * height * width)
    x[::13] = float("nan")
    results = planes * rows * columns
    buffers = [x, torch.zeros(results), torch.zeros(results, dtype=I32)]
    return Case("pooled", LoopKernel("cuda", params, (), axes, (), tuple(body)), buffers)


def pooled_gradient(planes: int, height: int, width: int) -> Case:
    """For each place the gradients of the four windows above that may have taken it."""
    p, i, j = (symbol(f"i{n}") for n in range(3))
    rows, columns = (height + 1) // 2, (width + 1) // 2
    body: list[Statement] = [
        IndexValue("here", I64, i * width + j),
        Constant("none", I64, -1),
        Constant("t", F32, 0.0),
        Constant("zero", F32, 0.0),
    ]
    total = "t"
    for number, (back, left) in enumerate(((1, 1), (1, 0), (0, 1), (0, 0))):
        r, c = FloorDiv(i + 1, sympy.Integer(2)) - back, FloorDiv(j + 1, sympy.Integer(2)) - left
        at = p * rows * columns + r * columns + c
        body += [*inside(f"r{number}", r, rows), *inside(f"c{number}", c, columns)]
        body += [
            Compute(f"m{number}", BOOL, "bitwise_and", (f"r{number}", f"c{number}")),
            Load(f"k{number}", I64, "b0", at, f"m{number}"),
            Compute(f"w{number}", I64, "where", (f"m{number}", f"k{number}", "none")),
            Load(f"g{number}", F32, "b1", at, f"m{number}"),
            Compute(f"e{number}", BOOL, "eq", (f"w{number}", "here")),
            Compute(f"s{number}", F32, "where", (f"e{number}", f"g{number}", "zero")),
            Compute(f"t{number}", F32, "add", (total, f"s{number}")),
        ]
        total = f"t{number}"
    body.append(Store("b2", p * height * width + i * width + j, total))
    axes = (Axis(p, planes), Axis(i, height), Axis(j, width))
    params = (Param("b0", I64, "read"), Param("b1", F32, "read"), Param("b2", F32, "write"))
    x = torch.randn(planes, height, width)
    values, indices = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    buffers = [indices.flatten(), torch.randn(values.numel()), torch.zeros(x.numel())]
    return Case("pooled_gradient", LoopKernel("cuda", params, (), axes, (), tuple(body)), buffers)


def gathered(rows: int, width: int) -> Case:
    """y[i, j] = table[index[i], j], flattened over one axis with division and modulus."""
    i, v0 = symbol("i0"), sympy.Symbol("v0", integer=True, nonnegative=True)
    w = sympy.Integer(width)
    body = (
        Load("v0", I64, "b0", FloorDiv(i, w)),
        Load("v1", F32, "b1", width * v0 + Mod(i, w)),
        Store("b2", i, "v1"),
    )
    params = (Param("b0", I64, "read"), Param("b1", F32, "read"), Param("b2", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows * width),), (), body)
    buffers = [torch.randint(0, 5, (rows,)), torch.randn(5 * width), torch.zeros(rows * width)]
    return Case("gathered", kernel, buffers)


def scattered(rows: int, width: int, mode: str) -> Case:
    """y[index[i], j] += x[i, j] where index[i] is not 2, or = x[i, j]."""
    i, j, v0 = symbol("i0"), symbol("i1"), symbol("v0")
    body = (
        Load("v0", I64, "b0", i),
        Constant("v1", I64, 2),
        Compute("v2", BOOL, "ne", ("v0", "v1")),
        Load("v3", F32, "b1", width * i + j),
        Store("b2", width * v0 + j, "v3", mode, "v2"),
    )
    params = (Param("b0", I64, "read"), Param("b1", F32, "read"), Param("b2", F32, "update"))
    axes = (Axis(i, rows), Axis(j, width))
    kernel = LoopKernel("cuda", params, (), axes, (), body)
    buffers = [torch.randint(0, 5, (rows,)), torch.randn(rows * width), torch.randn(5 * width)]
    return Case(f"scattered_{mode}", kernel, buffers)


def resampled(rows: int, width: int, tiling: Tiling | None = None) -> Case:
    """y[i, j] = x[i, floor((j + 0.5) * 0.3)]: index arithmetic along one axis only."""
    i, j, v6 = symbol("i0"), symbol("i1"), symbol("v6")
    body = (
        IndexValue("v0", I64, j),
        Compute("v1", F32, "cast", ("v0",)),
        Constant("v2", F32, 0.5),
        Compute("v3", F32, "add", ("v1", "v2")),
        Constant("v7", F32, 0.3),
        Compute("v4", F32, "mul", ("v3", "v7")),
        Compute("v5", F32, "floor", ("v4",)),
        Compute("v6", I64, "cast", ("v5",)),
        Load("v8", F32, "b0", width * i + v6),
        Store("b1", width * i + j, "v8"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, rows), Axis(j, width)), (), body)
    buffers = [torch.randn(rows * width), torch.zeros(rows * width)]
    return Case(f"resampled_{tiling}", kernel, buffers, tiling=tiling)


def tiling_of(case: Case) -> Tiling:
    """The tile sizes that a case runs with."""
    return case.tiling or choose_tiling(case.kernel)


def difference(case: Case, found: list[torch.Tensor]) -> str | None:
    """None if `found` (the buffers after the run) agrees with the reference evaluator's, else what
    differs.
    """
    from flambeau_inductor.evaluate import run_kernel

    expected = [buffer.clone() for buffer in case.buffers]
    run_kernel(case.kernel, expected, case.ints)
    found, expected = (joined_shares(case.kernel, each) for each in (found, expected))
    for ours, theirs in zip(found, expected, strict=True):
        if ours.dtype in FLOAT8:
            known = ~theirs.float().isnan()
            same = ours.view(torch.uint8) == theirs.view(torch.uint8)
            if not bool((torch.where(known, same, ours.float().isnan())).all()):
                return f"{ours[~same][:8]} is not {theirs[~same][:8]}"
            continue
        relative = 1e-2 if ours.dtype is BF16 else case.relative_error
        absolute = relative / 10 if case.absolute_error is None else case.absolute_error
        try:
            torch.testing.assert_close(ours, theirs, rtol=relative, atol=absolute, equal_nan=True)
        except AssertionError as error:
            return str(error)
    return None


def scan_cases(rows: int, row: int, tiling: Tiling | None = None) -> Iterator[Case]:
    """y[i, r] = 2 * scan over r of x[i, r], in both directions."""
    i, r = symbol("i0"), symbol("r0")
    index = row * i + r
    kinds = {
        "sum": (F32, F64, I64),
        "prod": (F32,),
        "max": (F32, I64, torch.uint8, BOOL),
        "min": (F32, I32),
        "logaddexp": (F32,),
    }
    for kind, dtypes in kinds.items():
        for dtype in dtypes:
            for reverse in (False, True):
                x = sample(dtype, rows * row)
                if kind == "prod":
                    x = 1 + x / row / 4
                if kind in ("max", "min", "logaddexp") and dtype is F32:
                    x[row // 2] = float("nan")
                    x[row : row + 2] = float("inf")
                body = (
                    Load("v0", dtype, "b0", index),
                    Scan("v1", dtype, kind, "v0", reverse),
                    Compute("v2", dtype, "maximum", ("v1", "v0")),
                    Store("b1", index, "v2"),
                )
                params = (Param("b0", dtype, "read"), Param("b1", dtype, "write"))
                kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
                way = "down" if reverse else "up"
                tiles = "whole" if tiling is None else f"{tiling.xblock}-{tiling.rblock}"
                name = f"scan-{kind}-{dtype}-{way}-{rows}x{row}-{tiles}"
                yield Case(name, kernel, [x, torch.zeros_like(x)], (), 1e-4, tiling)


def column_scan(rows: int, columns: int) -> Case:
    """y[r, i] = the sum of x[:r + 1, i] less the greatest of these."""
    i, r = symbol("i0"), symbol("r0")
    index = columns * r + i
    body = (
        Load("v0", F32, "b0", index),
        Scan("v1", F32, "sum", "v0"),
        Reduce("v2", F32, "max", "v1"),
        Compute("v3", F32, "sub", ("v1", "v2")),
        Store("b1", index, "v3"),
    )
    params = (Param("b0", F32, "read"), Param("b1", F32, "write"))
    kernel = LoopKernel("cuda", params, (), (Axis(i, columns),), (Axis(r, rows),), body)
    size = rows * columns
    buffers = [torch.randn(size), torch.zeros(size)]
    return Case(f"column_scan-{rows}x{columns}", kernel, buffers, (), 1e-4)


def sort_cases(rows: int, row: int) -> Iterator[Case]:
    """y[i, :] = x[i, :] sorted, and z[i, :3] = the first three positions."""
    i, r = symbol("i0"), symbol("r0")
    for dtype in (F32, I32, BF16, torch.float16, torch.int16, torch.uint8, BOOL):
        for descending in (False, True):
            x = sample(dtype, rows * row)
            if dtype.is_floating_point:
                x = x.round()
                x[row // 2] = float("nan")
                x[row : row + 2] = torch.tensor([float("inf"), -float("inf")])
                x[row + 2] = -0.0
            body = (
                Load("v0", dtype, "b0", row * i + r),
                Sort("v1", dtype, "values", "v0", descending),
                Store("b1", row * i + r, "v1"),
                Sort("v2", I64, "positions", "v0", descending),
                IndexValue("v3", I64, r),
                Constant("v4", I64, 3),
                Compute("v5", BOOL, "lt", ("v3", "v4")),
                Store("b2", 3 * i + r, "v2", mask="v5"),
            )
            params = (Param("b0", dtype, "read"), Param("b1", dtype, "write"))
            params = (*params, Param("b2", I64, "write"))
            kernel = LoopKernel("cuda", params, (), (Axis(i, rows),), (Axis(r, row),), body)
            buffers = [x, torch.zeros_like(x), torch.zeros(3 * rows, dtype=I64)]
            way = "down" if descending else "up"
            yield Case(f"sort-{dtype}-{way}-{rows}x{row}", kernel, buffers)
            yield first_sorted(kernel, x, row, 6 if row > 32 else 2)


def first_sorted(kernel: LoopKernel, x: torch.Tensor, row: int, count: int) -> Case:
    """Of the kernel of `sort_cases` only the first values and positions; the last row's elements
    are those that are sorted last.
    """
    i, r = symbol("i0"), symbol("r0")
    body = [s for s in kernel.body if not isinstance(s, Store)]
    (limit,) = (at for at, s in enumerate(body) if isinstance(s, Constant))
    body[limit] = Constant("v4", I64, count)
    index = count * i + r
    body += [Store("b1", index, "v1", mask="v5"), Store("b2", index, "v2", mask="v5")]
    (values, _) = sorts = [s for s in body if isinstance(s, Sort)]
    dtype, rows = values.dtype, len(x) // row
    x = x.clone()
    if dtype.is_floating_point:
        x[-row:] = -math.inf if values.descending else math.nan
    else:
        least, most = (
            (False, True) if dtype is BOOL else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        )
        x[-row:] = least if values.descending else most
    buffers = [x, torch.zeros(rows * count, dtype=dtype), torch.zeros(rows * count, dtype=I64)]
    way = "down" if sorts[0].descending else "up"
    name = f"sort-first-{dtype}-{way}-{rows}x{row}"
    return Case(name, replace(kernel, body=tuple(body)), buffers)
