"""Graphs of tensors that are declared on a GPU, which there need not be: a stand-in for a tuner
takes the given way, and programs run through the reference generator on CPU tensors.
"""

from __future__ import annotations

import dataclasses

import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec, spec_of
from flambeau_runtime import check_program
from flambeau_runtime.program import Extern, Launch
from flambeau_runtime.tuning.contest import DeviceFacts

aten = torch.ops.aten
OPTIONS = InductorOptions(debug_checks=True, max_autotune_gemm=True)


class StandIn:
    """A tuner that takes the last way whose name contains a text, else the first."""

    def __init__(self, wanted: str = "x") -> None:
        self.wanted = wanted
        self.contests = []

    def facts(self, device: str) -> DeviceFacts:
        return DeviceFacts()

    def choose(self, contests):
        for contest in contests:  # a choice is kept by its name
            assert len({each.name for each in contest.candidates}) == len(contest.candidates)
        self.contests += contests
        return [self.answer(contest) for contest in contests]

    def answer(self, contest) -> int:
        names = [candidate.name for candidate in contest.candidates]
        fitting = [n for n, name in enumerate(names) if self.wanted in name and "aten" not in name]
        return fitting[-1] if fitting else 0


class OnGpu:
    """Builds graphs whose tensors are declared on a GPU."""

    def __init__(self, *tensors: torch.Tensor, env: SizeEnv | None = None, shapes=()) -> None:
        """`shapes`: of the first tensors, with symbols of `env`."""
        self.tensors = tensors
        specs = [spec_of(t).replace(device=torch.device("cuda:0")) for t in tensors]
        for number, shape in enumerate(shapes):
            old = specs[number]
            specs[number] = Spec.of(shape, dtype=old.dtype, device=old.device)
        self.graph = Graph([Value(f"x{i}", spec) for i, spec in enumerate(specs)], env=env)
        self.builder = Builder(self.graph.nodes, [value.name for value in self.graph.inputs])

    def call(self, op, *args, **kwargs) -> Value:
        """A call of ATen, its result's Spec from a run on the CPU."""
        run = [self.example(a) if isinstance(a, Value) else a for a in args]
        spec = spec_of(op(*run, **kwargs)).replace(device=torch.device("cuda:0"))
        return self.call_like(spec, op, *args, **kwargs)

    def call_like(self, spec: Spec, op, *args, **kwargs) -> Value:
        """A call of ATen whose result has a Spec."""
        value = Value(self.builder.fresh_name(), spec)
        value.producer = Node(op, args, kwargs, (value,), "")
        self.graph.nodes.append(value.producer)
        return value

    @staticmethod
    def example(value: Value) -> torch.Tensor:
        spec = value.spec
        return (
            torch.zeros(spec.shape, dtype=spec.dtype).as_strided(spec.shape, spec.stride)
            if 0 in spec.shape
            else torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
        )

    def spread(self, value: Value, like: Value) -> Value:
        shape = like.spec.shape
        for _ in range(len(shape) - len(value.spec.shape)):
            value = self.builder.unsqueeze(value, 0)
        return self.builder.expand(value, shape)

    def run(self, outputs, tuner, options=OPTIONS):
        """The results on CPU tensors, and the Program."""
        self.graph.outputs = list(outputs)
        backend = ReferenceBackend()
        program = compile_graph(self.graph, options, backends={"cuda": backend}, tuner=tuner)
        check_program(program)
        here = dataclasses.replace(
            program,
            tensors=tuple(dataclasses.replace(t, device="cpu") for t in program.tensors),
        )
        return backend.load(here)(*self.tensors), program


def kinds(program) -> list[str]:
    """What the program's steps do, launches by the label of their kernel."""
    return [
        step.op if isinstance(step, Extern) else step.kernel
        for step in program.steps
        if isinstance(step, (Extern, Launch))
    ]
