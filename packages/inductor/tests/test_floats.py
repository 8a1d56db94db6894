"""Floats that a program is given: in kernels and in extern calls, from both executors, written out,
and read back.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.reference import ReferenceBackend
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.size_floats import float_of, float_symbol
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime import check_program, load, loose_kernels
from flambeau_runtime.options import RuntimeOptions
from flambeau_runtime.output_code import output_code
from flambeau_runtime.program_json import dumps, loads

VALUES = (0.1, -0.0, 3.0, -2.5e10, math.inf, -math.inf, math.nan)


def graph_of(dtype=torch.float32):
    """(x, k) -> x * k + k / 2 (the half computed in the kernel), and aten.leaky_relu(x, k) as an
    extern call.
    """
    env = SizeEnv()
    n, k = env.symbol(7, "n"), float_symbol(env, 0.5, "k")
    x = Value("x", Spec.of((n, 3), dtype=dtype))
    graph = Graph([x, k.args[0]], env=env)
    builder = Builder(graph.nodes, ["x"])
    scaled = builder.add(builder.mul(x, k), float_of("/", k, 2.0))
    leaky = Value("leaky", x.spec)
    leaky.producer = Node(torch.ops.aten.leaky_relu.default, (x, k), {}, (leaky,))
    graph.nodes.append(leaky.producer)
    graph.outputs = [scaled, leaky]
    return graph


def check(run, dtype):
    for k in VALUES:
        for rows in (1, 4, 0, 9):
            x = torch.randn(rows, 3).to(dtype)
            scaled, leaky = run(x, k)
            torch.testing.assert_close(scaled, x * k + k / 2, equal_nan=True)
            torch.testing.assert_close(leaky, torch.nn.functional.leaky_relu(x, k), equal_nan=True)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("floats") / "cache"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("executor", ["c", "python"])
def test_kernels_and_extern_calls(dtype, executor, cache_dir):
    program = compile_graph(graph_of(dtype))
    check_program(program)
    assert [symbol.is_float for symbol in program.symbols].count(True) == 1
    check(load(program, RuntimeOptions(cache_dir=cache_dir, executor=executor)), dtype)
    assert loads(dumps(program)) == program


def test_the_reference():
    backend = ReferenceBackend()
    program = compile_graph(graph_of(), backends={"cpu": backend})
    check(backend.load(program), torch.float32)


def test_written_out(cache_dir, monkeypatch):
    in_cache = functools.partial(RuntimeOptions, cache_dir=cache_dir)
    monkeypatch.setattr(loose_kernels, "RuntimeOptions", in_cache)
    namespace = {"__name__": "written"}
    exec(compile(output_code(compile_graph(graph_of())), "<output_code>", "exec"), namespace)
    check(lambda x, k: namespace["call"](x, k), torch.float32)
    namespace["call"](*namespace["example_inputs"]())


def test_arguments_of_the_wrong_type(cache_dir):
    run = load(compile_graph(graph_of()), RuntimeOptions(cache_dir=cache_dir, debug=True))
    with pytest.raises(TypeError, match="must be a float, not int"):
        run(torch.randn(3, 3), 1)
