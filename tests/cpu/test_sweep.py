"""The sweep's fixed sample of architectures is captured whole, and does what eager does; `python -m tools.sweep` runs all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]


def test_the_sample(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    ended = subprocess.run(
        [sys.executable, "-m", "tools.sweep", "--sample", "--results", str(results), "--limit", "120"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(found) == 20
    statuses = {(row["name"], mode): row[mode] for row in found for mode in ("eval", "train")}
    broken = {key: result for key, result in statuses.items() if result["status"] != "whole"}
    assert not broken
    assert statuses["Wav2Vec2", "train"]["assumes"], "SpecAugment draws how much it masks"
    again = subprocess.run(
        [sys.executable, "-m", "tools.sweep", "--sample", "--results", str(results)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0 and len(results.read_text().splitlines()) == 20, (
        "it goes on where it stopped"
    )
