"""What a forward's recording leaves to its backward's: who may take it, and when it is given up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flambeau_runtime.graph_launch.handover import Handover, SavedMemory


class FakePool:
    """Kept by the memory that comes from it."""


class FakeRecording:
    """Notes what it is to watch."""

    def __init__(self) -> None:
        self.watched: Any = ()

    def watch(self, pinned: Any) -> None:
        self.watched = pinned


class FakeCore:
    """Counts of uses, by tensor."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def use_count(self, tensor: torch.Tensor) -> int:
        return self.counts.get(id(tensor), 1)


def handover_of(*saved: torch.Tensor) -> tuple[Handover, list[SavedMemory]]:
    pool: Any = FakePool()
    memories = [SavedMemory(pool, [tensor]) for tensor in saved]
    handover = Handover("arena", pool, memories)
    handover.recording = FakeRecording()
    return handover, memories


def test_the_owner_of_a_saved_tensor_is_the_takers_alone() -> None:
    a, b = torch.empty(4, 5), torch.empty(3)
    handover, memories = handover_of(a, b)
    assert handover.is_open
    alias = a.view(4, 5)
    assert handover.take(alias) is a
    assert not handover.is_open, "one backward takes it over"
    assert [len(memory.owners) for memory in memories] == [0, 1]
    assert handover.take(alias) is None


@pytest.mark.parametrize(
    "other",
    [lambda a: a.t(), lambda a: a[1:], lambda a: a.view(torch.int32), lambda a: a.clone()],
    ids=["transposed", "another address", "another dtype", "another tensor"],
)
def test_other_tensors_are_not_taken(other: Any) -> None:
    a = torch.empty(4, 5)
    handover, memories = handover_of(a)
    assert handover.take(other(a)) is None
    assert len(memories[0].owners) == 1


def test_memory_with_two_tensors_has_both_as_owners() -> None:
    base = torch.empty(10)
    parts: list[torch.Tensor] = [base[:4], base[4:]]
    pool: Any = FakePool()
    memory = SavedMemory(pool, parts)
    handover = Handover("arena", pool, [memory])
    assert handover.take(base[4:]) is parts[1]
    assert list(memory.owners.values()) == [parts[0]]


def test_the_forward_waits_for_what_the_backward_keeps_in_place() -> None:
    handover, _ = handover_of(torch.empty(4))
    recording, core = handover.recording, FakeCore()
    gradient = torch.empty(4)
    handover.complete(((gradient, 1),))
    assert recording.watched == ((gradient, 1),)
    held: Any = core
    assert not handover.is_held(held)
    core.counts[id(gradient)] = 2
    assert handover.is_held(held)


def test_memory_whose_recording_is_gone_is_not_taken() -> None:
    handover, _ = handover_of(torch.empty(4))
    handover.ended = True
    assert not handover.is_open
