"""Generators made in the frame: a suspended interpreted frame behind Python's own generator
protocol.

Native code (list, zip, sum) may consume one: each `__next__` resumes the interpreter.
"""

from __future__ import annotations

import types
import warnings
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import VERSION
from flambeau_capture.interpreter.frame import RETURN, Handled, Stopped, run, unwind
from flambeau_capture.interpreter.machine import Frame
from flambeau_capture.interpreter.tracebacks import ends_generator
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.code.decode import DecodedCode
    from flambeau_capture.interpreter.machine import Machine

_THROW_OF_PARTS = (
    "the (type, exc, tb) signature of throw() is deprecated, use the single-arg signature instead."
)
"""How CPython warns from 3.12 on."""
_ATTRIBUTES = frozenset(dir(types.GeneratorType))
_NAMES = {"__name__": "name", "__qualname__": "qualified_name"}
"""Attributes of generators that a program can set, and the fields that hold them."""


def _not_writable(name: str) -> AttributeError:
    if name in _ATTRIBUTES:
        kind = type(getattr(types.GeneratorType, name)).__name__
        if kind in ("getset_descriptor", "member_descriptor"):
            return AttributeError(f"attribute {name!r} of 'generator' objects is not writable")
        return AttributeError(f"'generator' object attribute {name!r} is read-only")
    return AttributeError(f"'generator' object has no attribute {name!r}")


class InterpretedGenerator(Proxy):
    """A generator whose body is interpreted."""

    __slots__ = ("finished", "frame", "handling", "name", "qualified_name", "running", "started")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.started = self.running = self.finished = False
        self.handling: BaseException | None = None
        self.name = frame.function.__name__
        self.qualified_name = frame.function.__qualname__

    def seen_attribute(self, name: str) -> Any:
        """What a real generator has; for everything else an AttributeError, or a break."""
        if name not in _ATTRIBUTES:
            message = f"'generator' object has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=self)
        if name == "gi_frame" and not self.finished:
            raise GraphBreak("generator-escapes", "gi_frame of a generator is read")
        return getattr(self, _NAMES.get(name, name))

    def store_seen(self, name: str, value: Any) -> None:
        """`generator.name = value`: names are strings, and all else is read-only."""
        field = _NAMES.get(name)
        if field is None:
            raise _not_writable(name)
        if not isinstance(value, str):
            raise TypeError(f"{name} must be set to a string object")
        setattr(self, field, value)

    def delete_seen(self, name: str) -> None:
        """`del generator.name`, which is always refused."""
        if name in _NAMES:
            raise TypeError(f"{name} must be set to a string object")
        raise _not_writable(name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type that the program sees."""
        return types.GeneratorType

    @property
    def gi_frame(self) -> None:
        """None, as of a finished generator."""
        return None

    @property
    def gi_code(self) -> types.CodeType:
        """The code of the generator function."""
        return self.frame.function.__code__

    @property
    def gi_running(self) -> bool:
        """Whether its body is being interpreted."""
        return self.running

    @property
    def gi_suspended(self) -> bool:
        """Whether it waits at a yield."""
        return self.started and not self.running and not self.finished

    @property
    def gi_yieldfrom(self) -> Any:
        """The iterator that it delegates to."""
        return self._delegate() if self.gi_suspended else None

    @staticmethod
    def instance_of(classes: Any) -> bool:
        """As a real generator's."""
        return issubclass(types.GeneratorType, classes)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with `value` as what the yield expression gives."""
        _check_not_running(self)
        if self.finished:
            raise StopIteration
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.started = True
        self.frame.stack.append(value)
        return self._resume(None)

    def throw(self, kind: Any, *details: Any) -> Any:
        """Raise in the generator where it is suspended; `details`: a value and a traceback."""
        if details and VERSION >= (3, 12):
            self.frame.machine.call(warnings.warn, (_THROW_OF_PARTS, DeprecationWarning), {})
        error = _as_exception(self.frame.machine, kind, details[0] if details else None)
        _check_not_running(self)
        if self.finished or not self.started:
            self._finish()
            raise error
        receiver = self._delegate()
        throw = None if receiver is None else _method(receiver, "throw", self.frame.machine)
        if throw is None or isinstance(error, GeneratorExit):
            return self._resume(self._closing(receiver, error))
        machine, caller = self.frame.machine, self.frame.machine.frame
        self.running = True
        if isinstance(receiver, InterpretedGenerator):  # it sees the frame that delegates to it
            self.frame.parent, machine.frame = caller, self.frame
        try:
            return machine.call(throw, (error,), {})
        except (GraphBreak, Stopped):
            raise
        except BaseException as raised:
            ended = raised
        finally:
            self.running = False
            self.frame.parent, machine.frame = None, caller
        # Not where it is handled: that would be the context of what the generator raises.
        if isinstance(ended, StopIteration):
            return self._resume(*self._delegate_returned(ended))
        return self._resume(ended)

    def _delegate(self) -> Any:
        """The iterator that `yield from` is suspended on, or None."""
        frame = self.frame
        return frame.stack[-1] if delegates(frame.code, frame.ip) else None

    def _closing(self, receiver: Any, error: BaseException) -> BaseException:
        """What is raised in the generator after closing its delegate: `error`, or a new one."""
        self.running = True
        try:
            self._close_delegate(receiver)
        except (GraphBreak, Stopped):
            raise
        except BaseException as raised:
            return raised
        finally:
            self.running = False
        return error

    def _close_delegate(self, receiver: Any) -> None:
        machine = self.frame.machine
        close = None if receiver is None else _method(receiver, "close", machine)
        if close is not None:
            machine.call(close, (), {})

    def _delegate_returned(self, stop: StopIteration) -> tuple[BaseException | None, bool]:
        """How to resume after the delegate answered a thrown exception by returning a value."""
        frame = self.frame
        if VERSION >= (3, 12):
            return stop, True  # CLEANUP_THROW in the frame handles it
        frame.stack[-1] = stop.value
        _, frame.ip = frame.code.instructions[frame.ip - 2]  # the end of this yield's SEND
        return None, True

    def close(self) -> Any:
        """Raise GeneratorExit in the generator; from 3.13 on, what it then returns."""
        _check_not_running(self)
        if self.finished or not self.started:
            self._finish()
            return None
        try:
            self._resume(self._closing(self._delegate(), GeneratorExit()))
        except GeneratorExit:
            return None
        except StopIteration as stop:
            return stop.value if VERSION >= (3, 13) else None
        raise RuntimeError("generator ignored GeneratorExit")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A generator cannot be copied or pickled."""
        raise TypeError("cannot pickle 'generator' object")

    def __del__(self) -> None:
        """A generator that is dropped where it is suspended is closed, at once, as CPython does."""
        machine = self.frame.machine
        if not self.started or self.finished or self.running or not vars(machine):
            return
        if machine.breaks.where or machine.suspended is not None or not self._handles_exit():
            return
        broken, where = list(machine.breaks.frames), machine.breaks.where
        try:
            self.close()
        except GraphBreak as error:
            machine.breaks.dropped = error
        except BaseException as error:
            machine.breaks.dropped = GraphBreak(
                "exception-escapes", f"{type(error).__name__} in a generator that is dropped"
            )
        machine.breaks.frames[:], machine.breaks.where = broken, where

    def _finish(self) -> None:
        """It has ended, and drops what its frame held."""
        self.finished = True
        self.frame.locals.clear()
        self.frame.stack.clear()

    def _handles_exit(self) -> bool:
        """Whether GeneratorExit at this yield runs code of the program or of the delegate."""
        frame = self.frame
        unwind_to = frame.code.unwinds[frame.ip - 1]
        if unwind_to is None:
            return self._delegate() is not None
        return not ends_generator(frame.code.names_at, unwind_to.target)

    def _resume(self, error: BaseException | None, ready: bool = False) -> Any:
        """Run to the next yield; `ready`: the stack is as the next instruction expects it."""
        frame, machine = self.frame, self.frame.machine
        handling = machine.handling
        own = _handled(frame)
        if own is not None:
            own.previous = handling  # what its caller handles now, whoever called it before
            machine.handling = self.handling
        frame.parent = machine.frame
        self.running = True
        try:
            if error is not None:
                if not ready:
                    frame.stack.append(None)
                unwind(frame, error)
            signal = run(frame)
        except StopIteration as stop:
            self._finish()
            if VERSION < (3, 12):
                raise RuntimeError("generator raised StopIteration") from stop
            raise
        except BaseException:
            self._finish()
            raise
        finally:
            frame.parent = None  # else the generator would keep alive what holds it
            self.running = False
            self.handling = None if _handled(frame) is None else machine.handling
            machine.handling = handling
        if signal == RETURN:
            self._finish()
            raise StopIteration if frame.value is None else StopIteration(frame.value)
        return frame.value


def delegates(code: DecodedCode, index: int) -> bool:
    """Whether the yield before an instruction is that of a `yield from`."""
    return code.names_at[index] == "RESUME" and code.instructions[index][1] & 3 >= 2


def _handled(frame: Frame) -> Handled | None:
    """The outermost exception that a generator handles itself."""
    return next((value for value in frame.stack if type(value) is Handled), None)


def _as_exception(machine: Machine, kind: Any, value: Any) -> BaseException:
    """What `throw(kind, value)` raises in the generator: also what making the exception raises."""
    if isinstance(kind, BaseException):
        return kind
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise TypeError(
            "exceptions must be classes or instances deriving from BaseException, "
            f"not {type(kind).__name__}"
        )
    if isinstance(value, kind):
        return value
    try:
        given = () if value is None else value if isinstance(value, tuple) else (value,)
        made = machine.call(kind, given, {})
    except (GraphBreak, Stopped):
        raise
    except BaseException as raised:
        return raised
    if isinstance(made, BaseException):
        return made
    return TypeError(
        f"calling {kind!r} should have returned an instance of BaseException, "
        f"not {type(made).__name__}"
    )


def _check_not_running(generator: InterpretedGenerator) -> None:
    if generator.running:
        raise ValueError("generator already executing")


def _method(receiver: Any, name: str, machine: Machine) -> Any:
    """A method of the iterator of a `yield from`, or None."""
    try:
        return machine.load(receiver, name)
    except AttributeError:
        return None
