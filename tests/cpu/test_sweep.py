"""The sweeps' fixed samples do what eager does: architectures, captured whole, and operators.

`python -m tools.sweep {models|ops}` runs all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.differential import compare_tensor
from tools.sweep.ops import accepted
from tools.sweep.ops.variants import cases

ROOT = Path(__file__).resolve().parents[2]


def test_the_sample_of_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    results = tmp_path / "results.jsonl"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.sweep",
            "models",
            "--sample",
            "--results",
            str(results),
            "--limit",
            "120",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(found) == 6
    statuses = {(row["name"], mode): row[mode] for row in found for mode in ("eval", "train")}
    broken = {key: result for key, result in statuses.items() if result["status"] != "whole"}
    assert not broken
    assert statuses["Wav2Vec2", "train"]["assumes"], "SpecAugment draws how much it masks"
    again = subprocess.run(
        [sys.executable, "-m", "tools.sweep", "models", "--sample", "--results", str(results)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0 and len(results.read_text().splitlines()) == 6, (
        "it goes on where it stopped"
    )


def test_the_sample_of_operators(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("expecttest")
    results = tmp_path / "results.jsonl"
    command = [
        sys.executable,
        "-m",
        "tools.sweep",
        "ops",
        "--sample",
        "--samples",
        "1",
        "--results",
        str(results),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    ran = [row for row in rows if row["case"]]
    assert len(ran) > 40
    assert {row["variant"] for row in ran} >= {"static", "dynamic", "views", "inplace", "errors"}
    assert any(row["raises"] for row in ran if row["variant"] == "errors")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and len(results.read_text().splitlines()) == len(rows), (
        "it goes on where it stopped"
    )


def test_a_row_that_differs_is_reported(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    row = {
        "op": "add",
        "variant": "static",
        "case": "0",
        "status": "differs",
        "differences": ["off by 1"],
    }
    end = {"op": "add", "variant": "static", "case": "", "status": "end"}
    results.write_text(json.dumps(row) + "\n" + json.dumps(end) + "\n")
    ended = subprocess.run(
        [
            sys.executable, "-m", "tools.sweep", "ops", "--ops", "add", "--variants", "static",
            "--results", str(results),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1 and "- add [static 0] off by 1" in ended.stdout


def test_accepted_differences_have_reasons() -> None:
    for item in accepted.load():
        assert item.ops and item.text and len(item.reason) > 20, item
    row = {
        "op": "add",
        "variant": "static",
        "case": "0 overlapping",
        "differences": ["off by 1", "strides (1,)"],
    }
    item = accepted.Accepted(("a*",), ("static",), "^off by", "a reason")
    assert not item.covers(row) and item.covers({**row, "differences": ["off by 1"]})
    row["differences"] = ["off by 1"]
    assert replace(item, case="overlapping").covers(row)
    assert not replace(item, case="strided").covers(row)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_results_are_compared_by_their_parts(layout: str) -> None:
    """Explicit zeros count, and so do the places of values."""
    make = {
        "coo": lambda t: t.to_sparse_coo(),
        "csr": lambda t: t.to_sparse_csr(),
        "csc": lambda t: t.to_sparse_csc(),
    }[layout]
    one = make(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    assert compare_tensor(one, one.clone(), None, 4.0) is None
    assert compare_tensor(one, make(torch.tensor([[2.0, 0.0], [0.0, 3.0]])), None, 4.0) is not None
    assert compare_tensor(one, make(torch.tensor([[0.0, 2.0], [4.0, 0.0]])), None, 4.0) is not None
    explicit = one.clone()
    explicit.values().zero_() if layout != "coo" else explicit._values().zero_()
    assert compare_tensor(explicit, make(torch.zeros(2, 2)), None, 4.0) is not None


def test_sparse_samples_are_copied() -> None:
    """Each call of `make` gives tensors of its own."""
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == "sparse.sampled_addmm")
    case = cases(op, "static", "cpu", 2)[-1]
    first, second = case.make()[0], case.make()[0]
    assert first.layout == torch.sparse_csr and compare_tensor(first, second, None, 4.0) is None
    assert first.values().data_ptr() != second.values().data_ptr()
