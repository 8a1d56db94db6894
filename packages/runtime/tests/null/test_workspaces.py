"""When workspaces of plain launches may be given back: nothing else may know their addresses."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import pytest
import torch

from flambeau_runtime.graph_launch import workspaces
from flambeau_runtime.graph_launch.pool import Pool
from flambeau_runtime.graph_launch.workspaces import may_give_back, plain_ones_given_back

OURS, OTHER = (0, 7), (0, 8)
"""Ids of pools: a recording's, and one of a graph of the caller's."""


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The allocator's segments: one of the default stream, one of a recording."""
    made: list[dict[str, Any]] = [segment(), segment(stream=99, pool=OURS)]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: made)
    monkeypatch.setattr(Pool, "ids", {OURS})
    return made


def segment(device: int = 0, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {"device": device, "stream": stream, "segment_pool_id": pool}


def test_of_the_default_stream_and_of_recordings(segments: list[dict[str, Any]]) -> None:
    assert may_give_back(0, 0)


def test_of_another_stream(segments: list[dict[str, Any]]) -> None:
    """On which the caller may have captured a graph."""
    assert not may_give_back(0, 99)


@pytest.mark.parametrize(
    "more", [segment(stream=5), segment(stream=5, pool=OTHER), segment(device=1)]
)
def test_beside_other_streams_pools_and_devices(
    more: dict[str, Any], segments: list[dict[str, Any]]
) -> None:
    segments.append(more)
    assert not may_give_back(0, 0)


@pytest.mark.parametrize("daemon", [False, True])
def test_beside_other_threads(daemon: bool, segments: list[dict[str, Any]]) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=daemon)
    thread.start()
    try:
        assert not may_give_back(0, 0)
    finally:
        end.set()
        thread.join()


def test_beside_threads_that_keep_house(segments: list[dict[str, Any]]) -> None:
    """The one that pins the batches of a DataLoader, and one that no code of Python has started."""
    end, under_way = threading.Event(), threading.Event()

    def pin() -> None:
        end.wait()

    def of_c() -> None:
        threading.current_thread()
        under_way.set()
        end.wait()

    pin.__module__ = "torch.utils.data._utils.pin_memory"
    thread = threading.Thread(target=pin, daemon=True)
    thread.start()
    _thread.start_new_thread(of_c, ())
    under_way.wait()
    try:
        assert may_give_back(0, 0)
    finally:
        end.set()
        thread.join()


def test_the_main_thread_waits_for_a_backward(segments: list[dict[str, Any]]) -> None:
    answers: list[bool] = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            thread = threading.Thread(target=lambda: answers.append(may_give_back(0, 0)))
            thread.start()
            thread.join()
            answers.append(may_give_back(0, 0))
            return grad

    Asks.apply(torch.ones(2, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert answers == [False, True], "a thread of the backward's own, and the backward's thread"


@pytest.mark.parametrize("safe", [False, True])
def test_they_are_given_back_before_and_behind(safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(workspaces, "may_give_back", lambda device, home: safe)
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: events.append("clear"), raising=False
    )
    with pytest.raises(KeyError), plain_ones_given_back(0, 0):
        events.append("capture")
        raise KeyError
    assert events == (["clear", "capture", "clear"] if safe else ["capture"])
