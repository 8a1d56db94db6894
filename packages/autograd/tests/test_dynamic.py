"""Symbolic sizes through aot: one compile, many sizes, forward and backward."""

from __future__ import annotations

import pytest
import torch
from recording import GraphLog

from flambeau_autograd import AutogradOptions, aot
from flambeau_prims.fake import symbolic_spec
from flambeau_prims.sizes import SizeEnv


def softmax_rows(x, w):
    return (torch.softmax(x @ w, -1),)


def flatten_and_norm(x, w):
    y = x.view(x.size(0) * 2, x.size(1) // 2)
    return torch.nn.functional.layer_norm(y, (y.size(1),)), (x @ w).mean(0)


def size_is_returned(x, w):
    return x.size(0) * 3, x.new_zeros(x.size(0)), x * 2


def view_of_input(x, w):
    return x.view(-1, 2), (x + 1)[1:]


def mutates_by_size(x, w):
    y = x * 2
    y.narrow(0, 0, x.size(0) // 2).fill_(1.0)
    return (y * x.size(0),)


PROGRAMS = [softmax_rows, flatten_and_norm, size_is_returned, view_of_input, mutates_by_size]


def compile_dynamic(program, examples, dims, log, **options):
    gm = torch.fx.symbolic_trace(program)
    env = gm.meta["size_env"] = SizeEnv()
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, example, dynamic in zip(placeholders, examples, dims, strict=True):
        symbols = {
            dim: env.symbol(example.shape[dim], f"{node.name}.shape[{dim}]") for dim in dynamic
        }
        node.meta["spec"] = symbolic_spec(example, symbols)
    return aot(gm, examples, log, options=AutogradOptions(check=True, **options)), env


@pytest.mark.parametrize("decompose", [False, True], ids=["aten", "prims"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_compile_serves_all_sizes(program, grad, decompose):
    log = GraphLog()
    examples = [torch.randn(6, 8, requires_grad=grad), torch.randn(8, 5, requires_grad=grad)]
    compiled, _ = compile_dynamic(program, examples, [(0,), ()], log, decompose=decompose)
    for rows in (6, 3, 17):
        x, w = torch.randn(rows, 8, requires_grad=grad), torch.randn(8, 5, requires_grad=grad)
        mine = compiled(x, w)
        theirs = program(x, w)
        results = []
        for outputs in (mine, theirs):
            x.grad = w.grad = None
            if grad:
                sum(
                    o.sin().sum()
                    for o in outputs
                    if isinstance(o, torch.Tensor) and o.requires_grad
                ).backward()
            results.append([*outputs, x.grad, w.grad])
        for a, b in zip(*results, strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
                assert a.stride() == b.stride()
            else:
                assert a == b


def test_a_symbol_no_saved_tensor_gives_is_an_int_input():
    log = GraphLog()
    examples = [torch.randn(6, 8, requires_grad=True), torch.randn(8, 5)]
    compiled, _ = compile_dynamic(lambda x, w: (x.sum(),), examples, [(0, 1), ()], log)
    backward = log.graphs["backward"]
    assert [str(value) for value in backward.inputs[:2]] == ["s0", "s1"]
    x = torch.randn(3, 11, requires_grad=True)
    compiled(x, examples[1])[0].backward()
    assert torch.equal(x.grad, torch.ones(3, 11))


def test_an_int_argument_is_a_symbol():
    gm = torch.fx.symbolic_trace(lambda x, n: (x.expand(n, 4) * n,))
    env = gm.meta["size_env"] = SizeEnv()
    for node in gm.graph.nodes:
        if node.op == "placeholder" and node.name == "n":
            node.meta["spec"] = env.symbol(3, "n")
    log = GraphLog()
    compiled = aot(
        gm, [torch.randn(4, requires_grad=True), 3], log, options=AutogradOptions(check=True)
    )
    for n in (3, 7):
        x = torch.randn(4, requires_grad=True)
        (out,) = compiled(x, n)
        assert torch.equal(out, x.expand(n, 4) * n)
        out.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((4,), float(n * n)))
