"""`python -m flambeau minify`: graphs of planted defects are cut to the calls that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import flambeau
from flambeau.minify.reduce import _resized
from flambeau.minify.script import NotReadable, Script, Statement, read_script

DEFECTS = '''
import os
import signal
import time

import torch


def calls(gm, name):
    return [n for n in gm.graph.nodes if name in str(n.target)]


def miscompiles(gm, inputs):
    """tanh gives sinh."""
    for node in calls(gm, "tanh"):
        node.target = torch.sinh if node.op == "call_function" else "sinh"
    gm.recompile()
    return gm.forward


def raises(gm, inputs):
    """A softmax behind an exp cannot be compiled."""
    if calls(gm, "softmax") and calls(gm, "exp"):
        raise LookupError("no softmax here")
    return gm.forward


def crashes(gm, inputs):
    """A cumsum ends the process when it runs."""
    def run(*args):
        if calls(gm, "cumsum"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return gm.forward(*args)
    return run


def hangs(gm, inputs):
    if calls(gm, "flip"):
        time.sleep(1000)
    return gm.forward
'''


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 48), nn.Linear(48, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.second(torch.relu(self.first(self.norm(x))))
        sharp = torch.softmax(hidden.exp() * 0.1, -1)
        bent = (hidden + y).tanh() * 2
        summed = bent.reshape(-1, 24).cumsum(0) + sharp
        return bent.flip(0), summed.sigmoid(), (x * y).sum()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minify")
    (path / "planted_defects.py").write_text(DEFECTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAMBEAU_DEBUG_DIR", str(path / "debug"))
        compiled = flambeau.compile(Model(), name="model", backend="eager")
        compiled(torch.randn(7, 24), torch.randn(7, 24))
    return path


def minify(folder: Path, *arguments: str, status: int = 0) -> str:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "minify", str(folder / "debug"), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("defect", "failure", "calls"),
    [
        ("miscompiles", "wrong", ["tanh"]),
        ("raises", "raises LookupError", ["exp", "softmax"]),
        ("crashes", "ends by SIGSEGV", ["cumsum"]),
    ],
)
def test_a_planted_defect_is_all_that_is_left(
    defect: str, failure: str, calls: list[str], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "small.py"
    backend = f"planted_defects:{defect}"
    printed = minify(folder, "--backend", backend, "--output", str(output))
    assert f"fx_graph_runnable.py: {failure}; " in printed
    script = read_script(output.read_text())
    assert len(script.statements) <= len(calls) + 1
    assert all(any(name in s.text for s in script.statements) for name in calls)
    # The script needs nothing but the backend, and fails as it says.
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(output)],
        capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    if defect == "crashes":
        assert done.returncode == -11
    else:
        assert done.returncode == 70 and f"failure: {failure}" in done.stdout
    sizes = [int(word) for word in output.read_text().split("tensor((")[-1].split(")")[0].split(",")
             if word.strip()]  # fmt: skip
    assert all(size <= 3 for size in sizes)


def test_a_graph_that_hangs(folder: Path, tmp_path: Path) -> None:
    arguments = ("--backend", "planted_defects:hangs", "--timeout", "8")
    output = tmp_path / "small.py"
    printed = minify(folder, *arguments, "--output", str(output))
    assert "takes too long" in printed
    assert [s.text for s in read_script(output.read_text()).statements][-1].count("flip") == 1


def test_nothing_to_cut(folder: Path) -> None:
    assert "no graph fails" in minify(folder, status=1)


SCRIPT = """
import torch

class CapturedGraph(torch.nn.Module):

    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        a = torch.add(x, 4);  x = None
        b = a.reshape(4, 3)
        torch._check(True)
        c = torch.neg(y)
        return (b, (a,))

def example_inputs():
    return [tensor((4, 3), (3, 1), torch.float32, 'cpu'), tensor((5,), (1,), torch.int64, 'cpu')]
"""


def test_a_script_is_read_and_written() -> None:
    script = read_script(SCRIPT)
    assert script.outputs == ("b", "a") and [name for name, _ in script.params] == ["x", "y"]
    assert script.statements[2] == Statement("", "torch._check(True)")
    assert read_script(str(script)) == script
    pruned = script.pruned()
    assert [s.target for s in pruned.statements] == ["a", "b", ""]
    assert [name for name, _ in pruned.params] == ["x"]


def test_sizes_change_wherever_they_stand() -> None:
    script = _resized(read_script(SCRIPT), 4, 2)
    assert script.params[0][1].startswith("tensor((2, 3), (3, 1)")
    assert script.statements[1].text == "a.reshape(2, 3)"


def test_what_is_no_graph_says_so() -> None:
    with pytest.raises(NotReadable, match="does not run alone: nothing imports f"):
        read_script('raise SystemExit("This graph does not run alone: nothing imports f")')
    with pytest.raises(NotReadable, match="no class CapturedGraph"):
        read_script("x = 1")
    assert isinstance(read_script(SCRIPT), Script)
