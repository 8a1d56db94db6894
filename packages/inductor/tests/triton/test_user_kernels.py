"""Launches of a program's own kernels in Programs: built to cubins without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.language import cdiv

from flambeau_inductor import compile_graph
from flambeau_inductor.options import InductorOptions
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.kernel_launches import (
    ConstantArgument,
    FloatArgument,
    KernelLaunch,
    NumberArgument,
    TensorArgument,
    WindowArgument,
    launch_operator,
)
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime.build.triton import build_cubin
from flambeau_runtime.program import Extern, Launch, View

if not isinstance(tl.cdiv, triton.JITFunction):
    pytest.skip("Triton was imported with its interpreter", allow_module_level=True)

SCALE = tl.constexpr(2.5)
OFFSET: tl.constexpr = 3
HOST_TABLE = {"a": 1}


@triton.jit
def scaled(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.where(x > 0, x, 0)
    return x * SCALE + OFFSET + cdiv(8, 4)


@triton.jit
def combine(
    x, factor, y, n, stride, out, flag, bias, BLOCK: tl.constexpr, F: tl.constexpr, T: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at * stride, mask=at < n).to(T)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    if flag:
        value = value + factor
    tl.store(out + at, F(value, "relu") + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def swap(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(x + at, second, mask=at < n)
    tl.store(y + at, first, mask=at < n)


@triton.jit
def from_a_table(x, n):
    tl.store(x, HOST_TABLE["a"] + n)


T, N, F, C = TensorArgument, NumberArgument, FloatArgument, ConstantArgument


def tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Value:
    return Value(name, Spec.of(shape, dtype=dtype, device="cuda:0"))


def program_of(
    kernel, positional, named, tensors, numbers, floats=(), written=(0,), grid=(4, 1, 1)
):
    """The Program that launches a kernel on inputs, and returns copies of what it writes to."""
    launch = KernelLaunch(
        kernel, tuple(positional), tuple(named.items()), tuple(v.name for v in tensors),
        written, len(floats), parameters=tuple(kernel.arg_names),
    )  # fmt: skip
    op = launch_operator(launch).functional
    strides = [stride for value in tensors for stride in value.spec.stride]
    args = (*tensors, list(numbers), strides, *floats, list(grid))
    specs = infer(op, tuple(a.spec if isinstance(a, Value) else a for a in args))
    specs = specs if isinstance(specs, tuple) else (specs,)
    node = Node(op, args, {})
    node.outputs = tuple(Value(f"out{i}", spec, node) for i, spec in enumerate(specs))
    graph = Graph(list(tensors), [node], list(node.outputs), [], None, "test")
    return compile_graph(graph, InductorOptions())


def launched(program):
    """The kernel and its text, of a Program that launches one."""
    assert not any(isinstance(step, Extern) for step in program.steps), program.steps
    (kernel,) = (kernel for kernel in program.kernels if kernel.name.startswith("launch_"))
    text = program.sources[kernel.source].text
    cubin = build_cubin(text, kernel.name, kernel.meta, 90)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.warps == kernel.meta["num_warps"]
    return kernel, text


def combined(stride: int = 3, **changes):
    tensors = (
        tensor("a", 1000, dtype=torch.float16), tensor("b", 1000), tensor("c", 1000),
    )  # fmt: skip
    named = {
        "flag": C(True), "bias": C(None), "BLOCK": C(128), "F": C(scaled), "T": C(tl.float32),
    }  # fmt: skip
    return program_of(
        combine, (T(0), F(0), T(1), N(0), N(1), T(2)), named | changes, tensors, (1000, stride),
        (0.5,), (2,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stride", "types"),
    [(1, ["i32"]), (3, ["i32"] * 2), (16, ["i32"] * 2), (2**40, ["i32", "i64"]), (-5, ["i32"] * 2)],
)
def test_numbers_have_the_types_that_triton_finds(stride: int, types: list[str]) -> None:
    kernel, text = launched(combined(stride))
    signature = kernel.meta["signature"]
    assert [kind for kind in signature.values() if kind[0] == "i"] == types
    assert ("stride=1" in text) == (stride == 1)
    assert ("n1" in kernel.meta["divisible_by_16"]) == (stride in (16, 2**40))


def test_options_and_constants() -> None:
    kernel, text = launched(combined(num_warps=C(8), num_stages=C(2), num_ctas=C(1)))
    assert (kernel.meta["num_warps"], kernel.meta["num_stages"]) == (8, 2)
    assert all(part in text for part in ("bias=None", "F=scaled", "SCALE = ", "OFFSET = "))


@pytest.mark.parametrize("changes", [{"maxnreg": C(32)}, {"num_ctas": C(2)}])
def test_other_options_are_left_to_triton(changes) -> None:
    assert any(isinstance(step, Extern) for step in combined(**changes).steps)


def test_a_kernel_that_reads_an_object_of_its_module_is_left_to_triton() -> None:
    program = program_of(from_a_table, (T(0), N(0)), {}, (tensor("x", 4),), (3,))
    assert any(isinstance(step, Extern) for step in program.steps)


def test_what_is_written_is_copied_by_one_kernel() -> None:
    tensors = (tensor("x", 50), tensor("y", 50))
    program = program_of(swap, (T(0), T(1), N(0)), {"BLOCK": C(64)}, tensors, (50,), written=(0, 1))
    launched(program)
    assert sum(isinstance(step, Launch) for step in program.steps) == 2


def test_windows_are_views() -> None:
    windows = (WindowArgument(0, 0, 1), WindowArgument(0, 3, 1))
    numbers = (6, 1, 0, 6, 1, 6, 6)  # sizes, strides and offset of each, and n
    program = program_of(swap, (*windows, N(6)), {"BLOCK": C(8)}, (tensor("x", 4, 6),), numbers)
    launched(program)
    offsets = {tensor.offset for tensor in program.tensors if tensor.shape == (6,)}
    assert offsets == {0, 6}
    assert sum(isinstance(step, View) for step in program.steps) == 2
