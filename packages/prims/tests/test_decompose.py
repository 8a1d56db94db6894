"""decompose on whole graphs: layouts, copies that must stay, symbolic sizes, constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from flambeau_prims.check import check_graph
from flambeau_prims.decompose import decompose
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph
from flambeau_prims.primitives import Prim
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


def traced(
    program: Callable[..., Any],
    *tensors: torch.Tensor,
    env: SizeEnv | None = None,
    shapes: Any = None,
) -> Graph:
    """The program's functional ATen graph; `shapes` are symbolic shapes of the tensors."""
    tracer = Tracer(env)
    specs = [spec_of(t) for t in tensors]
    if shapes is not None:
        specs = [Spec.of(shape, dtype=t.dtype) for shape, t in zip(shapes, tensors, strict=True)]
    fakes = [tracer.fake(spec) for spec in specs]
    with tracer, torch.no_grad():
        results = program(*fakes)
    results = results if isinstance(results, tuple) else (results,)
    return Graph(
        [fake.value for fake in fakes], tracer.nodes, [result.value for result in results], env=env
    )


def names(graph: Graph) -> list[str]:
    return [str(node.op) for node in graph.nodes]


def check(program: Callable[..., Any], *tensors: torch.Tensor) -> Graph:
    """Trace, decompose, run; values, dtypes, strides must be eager's."""
    graph = decompose(traced(program, *tensors))
    check_graph(graph)
    expected = program(*tensors)
    for mine, theirs in zip(
        run_graph(graph, list(tensors)),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
    return graph


def test_a_small_network() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.layer_norm(x @ w, (8,))
        return F.gelu(F.softmax(y.bfloat16(), -1)).t()[1:].clone(), y.clone(), (y * 2).mean(0)

    graph = check(program, torch.randn(4, 8), torch.randn(8, 8))
    assert [name for name in names(graph) if not name.startswith("prims.")] == ["aten.mm.default"]


def test_where_is_carried_over() -> None:
    graph = traced(lambda x: F.silu(x), torch.randn(3))
    graph.nodes[0].where = "model.py:7"
    assert {node.where for node in decompose(graph).nodes} == {"model.py:7"}


def test_kept_operators_stay() -> None:
    graph = traced(lambda x: F.silu(x), torch.randn(3))
    assert names(decompose(graph, keep=[aten.silu.default])) == ["aten.silu.default"]


def test_copies_vanish_inside_and_stay_at_the_border() -> None:
    assert "prims.clone" not in names(check(lambda x: x.clone() + 1, torch.randn(3)))
    assert names(check(lambda x: x.clone(), torch.randn(3))) == ["prims.clone"]
    # Viewed by an output, written twice, or the same memory as another output: each needs its own.
    assert names(check(lambda x: x.clone().view(6), torch.randn(2, 3))) == [
        "prims.clone",
        "prims.reshape",
    ]
    assert names(check(lambda x: (x * 1, x + 1), torch.randn(3))).count("prims.clone") == 1

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y.clone()

    assert names(check(two, torch.randn(3))) == ["prims.exp", "prims.clone"]


def test_layout_changes_are_copies() -> None:
    x = torch.randn(2, 3, 4, 5)
    graph = check(lambda x: x.contiguous(memory_format=torch.channels_last), x)
    assert names(graph) == ["prims.clone"]
    check(lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), x)
    check(lambda x: x.transpose(1, 2).reshape(2, 12, 5) + x.view(2, 12, 5), x)


def test_results_take_the_layout_of_eager() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    check(
        lambda x: (
            F.relu(x),
            x.sum(1),
            x.mean((2, 3), keepdim=True),
            F.softmax(x, 1),
            x + x[:, :1],
        ),
        x,
    )
    check(lambda x: x.t() + x.t().exp(), torch.randn(3, 4))


def test_outputs_of_one_call_do_not_share_memory() -> None:
    check(lambda x: torch.var_mean(x, 1, keepdim=True), torch.randn(3, 4))
    check(lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5), torch.randn(3, 4))


def test_as_strided_of_a_view_reads_the_memory_below() -> None:
    check(lambda x: x.exp()[1:].as_strided((2, 2), (1, 4), 1) + 1, torch.randn(3, 4))
    check(lambda x: x[:, 1:].unfold(1, 2, 1) * 2, torch.randn(3, 5))


def test_constants_become_numbers() -> None:
    graph = decompose(
        traced(
            lambda x: torch.where(x > 0, x, torch.zeros_like(x)) * torch.ones(4), torch.randn(3, 4)
        )
    )
    used = {value for node in graph.nodes for value in node.operands()}
    assert not [
        node for node in graph.nodes if str(node.op) == "prims.full" and node.outputs[0] in used
    ]
    check(lambda x: torch.full((), 0.1, dtype=torch.bfloat16) * x, torch.randn(3))
    check(lambda x: torch.ones(1).expand(3, 4) + x.sum(), torch.randn(3))
    check(lambda x: torch.full((2,), 3) / torch.full((2,), 2) + x, torch.randn(2))
    check(lambda x: torch.zeros(2, 3).expand(4, 2, 3), torch.randn(2))


def test_complex_operators_stay() -> None:
    graph = decompose(traced(lambda x: (x * x).abs(), torch.randn(3, dtype=torch.complex64)))
    assert not any(isinstance(node.op, Prim) for node in graph.nodes)


def test_devices() -> None:
    """A 0-dim CPU tensor, a constant among them, may meet tensors of another device; index tensors
    may too.
    """
    tracer = Tracer(device="cuda:0")
    x, places = (
        tracer.fake(Spec.of((4, 8), device="cuda:0")),
        tracer.fake(Spec.of((3,), dtype=torch.int64)),
    )
    scalar = tracer.fake(Spec.of((), dtype=torch.float64))
    with tracer:
        y = torch.where(x > 0, x, torch.scalar_tensor(2.0)) * scalar
        results = (y, x[places], torch.maximum(y, torch.scalar_tensor(0.5)))
    inputs = [fake.value for fake in (x, places, scalar)]
    graph = decompose(Graph(inputs, tracer.nodes, [result.value for result in results]))
    check_graph(graph)
    moved = [node.args[0] for node in graph.nodes if str(node.op) == "prims.to_device"]
    assert (
        len(moved) == 2 and inputs[1] in moved
    )  # the indices, and the scalar after its cast; literals became numbers
    assert all(result.spec.device == torch.device("cuda:0") for result in graph.outputs)


def test_writes_are_carried_out() -> None:
    x = torch.randn(3)
    graph = traced(lambda x: x + 1, x)
    graph.writes.append((graph.inputs[0], graph.outputs.pop()))
    expected = x + 1
    run_graph(decompose(graph), [x])
    assert torch.equal(x, expected)


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return F.softmax(scores.masked_fill(~mask, float("-inf")), -1)


SYMBOLIC: list[tuple[Callable[..., Any], int]] = [
    (lambda x: F.softmax(x, -1), 1),
    (lambda x: F.layer_norm(x, x.shape[-1:]), 1),
    (lambda x: x.var(1), 1),
    (lambda x: x.var(0, correction=0.5), 1),
    (lambda x: x.mean(), 1),
    (lambda x: F.pad(x, (1, 2), value=3.0), 1),
    (lambda x: torch.cat([x, x[:1], x[-1:]]), 1),
    (lambda x: x.reshape(-1) * x.shape[0], 1),
    (lambda x: x[1:, :-1].sum(0), 1),
    (lambda x: torch.arange(x.shape[1]) + x, 1),
    (lambda x: x.t() @ x, 1),
    (lambda x: x.roll(1, 0), 1),
    (lambda x: x.repeat(2, 1) + x.shape[0] ** -0.5, 1),
    (lambda x: x.unfold(0, 2, 1) + 1, 1),
    (lambda x: x.triu(1), 1),
    (attention, 2),
    (lambda x: torch.stack([x, x]).flip(0), 1),
    (lambda x: x.chunk(2, 0)[0] * 2, 1),
    (lambda x: F.log_softmax(x.bfloat16(), 0), 1),
]


@pytest.mark.parametrize("case", range(len(SYMBOLIC)))
def test_symbolic_sizes(case: int) -> None:
    program, count = SYMBOLIC[case]
    env = SizeEnv()
    shape = (env.symbol(4, "x.shape[0]"), env.symbol(6, "x.shape[1]"))
    example = [torch.randn(4, 6) for _ in range(count)]
    graph = decompose(traced(program, *example, env=env, shapes=[shape] * count))
    check_graph(graph)
    for sizes in ((4, 6), (10, 14), (8, 12)):
        given = [torch.randn(sizes) for _ in range(count)]
        (mine,), theirs = run_graph(graph, given), program(*given)
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_decomposing_adds_no_guard() -> None:
    env = SizeEnv()
    shape = (env.symbol(4, "x.shape[0]"), env.symbol(6, "x.shape[1]"))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.layer_norm(x, (x.shape[-1],)))[1:] * x[:1]
        return F.softmax(y + y.sum(0), -1).t().contiguous().view(-1)

    graph = traced(program, torch.randn(4, 6), env=env, shapes=[shape])
    before = [guard.format({}) for guard in env.guards]
    decompose(graph)
    assert [guard.format({}) for guard in env.guards] == before
