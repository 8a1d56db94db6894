"""Whole entries of programs on a GPU: the next process uses them, without a capture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.other_process import outcomes, with_entries

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run(module: str, cache: Path, *arguments: str) -> dict[str, str]:
    """The outcomes of programs in a process of their own."""
    return outcomes(module, *arguments, environment=with_entries(cache))


AGAIN = {"second_derivatives"}
"""Programs of which the second process traces a part again."""


def test_the_second_process_reads_its_entries(tmp_path: Path) -> None:
    first, second = (run("stored_on_gpu", tmp_path / "cache") for _ in range(2))
    for name, outcome in first.items():
        assert name == "imported" or outcome.startswith("capture"), (name, outcome)
    del first["imported"], second["imported"]
    kinds = {name: set(outcome.partition(":")[0].split()) for name, outcome in second.items()}
    captured = {
        name: second[name] for name, seen in kinds.items() if not seen <= {"stored", "break"}
    }
    assert not captured, captured
    launches = {
        name: [int(each[name].rpartition(": ")[2].split()[0]) for each in (first, second)]
        for name in second.keys() - AGAIN
    }
    differing = {name: counts for name, counts in launches.items() if counts[1] != counts[0]}
    assert not differing, differing


def test_a_reader_imports_no_compiler(tmp_path: Path) -> None:
    names = ("pointwise", "module", "training", "training_with_dropout", "attention")
    first, second = (
        run("stored_on_gpu", tmp_path / "cache", *names)["imported"].split() for _ in range(2)
    )
    assert len(first) == 3 and not second


def test_programs_for_a_cpu_give_eagers_results_on_a_gpu(tmp_path: Path) -> None:
    """Entries that fit are read, and others are not; results are eager's in both processes."""
    from tests.programs.stored_entries import CHANGED, SAME

    first, second = (
        run("stored_entries", tmp_path / "cache", phase, "--device=cuda")
        for phase in ("write", "read")
    )
    events = {"capture", "stored", "break", "recompile", "violated"}
    errors = {
        name: (first[name], text)
        for name, text in second.items()
        if not set(text.partition(":")[0].split()) <= events and first[name] != text
    }
    assert not errors, errors
    read = {
        name
        for name, text in second.items()
        if "stored" in text.partition(":")[0] and "capture" not in text
    }
    assert not read & set(CHANGED), read & set(CHANGED)
    missing = {name: (first[name], second[name]) for name in set(SAME) - read}
    assert len(missing) <= len(SAME) // 20, missing
