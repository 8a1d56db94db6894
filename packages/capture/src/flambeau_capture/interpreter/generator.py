"""Generators made in the frame: a suspended interpreted frame behind Python's own generator protocol.

Native code (list, zip, sum) may consume one: each `__next__` resumes the interpreter.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.classes import Native
from flambeau_capture.interpreter.decode import VERSION
from flambeau_capture.interpreter.frame import RETURN, Frame, run, unwind

if TYPE_CHECKING:
    from collections.abc import Iterator


class InterpretedGenerator(Native):
    """A generator whose body is interpreted."""

    __slots__ = ("__name__", "finished", "frame", "handling", "running", "started")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.started = self.running = self.finished = False
        self.handling: BaseException | None = None
        self.__name__ = frame.code.name

    @staticmethod
    def instance_of(classes: Any) -> bool:
        return issubclass(types.GeneratorType, classes)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with `value` as what the yield expression gives."""
        if self.finished:
            raise StopIteration
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.started = True
        self.frame.stack.append(value)
        return self._resume(None)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise in the generator where it is suspended."""
        error = (
            kind
            if isinstance(kind, BaseException)
            else (
                value
                if isinstance(value, BaseException)
                else kind(*(() if value is None else (value,)))
            )
        )
        if self.finished or not self.started:
            self.finished = True
            raise error
        return self._resume(error)

    def close(self) -> None:
        """Raise GeneratorExit in the generator."""
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self._resume(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def _resume(self, error: BaseException | None) -> Any:
        frame, machine = self.frame, self.frame.machine
        if self.running:
            raise ValueError("generator already executing")
        handling = machine.handling
        if self.handling is not None:
            machine.handling = self.handling
        frame.parent = machine.frame
        self.running = True
        try:
            if error is not None:
                frame.stack.append(None)
                unwind(frame, error)
            signal = run(frame)
        except StopIteration as stop:
            self.finished = True
            if VERSION < (3, 12):
                raise RuntimeError("generator raised StopIteration") from stop
            raise
        except BaseException:
            self.finished = True
            raise
        finally:
            self.running = False
            self.handling = machine.handling if machine.handling is not handling else None
            machine.handling = handling
        if signal == RETURN:
            self.finished = True
            raise StopIteration(frame.value)
        return frame.value
