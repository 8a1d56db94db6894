"""Tools around programs: PyTorch's profiler, torch.export and ONNX, pytest-benchmark, Jupyter."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from pathlib import Path


def test_the_profiler_sees_operators_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    compiled, x = flambeau.compile(model), torch.randn(4, 8)
    compiled(x).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        with torch.profiler.record_function("step"):
            found = compiled(x)
        found.sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"step", "CompiledFunction", "CompiledFunctionBackward"} <= names
    torch.testing.assert_close(found, model(x))


def test_a_schedule_of_the_profiler(tmp_path: Path) -> None:
    compiled = flambeau.compile(lambda x: torch.softmax(x @ x, -1))
    traces: list[str] = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)

    def keep(profile: torch.profiler.profile) -> None:
        path = tmp_path / "trace.json"
        profile.export_chrome_trace(str(path))
        traces.append(path.read_text())

    with torch.profiler.profile(schedule=schedule, on_trace_ready=keep) as profile:
        for _ in range(4):
            compiled(torch.randn(4, 4))
            profile.step()
    assert len(traces) == 1 and "ProfilerStep#2" in traces[0]


def test_a_compiled_module_is_exported_as_its_original() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    compiled, x = flambeau.compile(model), torch.randn(2, 8)
    compiled(x)
    program = torch.export.export(compiled._orig_mod, (x,))
    torch.testing.assert_close(program.module()(x), compiled(x))
    whole = flambeau.compile(program.module(check_guards=False), fullgraph=True)
    checked = flambeau.compile(program.module())
    with torch.no_grad():
        torch.testing.assert_close(whole(x), model(x))
        torch.testing.assert_close(checked(x), model(x))


def test_onnx_of_an_exported_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from flambeau_capture import export
    from flambeau_capture.exported.interop_torch import to_exported_program

    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(2, 8)
    path = tmp_path / "model.onnx"
    torch.onnx.export(to_exported_program(export(model, (x,))), f=str(path), verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-4, atol=1e-5)


BENCHMARK = """
import flambeau, torch

def test_speed(benchmark):
    compiled, x = flambeau.compile(torch.nn.GELU()), torch.randn(64)
    result = benchmark(compiled, x)
    torch.testing.assert_close(result, torch.nn.functional.gelu(x))
"""


def test_pytest_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "test_speed.py").write_text(BENCHMARK)
    arguments = ["-q", "-p", "no:cacheprovider", "--benchmark-max-time=0.1", "test_speed.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "Median" in done.stdout


CELLS = [
    "import torch, flambeau",
    "def area(x):\n    return torch.sin(x) * x",
    "compiled = flambeau.compile(area, fullgraph=True)\nx = torch.ones(3)\ncompiled(x)",
    "def area(x):\n    return torch.cos(x)",  # the name is bound again, as cells do
    "print(bool(torch.allclose(compiled(x), torch.sin(x) * x)))\nprint(flambeau.explain(compiled))",
    "flambeau.compile(lambda x: x.reshape(7))(x)",
]


def test_a_notebook() -> None:
    """Cells are compiled, an error shows the cell's line, and the kernel lives on."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", allow_errors=True
    ).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[4].outputs)
    assert printed.startswith("True") and "1 graph" in printed
    (error,) = [out for out in notebook.cells[5].outputs if out.output_type == "error"]
    assert error.ename == "RuntimeError" and "reshape" in "".join(error.traceback)
    assert not any(
        out.output_type == "error" for cell in notebook.cells[:5] for out in cell.outputs
    )
