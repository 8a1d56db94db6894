"""Modules as objects: attributes set, deleted and read by name and in the module's dict."""

from __future__ import annotations

import builtins
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
from captured import compiled

NUMBER = 1
PLAIN = types.ModuleType("plain")


class Logged(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["log"] = []

    def __getattribute__(self, name: str) -> Any:
        found = types.ModuleType.__getattribute__(self, name)
        if name not in ("log", "__dict__"):
            self.log.append(("get", name))
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(("set", name))
        types.ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.log.append(("delete", name))
        types.ModuleType.__delattr__(self, name)


class Computed(types.ModuleType):
    @property
    def double(self) -> int:
        return self.half * 2

    @double.setter
    def double(self, value: int) -> None:
        self.half = value // 2


LOGGED, COMPUTED = Logged("logged"), Computed("computed")


def globals_written_and_read_whole() -> Any:
    global NUMBER
    NUMBER = 6
    whole = dict(globals())["NUMBER"], globals()["NUMBER"]
    del NUMBER
    gone = "NUMBER" in globals(), globals().get("NUMBER"), "NUMBER" in dict(globals())
    NUMBER = 1
    return whole, gone, NUMBER


def written_then_read_in_the_dict() -> Any:
    PLAIN.a = 2
    found: list[Any] = [PLAIN.__dict__["a"], vars(PLAIN)["a"], "b" in PLAIN.__dict__]
    PLAIN.b = 3
    found += [PLAIN.__dict__["b"], hasattr(PLAIN, "b"), sorted(vars(PLAIN))]
    del PLAIN.b
    found += [PLAIN.__dict__.get("b"), hasattr(PLAIN, "b"), sorted(vars(PLAIN))]
    PLAIN.a = 1
    return found


def deleted_twice() -> Any:
    PLAIN.c = 1
    del PLAIN.c
    try:
        del PLAIN.c
    except AttributeError as error:
        first = str(error), error.__context__
    try:
        PLAIN.c
    except AttributeError as error:
        return first, str(error), error.__context__


def methods_of_a_module_class() -> Any:
    LOGGED.log.clear()
    LOGGED.foo = 12
    read = LOGGED.foo
    del LOGGED.foo
    return read, hasattr(LOGGED, "foo"), list(LOGGED.log)


def property_of_a_module_class() -> Any:
    COMPUTED.double = 12
    return COMPUTED.double, COMPUTED.half, "half" in vars(COMPUTED)


def builtin_replaced_and_restored() -> Any:
    native = builtins.len
    builtins.len = lambda _: 7  # type: ignore[assignment]
    first = len([])
    builtins.len = native
    return first, len([])


def uninitialized() -> Any:
    made = types.ModuleType.__new__(types.ModuleType)
    found: list[Any] = [hasattr(made, "__name__"), bool(made.__dict__)]
    gc.collect()
    made.foo = 1  # type: ignore[attr-defined]
    return [*found, made.__dict__ == {"foo": 1}, made.__dict__]


def called() -> Any:
    found = []
    made = types.ModuleType("made")
    for name in ("made", 42, None):
        made.__name__ = name  # type: ignore[assignment]
        if name is None:
            del made.__name__
        try:
            made()  # type: ignore[operator]
        except TypeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "program",
    [
        globals_written_and_read_whole,
        written_then_read_in_the_dict,
        deleted_twice,
        methods_of_a_module_class,
        property_of_a_module_class,
        builtin_replaced_and_restored,
        uninitialized,
        called,
    ],
)
def test_same_as_eager(program: Callable[[], Any]) -> None:
    fn = compiled(program)
    expected = program()
    assert [fn() for _ in range(3)] == [expected] * 3
