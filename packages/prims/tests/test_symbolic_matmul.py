"""matmul and linear of symbolic sizes: eager's kernels and results, for every pair of ranks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from flambeau_prims.evaluate import run_graph
from flambeau_prims.fake import fake_like
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.graph import Graph
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_prims.symbolic_matmul import REPLACEMENTS
from flambeau_prims.tracer import Tracer

B, N, K, M = 3, 5, 4, 6


class Replaced(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in REPLACEMENTS:
            result = REPLACEMENTS[func](*args, **(kwargs or {}))
            assert result is not NotImplemented
            return result
        return func(*args, **(kwargs or {}))


CASES = {
    "dot": ((K,), (K,)),
    "matrix_vector": ((N, K), (K,)),
    "vector_matrix": ((K,), (K, M)),
    "matrix_matrix": ((N, K), (K, M)),
    "stack_matrix": ((B, N, K), (K, M)),
    "stack_vector": ((B, 2, N, K), (K,)),
    "matrix_stack": ((N, K), (B, K, M)),
    "vector_stack": ((K,), (B, K, M)),
    "stack_stack": ((B, N, K), (B, K, M)),
    "broadcast": ((B, 1, N, K), (2, K, M)),
    "broadcast_one": ((1, N, K), (B, K, M)),
}


def traced(fn, reals, dims):
    env = SizeEnv()
    tracer = Tracer(env)
    shared = {}
    fakes = []
    for real, dynamic in zip(reals, dims, strict=True):
        sizes = {
            d: shared.setdefault(real.shape[d], env.symbol(real.shape[d], "?")) for d in dynamic
        }
        fakes.append(tracer.adopt(fake_like(real, env, sizes)))
    with Replaced(), tracer:
        out = fn(*fakes)
    graph = Graph(tracer.inputs, tracer.nodes, [out.value], env=env)
    kernels = [
        str(node.op)
        for node in graph.nodes
        if node.op._schema.name[6:] in ("mm", "mv", "bmm", "dot", "addmm")
    ]
    return graph, out, env, kernels


@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "transposed"])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "grad"])
@pytest.mark.parametrize("name", CASES)
def test_matmul(name, requires_grad, transposed):
    shapes = CASES[name]
    reals = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    if transposed:
        reals = [real.mT.contiguous().mT if real.dim() > 1 else real for real in reals]
    reals = [real.requires_grad_(requires_grad) for real in reals]
    dims = [[d for d, size in enumerate(shape) if size in (B, N, K)] for shape in shapes]
    graph, out, env, kernels = traced(torch.matmul, reals, dims)
    want = reals[0] @ reals[1]
    torch.testing.assert_close(run_graph(graph, reals)[0], want)
    values = {name: symbol.hint for name, symbol in env.symbols.items()}
    assert tuple(env.evaluate(size, values) for size in out.spec.shape) == want.shape
    strides = [env.evaluate(size, values) for size in out.spec.stride]
    assert all(
        size == 1 or a == b for size, a, b in zip(want.shape, strides, want.stride(), strict=True)
    )
    plain = Tracer()
    with plain:
        plain.adopt(fake_like(reals[0])) @ plain.adopt(fake_like(reals[1]))
    static = [
        str(node.op)
        for node in plain.nodes
        if node.op._schema.name[6:] in ("mm", "mv", "bmm", "dot")
    ]
    assert kernels == static or name == "broadcast_one"
    assert all(guard.op == ">=" for guard in env.guards)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("shape", [(N, K), (B, N, K), (2, B, N, K)], ids=str)
def test_linear(shape, bias):
    reals = [torch.randn(*shape), torch.randn(M, K)] + ([torch.randn(M)] if bias else [])
    dims = [[d for d, size in enumerate(shape) if size in (B, N, 2)], [], []]
    dims = dims[: len(reals)]
    graph, _, env, _ = traced(F.linear, reals, dims)
    torch.testing.assert_close(run_graph(graph, reals)[0], F.linear(*reals))
    other = [
        torch.randn(*(size + 1 if d in dims[0] else size for d, size in enumerate(shape))),
        *reals[1:],
    ]
    torch.testing.assert_close(run_graph(graph, other)[0], F.linear(*other))
    assert all(guard.op == ">=" for guard in env.guards)


def test_operators_and_methods_are_replaced():
    real = torch.randn(B, N, K)
    for fn in (
        lambda a, b: a @ b,
        torch.Tensor.matmul,
        lambda a, b: a.matmul(b),
        lambda a, b: b.__rmatmul__(a),
    ):
        graph, _, _, kernels = traced(fn, [real, torch.randn(K, M)], [[0, 1], []])
        assert kernels == ["aten.mm.default"]
        torch.testing.assert_close(
            run_graph(graph, [real, torch.ones(K, M)])[0], real @ torch.ones(K, M)
        )


def test_mismatched_batches_are_an_error():
    with pytest.raises(RuntimeError, match="do not match"):
        traced(torch.matmul, [torch.randn(2, 3, 4), torch.randn(5, 4, 6)], [[1], []])


ATTENTION = {
    "three_dims": ([(B, N, K), (B, 7, K), (B, 7, M)], {}),
    "masked": ([(B, N, K), (B, 7, K), (B, 7, M), (N, 7)], {}),
    "causal": ([(B, N, K), (B, N, K), (B, N, K)], {"is_causal": True}),
    "negative_scale": ([(B, N, K), (B, 7, K), (B, 7, K)], {"scale": -0.7}),
    "grouped": ([(4, N, K), (2, 7, K), (2, 7, K)], {"enable_gqa": True}),
    "dropout": ([(2, B, N, K), (2, B, 7, K), (2, B, 7, K)], {"dropout_p": 0.4}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, dtype):
    """As near the exact result as eager; it drops what eager drops, and fixes no size.

    From torch 2.14 on, eager takes a fused kernel for three dimensions, which rounds otherwise.
    """
    shapes, options = ATTENTION[name]
    reals = [torch.randn(*shape).to(dtype) for shape in shapes]
    if name == "masked":
        reals[3] = reals[3] > 0
    dims = [[d for d, size in enumerate(shape) if size in (N, 7)] for shape in shapes]

    def fn(*args):
        return F.scaled_dot_product_attention(*args, **options)

    graph, out, env, _ = traced(fn, reals, dims)
    torch.manual_seed(3)
    want = fn(*reals)
    torch.manual_seed(3)
    got = run_graph(graph, reals)[0]
    if dtype == torch.bfloat16 and name != "dropout":
        exact = fn(*(real.double() if real.is_floating_point() else real for real in reals))
        distances = [(result - exact).abs().nan_to_num().max() for result in (got, want)]
        assert distances[0] <= 2 * distances[1] + 1e-3
        assert torch.equal(got.isnan(), want.isnan())
    else:
        torch.testing.assert_close(got, want, equal_nan=True)
    assert out.dtype == dtype
    assert all(guard.op in (">=", "<=") for guard in env.guards), env.guards


def test_attention_with_mask_and_causal_is_an_error():
    tracer = Tracer(SizeEnv())
    size = tracer.env.symbol(N, "?")
    query = tracer.adopt(fake_like(torch.randn(B, N, K), tracer.env, {1: size}))
    mask = tracer.fake(Spec.of((N, N), dtype=torch.bool))
    with pytest.raises(RuntimeError, match="is_causal"), FunctionTable(), tracer:
        F.scaled_dot_product_attention(query, query, query, mask, is_causal=True)
