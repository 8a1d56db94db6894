"""Ranks that compare their guards before each call: what differs is reported, and nobody waits for
ever.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import flambeau
from flambeau import compiler
from tests.ranks import leave_groups, run_ranks
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def total(x: torch.Tensor, factor: int = 2, stop: Any = None) -> torch.Tensor:
    y = x.sin() * factor
    if stop is not None:
        compiler.graph_break(stop)
    dist.all_reduce(y)
    return y + 1


def _differing(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if "differs between ranks" in str(each.message)]


def _guards_that_differ(rank: int, ranks: int) -> None:
    compiled = flambeau.compile(total, dynamic=False)
    x = torch.randn(4)
    assert not _differing(lambda: compiled(x))
    assert not _differing(lambda: compiled(x + 1))
    (text,) = _differing(lambda: compiled(x, 3 if rank == 1 else 2))
    assert "- rank 0: has an entry" in text
    assert "- rank 1: compiled; L['factor']" in text
    torch.testing.assert_close(compiled(x, 5), total(x, 5))
    expected = ["capture", "recompile", "ranks_differ", "recompile"]
    assert kinds(compiled) == (expected if rank == 1 else ["capture", "ranks_differ", "recompile"])
    (text,) = _differing(lambda: compiled(x, 7, "printed" if rank == 0 else None))
    assert "[break: " in text.split("- rank 1")[0]
    assert "[one graph]" in text.split("- rank 1")[1]


def _errors_of_one_rank(rank: int, ranks: int) -> None:
    def strict(x: torch.Tensor, stop: bool) -> torch.Tensor:
        if stop:
            flambeau.compiler.graph_break("not here")
        y = x * 2
        dist.all_reduce(y)
        return y

    compiled = flambeau.compile(strict, fullgraph=True)
    x = torch.ones(3)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"(?s)strict.* fails on some ranks.*- rank 1: Capt"):
            compiled(x, False)
    else:
        with pytest.raises(flambeau.CaptureError, match="not here"):
            compiled(x, rank == 1)
    assert compiled(x, False).tolist() == [2.0 * ranks] * 3

    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    another = flambeau.compile(other)
    with pytest.raises(RuntimeError, match="the ranks call different functions"):
        (another if rank == 0 else compiled)(*((x,) if rank == 0 else (x, False)))
    with pytest.raises((TypeError, RuntimeError), match=r"fails on some ranks|missing"):
        compiled(*((x, False) if rank == 0 else (x,)))
    assert another(x).tolist() == [2.0] * 3


def _errors_at_run_time(rank: int, ranks: int) -> None:
    """What the program itself raises is no business of the ranks."""

    def chosen(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * 2

    compiled = flambeau.compile(chosen)
    for index in (1, 9 if rank else 0, 2):
        if index == 9:
            with pytest.raises(IndexError):
                compiled(torch.ones(4), torch.tensor([index]))
        else:
            assert compiled(torch.ones(4), torch.tensor([index])).tolist() == [2.0]


def _inner_calls(rank: int, ranks: int) -> None:
    """Only calls from outside meet: a rank may break, and call more, where others do not."""
    inner = flambeau.compile(lambda x: x.cos())

    def outer(x: torch.Tensor, breaks: bool) -> torch.Tensor:
        if breaks:
            flambeau.compiler.graph_break()
            return inner(x.clone()) + 1
        return x.cos() + 1

    compiled, x = flambeau.compile(outer), torch.ones(2)
    for _ in range(3):
        _differing(lambda: torch.testing.assert_close(compiled(x, rank == 1), x.cos() + 1))


def check(rank: int, ranks: int, store: str) -> None:
    """What each of several processes checks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")
    assert compiler.set_enable_guard_collectives(True) is False
    for each in (_guards_that_differ, _errors_of_one_rank, _errors_at_run_time, _inner_calls):
        if each is not _errors_of_one_rank or ranks == 2:
            each(rank, ranks)
    assert compiler.set_enable_guard_collectives(False) is True
    compiled = flambeau.compile(lambda x: x + 1)
    if rank == 0:
        compiled(torch.ones(2))  # meets nobody any more
    leave_groups()


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes(ranks: int, tmp_path: Path) -> None:
    store = os.fspath(tmp_path / "store")
    run_ranks(check, (ranks, store), ranks)


def test_a_process_without_a_group_meets_nobody() -> None:
    compiled = flambeau.compile(lambda x: x + 1)
    assert compiler.set_enable_guard_collectives(True) is False
    try:
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    finally:
        assert compiler.set_enable_guard_collectives(False) is True
