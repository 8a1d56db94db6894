"""Which sizes and numbers were seen to change from call to call: in captures from then on they are symbols, not constants.

    first call x: [4, 8], second x: [5, 8]     ->     {"L['x']": {0}}

A number of the program (an int, a float, a NumPy scalar) stands as dimension -1 of where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flambeau_capture.guards.constants import constants_equal
from flambeau_capture.origins import (
    Argument,
    DictEntry,
    Item,
    Origin,
    OriginLost,
    Scope,
    is_scalar_key,
)
from flambeau_capture.record import Guard
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr


class SizeChanges:
    """What was learnt of one callable's calls.  The callable's lock guards it."""

    def __init__(self) -> None:
        self._dims: dict[str, frozenset[int]] = {}
        self._first: dict[str, tuple[int, ...] | int] | None = None

    def dims(self) -> dict[str, frozenset[int]]:
        """The dimensions that have changed, by the text of the tensor's (or number's) origin."""
        return dict(self._dims)

    def expect(self, dims: Mapping[str, frozenset[int]]) -> None:
        """Take these dimensions to have changed."""
        for text, changed in dims.items():
            self._dims[text] = self._dims.get(text, frozenset()) | changed

    def forget(self) -> None:
        """Take nothing to have changed."""
        self._dims.clear()

    def clear(self) -> None:
        """Forget the first call, too."""
        self._dims.clear()
        self._first = None

    @property
    def has_first_call(self) -> bool:
        """Whether the sizes of a first call are remembered."""
        return self._first is not None

    def remember_first_call(self, scope: Scope) -> None:
        """Remember a call's sizes, for the next one."""
        self._first = dict(_sizes(scope))

    def compare_with_first_call(self, scope: Scope) -> None:
        """Note what differs from the call that was remembered."""
        assert self._first is not None
        for text, now in _sizes(scope):
            then = self._first.pop(text, now)
            if isinstance(then, tuple) and isinstance(now, tuple) and len(then) == len(now):
                for dim, (before, after) in enumerate(zip(then, now, strict=True)):
                    if before != after:
                        self._note(text, dim)
            elif type(then) is int and then != now:
                self._note(text, -1)

    def compare_with_entries(self, entries: tuple[Any, ...], scope: Scope) -> None:
        """Note which sizes and numbers of a call differ from those that entries were made for."""
        for entry in entries:
            for origin, spec in entry.info.inputs:
                value = _load(origin, scope)
                if (
                    isinstance(value, torch.Tensor)
                    and not isinstance(spec, (Expr, FloatExpr))
                    and value.ndim == len(spec.shape)
                ):
                    for dim, (then, now) in enumerate(zip(spec.shape, value.shape, strict=True)):
                        if isinstance(then, Expr) or then != now:
                            self._note(origin.text(), dim)
            for guard in entry.info.guards:
                if guard.kind in ("INT", "FLOAT", "EQUALS"):
                    self._compare_numbers(guard, scope)

    def _compare_numbers(self, guard: Guard, scope: Scope) -> None:
        """Note that a number which an entry was made for (perhaps inside a tuple) is another one in this call."""
        if guard.kind == "EQUALS" and is_scalar_key(guard.origin):
            if _load(guard.origin, scope) not in (guard.payload, None):
                self._note(guard.origin.arguments[0].text(), -1)
            return
        pending: list[tuple[Origin, Any]] = [(guard.origin, guard.payload)]
        while pending:
            origin, then = pending.pop()
            if type(then) is tuple:
                pending += [(Item(origin, at), item) for at, item in enumerate(then)]
            elif type(then) is str:
                now = _load(origin, scope)
                if type(origin) is Argument and type(now) is str and now != then:
                    self._note(origin.text(), -1)
            elif guard.kind != "EQUALS" or type(then) in (int, float):
                now = _load(origin, scope)
                if type(now) in (int, float) and not constants_equal(now, then):
                    self._note(origin.text(), -1)

    def _note(self, text: str, dim: int) -> None:
        self._dims[text] = self._dims.get(text, frozenset()) | {dim}


def _load(origin: Any, scope: Scope) -> Any:
    try:
        return origin.load(scope)
    except OriginLost:
        return None


def _sizes(scope: Scope) -> Iterator[tuple[str, tuple[int, ...] | int]]:
    """The shapes of the arguments that are tensors, and the ints, by the text of their origin."""
    pending: list[tuple[Origin, Any]] = [
        (Argument(name, index), value)
        for index, (name, value) in enumerate(
            zip(scope.function.__code__.co_varnames, scope.arguments, strict=False)
        )
    ]
    for origin, value in pending:
        if isinstance(value, torch.Tensor):
            yield origin.text(), tuple(value.shape)
        elif type(value) is int:
            yield origin.text(), value
        elif type(value) in (list, tuple):
            pending += [(Item(origin, at), item) for at, item in enumerate(value)]
        elif type(value) is dict:
            pending += [(DictEntry(origin, key), item) for key, item in value.items()]
