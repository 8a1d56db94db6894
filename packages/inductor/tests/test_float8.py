"""Casts from and to 8-bit floats in kernels: no calls of ATen, and eager's bits."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.check import BorderError, check_kernel
from flambeau_inductor.codegen.float8 import FLOAT8
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Load, LoopKernel, Param, Store
from flambeau_prims.builder import Builder
from flambeau_prims.decompose import decompose
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_runtime import load
from flambeau_runtime.program import Extern

CAST = torch.ops.aten._to_copy.default


def cast_graph(source: torch.dtype, to: torch.dtype, shape=(5, 700), stride=None) -> Graph:
    """A cast of ATen, decomposed."""
    x = Value("x", Spec.of(shape, dtype=source, stride=stride))
    spec = infer(CAST, (x.spec,), {"dtype": to})
    node = Node(CAST, (x,), {"dtype": to}, ())
    node.outputs = (Value("y", spec, node),)
    return decompose(Graph([x], [node], list(node.outputs)))


def numbers(count: int) -> torch.Tensor:
    """Floats of all magnitudes, and special ones."""
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32)
    near = torch.randn(count) * torch.logspace(-8, 5, count)
    x = torch.where(torch.rand(count) < 0.3, bits.view(torch.float32), near)
    x[:6] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 464.0])
    return x


def assert_same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    known = ~theirs.float().isnan()
    assert torch.equal(ours.float().isnan(), ~known)
    assert torch.equal(ours.view(torch.uint8)[known], theirs.view(torch.uint8)[known])


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_to_float8(source, dtype) -> None:
    program = compile_graph(cast_graph(source, dtype))
    assert len(program.kernels) == 1 and not any(isinstance(s, Extern) for s in program.steps)
    x = numbers(3500).view(5, 700)
    x = x.nan_to_num().clamp(-1e6, 1e6).to(source) if source is torch.int64 else x.to(source)
    (found,) = load(program)(x)
    assert_same_bits(found, x.to(dtype))


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.float16, torch.bool])
def test_from_float8(dtype, to) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).view(16, 16).t()
    program = compile_graph(cast_graph(dtype, to, (16, 16), (1, 16)))
    assert not any(isinstance(step, Extern) for step in program.steps)
    (found,) = load(program)(codes)
    torch.testing.assert_close(found, codes.to(to), rtol=0, atol=0, equal_nan=True)
    assert found.stride() == codes.to(to).stride()


def test_the_reference_and_empty_tensors() -> None:
    backend = ReferenceBackend()
    program = compile_graph(cast_graph(torch.float32, torch.float8_e5m2), backends={"cpu": backend})
    x = numbers(3500).view(5, 700)
    (found,) = backend.load(program)(x)
    assert_same_bits(found, x.to(torch.float8_e5m2))
    (none,) = load(compile_graph(cast_graph(torch.float32, torch.float8_e5m2, (0, 3))))(x[:0, :3])
    assert none.shape == (0, 3) and none.dtype is torch.float8_e5m2


def test_kernels_do_not_compute_in_float8() -> None:
    dtype, i = torch.float8_e5m2, symbol("i0")
    body = (Load("v0", dtype, "b0", i), Compute("v1", dtype, "neg", ("v0",)), Store("b1", i, "v1"))
    params = (Param("b0", dtype, "read"), Param("b1", dtype, "write"))
    with pytest.raises(BorderError, match="storage type"):
        check_kernel(LoopKernel("cpu", params, (), (Axis(i, 7),), (), body))


def test_a_cast_shares_the_kernel_of_its_operand() -> None:
    x = Value("x", Spec.of((64, 64)))
    graph = Graph([x])
    b = Builder(graph.nodes, ["x"])
    scaled = b.cast(b.mul(x, 3.0), torch.float8_e4m3fn)
    graph.outputs = [scaled, b.add(b.cast(scaled, torch.float32), 1.0)]
    program = compile_graph(graph)
    assert len(program.kernels) == 1
    given = torch.randn(64, 64) * 30
    narrow, wide = load(program)(given)
    assert_same_bits(narrow, (given * 3.0).to(torch.float8_e4m3fn))
    torch.testing.assert_close(wide, narrow.float() + 1, rtol=0, atol=0)
