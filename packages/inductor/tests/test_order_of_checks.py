"""A check of the data runs before what may rely on it: calls of ATen, kernels that read by indices,
writes to inputs, random draws.
"""

from __future__ import annotations

import random

import pytest
import torch

from flambeau_inductor import InductorOptions
from flambeau_inductor.lowering.lower_graph import lower_graph
from flambeau_inductor.nodes import ExternCall, Lowered
from flambeau_inductor.scheduler.fusion import fuse
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import Spec

aten = torch.ops.aten


class Program:
    """A graph in the making, over f32[8, 8] and int64[8, 8] tensors of one device."""

    def __init__(self, device: str) -> None:
        self.matrix = Spec.of((8, 8), dtype=torch.float32, device=torch.device(device))
        self.positions = Spec.of((8, 8), dtype=torch.int64, device=torch.device(device))
        self.graph = Graph([Value("x", self.matrix), Value("i", self.positions)])
        self.builder = Builder(self.graph.nodes, ["x", "i"])

    def call(self, op, *args, spec=None):
        """A call of ATen; returns its result."""
        node = Node(op, args, {}, ())
        made = Value(f"made_{len(self.graph.nodes)}", spec or self.matrix, node)
        node.outputs = (made,)
        self.graph.nodes.append(node)
        return made

    def check(self, condition, text="a check"):
        """The check of all of a bool tensor, on the host."""
        holds = self.builder.all(condition, (0, 1))
        if holds.spec.device.type != "cpu":
            spec = holds.spec.replace(device=torch.device("cpu"))
            holds = self.call(aten._to_copy.default, holds, spec=spec)
            holds.producer.kwargs["device"] = torch.device("cpu")
        self.graph.nodes.append(Node(aten._assert_async.msg, (holds, text), {}, ()))


def steps_of(graph: Graph) -> tuple[Lowered, list[list[int]]]:
    """The positions in the program of what each kernel or call does, in the order in which these
    run.
    """
    lowered = lower_graph(graph, InductorOptions())
    groups = fuse(lowered, InductorOptions()).groups
    place = {node: at for at, node in enumerate(lowered.nodes)}
    return lowered, [[place[node] for node in group.nodes] for group in groups]


def assert_checks_come_first(graph: Graph) -> int:
    """Returns how many calls and kernels stand behind some check."""
    lowered, steps = steps_of(graph)
    ran_at = {at: step for step, places in enumerate(steps) for at in places}
    checks = [
        at
        for at, node in enumerate(lowered.nodes)
        if isinstance(node, ExternCall) and node.op == "aten._assert_async.msg"
    ]
    inputs = {name for name, buffer in lowered.buffers.items() if buffer.role == "input"}
    behind = 0
    for check in checks:
        for at, node in enumerate(lowered.nodes):
            indexed = not isinstance(node, ExternCall) and "check" in str(node)
            relies = isinstance(node, ExternCall) or indexed or not inputs.isdisjoint(node.writes)
            if at > check and relies:
                behind += 1
                assert ran_at[at] > ran_at[check], f"{node} runs before {lowered.nodes[check]}"
    return behind


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_kernel_that_reads_by_indices(device):
    """It reads what an earlier kernel reads, too, and would share that one."""
    program = Program(device)
    x, i = program.graph.inputs
    b = program.builder
    doubled = b.mul(i, 2)
    program.check(b.lt(i, 8))
    program.graph.outputs = [doubled, b.gather(x, 0, i)]
    assert assert_checks_come_first(program.graph) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_cannot_fail_shares_the_kernels_in_front(device):
    program = Program(device)
    x, _ = program.graph.inputs
    b = program.builder
    first = b.exp(x)
    program.check(b.lt(first, 1.0))
    program.graph.outputs = [first, b.mul(first, 2.0)]
    lowered, steps = steps_of(program.graph)
    check = next(at for at, n in enumerate(lowered.nodes) if "assert" in str(n))
    ran_at = next(step for step, places in enumerate(steps) if check in places)
    assert any(min(places) < check < max(places) for places in steps[:ran_at]), steps


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed, device):
    rng = random.Random(seed)
    program = Program(device)
    b = program.builder
    matrices, positions = [program.graph.inputs[0]], [program.graph.inputs[1]]

    def pick(values):
        return rng.choice(values)

    checks = 0
    for _ in range(rng.randint(6, 14)):
        kind = rng.choice(["pointwise", "check", "gather", "extern", "draw", "positions"])
        if kind == "pointwise":
            matrices.append(b.add(pick(matrices), pick(matrices)))
        elif kind == "positions":
            positions.append(b.add(pick(positions), 1))
        elif kind == "check":
            program.check(b.lt(pick(positions), rng.randint(1, 9)))
            checks += 1
        elif kind == "gather":
            matrices.append(b.gather(pick(matrices), rng.randint(0, 1), pick(positions)))
        elif kind == "draw":
            matrices.append(program.call(aten.rand_like.default, pick(matrices)))
        else:
            op = rng.choice([aten.mm.default, aten.take.default])
            other = positions if op is aten.take.default else matrices
            matrices.append(program.call(op, pick(matrices), pick(other)))
    program.check(b.lt(positions[-1], 5))
    program.graph.outputs = [*matrices[-3:], positions[-1]]
    program.graph.writes = [(program.graph.inputs[0], matrices[-1])]
    assert assert_checks_come_first(program.graph) >= 1
