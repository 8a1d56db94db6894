"""Products of one matrix with several frozen ones become one, under `freezing`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau
from flambeau_autograd import merge_products
from flambeau_autograd.freezing import split_frozen
from flambeau_prims import primitives as prims
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec

aten = torch.ops.aten


class Layer(nn.Module):
    """Projections to queries, keys and values, of other widths, and a gated layer."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, width, bias=bias) for width in (32, 16, 16))
        self.gate, self.up = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
        self.scale = nn.Parameter(torch.rand(48, 32))

    def forward(self, x: torch.Tensor) -> Any:
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, -1, 8).transpose(1, 2) for m in (self.q, self.k, self.v))
        k, v = (y.repeat_interleave(2, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1)
        # A weight that is computed between the products.
        scaled = F.linear(y, self.gate.weight * self.scale + torch.ones(32))
        return F.silu(self.gate(y)) * self.up(y) + scaled, q.exp(), k.sum(-1), self.v(x).exp()


def compare(run: Any, model: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        for mine, its in zip(run(x), model(x), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
            assert mine.stride() == its.stride()
            assert mine.storage_offset() == its.storage_offset()


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many products each merging took."""
    counts: list[int] = []
    merge = merge_products._Merging.merge

    def counting(self: Any, nodes: list[Any]) -> None:
        counts.append(len(nodes))
        merge(self, nodes)

    monkeypatch.setattr(merge_products._Merging, "merge", counting)
    return counts


@pytest.mark.parametrize("bias", [False, True])
def test_projections(bias: bool, merged: list[int]) -> None:
    model = Layer(bias).eval()
    run = flambeau.compile(model, fullgraph=True, options={"freezing": True})
    compare(run, model, torch.randn(2, 5, 32))
    assert sorted(merged) == [3, 3]
    model.up.weight.data = model.up.weight.data * 2
    compare(run, model, torch.randn(2, 5, 32))


def test_many_rows_and_unfrozen_weights_stay(merged: list[int]) -> None:
    model = Layer(True).eval()
    compare(flambeau.compile(model, options={"freezing": True}), model, torch.randn(20, 5, 32))
    compare(flambeau.compile(model), model, torch.randn(2, 5, 32))
    assert not merged


def test_what_leaves_the_graph_keeps_its_memory(merged: list[int]) -> None:
    model = Layer(True).eval()

    def program(x: torch.Tensor) -> Any:
        k = model.k(x)
        return k[..., 3:7], k[0], model.q(x).sin(), model.v(x).cos()

    compiled = flambeau.compile(program, options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 5, 32)
            results, expected = compiled(x), program(x)
            torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)
            for mine, its in zip(results, expected, strict=True):
                assert mine.stride() == its.stride()
                assert mine.storage_offset() == its.storage_offset()
    one, other = results[:2]
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert merged == [2]


def test_text() -> None:
    x, v, u = (
        Value(name, Spec.of(shape)) for name, shape in (("x", (4, 8)), ("v", (8, 6)), ("u", (8, 2)))
    )
    graph = Graph([x, v, u])
    builder = Builder(graph.nodes)
    for name, weight in (("q", v), ("k", u)):
        call = Node(aten.mm.default, (x, weight), {})
        value = Value(name, Spec.of((4, weight.spec.shape[1])), call)
        call.outputs = (value,)
        graph.nodes.append(call)
        graph.outputs.append(builder.exp(value))
    split = split_frozen(graph, [v, u])
    assert split is not None
    assert [str(node.op) for node in split.before.nodes] == ["prims.cat"]
    assert [node.op for node in split.after.nodes] == [
        aten.mm.default, prims.slice, prims.slice, prims.exp, prims.exp
    ]  # fmt: skip
    assert [out.spec.stride for out in split.after.outputs] == [(6, 1), (2, 1)]
