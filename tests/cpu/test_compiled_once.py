"""Processes that compile the same at the same time: each kernel and each graph is made once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau_runtime.build import cpp
from tests.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = 3


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.softmax((x @ w).sin(), -1)
    return (y - y.mean(0)).cumsum(-1)


def check(rank: int, folder: str, trains: bool, barrier: Any, shown: Any) -> None:
    """Compile the program with an empty cache; report how many kernels' texts were compiled."""
    built = []
    compile_text = cpp._compile

    def counting(tools: Any, text: str, *rest: Any) -> bytes:
        built.append(text)
        return compile_text(tools, text, *rest)

    cpp._compile = counting
    torch.set_num_threads(1)
    os.environ["FLAMBEAU_CACHE_DIR"] = folder
    compiled = flambeau.compile(program, fullgraph=True, options={"graph_cache": True})
    torch.manual_seed(0)
    x, w = torch.randn(6, 5), torch.randn(5, 7, requires_grad=trains)
    barrier.wait(200)
    result = compiled(x, w)
    torch.testing.assert_close(result, program(x, w))
    if trains:
        result.square().sum().backward()
    (graph,) = flambeau.explain(compiled).graphs
    assert graph.fallback is None
    shown.put(len(built))


@pytest.mark.parametrize("trains", [False, True])
def test_each_kernel_is_built_once(trains: bool, tmp_path: Path) -> None:
    processes = torch.multiprocessing.get_context("spawn")
    barrier, shown = processes.Barrier(PROCESSES), processes.SimpleQueue()
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    given = (str(folder), trains, barrier, shown)
    run_ranks(check, given, PROCESSES)
    objects = len(list((folder / "objects").glob("*.so")))
    assert objects
    assert sum(shown.get() for _ in range(PROCESSES)) == objects
    assert list((folder / "locks").iterdir()) == []
