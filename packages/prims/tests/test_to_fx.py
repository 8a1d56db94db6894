"""Graph -> fx: the module computes what the graph says, with sizes, constants, writes and several
results.
"""

from __future__ import annotations

import pytest
import torch
from torch import fx

from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.size_floats import float_of
from flambeau_prims.sizes import SizeEnv, size_max
from flambeau_prims.spec import Spec
from flambeau_prims.to_fx import FxBuilder, to_fx

aten = torch.ops.aten


def call(op, names_and_specs, *args, **kwargs):
    node = Node(op, args, kwargs, where="model.py:7")
    node.outputs = tuple(Value(name, spec, node) for name, spec in names_and_specs)
    return node


def test_sizes_become_nodes():
    env = SizeEnv()
    b, n = env.symbol(4, "x"), env.symbol(6, "n")
    size = b * 3 + n // 2 - 1
    x = Value("x", Spec.of((b, 3)))
    full = call(
        aten.full.default, [("y", Spec.of((size, size_max(b, n))))], [size, size_max(b, n)], 1.0
    )
    scaled = call(
        aten.mul.Tensor,
        [("z", full.outputs[0].spec)],
        full.outputs[0],
        float_of("**", float_of("float", b), -0.5),
    )
    module = to_fx(Graph([x, n], [full, scaled], [scaled.outputs[0], size, None], env=env))
    out, value, nothing = module(torch.zeros(9, 3), 5)
    torch.testing.assert_close(out, torch.full((28, 9), 1 / 3))
    assert value == 28 and nothing is None
    assert module.meta["size_env"] is env
    # Each size is computed once.
    assert len([node for node in module.graph.nodes if node.target is aten.sym_size.int]) == 1


def test_a_symbol_without_source_is_an_error():
    env = SizeEnv()
    x = Value("x", Spec.of((3,)))
    node = call(aten.full.default, [("y", Spec.of((4,)))], [env.symbol(4, "lost")], 1.0)
    with pytest.raises(ValueError, match="s0"):
        to_fx(Graph([x], [node], [node.outputs[0]], env=env))


def test_several_results_constants_and_writes():
    x, weight = Value("x", Spec.of((4, 5))), Value("weight", Spec.of((5,)))
    top = call(
        aten.topk.default,
        [("values", Spec.of((4, 2))), ("indices", Spec.of((4, 2), dtype=torch.int64))],
        x,
        2,
        1,
    )
    parts = call(aten.split.Tensor, [("part", Spec.of((4, 5)))], x, 4)
    shifted = call(aten.add.Tensor, [("shifted", Spec.of((4, 5)))], parts.outputs[0], weight)
    graph = Graph([x], [top, parts, shifted], list(top.outputs), writes=[(x, shifted.outputs[0])])
    constant = torch.randn(5)
    module = to_fx(graph, {weight: constant})
    real = torch.randn(4, 5)
    before = real.clone()
    values, indices = module(real)
    torch.testing.assert_close((values, indices), tuple(before.topk(2, 1)))
    torch.testing.assert_close(real, before + constant)
    assert dict(module.named_buffers())["weight"] is constant
    specs = {node.name: node.meta.get("spec") for node in module.graph.nodes}
    assert specs["x"] is x.spec and specs["values"] is top.outputs[0].spec


def test_bulk_nodes_are_ordinary_fx_nodes():
    builder = FxBuilder()
    x = builder.placeholder("x", Spec.of((2,)))
    y = builder.call(torch.sin, (x,), name="x", where="model.py:12")
    builder.output((y,))
    graph = builder.graph
    graph.lint()
    assert [node.name for node in graph.nodes] == ["x", "x_1", "output"]
    assert len(graph.nodes) == 3 and graph.find_nodes(op="call_function", target=torch.sin) == [y]
    assert list(x.users) == [y]
    module = fx.GraphModule(torch.nn.Module(), graph)
    torch.testing.assert_close(module(torch.ones(2))[0], torch.ones(2).sin())
    graph.erase_node(next(iter(reversed(graph.nodes))))
    assert len(graph.nodes) == 2
