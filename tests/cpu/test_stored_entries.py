"""Whole entries on disk: the next process uses what fits it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import flambeau
from flambeau_capture.stored.encoding import Encoder, likely_modules
from tests import other_process
from tests.worlds import kinds

EVENTS = {"capture", "stored", "break", "recompile", "violated"}
"""What a program's outcome names; others are errors, of differences from eager, too."""


def run(phase: str, cache: Path) -> dict[str, str]:
    """The outcomes of all programs in a process of their own."""
    return other_process.outcomes(
        "stored_entries", phase, environment=other_process.with_entries(cache)
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What became of each program in the first process, and in the second."""
    cache = tmp_path_factory.mktemp("entries") / "cache"
    first, second = run("write", cache), run("read", cache)
    return {name: (first[name], second[name]) for name in first}


def test_the_first_process_stores_its_entries(outcomes: dict[str, tuple[str, str]]) -> None:
    from tests.programs.stored_entries import OF_THE_PROCESS

    stored = {"written", "read", ""}
    refused = {
        name: first
        for name, (first, _) in outcomes.items()
        if not stored.issuperset(first.partition(": ")[2].split("; "))
    }
    assert refused.keys() == OF_THE_PROCESS.keys()
    assert all("[of-the-process]" in first for first in refused.values()), refused


def test_the_second_process_uses_what_fits_and_nothing_else(
    outcomes: dict[str, tuple[str, str]],
) -> None:
    from tests.programs.stored_entries import SAME

    kinds = {name: set(second.partition(":")[0].split()) for name, (_, second) in outcomes.items()}
    errors = {name: outcomes[name] for name, seen in kinds.items() if not seen <= EVENTS}
    assert not errors
    read = {name for name, seen in kinds.items() if "stored" in seen and "capture" not in seen}
    assert read == set(SAME)
    # Entries of pieces, too: each was read.
    texts = {name: outcomes[name][1].partition(": ")[2].split("; ") for name in SAME}
    assert {text for found in texts.values() for text in found} == {"read"}, texts
    # Where a graph breaks, parts that are the same may be read; what has changed is captured.
    partly = {name for name, seen in kinds.items() if "stored" in seen} - read
    assert all("break" in kinds[name] for name in partly), {name: outcomes[name] for name in partly}


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stores entries, in a cache of the test."""
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")


@pytest.mark.usefixtures("entries")
def test_parameters_without_a_shape_have_keys() -> None:
    compiled = flambeau.compile(torch.nn.LazyLinear(4))
    x = torch.randn(2, 3)
    found = compiled(x)
    assert compiled.weight.shape == (4, 3)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, *compiled.parameters()))


class Refusing(torch.Tensor):
    """It answers for its shape itself, and counts how often it is asked."""

    asked = 0

    @property
    def shape(self) -> torch.Size:
        type(self).asked += 1
        raise RuntimeError("no shape")


@pytest.mark.usefixtures("entries")
def test_keys_of_entries_run_no_code_of_a_tensor_class() -> None:
    x = torch.randn(3).as_subclass(Refusing)
    asked = Refusing.asked
    compiled = flambeau.compile(lambda pair: pair[1] * 2)
    y = torch.randn(3)
    torch.testing.assert_close(compiled((x, y)), y * 2)
    assert Refusing.asked == asked
    assert kinds(compiled) == ["capture"]


class Pair(torch.nn.Module):
    """Two results, each with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x).sin()
        return y, self.second(y)


@flambeau.compiler.disable(recursive=False)
def _apart(module: Any, x: torch.Tensor) -> Any:
    return module(x)


def _caller(module: Any, x: torch.Tensor) -> Any:
    return _apart(module, x)


def _another_caller(module: Any, x: torch.Tensor) -> Any:
    return _apart(module, x)


@pytest.mark.usefixtures("entries")
def test_a_callee_of_another_caller_is_traced_again() -> None:
    """A graph is stored under the name of the callable that it was compiled for; it may be read for
    another one, which needs a backward that is not stored.
    """
    for caller, results in ((_caller, 2), (_another_caller, 1)):
        module, x = Pair(), torch.randn(2, 3)
        found = []
        for call in (caller, flambeau.compile(caller)):
            outputs = call(module, x)[:results]
            found.append(torch.autograd.grad(sum(y.sum() for y in outputs), module.first.weight))
        torch.testing.assert_close(*found)
        assert "capture" in kinds(call)


CODE = """
from flambeau_capture.stored.descriptions import Descriptions


def described(text):
    scope = {}
    exec(compile(text, "/a/b.py", "exec", dont_inherit=True), scope)
    return Descriptions().of(scope["f"].__code__)


IN_A_SET = "def f(x): return x in {'one', 'two', 'three', 4, (5, 'six')}, lambda: [2.5, b'y', ...]"
"""


@pytest.mark.parametrize("imported", ["", "import sys; [*map(sys.intern, ('one', 'f'))]"])
def test_code_has_one_description_in_all_processes(imported: str) -> None:
    texts = set()
    for seed in "012":
        done = subprocess.run(
            [sys.executable, "-c", f"{imported}{CODE}\nprint(described(IN_A_SET))"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    scope: dict[str, Any] = {}
    exec(CODE, scope)
    assert texts == {scope["described"](scope["IN_A_SET"]) + "\n"}


def test_code_that_differs_is_described_otherwise() -> None:
    scope: dict[str, Any] = {}
    exec(CODE, scope)
    texts = [
        "def f(x): return x + 0.0", "def f(x): return x + -0.0", "def f(x): return x + 0",
        "def f(x): return x + False", "def f(x, y=1): return x + 0", "def f(y): return y + 0",
        "\ndef f(x): return x + 0", "def f(*x): return x + 0", "def f(x): return x + 0j",
        "def f(x): return lambda: x + 0", "def f(x): return lambda: x + 1",
        "def f(x):  return x + 0",
    ]  # fmt: skip
    assert len({scope["described"](text) for text in texts}) == len(texts)


def test_modules_are_found_by_their_files() -> None:
    assert list(likely_modules("/a/b/c.py")) == ["c", "b.c", "a.b.c", "__main__"]
    assert list(likely_modules("/a/b/__init__.py")) == ["b", "a.b", "__main__"]
    encoder = Encoder(lambda: None)  # type: ignore[arg-type]
    assert __name__ in encoder._modules_of_file(__file__)
    assert not encoder._modules_of_file("<string>") and not encoder._modules_of_file("/no.py")
    odd = types.ModuleType("odd")
    odd.__file__ = "/somewhere/else.py"
    with mock.patch.dict(sys.modules, {"odd": odd}):
        assert list(encoder._modules_of_file("/somewhere/else.py")) == ["odd"]
