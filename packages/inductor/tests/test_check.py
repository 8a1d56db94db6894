"""The checkers find what breaks a law of their stage."""

from __future__ import annotations

import pytest
import torch

from flambeau_inductor import BorderError, InductorOptions, compile_graph
from flambeau_inductor.check import check_body, check_graph, check_kernel, check_schedule
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, Compute, Load, LoopKernel, Param, Reduce, Store
from flambeau_inductor.pipeline import schedule_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec

F32 = torch.float32
I0 = Axis(symbol("i0"), 4)
LOAD = Load("v0", F32, "b0", symbol("i0"))


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ((Compute("v1", F32, "neg", ("v0",)),), "before it is defined"),
        ((LOAD, LOAD), "defined twice"),
        (
            (LOAD, Compute("v1", F32, "add", ("v0",))),
            "no such operator, or not of that many operands",
        ),
        ((LOAD, Compute("v1", F32, "lt", ("v0", "v0"))), "the result should be torch.bool"),
        ((LOAD, Compute("v1", F32, "where", ("v0", "v0", "v0"))), "a condition must be bool"),
        ((LOAD, Reduce("v1", F32, "median", "v0")), "no such reduction"),
        ((Load("v0", F32, "b0", symbol("i7")),), "i7 is no axis"),
        ((LOAD, Store("b1", symbol("v0"), "v0")), "an indirect index must be an int64 value"),
        (
            (
                Load("v0", torch.bfloat16, "b0", symbol("i0")),
                Compute("v1", torch.bfloat16, "neg", ("v0",)),
            ),
            "arithmetic in a storage type",
        ),
    ],
)
def test_bodies(statements, message):
    with pytest.raises(BorderError, match=message):
        check_body(statements, (I0,), ())


def test_kernel_declares_its_buffers():
    body = (LOAD, Store("b1", symbol("i0"), "v0"))
    kernel = LoopKernel("cpu", (Param("b0", F32, "read"),), (), (I0,), (), body)
    with pytest.raises(BorderError, match="the body uses"):
        check_kernel(kernel)


def test_graphs():
    x = Value("x", Spec.of((4,)))
    y = Value("y", Spec.of((4,)))
    inplace = Node(torch.ops.aten.add_.Tensor, (x, x), {}, (y,))
    with pytest.raises(BorderError, match="an operator that mutates"):
        check_graph(Graph([x], [inplace], [y]))
    with pytest.raises(BorderError, match="read before it is defined"):
        check_graph(Graph([], [Node(torch.ops.aten.sin.default, (x,), {}, (y,))], [y]))
    with pytest.raises(BorderError, match="leaves the graph undefined"):
        compile_graph(Graph([x], [], [y]), InductorOptions(debug_checks=True))
    with pytest.raises(BorderError, match="which is no input"):
        check_graph(Graph([x], [Node(torch.ops.aten.sin.default, (x,), {}, (y,))], [], [(y, x)]))


def test_schedules(tester):
    def build(b, x):
        node = Node(torch.ops.aten.sin.default, (b.exp(x),), {}, (Value("s", x.spec),))
        node.outputs[0].producer = node
        b.nodes.append(node)
        return b.exp(node.outputs[0])

    schedule = schedule_graph(tester.graph(build, [torch.randn(4)]), InductorOptions())
    check_schedule(schedule)
    schedule.memory.free[0].append("buf0")
    with pytest.raises(BorderError, match="dead memory"):
        check_schedule(schedule)
