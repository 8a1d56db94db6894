"""The checker of border 1 refuses a broken graph of each class, and names the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau_capture
from flambeau_capture import CaptureOptions
from flambeau_capture.graphs.check import MalformedCapture, check_captured_graph
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

WEIGHT = torch.randn(3, 3)


def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    small, large = torch.aminmax(x.mm(WEIGHT), dim=1)
    return small.repeat(n), large + x.shape[0]


def captured() -> tuple[fx.GraphModule, list[Any], dict[str, fx.Node]]:
    """A graph with symbolic sizes and numbers, its example inputs, and its nodes by name."""
    graphs: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append((gm, list(example_inputs)))
        return gm.forward

    options = CaptureOptions(fullgraph=True, dynamic=True)
    flambeau_capture.compile(program, backend=backend, options=options)(torch.randn(4, 3), 5)
    ((gm, examples),) = graphs
    return gm, examples, {node.name: node for node in gm.graph.nodes}


def test_a_captured_graph_is_accepted() -> None:
    gm, examples, _ = captured()
    check_captured_graph(gm, examples)


def no_source(gm: Any, examples: Any, nodes: Any) -> None:
    del nodes["x"].meta["source"]


def no_spec_of_an_input(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["x"].meta["spec"] = None


def other_shape(gm: Any, examples: Any, nodes: Any) -> None:
    examples[index(nodes["x"])] = torch.randn(7, 3)


def other_dtype(gm: Any, examples: Any, nodes: Any) -> None:
    examples[index(nodes["x"])] = torch.randn(4, 3).double()


def other_strides(gm: Any, examples: Any, nodes: Any) -> None:
    examples[index(nodes["x"])] = torch.randn(3, 4).t()


def other_type(gm: Any, examples: Any, nodes: Any) -> None:
    examples[index(nodes["n"])] = "five"


def too_few_examples(gm: Any, examples: Any, nodes: Any) -> None:
    examples.pop()


def one_tensor_twice(gm: Any, examples: Any, nodes: Any) -> None:
    at = index(nodes["x"])
    examples.insert(at, examples[at])
    with gm.graph.inserting_before(nodes["x"]):
        twin = gm.graph.placeholder("twin")
    twin.meta.update(nodes["x"].meta)


def late_placeholder(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["mm"].append(nodes["n"])


def node_behind_the_output(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["output"].append(nodes["mm"])


def module_call(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["mm"].op = "call_module"


def name_twice(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["add"].name = "mm"


def foreign_node(gm: Any, examples: Any, nodes: Any) -> None:
    _, _, others = captured()
    nodes["add"].args = (others["getitem"], 1)


def used_before_defined(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["aminmax"].prepend(nodes["add"])


def unknown_user(gm: Any, examples: Any, nodes: Any) -> None:
    del nodes["x"].users[nodes["mm"]]


def dead_call(gm: Any, examples: Any, nodes: Any) -> None:
    with gm.graph.inserting_before(nodes["output"]):
        dead = gm.graph.call_function(torch.neg, (nodes["mm"],))
    dead.meta.update(spec=nodes["mm"].meta["spec"], pure=True)


def dead_input(gm: Any, examples: Any, nodes: Any) -> None:
    with gm.graph.inserting_before(nodes["x"]):
        dead = gm.graph.placeholder("dead")
    dead.meta.update(nodes["n"].meta)
    examples.insert(0, 5)


def no_spec_of_a_call(gm: Any, examples: Any, nodes: Any) -> None:
    del nodes["mm"].meta["spec"]


def size_as_argument(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["add"].args = (nodes["add"].args[0], nodes["x"].meta["spec"].shape[0])


def tensor_as_argument(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["add"].kwargs = {"out": [torch.ones(4)]}


def target_that_is_not_callable(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["mm"].op, nodes["mm"].target = "call_function", "mm"


def missing_attribute(gm: Any, examples: Any, nodes: Any) -> None:
    with gm.graph.inserting_before(nodes["add"]):
        nodes["add"].kwargs = {"alpha": gm.graph.get_attr("nothing")}


def nested_output(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["output"].args = ((nodes["output"].args[0],),)


def output_specs_missing(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["output"].meta["spec"] = nodes["output"].meta["spec"][:1]


def output_specs_swapped(gm: Any, examples: Any, nodes: Any) -> None:
    nodes["output"].meta["spec"] = nodes["output"].meta["spec"][::-1]


def no_size_env(gm: Any, examples: Any, nodes: Any) -> None:
    gm.meta["size_env"] = None


def undefined_symbol(gm: Any, examples: Any, nodes: Any) -> None:
    env: SizeEnv = gm.meta["size_env"]
    nodes["mm"].meta["spec"] = Spec.of((env.symbol(9, "elsewhere"), 3))


def index(node: fx.Node) -> int:
    """The position of a placeholder among the example inputs."""
    return [item for item in node.graph.nodes if item.op == "placeholder"].index(node)


BROKEN: list[tuple[Callable[..., None], str]] = [
    (no_source, r"x: meta\['source'\] is None"),
    (no_spec_of_an_input, r"x: meta\['spec'\] is None"),
    (other_shape, r"x: .* for a torch.float32 tensor of shape \(7, 3\)"),
    (other_dtype, r"x: .* for a torch.float64 tensor of shape \(4, 3\)"),
    (other_strides, r"x: strides \(3, 1\) for a tensor of strides \(1, 4\)"),
    (other_type, r"n: the number .* for an input of type str"),
    (too_few_examples, "3 placeholders for 2 example inputs"),
    (one_tensor_twice, "x: the same tensor as twin"),
    (late_placeholder, "n: a placeholder behind other nodes"),
    (node_behind_the_output, "output: the output node, and it alone, ends a graph"),
    (module_call, "mm: no node of a captured graph is a call_module"),
    (name_twice, "mm: two nodes of this name"),
    (foreign_node, "add: reads getitem, a node of another graph"),
    (used_before_defined, "add: reads getitem_1, which is defined later"),
    (unknown_user, "mm: x, which it reads, does not know it as a user"),
    (dead_call, "neg: nobody uses it"),
    (dead_input, "dead: nobody uses it"),
    (no_spec_of_a_call, r"mm: no meta\['spec'\]"),
    (size_as_argument, r"add: its argument \w+ is a symbolic number"),
    (tensor_as_argument, "add: its argument is a Tensor, not a node"),
    (target_that_is_not_callable, "mm: calls 'mm', which is not callable"),
    (missing_attribute, "nothing: the module has no attribute 'nothing'"),
    (nested_output, "output: returns .*, not a flat tuple of nodes"),
    (output_specs_missing, r"output: meta\['spec'\] is .*, not a tuple of 2"),
    (output_specs_swapped, r"output: meta\['spec'\] says .* of"),
    (no_size_env, r"x: the graph's size_env has no symbol"),
    (undefined_symbol, r"mm: no placeholder defines the symbol"),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_a_broken_graph_is_refused(broken: Callable[..., None], words: str) -> None:
    gm, examples, nodes = captured()
    broken(gm, examples, nodes)
    with pytest.raises(MalformedCapture, match=f"^{words}"):
        check_captured_graph(gm, examples)
