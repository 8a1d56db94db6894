"""Programs with Triton kernels of their own, in Triton's interpreter, beside eager."""

from __future__ import annotations

import os
import sys

import pytest

if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

import torch

import flambeau
from flambeau.report import report_of
from tests.programs import triton_kernels as programs
from tests.same import same

BACKENDS = ("eager", "aot_eager", "inductor")


def launches_of(compiled) -> list[str]:
    return [
        str(node.target)
        for graph in report_of(compiled).graphs
        for node in graph.module.graph.nodes
        if "flambeau_kernel" in str(node.target)
    ]


def check(case, compiled, n, device="cpu"):
    torch.manual_seed(n)
    inputs = case.inputs(n, device)
    ours = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
    expected, actual = case.function(*inputs), compiled(*ours)
    same(actual, expected)
    same(ours, inputs)
    if any(x.requires_grad for x in inputs):
        expected.sum().backward()
        actual.sum().backward()
        same([x.grad for x in ours], [x.grad for x in inputs])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", programs.PROGRAMS.values(), ids=programs.PROGRAMS.keys())
def test_equals_eager(case, backend) -> None:
    compiled = flambeau.compile(case.function, backend=backend, fullgraph=True)
    for n in (7, 7, 33, 64, 5):
        check(case, compiled, n)


@pytest.mark.parametrize("case", programs.PROGRAMS.values(), ids=programs.PROGRAMS.keys())
def test_symbolic_sizes(case) -> None:
    compiled = flambeau.compile(case.function, dynamic=True, fullgraph=True)
    for n in (7, 33, 5, 48):
        check(case, compiled, n)
