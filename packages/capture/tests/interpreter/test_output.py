# ruff: noqa: UP030, UP031, UP032 (forms of formatting are what is tested)
"""What a frame prints, warns and logs: the text of the time of the call, in order, as often as
eagerly, at the program's own lines.
"""

from __future__ import annotations

import logging
import sys
import warnings

import pytest
import torch
from capture_harness import breaks, compiled

import flambeau_capture

X = torch.arange(12.0).reshape(3, 4)
LOGGER = logging.getLogger("flambeau_capture.tests.output")


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value!r})"


def printed(x, items, table):
    print("a", 1, None, items, table, x.shape, sep="-", end="|\n")
    items.append(2)
    table["a"].value += 1
    print(items, table, Shown(3), file=sys.stderr)
    print(f"{table['a']!s:>12}", "%r" % (table,), "{0[a]} {1}".format(table, items))
    print()
    return x + 1


def printed_tensors(x):
    y = x.sum()
    print("sum", y, [y, 1])
    return x + y


def test_print(capsys):
    fn = compiled(printed)
    for _ in range(2):
        outputs = []
        for run in (printed, fn):
            run(X, [1], {"a": Shown(1)})
            outputs.append(capsys.readouterr())
        assert outputs[0] == outputs[1] and outputs[0].out and outputs[0].err


def test_print_of_tensors(capsys):
    fn = compiled(printed_tensors)
    for scale in (1, 2):
        outputs = []
        for run in (printed_tensors, fn):
            run(X * scale)
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1] and "sum" in outputs[0]


def warned(x, n):
    warnings.warn("plain", stacklevel=1)
    warnings.warn("of a kind", DeprecationWarning, stacklevel=1)
    warnings.warn(UserWarning("an object"), stacklevel=1)
    warned_below(n)
    return x + 1


def warned_below(n):
    warnings.warn(f"about the caller {n}", stacklevel=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not heard", stacklevel=1)


def test_warnings():
    fn = compiled(warned)
    heard = []
    for run in (warned, fn, fn):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(X, 3)
        heard.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
    assert heard[0] == heard[1] == heard[2] and len(heard[0]) == 4


def warned_about_caller(x):
    warnings.warn("yours", stacklevel=2)
    return x * 2


def test_warning_about_the_caller():
    fn = compiled(warned_about_caller)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fn(X)
        fn(X)
    assert [w.filename for w in caught] == [__file__] * 2


def logged(x, items):
    LOGGER.debug("hidden %s", items)
    LOGGER.warning("list %s %d", items, 3)
    items.append(4)
    LOGGER.error("after %s", items)
    LOGGER.log(logging.CRITICAL, "of level %d", logging.CRITICAL)
    return x + 1 if LOGGER.isEnabledFor(logging.DEBUG) else x


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, r):
        self.records.append((r.levelno, r.getMessage(), r.filename, r.lineno, r.funcName))


@pytest.fixture
def handler():
    handler = Heard()
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    yield handler
    LOGGER.propagate = True
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(logging.NOTSET)


def test_logging(handler):
    fn = compiled(logged)
    for level in (logging.WARNING, logging.WARNING, logging.DEBUG):
        LOGGER.setLevel(level)
        records = []
        for run in (logged, fn):
            run(X, [1])
            records.append(handler.records)
            handler.records = []
        assert records[0] == records[1] and records[0]
    assert len(flambeau_capture.state_of(fn).events) == 2  # recompiled when the level changed


def changed_after_print(x):
    y = x + 1
    print(y, [y])
    y.add_(1)
    print(y, {"x": x[0]})
    x[0, 1].zero_()
    print(x)
    return y


def test_tensors_are_printed_as_they_were(capsys):
    fn = compiled(changed_after_print)
    for scale in (1, 2):
        outputs = []
        for run in (changed_after_print, fn):
            run(X * scale)
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1] and outputs[0]


def print_of_a_history_changed(x):
    y = x * torch.ones(4, requires_grad=True)
    print(y)  # which names its gradient function
    y.add_(1)
    return y.detach()


def test_print_of_a_history_breaks(capsys):
    breaks(print_of_a_history_changed, X)
