"""The state of one capture (`Machine`) and of one interpreted frame (`Frame`).

The floors above define what Python's operations do; `capture.py` hands them over as `Operations`.
The state of one feature is an object of a class in the feature's module (`Machine.state_of`).

One Machine captures one call. It belongs to one thread and is dropped when its record has been
made.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from flambeau_capture import torch_state
from flambeau_capture.interpreter.foreign_types import OpenLibraries
from flambeau_capture.interpreter.protocols import DEFAULT_STRATEGY, CaptureStrategy
from flambeau_capture.interpreter.torch_calls.tape import Tape
from flambeau_capture.interpreter.values.classes import ClassTable
from flambeau_capture.interpreter.values.objects import Objects
from flambeau_capture.interpreter.values.program_functions import ProgramFunctions
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Guard
from flambeau_capture.sources import Source
from flambeau_capture.torch_state import Switches

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.assumed_constants import AssumedConstant
    from flambeau_capture.interpreter.code.decode import DecodedCode, Handler
    from flambeau_capture.interpreter.protocols import Args, Assumptions, Kwargs
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Capture, DynamicDims, Scope

_State = TypeVar("_State")

_SEVERAL_OF_ONE_SOURCE = frozenset({"ABSENT", "HAS_KEY", "NOT_ALIAS", "PREDICATE", "STATE"})
"""Guard kinds of which one source may have several, with different payloads."""


MOST_GUARDS = 50_000
"""A guard program of the C core holds a few more."""


_FULLGRAPH_FACTOR = 3
"""How much longer a frame may be interpreted if the alternative is an error."""


class Frame:
    """One activation of a Python function. `ip` is the index of the next instruction."""

    __slots__ = (
        "builtins", "code", "function", "generator", "globals", "in_place", "ip", "keyword_names",
        "locals", "machine", "namespace", "parent", "snapshot", "stack", "value",
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine,
        code: DecodedCode,
        function: types.FunctionType,
        local_values: list[Any],
        parent: Frame | None,
    ) -> None:
        self.machine = machine
        self.code = code
        self.function = function
        self.globals = function.__globals__
        self.builtins = function.__builtins__  # type: ignore[attr-defined]
        self.locals = local_values
        self.stack: list[Any] = []
        self.ip = 0
        self.parent = parent
        self.in_place = False
        self.value: Any = None
        self.keyword_names: tuple[str, ...] = ()
        self.generator: Any = None
        self.namespace: dict[str, Any] | None = None  # f_locals, in class bodies only
        self.snapshot: dict[str, Any] | None = None  # what `locals()` has returned, before 3.13

    @property
    def where(self) -> str:
        """The user's "file.py:12" of the instruction being executed."""
        return f"{self.code.filename}:{self.code.line(max(self.ip - 1, 0))}"

    def is_in_block(self, *, with_too: bool = True) -> bool:
        """Whether an exception here meets a `try` (or a `with`) of the frame or of its callers."""
        frame: Frame | None = self
        while frame is not None:
            code = frame.code
            unwind = code.unwinds[frame.ip - 1]
            if unwind is not None and (
                with_too or code.names_at[unwind.target + 1] != "WITH_EXCEPT_START"
            ):
                return True
            frame = frame.parent
        return False


class Breaks:
    """Where a capture was left: the frames, innermost first, each with the step that it was at."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._noted: BaseException | None = None
        self.frames: list[tuple[Frame, int]] = []
        self.where = ""
        """The innermost line of a break."""
        self.error_where = ""
        """The innermost line of an exception."""
        self.dropped: GraphBreak | None = None
        """Why a generator that the frame has dropped could not be closed."""

    def note(self, frame: Frame, error: GraphBreak, step: int) -> None:
        """Note the innermost line of a break, and the step that each frame it leaves was at."""
        if self._noted is not error:
            self._noted = error
            self.frames.clear()
        self.frames.append((frame, step))
        if not self.where:
            self.where = self._machine.user_place(frame)
            if self.where != frame.where:
                error.detail += f" (in {frame.where})"

    def forget(self) -> None:
        """A break that did not end the capture: what was tried can be done without."""
        self.frames.clear()
        self.where = ""

    def note_error(self, frame: Frame, error: BaseException, step: int) -> None:
        """Note the innermost line of an exception, and the step of each frame that it leaves."""
        if self._noted is not error:
            self._noted = error
            self.error_where = self._machine.user_place(frame)
            self.frames.clear()
        self.frames.append((frame, step))


class Progress:
    """How many instructions were interpreted, and when to stop."""

    __slots__ = (
        "_calls_seen", "_end", "_limit", "_tape", "_watcher", "next_check", "step", "stop_step",
    )  # fmt: skip

    def __init__(self, limit: int, stop_step: int, tape: Tape) -> None:
        self.step = 0
        self.stop_step = stop_step
        self.next_check = 0
        """The step at which the run loop asks `check`."""
        self._limit = limit
        self._tape = tape
        self._calls_seen = 0
        self._watcher: Callable[[], None] | None = None
        self._set_end(0)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called before each further step."""
        self._watcher = watcher
        self._set_next_check(self.step)

    def check(self, step: int) -> bool:
        """Whether to stop before this step; GraphBreak after many steps without a graph call."""
        if step == self.stop_step:
            return True
        if self._watcher is not None:
            self._watcher()
        if step < self._end:
            self._set_next_check(step)
            return False
        if len(self._tape.calls) == self._calls_seen:
            limit = self._limit
            detail = f"{limit} instructions without a call for the graph"
            raise GraphBreak("instruction-limit", detail)
        self._set_end(step)
        return False

    def _set_end(self, step: int) -> None:
        self._calls_seen = len(self._tape.calls)
        self._end = step + self._limit
        self._set_next_check(step)

    def _set_next_check(self, step: int) -> None:
        self.next_check = self._end if self._watcher is None else step + 1
        if step < self.stop_step < self.next_check:
            self.next_check = self.stop_step


@dataclass(frozen=True, slots=True)
class Operations:
    """What the floors above the machine define, and the floors below ask it for."""

    call: Callable[..., Any]
    """`call(machine, function, args, kwargs, in_place=False)`"""
    interpret: Callable[..., Any]
    load: Callable[[Machine, Any, str], Any]
    suspend: Callable[[Machine, Frame], Capture]
    speculation: Callable[[Machine], Assumptions]
    handlers: list[Handler]
    """Of the opcodes, by number."""
    user_overrides: dict[int, Any]


class Machine:
    """What the handlers share.

    `handling` is the exception being handled (what a bare `raise` re-raises); `depth` counts
    inlined calls.
    """

    def __init__(
        self,
        scope: Scope,
        options: CaptureOptions,
        dynamic: DynamicDims,
        operations: Operations,
        device: torch.device | str = "cpu",
        strategy: CaptureStrategy = DEFAULT_STRATEGY,
        stop_step: int = 0,
    ) -> None:
        self.scope = scope
        self.options = options
        self.dynamic = dynamic
        self.operations = operations
        self.user_overrides = operations.user_overrides
        self.strategy = strategy
        self.frame: Frame | None = None
        self.depth = 0
        self.handling: BaseException | None = None
        self.stop_value: Any = None
        self.transforms: list[str] = []
        """Function transforms around what is being interpreted."""
        self.positions = 0
        """Calls around it that map functions over positions, with which these may index."""
        self.backwards = 0
        """Backwards of custom Functions around it."""
        self.addresses_read: dict[int, Any] = {}
        """Objects by the `id` that the program has read."""
        self.observed_is_compiling = False
        """Whether the answer was yes: what the program then raises eager might not."""
        self.switches = Switches()
        self.torch_state: dict[str, Any] = {}
        self.definitions: dict[tuple[int, str | type], tuple[Any, str | type]] = {}
        self.of_the_process = ""
        """What the frame has read that another process may answer differently."""
        self.constants: list[AssumedConstant] = []
        self.guards: dict[tuple[str, Source, Any], Guard] = {}
        self.suspended: Capture | GraphBreak | None = None
        self._states: dict[type, Any] = {}
        self.breaks = Breaks(self)
        self.classes = ClassTable()
        self.functions = ProgramFunctions(self)
        self.foreign = OpenLibraries(self)
        self.objects = Objects(self)
        self.speculation = operations.speculation(self)
        self.tape: Tape = Tape(self, device)
        limit = options.instruction_limit * (_FULLGRAPH_FACTOR if options.fullgraph else 1)
        self.progress = Progress(limit, stop_step, self.tape)

    def state_of(self, feature: type[_State]) -> _State:
        """The state of one feature, an object of the feature's own class, made on first use."""
        found: _State | None = self._states.get(feature)
        if found is None:
            found = self._states[feature] = feature()
        return found

    @property
    def where(self) -> str:
        """The line being executed: the innermost one outside torch and the standard library."""
        return "" if self.frame is None else self.user_place(self.frame)

    def user_place(self, frame: Frame) -> str:
        """The line of the innermost frame, from `frame` outwards, that is the program's own."""
        own = frame
        while own.parent is not None and self.functions.is_library(own.globals):
            own = own.parent
        return (frame if self.functions.is_library(own.globals) else own).where

    def guard(self, kind: str, source: Source, payload: Any = None) -> None:
        """Note that the capture depends on a fact; once each."""
        key = (kind, source, payload if kind in _SEVERAL_OF_ONE_SOURCE else None)
        if key not in self.guards:
            if len(self.guards) >= MOST_GUARDS:
                raise GraphBreak("guard-limit", f"more than {MOST_GUARDS} guards")
            self.guards[key] = Guard(kind, source, payload, self.where)

    def rely_on(self, holder: Any, name: str | type) -> None:
        """Note a definition of a trusted class, or of a trusted module's globals, that the capture
        takes without a guard; of an abstract class, whether a type is one of its subclasses.
        """
        self.definitions[(id(holder), name)] = (holder, name)

    def dissolve(self) -> None:
        """Drop every reference: machine, tables and tape form cycles that hold tensors."""
        # Itself first: generators that die with a part see that the capture is over.
        for part in (self, self.breaks, self.functions, self.objects, self.tape):
            part.__dict__.clear()

    def suspend(self, frame: Frame) -> None:
        """Make the record up to the next instruction of `frame`, the innermost one."""
        try:
            self.suspended = self.operations.suspend(self, frame)
        except GraphBreak as error:
            self.suspended = error

    # ------------------------------------------------------------ calls

    def call(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """`function(*args, **kwargs)`."""
        return self.operations.call(self, function, args, kwargs)

    def call_in_place(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """`function(*args, **kwargs)`, which the running instruction pushes as it is."""
        return self.operations.call(self, function, args, kwargs, in_place=True)

    def interpret(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run a Python function's own code, past any substitute."""
        return self.operations.interpret(self, function, args, kwargs)

    def load(self, obj: Any, name: str) -> Any:
        """`obj.name`."""
        return self.operations.load(self, obj, name)

    def depend_on_state(self, name: str) -> None:
        """Note that the frame has read a state of torch that is not among the usual ones."""
        self.torch_state.setdefault(name, torch_state.EXTRA[name]())
