"""Kernels of attention in Triton's interpreter, against the operators in float64; their cubins.

The interpreter is chosen when Triton is imported, so the cases run in a process of their own: this
file, run as a program.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    import interpreter  # sets TRITON_INTERPRET before Triton is imported

from attention_cases import AttentionCase, attention_cases, worst

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.triton import flex_attention, ops, source_writer
from flambeau_inductor.options import InductorOptions
from flambeau_inductor.pipeline import schedule_graph
from flambeau_prims.decompose import decompose
from flambeau_prims.evaluate import run_graph
from flambeau_prims.flex_attention import flex_attend, flex_scores
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.graph import Graph
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import InvalidOption
from flambeau_runtime import load
from flambeau_runtime import program as rt

HALF = torch.bfloat16
CHECKED = InductorOptions(debug_checks=True)
CASES = list(attention_cases())


def run_program(program: rt.Program, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """A Program of static sizes whose steps are launches of Triton kernels."""
    tensors = {one.name: one for one in program.tensors}
    kernels = {one.name: one for one in program.kernels}
    env: dict[str, torch.Tensor] = dict(zip(program.inputs, inputs, strict=True))
    for step in program.steps:
        match step:
            case rt.Allocate(name):
                one: Any = tensors[name]
                dtype = getattr(torch, one.dtype)
                env[name] = torch.empty_strided(one.shape, one.stride, dtype=dtype)
                if dtype.is_floating_point:
                    env[name].fill_(torch.nan)
            case rt.View(name, base):
                one, whole = tensors[name], tensors[base]
                start = env[base].storage_offset() + one.offset - whole.offset
                env[name] = env[base].as_strided(one.shape, one.stride, start)
            case rt.Launch(name, buffers, (), grid):
                kernel = kernels[name]
                text = program.sources[kernel.source].text
                given = [env[buffer] for buffer in buffers]
                interpreter.run(text, name, given, (), grid, kernel.meta)
            case rt.Free():
                pass
            case _:
                raise TypeError(f"no launch: {step}")
    return [env[out] for out in program.outputs if isinstance(out, str)]


def difference(case: AttentionCase) -> str | None:
    """What is wrong with the results of a case; None if nothing is."""
    program = compile_graph(case.graph("cuda"), CHECKED)
    inputs = case.inputs()
    got = run_program(program, inputs)
    expected = run_graph(case.graph("cpu"), inputs)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    for at in case.wanted if case.backward else ():
        wide[at].requires_grad_()
    exact = case.run(wide, torch.device("cpu"))
    for one, other in zip(got, expected, strict=True):
        if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
            return f"{one.shape} {one.dtype} {one.stride()}, not {other.shape} {other.stride()}"
    ours, theirs = (worst(list(each), [x.detach() for x in exact]) for each in (got, expected))
    return None if ours <= 3 * theirs + 1e-6 else f"an error of {ours}, eager's is {theirs}"


if __name__ == "__main__":
    report: dict[str, str | None] = {}
    for chosen in CASES:
        try:
            report[chosen.name] = difference(chosen)
        except Exception as error:
            report[chosen.name] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))


@pytest.fixture(scope="module")
def report_of_interpreter() -> dict[str, str | None]:
    """What each case differs in."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_case_equals_the_operators(report_of_interpreter: dict[str, str | None]) -> None:
    assert len(report_of_interpreter) == len(CASES)
    wrong = {name: text for name, text in report_of_interpreter.items() if text is not None}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_tensor_of_scores_is_stored(case: AttentionCase) -> None:
    program = compile_graph(case.graph("cuda"), CHECKED)
    assert not any(isinstance(step, rt.Extern) for step in program.steps)
    pairs = case.tensors[0].shape[2] * case.tensors[1].shape[2]
    given = set(program.inputs)
    for one in program.tensors:
        assert one.name in given or tuple(one.shape[2:]) != (pairs,), one
        assert one.name in given or tuple(one.shape[-2:]) != (
            case.tensors[0].shape[2],
            case.tensors[1].shape[2],
        ), one
    launched = [step.kernel for step in program.steps if isinstance(step, rt.Launch)]
    forms = ["forward"]
    if case.backward:
        forms += ["query_gradient"] * (0 in case.wanted or case.of_captured)
        forms += ["key_value_gradients"] * bool({1, 2} & set(case.wanted))
    assert sum("attention" in name for name in launched) == len(forms)
    for form in forms:
        assert any(f"attention_{form}" in name for name in launched)


@pytest.mark.parametrize(
    ("name", "tiles"), [("by head", 0), ("by distance", 3), ("by key", 1), ("by batch", 0)]
)
def test_scores_of_one_place_are_added_up_beforehand(name: str, tiles: int) -> None:
    (case,) = [one for one in CASES if one.name == f"captured {name}"]
    program = compile_graph(case.graph("cuda"), CHECKED)
    (text,) = [one.text for one in program.sources if "tl.atomic_add" in one.text]
    inside = [line for line in text.split("\n") if re.match(r" {8,}tl\.atomic_add", line)]
    assert len(inside) == tiles


@pytest.mark.parametrize("sized", [lambda length: (4, length), lambda length: (4,), lambda _: ()])
def test_gradients_of_captured_tensors_of_varying_sizes(sized: Any) -> None:
    env = SizeEnv()
    batch, length, positions = env.symbol(2, "B"), env.symbol(70, "L"), env.symbol(150, "T")
    shapes = [(batch, heads, length, 16) for heads in (4, 2, 2, 4)]
    device = torch.device("cuda", 0)
    specs = [Spec.of(shape, device=device) for shape in (*shapes, sized(positions))]
    tracer = Tracer(env, device="cuda")
    (model,) = [one for one in CASES if one.name == "captured by distance"]

    def change(score: Any, b: Any, h: Any, i: Any, j: Any, table: Any) -> Any:
        return score * table[(h, i - j)[: table.ndim]]

    with FunctionTable(tracer.device), tracer:
        fakes = [tracer.fake(spec, requires_grad=True) for spec in specs]
        case = replace(model, change=change, tensors=fakes[:4], captured=fakes[4:])
        results = case.run(fakes, device)
    outputs = [one.value for one in results]
    program = compile_graph(
        decompose(Graph(list(tracer.inputs), tracer.nodes, outputs, env=env)), CHECKED
    )
    launched = [step.kernel for step in program.steps if isinstance(step, rt.Launch)]
    assert sum("attention" in name for name in launched) == 3
    assert not any(isinstance(step, rt.Extern) for step in program.steps)


def test_an_updated_cache_is_read_where_it_is() -> None:
    def attend(query: Any, cache: Any, new: Any, position: Any) -> Any:
        cache = torch.ops.aten.index_put(cache, [None, None, position], new)
        scores = flex_scores(query, cache, 0.5, [], [], 128, 128, "")
        seen = torch.ones((), dtype=torch.bool, device=query.device).expand(scores.shape)
        return cache, flex_attend(scores, seen, query, cache, [], [], 128, 128, "")[0]

    specs = [
        Spec.of(shape, dtype=dtype, device=torch.device("cuda", 0))
        for shape, dtype in (((1, 2, 64, 16), HALF), ((1, 2, 64, 16), HALF), ((1, 2, 1, 16), HALF),
                             ((1,), torch.int64))
    ]  # fmt: skip
    tracer = Tracer(device="cuda")
    with FunctionTable(tracer.device), tracer:
        updated, out = attend(*(tracer.fake(spec) for spec in specs))
    graph = Graph(list(tracer.inputs), tracer.nodes, [out.value])
    graph.writes = [(graph.inputs[1], updated.value)]
    program = compile_graph(decompose(graph), CHECKED)
    assert any(isinstance(step, rt.Launch) and "attention" in step.kernel for step in program.steps)


def test_rows_that_are_far_apart_have_wide_addresses() -> None:
    """[batch, length, heads, width] in memory, seen as [batch, heads, length, width]."""
    (case,) = [one for one in CASES if one.name == "plain"]
    for length, far in ((64, False), (1 << 17, True)):
        shape, stride = (1, 128, length, 128), (length << 14, 128, 1 << 14, 1)
        tensors = [torch.empty_strided(shape, stride, device="meta", dtype=HALF) for _ in range(4)]
        large = replace(case, tensors=tensors, backward=False)
        (text,) = [one.text for one in compile_graph(large.graph("cuda"), CHECKED).sources]
        assert bool(re.search(r"tl\.arange\(0, \d+\)\)\.to\(tl\.int64\)", text)) is far


def test_the_writer_has_all_that_operators_ask_for() -> None:
    asked = set(re.findall(r"self\.writer\.(\w+)", inspect.getsource(ops)))
    asked -= {
        "reduce",
        "reduce_columns",
        "reduce_tile",
        "orders",
    }  # of rows that are reduced or sorted, which scores are not
    written = inspect.getsource(flex_attention) + inspect.getsource(source_writer)
    missing = [
        name for name in sorted(asked)
        if not re.search(rf"(def {name}\(|self\.{name} = |^    {name} = )", written, re.MULTILINE)
    ]  # fmt: skip
    assert "constants" in asked and not missing


def test_few_queries_are_cut_by_keys() -> None:
    for name, launches in (("parts", True), ("one query", False)):
        (case,) = [one for one in CASES if one.name == name]
        program = compile_graph(case.graph("cuda"), CHECKED)
        (text,) = [
            one.text for one in program.sources if "most = " in one.text and "dot" in one.text
        ]
        assert ("part = " in text) is launches


def test_few_queries_of_heads_that_share_keys_are_one_tile() -> None:
    (case,) = [one for one in CASES if one.name == "shared keys 3 0"]
    for options, packed in (("", True), ("FORCE_USE_FLEX_ATTENTION=True", False)):
        program = compile_graph(replace(case, options=options).graph("cuda"), CHECKED)
        (text,) = [
            one.text for one in program.sources if "most = " in one.text and "dot" in one.text
        ]
        assert ("x % 3" in text) is packed


def test_decoding_keeps_more_loads_in_flight() -> None:
    (case,) = [one for one in CASES if one.name == "shared keys 3 0"]
    for queries, stages in ((3, 4), (300, 2)):
        shapes = [(2, 6, queries, 128), *[(2, 2, 3000, 128)] * 2, (2, 6, queries, 128)]
        tensors = [torch.empty(shape, device="meta", dtype=HALF) for shape in shapes]
        program = compile_graph(
            replace(case, tensors=tensors, backward=False).graph("cuda"), CHECKED
        )
        (meta,) = [one.meta for one in program.kernels if "attention" in one.name]
        assert meta["num_stages"] == stages


def test_what_does_not_suit_is_written_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic gradients of what a score function reads need all scores in memory; so do wide
    heads.
    """
    (biased,) = [one for one in CASES if one.name == "biased"]

    case = replace(biased, of_captured=True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.warns(UserWarning, match="stores a tensor of all its scores"):
        schedule = schedule_graph(case.graph("cuda"), CHECKED)
    assert "scores that something else reads" in {r.reason for r in schedule.refusals}
    inputs = [one.detach() for one in case.inputs()]
    expected = run_graph(case.graph("cpu"), inputs)
    program = compile_graph(case.graph("cpu"), CHECKED)
    torch.testing.assert_close(load(program)(*inputs), tuple(expected), rtol=1e-4, atol=1e-5)
    wide = replace(biased, tensors=[torch.randn(1, 2, 33, 300) for _ in range(4)])
    wide.captured = [torch.randn(2, 33, 33)]
    reasons = [r.reason for r in schedule_graph(wide.graph("cuda"), CHECKED).refusals]
    assert any("wider than" in reason for reason in reasons)


@pytest.mark.parametrize(
    "name",
    [
        "captured by distance",
        "captured by key",
        "captured by key in blocks",
        "capped",
        "documents",
        "torch.bfloat16",
        "parts",
        "parts of blocks",
        "shared keys 3 64",
    ],
)
def test_compiles_for_sm_90(name: str) -> None:
    pytest.importorskip("triton")
    from flambeau_runtime.build.triton import build_cubin

    (case,) = [one for one in CASES if one.name == name]
    program = compile_graph(case.graph("cuda"), CHECKED)
    for kernel in program.kernels:
        if "attention" in kernel.name:
            source = program.sources[kernel.source].text
            assert build_cubin(source, kernel.name, kernel.meta, 90).image.startswith(b"\x7fELF")


def test_kernel_options_choose_tiles_or_are_refused() -> None:
    (case,) = [one for one in CASES if one.options.startswith("BLOCK_M=32")]
    program = compile_graph(case.graph("cuda"), CHECKED)
    metas = {one.name: one.meta for one in program.kernels if "attention" in one.name}
    assert all(meta["num_warps"] == 2 and meta["num_stages"] == 1 for meta in metas.values())
    texts = {one.name: program.sources[one.source].text for one in program.kernels}
    (forward,) = [text for name, text in texts.items() if "forward" in name]
    assert "x = block * 32 + tl.arange(0, 32)" in forward and "tl.arange(0, 16)" in forward
    for options, message in (
        ("BLOCK_M=64", "do not divide"),
        ("BACKEND='FLASH'", "FLASH"),
        ("BLOCK_N=24", "power of two"),
    ):
        with pytest.raises(InvalidOption, match=message):
            compile_graph(replace(case, options=options).graph("cuda"), CHECKED)
    with pytest.warns(UserWarning, match="USE_TMA"):
        compile_graph(replace(case, options="USE_TMA=True").graph("cuda"), CHECKED)
