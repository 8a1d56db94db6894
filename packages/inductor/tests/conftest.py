"""Shared by the inductor's tests: build a graph, compile it for the reference generator, compare
with the primitives' references.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from pathlib import Path

import pytest
import torch

from flambeau_inductor import InductorOptions, compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.builder import Builder
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Value
from flambeau_prims.spec import spec_of
from flambeau_runtime import check_program
from flambeau_runtime.build import isa

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = InductorOptions(debug_checks=True)


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden texts; review their diff"
    )
    with contextlib.suppress(ValueError):  # the end-to-end tests have it too
        parser.addoption("--isa", choices=isa.LEVELS, help="build C++ kernels for this level")


def pytest_configure(config):
    import run_cpp

    run_cpp.OPTIONS = dataclasses.replace(run_cpp.OPTIONS, isa=config.getoption("--isa"))
    config.addinivalue_line("markers", "every_level: builds kernels for every ISA level")


def pytest_collection_modifyitems(config, items):
    """`--isa` leaves out the tests of every level, which do the same without it."""
    if config.getoption("--isa"):
        config.hook.pytest_deselected(items=[item for item in items if _names_levels(item)])
        items[:] = [item for item in items if not _names_levels(item)]


def _names_levels(item) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return item.get_closest_marker("every_level") is not None or any(
        isinstance(value, str) and value in isa.LEVELS for value in parameters
    )


@pytest.fixture(autouse=True)
def _seed(request):
    """Each test draws its own inputs, the same ones in every run, whichever tests run beside it."""
    seed = zlib.crc32(f"{request.path.name}::{request.node.name}".encode())
    # `torch.manual_seed` formats the stack of its call for each kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


class GraphTester:
    """build(builder, *values) -> value or tuple of values; everything is compared in value, shape,
    strides and dtype.
    """

    def __init__(self) -> None:
        self.options = OPTIONS

    def graph(self, build, tensors) -> Graph:
        graph = Graph([Value(f"x{i}", spec_of(t)) for i, t in enumerate(tensors)])
        builder = Builder(graph.nodes, [value.name for value in graph.inputs])
        result = build(builder, *graph.inputs)
        graph.outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        return graph

    def compile(self, graph, options=None):
        backend = ReferenceBackend()
        program = compile_graph(graph, options or self.options, backends={"cpu": backend})
        check_program(program)
        return program, backend.load(program)

    def check(self, build, *tensors, options=None, rtol=None, atol=None):
        """Compile and compare; returns the program."""
        graph = self.graph(build, tensors)
        program, run = self.compile(graph, options)
        got = run(*tensors)
        want = run_graph(graph, list(tensors))
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            assert mine.dtype is theirs.dtype and mine.shape == theirs.shape
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
        return program


@pytest.fixture
def tester() -> GraphTester:
    torch.manual_seed(0)
    return GraphTester()


@pytest.fixture
def golden(request):
    """golden(name, text): compare with tests/golden/<name>.txt, or write it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text.rstrip() + "\n")
        assert path.exists(), f"{path} is missing: run with --update-golden and review it"
        assert text.rstrip() + "\n" == path.read_text()

    return compare
