"""Loads that are begun before their executables are needed."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from example_programs import RELU, SIN_COS, sin_cos

from flambeau_runtime import CacheUse, CompileError, RuntimeOptions, begin_load, recording_cache_use
from flambeau_runtime.build import cpp
from flambeau_runtime.build.beside import beside


@pytest.fixture
def fresh(tmp_path):
    return RuntimeOptions(cache_dir=tmp_path / "cache")


@pytest.fixture
def held(monkeypatch):
    """The compiler waits until this is set."""
    allowed, run = threading.Event(), cpp._run_compiler

    def waiting(*args):
        assert allowed.wait(60)
        return run(*args)

    monkeypatch.setattr(cpp, "_run_compiler", waiting)
    yield allowed
    allowed.set()


def test_a_build_is_begun_without_a_wait(fresh, held):
    use = CacheUse()
    with recording_cache_use(use):
        paths = cpp.begin_build([SIN_COS, RELU, SIN_COS], fresh)
        assert (use.misses, use.stored) == (2, 0)
        held.set()
        first, second, third = paths()
    assert first == third != second
    assert (use.misses, use.stored) == (2, 2)
    assert paths() == [first, second, third]
    assert cpp.build([SIN_COS], fresh) == [first]


def test_two_begun_builds_of_one_text_run_the_compiler_once(fresh, held, monkeypatch):
    runs, run = [], cpp._run_compiler
    monkeypatch.setattr(cpp, "_run_compiler", lambda *args: runs.append(1) or run(*args))
    begun = [cpp.begin_build([SIN_COS], fresh) for _ in range(3)]
    held.set()
    assert len({tuple(each()) for each in begun}) == 1
    assert len(runs) == 1


@pytest.mark.parametrize("use_cache", [False, True])
def test_what_is_wrong_is_raised_at_the_end(fresh, use_cache):
    options = dataclasses.replace(fresh, use_cache=use_cache)
    begun = cpp.begin_libraries([RELU, "no C++"], options)
    for _ in range(2):
        with pytest.raises(CompileError):
            begun()


def test_a_call_beside_runs_at_once_where_no_thread_can_be_started(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls = []
    end = beside(lambda: calls.append(1) or torch.get_num_threads())
    assert calls == [1]
    assert end() == torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        beside(lambda: 1 // 0)()


def test_a_begun_program(fresh, held):
    begun = begin_load(sin_cos((5, 3)), fresh)
    held.set()
    x = torch.randn(5, 3)
    torch.testing.assert_close(begun()(x)[0], x.sin() + x.cos())
