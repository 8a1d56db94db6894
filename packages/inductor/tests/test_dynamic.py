"""Symbolic sizes: one program for all of them."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.size_floats import float_of
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import check_program


def compile_dynamic(build, *hints, inputs, options=None):
    """inputs(*symbols) -> Specs or Exprs; build(builder, symbols, *values) -> outputs."""
    env = SizeEnv()
    symbols = [env.symbol(hint, f"size {n}") for n, hint in enumerate(hints)]
    given = [
        Value(f"x{n}", item) if isinstance(item, Spec) else item
        for n, item in enumerate(inputs(*symbols))
    ]
    graph = Graph(given, env=env)
    builder = Builder(graph.nodes, [f"x{n}" for n in range(len(given))])
    outputs = build(builder, symbols, *given)
    graph.outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    backend = ReferenceBackend()
    program = compile_graph(graph, options, backends={"cpu": backend})
    check_program(program)
    return program, backend.load(program)


@pytest.mark.parametrize("shape", [(2, 3), (5, 1), (7, 33), (1, 1)])
def test_softmax(shape):
    def softmax(b, symbols, x):
        def along(row):
            return b.expand(b.unsqueeze(row, 1), x.spec.shape)

        e = b.exp(b.sub(x, along(b.amax(x, (1,)))))
        return b.div(e, along(b.sum(e, (1,))))

    program, run = compile_dynamic(softmax, 4, 9, inputs=lambda m, n: [Spec.of((m, n))])
    assert len(program.kernels) == 1
    x = torch.randn(shape)
    torch.testing.assert_close(run(x)[0], x.softmax(1))


@pytest.mark.parametrize("shape", [(2, 3), (4, 5)])
def test_heads(shape):
    """Regrouping of symbolic dims leaves no division in the kernel."""

    def build(b, symbols, x):
        batch, length = symbols
        heads = b.permute(b.reshape(b.add(x, 1.0), (batch, length, 4, 5)), (0, 2, 1, 3))
        y = b.clone(heads)
        y.spec = y.spec.replace(shape=y.spec.shape)
        return b.reshape(b.exp(y), (batch * 4, length, 5)), batch * length

    program, run = compile_dynamic(build, 2, 3, inputs=lambda m, n: [Spec.of((m, n, 20))])
    assert "//" not in program.sources[0].text and len(program.kernels) == 1
    x = torch.randn(*shape, 20)
    got, count = run(x)
    want = (x + 1).view(*shape, 4, 5).permute(0, 2, 1, 3).contiguous().exp().view(-1, shape[1], 5)
    torch.testing.assert_close(got, want)
    assert count == shape[0] * shape[1]


def test_merged_dims_and_slices():
    def build(b, symbols, x):
        m, n = symbols
        flat = b.reshape(b.exp(x), (m * n,))
        return (
            b.neg(b.slice(flat, 0, 1, m * n, 1)),
            b.sum(flat, (0,)),
            b.pad(x, (0, 1), (1, 0), 0.0),
            b.cat([x, x], 0),
        )

    _, run = compile_dynamic(build, 3, 4, inputs=lambda m, n: [Spec.of((m, n))])
    x = torch.randn(5, 7)
    flat = x.exp().flatten()
    want = -flat[1:], flat.sum(), torch.nn.functional.pad(x, (1, 0, 0, 1)), torch.cat([x, x])
    for mine, theirs in zip(run(x), want, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_sizes_as_numbers():
    def build(b, symbols, x):
        (n,) = symbols
        return (
            b.mul(x, n),
            b.mul(x, float_of("/", 1.0, n)),
            b.add(b.iota(n, 0, 1, torch.int64, torch.device("cpu")), n),
        )

    _, run = compile_dynamic(build, 4, inputs=lambda n: [Spec.of((n,))])
    x = torch.randn(6)
    for mine, theirs in zip(run(x), (x * 6, x / 6, torch.arange(6) + 6), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_symbols_from_int_inputs_and_multiples():
    """s0 is an int argument; s1 only shows as 3*s1."""

    def build(b, symbols, x, n):
        return b.expand(b.unsqueeze(b.reshape(x, (symbols[1], 3)), 0), (symbols[0], symbols[1], 3))

    program, run = compile_dynamic(
        lambda b, s, x, n: b.exp(build(b, s, x, n)),
        2,
        4,
        inputs=lambda m, n: [Spec.of((n * 3,)), m],
    )
    assert len(program.symbols) == 2
    x = torch.randn(15)
    torch.testing.assert_close(run(x, 7)[0], x.exp().view(1, 5, 3).expand(7, 5, 3).contiguous())


def test_strides_of_a_transposed_input():
    _, run = compile_dynamic(
        lambda b, s, x: (b.exp(x), b.sum(x, (0,))),
        3,
        4,
        inputs=lambda m, n: [Spec.of((m, n), stride=(1, m))],
    )
    x = torch.randn(5, 6).t()
    torch.testing.assert_close(run(x), (x.exp(), x.sum(0)))


def test_split_reduction():
    """Chunks of a symbolic length; the last one is cut off by the size of the call."""
    _, run = compile_dynamic(
        lambda b, s, x: (b.sum(x, (0,)), b.amax(b.neg(x), (0, 1))), 8, 4,
        inputs=lambda m, n: [Spec.of((m, n))], options=InductorOptions(reduction_parts=4),
    )  # fmt: skip
    for shape in ((8, 4), (9, 3), (2, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), (x.sum(0), (-x).amax()))
