"""`FLAMBEAU_DEBUG_DIR` and `TORCH_COMPILE_DEBUG`: what is in the folder, and that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import flambeau
from flambeau_runtime import format_program, load, program_json

if TYPE_CHECKING:
    from pathlib import Path


def folder_of(root: Path, name: str) -> Path:
    (run,) = root.iterdir()
    assert run.name.startswith("run_")
    assert run.name.endswith(f"-pid_{os.getpid()}")
    return run / name


def run_script(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_DEBUG_DIR", str(tmp_path / "debug"))
    model = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.GELU())
    compiled = flambeau.compile(model, name="model")
    x = torch.randn(6, 14)[:, ::2].requires_grad_()
    compiled(x).sum().backward()
    compiled(x.double().float().detach())
    model = folder_of(tmp_path / "debug", "model")
    graph = model / "graph_0"
    assert "gelu(layer_norm" in (graph / "fx_graph_readable.py").read_text()
    assert "equal: 1 outputs, 5 gradients" in run_script(graph / "fx_graph_runnable.py")
    assert "inductor: " in (graph / "timings.txt").read_text()
    assert "is Tensor f32[6, 7]" in (model / "guards_0.txt").read_text()
    assert (model / "guards_1.txt").exists()
    log = (model / "debug.log").read_text()
    assert log.startswith("capture: ")
    assert "recompile: " in log
    for name in ("forward", "backward"):
        texts = {path.name: path.read_text() for path in (graph / name).iterdir()}
        assert set(texts) == {
            "fx_graph_transformed.txt", "ir_pre_fusion.txt", "ir_post_fusion.txt",
            "output_code.py", "program.txt", "program.json",
        }  # fmt: skip
        assert "nest " in texts["ir_pre_fusion.txt"]
        assert "kernel cpu" in texts["ir_post_fusion.txt"]
        assert "ms a call" in run_script(graph / name / "output_code.py")
        program = program_json.loads(texts["program.json"])
        assert format_program(program) == texts["program.txt"].rstrip()


def test_a_program_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    for _ in range(2):
        compiled = flambeau.compile(lambda x: torch.sin(x) + 1, name="f")
        compiled(torch.randn(3))
    second = folder_of(tmp_path / "torch_compile_debug", "f_1")
    text = (second / "graph_0" / "inference" / "program.json").read_text()
    x = torch.randn(3)
    torch.testing.assert_close(load(program_json.loads(text))(x), (torch.sin(x) + 1,))


def test_what_has_no_name_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_DEBUG_DIR", str(tmp_path))

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    flambeau.compile(chosen, name="../chosen <1>")(torch.randn(3))
    script = folder_of(tmp_path, "_chosen_1") / "graph_0" / "fx_graph_runnable.py"
    assert "does not run alone: nothing imports" in script.read_text()


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "0")
    flambeau.compile(lambda x: torch.sin(x) + 1)(torch.randn(3))
    assert not list(tmp_path.iterdir())
