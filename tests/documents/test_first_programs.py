"""The page that introduces torch.compiler: sine of cosine as one kernel, the code that is written
for it, ResNet-50, the list of backends, CUDA graphs on a machine without a GPU, BERT, timm.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
from flambeau.report import report_of

EXAMPLE = """
import flambeau
import torch


def wave(x):
    return torch.sin(torch.cos(x))


compiled = flambeau.compile(wave, backend="inductor")
x = torch.randn(10000)
torch.testing.assert_close(compiled(x), wave(x))
"""


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.cos(x))


def test_one_read_and_one_write() -> None:
    compiled, x = flambeau.compile(wave), torch.randn(10000)
    torch.testing.assert_close(compiled(x), wave(x))
    (graph,) = report_of(compiled).graphs
    (program,) = graph.programs
    assert len(program.kernels) == 1
    assert graph.calls == 2


def test_the_code_is_written_to_a_folder(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLE)
    variables = {"TORCH_COMPILE_DEBUG": "1", "FLAMBEAU_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, check=True, env={**os.environ, **variables}
    )
    (path,) = (tmp_path / "torch_compile_debug").rglob("output_code.py")
    code = path.read_text()
    assert "cos" in code and "sin" in code
    subprocess.run([sys.executable, path.name], cwd=path.parent, check=True, capture_output=True)


def test_the_backends_that_the_page_lists() -> None:
    listed = {"cudagraphs", "inductor", "onnxrt", "openxla", "tvm"}
    assert listed <= set(flambeau.compiler.list_backends())


def test_cuda_graphs_on_a_cpu_say_so(caplog: pytest.LogCaptureFixture) -> None:
    compiled, x = flambeau.compile(wave, backend="cudagraphs"), torch.randn(8)
    torch.testing.assert_close(compiled(x), wave(x))
    (record,) = [record for record in caplog.records if record.name == "flambeau.cudagraphs"]
    assert record.levelno == logging.WARNING
    assert "test_first_programs.py" in record.getMessage()
    assert "without CUDA graphs: x is on the cpu" in record.getMessage()
    assert "without CUDA graphs" in str(flambeau.explain(compiled))


def test_a_mode_that_needs_a_gpu_says_so_in_explain(caplog: pytest.LogCaptureFixture) -> None:
    compiled, x = flambeau.compile(wave, mode="reduce-overhead"), torch.randn(8)
    torch.testing.assert_close(compiled(x), wave(x))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "without CUDA graphs: x is on the cpu" in str(flambeau.explain(compiled))


@pytest.mark.parametrize("backend", ["inductor", "cudagraphs"])
def test_resnet50(backend: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()
    compiled = flambeau.compile(model, backend=backend)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).logits, model(x).logits, rtol=1e-3, atol=1e-3)
    assert not any(graph.fallback for graph in report_of(compiled).graphs)


@pytest.mark.parametrize("backend", ["inductor", "cudagraphs"])
def test_bert(backend: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    compiled = flambeau.compile(model, backend=backend)
    inputs = {
        "input_ids": torch.randint(0, 64, (1, 12)),
        "attention_mask": torch.ones(1, 12).long(),
    }
    with torch.no_grad():
        ours, theirs = compiled(**inputs), model(**inputs)
    torch.testing.assert_close(
        ours.last_hidden_state, theirs.last_hidden_state, rtol=1e-4, atol=1e-5
    )
    assert len(report_of(compiled).graphs) == 1


def test_a_model_of_timm() -> None:
    timm = pytest.importorskip("timm")
    model: Any = timm.create_model("resnet10t", num_classes=2).eval()
    compiled, x = flambeau.compile(model), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert len(report_of(compiled).graphs) == 1
