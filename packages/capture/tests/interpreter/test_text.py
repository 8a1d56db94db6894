"""Text of what the graph computes: equal to eager's, in one graph; and operations that need its
characters, which break it.
"""

from __future__ import annotations

import logging
import warnings

import capture_harness
import pytest
import torch
from capture_harness import breaks, check, compiled
from text_programs import BREAKING, STATE, WHOLE, in_places, kept_methods, unused

import flambeau_capture

LOGGER = logging.getLogger("flambeau_capture.tests.text")


def numbers():
    return torch.randn(3) * 3


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_text_is_eagers(fn):
    STATE.clear()
    check(fn, numbers())


@pytest.mark.parametrize("steps", [7, 20])
@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_text_across_graph_breaks(fn, steps, monkeypatch):
    STATE.clear()
    monkeypatch.setattr(capture_harness, "STEPS", steps)
    check(fn, numbers())


def test_stored_text():
    for run in (in_places, compiled(in_places)):
        x = torch.tensor([1.0, 2.0, 3.0])
        run(x), run(x + 1)
        assert STATE == {"text": "2.0", "all": ["tensor([2., 3., 4.])"]}


@pytest.mark.parametrize("fn", BREAKING, ids=lambda fn: fn.__name__)
def test_what_needs_the_characters_breaks(fn):
    assert breaks(fn, numbers()).id == "data-dependent"


def test_each_call_has_its_own_text():
    fn = compiled(lambda x: f"{x.sum():.4f}")
    for _ in range(4):
        x = numbers()
        assert fn(x) == f"{x.sum():.4f}"
    assert [event.kind for event in flambeau_capture.state_of(fn).events] == ["capture"]


def test_a_method_that_leaves_the_frame():
    x = numbers()
    text, upper = compiled(kept_methods)(x)
    assert text == upper() == str(x).upper()


def test_what_is_not_used_is_not_in_the_graph():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    fn = flambeau_capture.compile(unused, backend=backend)
    x = numbers()
    assert torch.equal(fn(x), x + 1)
    names = [str(node.target) for node in graphs[0].graph.nodes if node.op.startswith("call")]
    assert len(names) == 1 and "add" in names[0], names


def test_an_input_is_shown_as_it_is():
    """Nothing of it is an output of the graph while nobody writes to it."""
    outputs = []

    def backend(graph, inputs):
        outputs.append(len(graph.graph.output_node().args[0]))
        return graph

    for fn in (lambda x: (f"{x}", x + 1), lambda x: (f"{x}", x.add_(1))):
        made = flambeau_capture.compile(fn, backend=backend)
        x = numbers()
        want = str(x)
        assert made(x)[0] == want
    assert outputs[1] >= outputs[0] == 1


def told(x):
    y = x * 2
    print(f"loss {y.sum():.3f}", y, end="|\n")
    LOGGER.info("loss %s", y.sum())
    LOGGER.info(f"loss {y.sum():.2f}")
    LOGGER.info("%s %.3f", "a", y.max())
    y.add_(1)
    warnings.warn(f"large {y.max():.2f}", stacklevel=1)
    print(y.sum(), [f"{y[0]}"], sep="-")
    LOGGER.warning("after %d: %s", 3, {"y": y})
    return y


def test_order_and_text_of_output(capsys, caplog):
    caplog.set_level(logging.INFO, LOGGER.name)
    fn = compiled(told)
    for _ in range(2):
        x, seen = numbers(), []
        for run in (told, fn):
            caplog.clear()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                got = run(x.clone())
            places = [(str(one.message), one.lineno, one.filename) for one in warned]
            records = [(r.levelname, r.getMessage(), r.lineno) for r in caplog.records]
            seen.append((capsys.readouterr().out, places, records, got.tolist()))
        assert seen[0] == seen[1] and seen[0][0] and seen[0][1] and len(seen[0][2]) == 4


def test_an_error_that_leaves_the_frame():
    def fails(x):
        raise ValueError(f"bad {x.sum():.2f}")

    x = torch.tensor([1.0, 2.0])
    fn = compiled(fails, fullgraph=False)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^bad 3\.00$"):
            fn(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_is_that_of_the_time(dtype):
    def fn(x):
        first = f"{x} {x.sum()}"
        torch.set_default_dtype(dtype)
        second = f"{x}"
        torch.set_default_dtype(torch.float32)
        return first, second

    x = numbers()
    assert compiled(fn, fullgraph=False)(x) == fn(x)


def test_print_options_are_those_of_the_time():
    def fn(x):
        first = f"{x}"
        torch.set_printoptions(precision=1)
        second = f"{x}"
        torch.set_printoptions(profile="default")
        return first, second

    x = numbers()
    assert compiled(fn, fullgraph=False)(x) == fn(x)


class Described:
    def __repr__(self):
        return f"Described({self.value})"

    def __init__(self, value):
        self.value = value


def test_explicit_calls_of_str():
    def program(x):
        made = Described(len(x))
        return x * 2, x.__str__(), torch.Tensor.__str__(x + 1), made.__str__(), object.__str__(3)

    check(program, torch.randn(3))
