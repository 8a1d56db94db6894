"""What a Node remembers of its arguments, and which symbols a graph uses."""

from __future__ import annotations

import torch

from flambeau_prims.graph import Graph, Node, Value, map_values
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_prims.symbols import missing_symbols

aten = torch.ops.aten
SPEC = Spec.of((4, 3))


def test_operands_follow_arguments_that_are_assigned():
    x, y, z = (Value(name, SPEC) for name in "xyz")
    node = Node(aten.cat.default, ([x, y], 1), {})
    assert list(node.operands()) == [x, y]
    node.args = map_values(node.args, {x: z, y: y}.__getitem__)
    assert list(node.operands()) == [z, y] == list(node.operands())
    node.kwargs = {"out": x, "others": {"last": (y, [None, z])}}
    assert list(node.operands()) == [z, y, x, y, z]
    node.args, node.kwargs = (torch.Size((4, 3)), 1.0, x), {}
    assert list(node.operands()) == [x]


def test_symbols_of_arguments_strides_and_offsets_are_missing_where_no_input_gives_them():
    env = SizeEnv()
    rows, stride, offset, width = (env.symbol(7, name) for name in ("s0", "s1", "s2", "s3"))
    x = Value("x", Spec.of((rows, 3)))
    base = Spec.of((rows, 3), stride=(stride, 1))
    y = Value("y", base.replace(shape=base.shape, stride=base.stride, offset=offset + 1))
    z = Value("z", Spec.of((rows, 3)))
    graph = Graph(
        [x],
        [
            Node(aten.as_strided.default, (x,), {}, (y,)),
            Node(aten.add.Tensor, (y, [width, (2 * width,)]), {}, (z,)),
        ],
        [z],
        env=env,
    )
    assert set(map(str, missing_symbols(graph))) == {"s1", "s2", "s3"}
