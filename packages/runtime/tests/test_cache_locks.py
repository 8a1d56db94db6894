"""Locks of cache keys: one holder at a time, none after its death, and one build of many wanted."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from flambeau_runtime.cache import Cache
from flambeau_runtime.cache_locks import KeyLock, one_at_a_time

PROCESSES = multiprocessing.get_context("spawn")
LONG = 200.0


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first, second = KeyLock(cache, "cpp", "key"), KeyLock(cache, "cpp", "key")
    assert first.acquire()
    assert not second.acquire()
    with one_at_a_time(cache, "cpp", "other"):
        assert not second.acquire()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()
    second.release()
    assert first.acquire()
    first.release()
    assert [path.name for path in (tmp_path / "cache" / "locks").iterdir()] == []


def test_threads_count_without_loss(tmp_path: Path) -> None:
    cache, file = Cache(tmp_path / "cache"), tmp_path / "count"
    file.write_text("0")

    def add() -> None:
        for _ in range(25):
            with one_at_a_time(cache, "cpp", "count"):
                file.write_text(str(int(file.read_text()) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() == "100"


def _hold(root: str, ready: Any) -> None:
    lock = KeyLock(Cache(Path(root)), "cpp", "key")
    assert lock.acquire()
    ready.set()
    signal.pause()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    cache, ready = Cache(tmp_path / "cache"), PROCESSES.Event()
    process = PROCESSES.Process(target=_hold, args=(str(cache.root), ready))
    process.start()
    assert ready.wait(LONG)
    lock = KeyLock(cache, "cpp", "key")
    assert not lock.acquire()
    process.kill()
    assert lock.acquire(LONG)
    process.join()
    lock.release()


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert KeyLock(Cache(tmp_path / "cache"), "cpp", "key").acquire()
    cache = Cache(tmp_path / "other")
    lock = KeyLock(cache, "cpp", "key")
    (cache.root / "locks").rmdir()
    assert lock.acquire()
    lock.release()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    target = tmp_path / "target"
    target.write_text("kept")
    cache.lock_file("cpp", "key").symlink_to(target)
    lock = KeyLock(cache, "cpp", "key")
    assert lock.acquire()
    lock.release()
    assert target.read_text() == "kept"


@pytest.mark.parametrize("kill", [False, True])
def test_processes_build_once(tmp_path: Path, kill: bool) -> None:
    """Three processes need one object; if the first is killed as it makes it, the next does."""
    begun, done = PROCESSES.Event(), PROCESSES.Event()
    log = tmp_path / "log"
    given = (str(tmp_path / "cache"), str(log), begun, done)
    processes = [PROCESSES.Process(target=_build, args=(*given, kill))]
    processes[0].start()
    assert begun.wait(LONG)
    processes += [PROCESSES.Process(target=_build, args=(*given, False)) for _ in range(2)]
    for process in processes[1:]:
        process.start()
    if kill:
        processes[0].kill()
    done.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL if kill else 0, 0, 0]
    assert log.read_text() == "built\n"


def _build(root: str, log: str, begun: Any, done: Any, endless: bool) -> None:
    cache = Cache(Path(root))
    with one_at_a_time(cache, "cpp", "0" * 64):
        if cache.read("cpp", "0" * 64) is None:
            begun.set()
            if endless:
                signal.pause()
            assert done.wait(LONG)
            with open(log, "a") as file:
                file.write("built\n")
            cache.store("cpp", "0" * 64, b"flambeau_cpp_" + b"0" * 64, ".so")
