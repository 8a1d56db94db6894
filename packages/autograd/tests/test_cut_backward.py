"""Backwards cut into pieces: the golden text of one, and random ones run beside the whole."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flambeau_autograd.cut_backward import CutBackward, cut_backward, gradient_groups
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def _graph(
    inputs: Sequence[str], calls: Sequence[tuple[Any, ...]], outputs: Sequence[str]
) -> Graph:
    """A graph over float32[4, 4]: calls are (name, operator, operands ...)."""
    spec = Spec.of((4, 4), dtype=torch.float32, device=torch.device("cpu"))
    values = {name: Value(name, spec) for name in inputs}
    nodes = []
    for name, op, *operands in calls:
        args = tuple(values.get(each, each) for each in operands)
        node = Node(op, args, {})
        own = spec
        if op is aten.t.default:
            own = Spec.of((4, 4), stride=(1, 4), dtype=spec.dtype, device=spec.device)
        values[name] = Value(name, own, node)
        node.outputs = (values[name],)
        nodes.append(node)
    return Graph(
        [values[name] for name in inputs],
        nodes,
        [values[name] for name in outputs],
        name="backward",
    )


def _example() -> Graph:
    mm, t, tanh = aten.mm.default, aten.t.default, aten.tanh.default
    calls = [
        ("vt", t, "v"), ("g_v", mm, "t", "vt"), ("c", tanh, "t"), ("ct", t, "c"),
        ("g_w", mm, "ct", "w"), ("g_x", mm, "ct", "c"),
    ]  # fmt: skip
    return _graph(["v", "w", "t"], calls, ["g_x", "g_w", "g_v"])


def test_as_text() -> None:
    graph = _example()
    groups = gradient_groups(graph, {0, 1, 2}, (64,))
    assert groups == ((2,), (1,), (0,))
    pieces = cut_backward(graph, groups, primitive=False)
    assert [str(piece.graph) for piece in pieces] == [
        """\
backward_0(v: f32[4, 4], t: f32[4, 4]) {
  vt: f32[4, 4] stride [1, 4] = aten.t.default(v)
  g_v: f32[4, 4] = aten.mm.default(t, vt)
  return (g_v)
}""",
        """\
backward_1(t: f32[4, 4], w: f32[4, 4]) {
  c: f32[4, 4] = aten.tanh.default(t)
  ct: f32[4, 4] stride [1, 4] = aten.t.default(c)
  g_w: f32[4, 4] = aten.mm.default(ct, w)
  return (c, g_w)
}""",
        """\
backward_2(c: f32[4, 4]) {
  ct: f32[4, 4] stride [1, 4] = aten.t.default(c)
  g_x: f32[4, 4] = aten.mm.default(ct, c)
  return (g_x)
}""",
    ]


def test_limits_are_those_of_the_buckets_in_their_order() -> None:
    graph = _example()
    assert gradient_groups(graph, {0, 1, 2}, (1, 128)) == ((2,), (1, 0))
    assert gradient_groups(graph, {0, 1, 2}, (1000,)) == ((2, 1, 0),)
    assert gradient_groups(graph, {1}, (64,)) == ((2, 1), (0,))


def test_a_gradient_in_memory_that_is_read_later_is_a_copy() -> None:
    calls = [
        ("c", aten.tanh.default, "t"), ("g_v", aten.t.default, "c"),
        ("g_w", aten.mm.default, "c", "w"),
    ]  # fmt: skip
    for outputs in (["g_w", "g_v"], ["g_w", "c"], ["g_w", "t"]):
        graph = _graph(["w", "t"], calls, outputs)
        w, t = torch.randn(4, 4), torch.randn(4, 4)
        expected = run_graph(graph, (w, t))
        run = _compiled(graph, ((1,), (0,)))
        progress = run(w, t)
        first = progress.step()[1]
        torch.testing.assert_close(first, expected[1])
        if outputs != ["g_w", "t"]:
            first.zero_()
        (second, _) = progress.step()
        torch.testing.assert_close(second, expected[0])


def _compiled(graph: Graph, groups: Any) -> CutBackward:
    def compiler(graph: Graph, kind: str) -> Any:
        return lambda *inputs: run_graph(graph, inputs)

    return CutBackward(graph, groups, compiler, primitive=False)


@pytest.mark.parametrize("seed", range(40))
def test_random_backwards(seed: int) -> None:
    draw = random.Random(seed)
    inputs = [f"i{number}" for number in range(3)]
    names, calls = list(inputs), []
    for number in range(draw.randrange(1, 14)):
        op = draw.choice([aten.mm.default, aten.add.Tensor, aten.t.default, aten.tanh.default])
        count = 2 if op in (aten.mm.default, aten.add.Tensor) else 1
        name = f"v{number}"
        # Strides of results are not followed here: a transposed operand of a sum is made plain.
        plain = [each for each in names if op is aten.mm.default or each not in _transposed(calls)]
        calls.append((name, op, *draw.choices(plain, k=count)))
        names.append(name)
    made = [name for name in names if name not in inputs]
    outputs = draw.choices(made, k=draw.randrange(1, 5))
    graph = _graph(inputs, calls, list(dict.fromkeys(outputs)))
    count = len(graph.outputs)
    limits = tuple(draw.choice([1, 64, 100, 128]) for _ in range(draw.randrange(1, 3)))
    groups = gradient_groups(graph, set(range(count)), limits)
    assert sorted(position for group in groups for position in group) == list(range(count))
    args = [torch.randn(4, 4) for _ in inputs]
    expected = [each.clone() for each in run_graph(graph, args)]
    progress = _compiled(graph, groups)(*args)
    for group in groups:
        gradients = progress.step()
        for position, gradient in enumerate(gradients):
            if position in group:
                torch.testing.assert_close(gradient, expected[position])
                gradient.zero_()
            else:
                assert gradient is None


def _transposed(calls: Sequence[tuple[Any, ...]]) -> set[str]:
    return {name for name, op, *_ in calls if op is aten.t.default}
