"""The table of backwards: what one thread prepares, calls in others wait for."""

from __future__ import annotations

import threading

import pytest

from flambeau_autograd.backwards import Backward, BackwardTable

USUAL = frozenset()


class Table(BackwardTable):
    """Counts what calls have to make."""

    def __init__(self):
        super().__init__(frozenset({0, 1}))
        self.made = []

    def _make(self, missing):
        self.made.append(missing)
        return backward(missing)


def backward(missing=USUAL):
    return Backward(lambda *args: list(args), (), frozenset({0, 1}) - missing)


def test_calls_wait_for_what_is_being_prepared():
    table, begun, goes_on = Table(), threading.Event(), threading.Event()
    prepared = backward()

    def make(missing):
        begun.set()
        goes_on.wait()
        return prepared

    thread = threading.Thread(target=table.prepare, args=(make,))
    thread.start()
    begun.wait()
    found = []
    caller = threading.Thread(target=lambda: found.append(table.without(USUAL)))
    caller.start()
    assert not found
    goes_on.set()
    thread.join()
    caller.join()
    assert found == [prepared]
    assert not table.made


def test_what_cannot_be_prepared_is_made_by_the_call():
    table = Table()
    table.prepare(lambda missing: None)
    with pytest.raises(OSError):
        table.prepare(_fail)
    assert table.without(frozenset({0})).tangents == {1}
    assert table.without(USUAL).tangents == {0, 1}
    assert table.made == [{0}, USUAL]


def _fail(missing):
    raise OSError("no space")


def test_what_is_there_is_not_prepared_again():
    table = Table()
    first = table.without(USUAL)
    table.prepare(_fail)
    assert table.without(USUAL) is first
