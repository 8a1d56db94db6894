"""Graphs around one matrix product, and each way to compute them as a Program beside float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import run_cpp
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.spec import spec_of
from flambeau_runtime import check_program, load
from flambeau_runtime.program import Program
from flambeau_runtime.tuning.contest import Contest, CpuFacts
from flambeau_runtime.tuning.cpu_bench import CpuBench

OPTIONS = InductorOptions(debug_checks=True, max_autotune_gemm=True)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
PRECISION = {F32: 2e-6, BF16: 1e-2, F16: 1e-3}


class Every:
    """A tuner that takes the way of one number, or the first where there are not so many."""

    def __init__(self, number: int, facts: CpuFacts | None = None) -> None:
        self.number = number
        self.known = facts or CpuBench(run_cpp.OPTIONS).facts("cpu")
        self.names: list[str] = []

    def facts(self, device: str) -> CpuFacts | None:
        return self.known

    def choose(self, contests: list[Contest]) -> list[int]:
        for contest in contests:
            names = [candidate.name for candidate in contest.candidates]
            assert len(set(names)) == len(names)
            self.names += names
        return [self.number if self.number < len(contest.candidates) else 0 for contest in contests]


class Product:
    """A graph around a product: `call` adds an ATen call, whose Spec is that of a run."""

    def __init__(self, *tensors: torch.Tensor, frozen: tuple[int, ...] = ()) -> None:
        self.tensors = tensors
        self.graph = Graph([Value(f"x{i}", spec_of(t)) for i, t in enumerate(tensors)])
        self.graph.frozen = frozenset(self.graph.inputs[number] for number in frozen)
        self.builder = Builder(self.graph.nodes, [value.name for value in self.graph.inputs])

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Value:
        run = [
            torch.empty_strided(a.spec.shape, a.spec.stride, dtype=a.spec.dtype)
            if isinstance(a, Value)
            else a
            for a in args
        ]
        value = Value(self.builder.fresh_name(), spec_of(op(*run, **kwargs)))
        value.producer = Node(op, args, kwargs, (value,), "")
        self.graph.nodes.append(value.producer)
        return value

    def programs(self, facts: CpuFacts | None = None) -> Iterator[tuple[str, Program]]:
        """Each way as a Program that passes its checks."""
        number, count = 0, 1
        while number < count:
            tuner = Every(number, facts)
            program = compile_graph(self.graph, OPTIONS, tuner=tuner)
            check_program(dataclasses.replace(program, prepared=None))
            count = len(tuner.names)
            yield tuner.names[number] if tuner.names else "", program
            number += 1


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference relative to that of the exact result."""
    return float((result.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def check_ways(product: Product, exact: torch.Tensor, precision: float, least: int = 2) -> list:
    """Run every way twice on its inputs; the names of the ways."""
    names = []
    for name, program in product.programs():
        run = load(program, run_cpp.OPTIONS)
        for _ in range(2):
            (result,) = run(*product.tensors)
            # oneDNN adds long sums in another order than ATen's other library does.
            allowed = 1.5 * precision if name.startswith("mkldnn") else precision
            assert error(result, exact) <= allowed, name
        names.append(name)
    assert len(names) >= least, names
    assert any("cpp_packed_gemm" in name for name in names), names
    return names


def relu_of(product: Product, value: Value) -> Value:
    builder, spec = product.builder, value.spec
    zero = builder.full(spec.shape, 0.0, F32, spec.device)
    return builder.cast(builder.maximum(builder.cast(value, F32), zero), spec.dtype)
