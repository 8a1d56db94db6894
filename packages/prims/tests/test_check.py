"""The graph checker accepts what tracers make and names each kind of mistake."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.check import GraphError, SoundCalls, check_graph, problems
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import PRIMS
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

aten = torch.ops.aten
SPEC = Spec.of((4, 3))


def call(op, name, *args, spec=SPEC):
    node = Node(op, args, {})
    value = Value(name, spec, node)
    node.outputs = (value,)
    return node, value


def sound():
    x = Value("x", SPEC)
    first, y = call(aten.sin.default, "y", x)
    second, z = call(aten.add.Tensor, "z", y, x)
    return Graph([x], [first, second], [z])


def test_a_sound_graph_passes():
    check_graph(sound(), functional=True, specs=True)


def swap(graph):
    graph.nodes.reverse()


def lose_output(graph):
    graph.nodes.pop()


def wrong_producer(graph):
    graph.nodes[0].outputs[0].producer = graph.nodes[1]


def same_name(graph):
    graph.nodes[1].outputs[0].name = "y"


def strange_argument(graph):
    graph.nodes[1].args = (*graph.nodes[1].args, {1, 2})


def changed_in_place(graph):
    node = graph.nodes[1]
    node.args = (list(node.args[:1]),)
    list(node.operands())
    node.args[0].append(graph.inputs[0])


def foreign_size(graph):
    graph.nodes[1].args = (graph.nodes[1].args[0], SizeEnv().symbol(3, "x"))


def mutation(graph):
    graph.nodes[1].op = aten.add_.Tensor


def write_to_no_input(graph):
    graph.writes.append((graph.outputs[0], graph.outputs[0]))


def wrong_spec(graph):
    graph.nodes[1].outputs[0].spec = Spec.of((4, 3), stride=(1, 4))


MISTAKES = {
    swap: "read before it is defined",
    lose_output: "is defined nowhere",
    wrong_producer: "the producer of y",
    same_name: "two Values are called y",
    strange_argument: "no argument of a graph",
    changed_in_place: "changed in place",
    foreign_size: "another SizeEnv",
    mutation: "writes to an argument",
    write_to_no_input: "is no input",
    wrong_spec: "should be f32",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_each_mistake_is_named(mistake):
    graph = sound()
    mistake(graph)
    assert any(MISTAKES[mistake] in text for text in problems(graph, functional=True, specs=True))
    with pytest.raises(GraphError, match="graph\\(x: f32"):
        check_graph(graph, functional=True, specs=True)


def other_operator(node):
    node.op = PRIMS["bitwise_not"]


def other_arguments(node):
    node.args = (*node.args, 2)


def other_operand(node):
    node.args[0].spec = Spec.of((4, 3), dtype=torch.int64)


def other_result(node):
    node.outputs[0].spec = Spec.of((3, 4))


@pytest.mark.parametrize("change", [other_operator, other_arguments, other_operand, other_result])
def test_a_call_that_was_sound_is_checked_again_once_it_changes(change):
    calls = SoundCalls()
    x = Value("x", SPEC)
    node, y = call(PRIMS["exp"], "y", x)
    graph = Graph([x], [node], [y])
    for _ in range(2):
        check_graph(graph, sound=calls)
    assert calls.holds(node)
    change(node)
    for _ in range(2):
        with pytest.raises(GraphError, match=r"^y: "):
            check_graph(graph, sound=calls)
