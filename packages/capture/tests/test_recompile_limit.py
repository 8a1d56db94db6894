"""After `recompile_limit` compilations: one entry for all sizes and numbers, or eager, and one
warning that names the guard that kept failing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from captured import run_graph

import flambeau_capture
from flambeau_capture import CaptureError, CaptureOptions
from flambeau_capture.entries.recompilation import ENTRIES_DIED
from flambeau_capture.frame_hook import call_with_handler, hook_works

LIMIT = 3
X = torch.arange(6.0).reshape(2, 3)


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    options = {"recompile_limit": LIMIT, **options}
    return flambeau_capture.compile(fn, backend=run_graph, options=CaptureOptions(**options))


def kinds(fn: Callable[..., Any]) -> list[str]:
    return [event.kind for event in flambeau_capture.state_of(fn).events]


def check_calls(
    fn: Callable[..., Any], program: Callable[..., Any], calls: list[tuple[Any, ...]], says: str
) -> None:
    """Every call is right, and one warning is given, that says this."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for args in calls:
            torch.testing.assert_close(fn(*args), program(*args))
    texts = [str(item.message) for item in given if issubclass(item.category, RuntimeWarning)]
    assert len(texts) == 1 and re.search(says, texts[0]), texts


def settings(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"a": 2, "b": 3.0, "c": (4, 5), "d": [1.5], **changes})


def reads_numbers(x: torch.Tensor, o: Any) -> torch.Tensor:
    return x * o.a + o.b * o.c[0] - o.c[1] / o.d[0]


VARIED = [
    {},
    {"a": 7},
    {"b": 9.0},
    {"c": (11, 5)},
    {"c": (4, 8)},
    {"d": [0.5]},
    {"a": 3, "b": 2.5, "c": (6, 7), "d": [9.0]},
]


def test_numbers_that_change_one_after_the_other() -> None:
    fn = compiled(reads_numbers)
    calls = [(X, settings(**changes)) for changes in VARIED]
    check_calls(fn, reads_numbers, calls, r"compiled 3 times .* once for all sizes and numbers")
    assert kinds(fn) == ["capture", "recompile", "recompile", "generalise", "recompile"]
    assert len(flambeau_capture.state_of(fn).entries) == LIMIT + 1


def test_sizes_that_change_one_after_the_other() -> None:
    def program(x, y, z):
        return x.sum(0), y * 2, z.shape[0] * z

    shapes = [
        ((2, 3), 4, 5),
        ((3, 3), 4, 5),
        ((3, 5), 4, 5),
        ((2, 3), 7, 5),
        ((2, 3), 4, 9),
        ((7, 8), 9, 10),
        ((5, 5), 5, 5),
    ]
    fn = compiled(program)
    calls = [tuple(torch.randn(shape) for shape in args) for args in shapes]
    check_calls(fn, program, calls, r"kept failing: L\['y'\].*has shape \[7\]")
    assert kinds(fn) == ["capture", "recompile", "recompile", "generalise", "recompile"]


def by_text(x: torch.Tensor, text: str) -> torch.Tensor:
    return x * len(text) + 1


TEXTS = [(X, "a" * count) for count in (1, 2, 3, 4, 5, 2, 4)]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_what_no_entry_is_general_for_runs_eagerly(dynamic: bool | None) -> None:
    fn = compiled(by_text, dynamic=dynamic)
    says = r"run eagerly.*kept failing: L\['text'\] == 'a'.*L\['text'\] is 'aa'; .*'aaa'; .*'aaaa'"
    check_calls(fn, by_text, TEXTS, says)
    assert kinds(fn) == ["capture", "recompile", "recompile", "limit"]
    entries = flambeau_capture.state_of(fn).entries
    assert entries[-1].info.skipped.id == "recompile-limit" and len(entries) == LIMIT + 1
    event = flambeau_capture.state_of(fn).events[-1]
    assert len(event.failures) == LIMIT and event.reason.id == "recompile-limit"


def test_numbers_are_left_alone_where_dynamic_is_false() -> None:
    fn = compiled(reads_numbers, dynamic=False)
    calls = [(X, settings(**changes)) for changes in VARIED]
    check_calls(fn, reads_numbers, calls, "run eagerly")
    assert kinds(fn)[-1] == "limit"


def test_what_the_general_entry_does_not_serve_runs_eagerly() -> None:
    fn = compiled(reads_numbers)
    calls = [(X, settings(**changes)) for changes in (*VARIED, {"a": 1.5}, {"b": 2}, {"a": 2.5})]
    check_calls(fn, reads_numbers, calls, "once for all")
    assert kinds(fn)[3:] == ["generalise", "recompile", "limit"]


def test_a_whole_graph_is_insisted_on() -> None:
    fn = compiled(by_text, fullgraph=True)
    for args in TEXTS[:LIMIT]:
        fn(*args)
    with pytest.raises(CaptureError, match=r"recompile-limit"):
        fn(*TEXTS[LIMIT])
    fn = compiled(reads_numbers, fullgraph=True)
    calls = [(X, settings(**changes)) for changes in VARIED]
    check_calls(fn, reads_numbers, calls, "once for all")


def test_reset_begins_anew() -> None:
    fn = compiled(by_text)
    check_calls(fn, by_text, TEXTS, "run eagerly")
    flambeau_capture.state_of(fn).reset()
    check_calls(fn, by_text, TEXTS, "run eagerly")


def resumed(x: torch.Tensor, o: Any) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * len(o.text) + o.number


@pytest.mark.parametrize("name", ["text", "number"])
def test_the_rest_of_a_frame(name: str) -> None:
    fn = compiled(resumed)
    values = [(name, "a" * at if name == "text" else at + 0.5) for at in range(7)]
    calls = [
        (X, SimpleNamespace(**{"text": "a", "number": 1.0, key: value})) for key, value in values
    ]
    if name == "number":  # one recompilation, and it is a symbol
        for args in calls:
            torch.testing.assert_close(fn(*args), resumed(*args))
        assert "limit" not in kinds(fn)
        return
    check_calls(fn, resumed, calls, r"resumed.*kept failing: .*\.text == ''")
    assert kinds(fn).count("limit") == 1
    (rest,) = flambeau_capture.state_of(fn)._continuations
    assert rest.entries[-1].info.skipped.id == "recompile-limit"
    assert len(flambeau_capture.state_of(fn).entries) == 1


@pytest.mark.skipif(not hook_works(), reason="frames cannot be hooked here")
def test_frames_that_the_hook_offers() -> None:
    def breaks(x: torch.Tensor) -> float:
        return float(x.sum())

    def below(x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text) + 1

    fn = compiled(breaks)
    fn(X)
    state = flambeau_capture.state_of(fn)

    def hooked(x: torch.Tensor, text: str) -> torch.Tensor:
        return call_with_handler(
            state._hooked_frames().handler, lambda: list(map(below, [x], [text]))
        )[0]

    check_calls(
        hooked, below, TEXTS, r"below was compiled 3 times.*kept failing: L\['text'\] == 'a'"
    )
    assert kinds(fn).count("limit") == 1
    known = state._hooked_frames().handler.table[id(below.__code__)][1]
    assert isinstance(known, tuple) and len(known) == LIMIT, (
        "the entries that there are go on serving"
    )


def test_entries_that_die_are_not_made_for_ever() -> None:
    def program(x: torch.Tensor, module: ModuleType) -> torch.Tensor:
        return x + module.number

    def made() -> ModuleType:
        module = ModuleType("made")
        module.number = 4  # type: ignore[attr-defined]
        return module

    fn = compiled(program)
    with pytest.warns(RuntimeWarning, match="were gone each time"):
        for _ in range(ENTRIES_DIED * LIMIT + 2):
            torch.testing.assert_close(fn(X, made()), X + 4)
    assert kinds(fn).count("capture") == ENTRIES_DIED * LIMIT and kinds(fn)[-1] == "limit"
