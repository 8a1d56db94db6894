"""Ranges that profilers see: a call of a Program, and in it each kernel and each operator."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from example_programs import mixed, sin_cos

from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.profile_names import name_of_program, name_of_step
from flambeau_runtime.program import Extern, Launch, Program


def with_lines(program: Program) -> Program:
    """The Program, its steps with lines of a user."""
    steps = tuple(
        dataclasses.replace(step, lines=(f"/home/me/model.py:{number}",))
        if isinstance(step, (Launch, Extern))
        else step
        for number, step in enumerate(program.steps, 1)
    )
    return dataclasses.replace(program, steps=steps)


def inputs():
    return torch.randn(5, 8), torch.randn(8, 16), torch.randn(16), 7, torch.zeros(3)


def ranges(run, args, **kwargs) -> dict[str, list[str]]:
    """For each range seen in a call: the names of those around it, from the inside."""
    with torch.profiler.profile(**kwargs) as profile:
        run(*args)
    found = {}
    for event in profile.events():
        parents, parent = [], event.cpu_parent
        while parent is not None:
            parents.append(parent.name)
            parent = parent.cpu_parent
        found[event.name] = parents
    return found


def test_a_call_has_a_range_and_its_steps_have_theirs_in_it(options: RuntimeOptions) -> None:
    program = with_lines(mixed())
    run = load(program, options, title="M graph 0")
    args = inputs()
    run(*args)
    seen = ranges(run, args)
    whole = name_of_program(program, "M graph 0")
    steps = [name for step in program.steps if (name := name_of_step(step)) is not None]
    assert len(steps) >= 2 and whole.startswith(f"M graph 0 {program.name} (model.py:")
    for name in steps:
        assert "(model.py:" in name and seen[name] == [whole]


def test_without_a_profiler_nothing_changes_and_results_are_equal(options: RuntimeOptions) -> None:
    run = load(mixed(), options)
    args = inputs()
    plain = run(*args[:4], torch.zeros(3))
    with torch.profiler.profile():
        profiled = run(*args[:4], torch.zeros(3))
    for a, b in zip(plain, profiled, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_ranges_are_closed_where_a_step_fails(options: RuntimeOptions) -> None:
    program = mixed()
    run = load(program, dataclasses.replace(options, debug=False))
    x, w, b, n, acc = inputs()
    with torch.profiler.profile() as profile:
        with pytest.raises((RuntimeError, ValueError)):
            run(x, w[:3], b, n, acc)
        torch.ones(2).sin()
    found = {event.name: event for event in profile.events()}
    assert name_of_program(program) in found
    assert found["aten::sin"].cpu_parent is None


def test_only_the_profiled_thread_has_ranges(options: RuntimeOptions) -> None:
    here, there = (
        load(sin_cos((4,)), options, title="here"),
        load(sin_cos((5,)), options, title="there"),
    )
    here(torch.randn(4))
    there(torch.randn(5))
    with torch.profiler.profile() as profile:
        thread = threading.Thread(target=there, args=(torch.randn(5),))
        thread.start()
        here(torch.randn(4))
        thread.join()
    names = {event.name for event in profile.events()}
    assert any(name.startswith("here ") for name in names)
    assert not any(name.startswith("there ") for name in names)


def test_a_profiler_of_all_threads_sees_calls_of_other_threads(cache_dir) -> None:
    run = load(sin_cos((4,)), RuntimeOptions(cache_dir=cache_dir, executor="auto"), title="T")
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=everywhere) as profile:
        thread = threading.Thread(target=run, args=(torch.randn(4),))
        thread.start()
        thread.join()
    assert any(event.name.startswith("T ") for event in profile.events())


def test_names_gather_the_lines_of_a_file() -> None:
    lines = ("/a/model.py:12", "/a/model.py:5", "/b/layers.py:3", "/a/model.py:12")
    assert name_of_step(Launch("k", (), lines=lines)) == "k (layers.py:3, model.py:5,12)"
    assert name_of_step(Launch("k", ())) == "k"
    many = tuple(f"m.py:{number}" for number in range(10))
    assert name_of_step(Launch("k", (), lines=many)) == "k (m.py:0,1,2,3,4,5, 4 more)"
