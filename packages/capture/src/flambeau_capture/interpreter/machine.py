"""The state of one capture: the frame being run, the tape, guards, side tables, and calls of Python
functions.

One Machine captures one call. It belongs to one thread and is dropped when its record has been
made.
"""

from __future__ import annotations

import dis
import os
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from flambeau_capture.guards import torch_state
from flambeau_capture.interpreter.foreign_types import OpenLibraries
from flambeau_capture.interpreter.substitute_registry import CODE_SUBSTITUTES, SUBSTITUTES
from flambeau_capture.interpreter.torch_calls.subgraph_capture import side_effects_so_far
from flambeau_capture.interpreter.torch_calls.tape import Tape
from flambeau_capture.interpreter.torch_calls.torch_functions import PYTHON_FUNCTIONS
from flambeau_capture.interpreter.tracebacks import made_part
from flambeau_capture.interpreter.values.classes import is_trusted
from flambeau_capture.interpreter.values.deferred_strings import DeferredString, shows_tensors
from flambeau_capture.interpreter.values.keys import check_key, hashes_in_python, native_key
from flambeau_capture.interpreter.values.numbers import name_plainly
from flambeau_capture.interpreter.values.objects import DELETED, Objects
from flambeau_capture.interpreter.values.program_functions import function_source, guard_followed
from flambeau_capture.interpreter.values.strategy import DEFAULT_STRATEGY, CaptureStrategy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Guard
from flambeau_capture.sources import (
    CellContents,
    Closure,
    FunctionField,
    Item,
    Source,
)
from flambeau_capture.torch_switches import Switches
from flambeau_prims import error_texts
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.interpreter.code.decode import DecodedCode, Handler
    from flambeau_capture.interpreter.protocols import Assumptions
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Capture, DynamicDims, Scope

_State = TypeVar("_State")

_SEVERAL_OF_ONE_SOURCE = frozenset({"ABSENT", "HAS_KEY", "NOT_ALIAS", "PREDICATE", "STATE"})
"""Guard kinds of which one source may have several, with different payloads."""


MOST_GUARDS = 50_000
"""A guard program of the C core holds a few more."""

_READ_AT_ONCE = (
    str, bytes, int, float, tuple, frozenset, types.MappingProxyType, type, types.ModuleType,
)  # fmt: skip
"""What native code may read whole: it does not change in a call, or is guarded in other ways."""

_DEFERRED_STRING_REFUSED = error_texts.type_refused(DeferredString)
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OWN_READS = (
    "LOAD_GLOBAL",
    "LOAD_NAME",
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_ATTR",
    "LOAD_METHOD",
)


def _is_ours(error: BaseException) -> bool:
    """Whether a name or attribute was missing in this package's own code.

    What the program does is done for it by calls (getattr, descriptors) and explicit raises, never
    by our own reads.
    """
    traceback = error.__traceback__
    if traceback is None or made_part(error) is not None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    opcode = dis.opname[code.co_code[traceback.tb_lasti]]
    return code.co_filename.startswith(_PACKAGE) and opcode in _OWN_READS


class Frame:
    """The state of one activation of a Python function. `ip` is the index of the next instruction."""

    __slots__ = (
        "builtins",
        "code",
        "function",
        "generator",
        "globals",
        "in_place",
        "ip",
        "keyword_names",
        "locals",
        "machine",
        "namespace",
        "parent",
        "snapshot",
        "stack",
        "value",
    )

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
        """Whether the frame, or one that has called it, stands in a `try` (or a `with`), which an
        exception would not just leave.
        """
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
        self.dynamic_ints = dynamic.mode is not False
        self.frame: Frame | None = None
        self.handling: BaseException | None = None
        self._states: dict[type, Any] = {}
        self.addresses_read: dict[int, Any] = {}
        """Objects by the `id` that the program has read."""
        self.groups_raised: dict[int, BaseException] = {}
        """What `except*` has taken and a `raise` has named."""
        self.depth = 0
        self.transforms = 0
        """Function transforms around what is being interpreted."""
        self.backwards = 0
        """Backwards of custom Functions around it."""
        self.step = 0
        self.strategy = strategy
        self.shown_history = False
        """Whether text was made of a tensor that has a gradient function, as such checks have that
        do not fail.
        """
        self.observed_is_compiling = False
        """Whether the answer was yes: what the program then raises eager might not."""
        self.stop_step = stop_step
        self.next_check = 0
        """The step at which the run loop asks `check_progress`."""
        self._calls_seen = 0
        self.switches = Switches()
        self.shown: list[Any] = []
        """Containers whose text is being made, the outermost first."""
        self.texts_of_numbers = False
        """Whether a text was made of a symbolic number, which can still be looked at."""
        self.suspended: Capture | GraphBreak | None = None
        self.broken: list[tuple[Frame, int]] = []
        self.break_where = ""
        self.error_where = ""
        self._noted_error: BaseException | None = None
        self.guards: dict[tuple[str, Source, Any], Guard] = {}
        self.deferred: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.locks: dict[Any, Source] = {}
        """The locks that the frame has taken; `locks_held` are those that it holds now, each as
        often as it holds it.
        """
        self.locks_held: list[Any] = []
        self.deferred_tensors: list[tuple[torch.Tensor, int]] = []
        """What deferred calls show, and its version when they were made."""
        self.deferred_targets: list[tuple[Any, str]] = []
        """What deferred calls write to, and how."""
        self.dropped_break: GraphBreak | None = None
        """Why a generator that the frame has dropped could not be closed."""
        self.cached_calls: dict[Any, tuple[Any, Any]] = {}
        self._closures: set[int] = set()
        self.torch_state: dict[str, Any] = {}
        self.made_functions: dict[int, Any] = {}
        self.made_classes: dict[type, type] = {}
        self.loading: tuple[Frame, int] | None = None
        """The instruction whose load may be read in part (values/lazy_values.py)."""
        self.lazy_arguments = False
        """Whether a call may have been given arguments that were not looked at."""
        self._followed: dict[int, types.FunctionType] = {}
        self._library_globals: dict[int, bool] = {}
        self.stop_value: Any = None
        self.class_cache: dict[Any, Any] = {}
        self.method_cache: dict[Any, Any] = {}
        self.global_cache: dict[tuple[int, str], Any] = {}
        self.attribute_writes: dict[tuple[int, str], tuple[Any, bool]] = {}
        self.hookless: set[int] = set()
        self.hooks_guarded = False
        self.operations = operations
        self.handlers = operations.handlers
        self.user_overrides = operations.user_overrides
        self.foreign = OpenLibraries(self)
        self.objects = Objects(self)
        self.speculation = operations.speculation(self)
        self.tape: Tape = Tape(self, device)
        self._set_next_check(0)

    def state_of(self, feature: type[_State]) -> _State:
        """The state of one feature, an object of the class that the feature's module defines; made
        when it is first asked for.
        """
        found: _State | None = self._states.get(feature)
        if found is None:
            found = self._states[feature] = feature()
        return found

    def was_raised_by_name(self, error: BaseException) -> bool:
        """Whether a `raise` has named this part of a group, which makes it another one."""
        return id(error) in self.groups_raised

    @property
    def where(self) -> str:
        """The user's place being executed: the innermost line outside torch and the standard
        library.
        """
        return "" if self.frame is None else self.user_place(self.frame)

    def user_place(self, frame: Frame) -> str:
        """The line of the innermost frame, `frame` or one that called it, that is the program's
        own.
        """
        own = frame
        while own.parent is not None and self.is_library(own.globals):
            own = own.parent
        return (frame if self.is_library(own.globals) else own).where

    def is_library(self, module_globals: dict[str, Any]) -> bool:
        """Whether code with these globals is torch's or the standard library's."""
        found = self._library_globals.get(id(module_globals))
        if found is None:
            found = self._library_globals[id(module_globals)] = is_trusted(
                module_globals.get("__name__")
            )
        return found

    def guard(self, kind: str, source: Source, payload: Any = None) -> None:
        """Note that the capture depends on a fact; once each."""
        key = (kind, source, payload if kind in _SEVERAL_OF_ONE_SOURCE else None)
        if key not in self.guards:
            if len(self.guards) >= MOST_GUARDS:
                raise GraphBreak("guard-limit", f"more than {MOST_GUARDS} guards")
            self.guards[key] = Guard(kind, source, payload, self.where)

    def dissolve(self) -> None:
        """Drop every reference: machine, tables and tape form cycles, which would keep the call's
        tensors until the next collection.
        """
        for part in (self.objects, self.tape, self):
            part.__dict__.clear()

    # ------------------------------------------------------------ errors

    def translate_error(self, error: BaseException, frame: Frame, step: int = 0) -> BaseException:
        """The error as the program would see it, or a GraphBreak where the stack below could not do
        what was asked.
        """
        if isinstance(error, (NameError, AttributeError)) and _is_ours(error):
            broken: GraphBreak | None = GraphBreak(
                "internal-error", f"{type(error).__name__}: {error}"
            )
        elif isinstance(error, Unsupported):
            broken = GraphBreak.of_unsupported(error)
        elif isinstance(error, RecursionError):
            broken = GraphBreak("inline-depth", "the interpreter's own recursion limit was reached")
        elif shows_tensors(error):
            broken = None
        elif _DEFERRED_STRING_REFUSED.matches(error):
            broken = GraphBreak("data-dependent", "the text of a tensor is read by a C function")
        elif error_texts.SYMBOLIC_KEY_REFUSED.matches(error):
            broken = GraphBreak("operator-unsupported", "a symbolic size is used as a key")
        elif error_texts.SYMBOLIC_SIZES_REFUSED.matches(error):
            broken = GraphBreak("operator-unsupported", str(error).partition("\n")[0])
        else:
            broken = None
        if broken is not None:
            self.note_break(frame, broken, step)
            raise broken from error
        if isinstance(error, (TypeError, AttributeError)):
            name_plainly(error)
        handling = self.handling
        if handling is not None and handling is not error and error.__context__ is None:
            error.__context__ = handling
        return error

    def note_break(self, frame: Frame, error: GraphBreak, step: int) -> None:
        """Remember the innermost place of a break, and the step that each frame it leaves was at."""
        if self._noted_error is not error:
            self._noted_error = error
            self.broken.clear()
        self.broken.append((frame, step))
        if not self.break_where:
            self.break_where = self.user_place(frame)
            if self.break_where != frame.where:
                error.detail += f" (in {frame.where})"

    def forget_break(self) -> None:
        """A break that did not end the capture: what was tried can be done without."""
        self.broken.clear()
        self.break_where = ""

    def note_error(self, frame: Frame, error: BaseException, step: int) -> None:
        """Remember the innermost place of an exception that leaves its frame, and the step that
        each frame it leaves was at.
        """
        if self._noted_error is not error:
            self._noted_error = error
            self.error_where = self.user_place(frame)
            self.broken.clear()
        self.broken.append((frame, step))

    def check_progress(self, step: int) -> bool:
        """Whether interpretation is to stop in front of this step; GraphBreak where many steps made
        no call for the graph.
        """
        if step == self.stop_step:
            return True
        if len(self.tape.calls) == self._calls_seen:
            limit = self.options.instruction_limit
            raise GraphBreak(
                "instruction-limit", f"{limit} instructions without a call for the graph"
            )
        self._set_next_check(step)
        return False

    def _set_next_check(self, step: int) -> None:
        self._calls_seen = len(self.tape.calls)
        self.next_check = step + self.options.instruction_limit
        if step < self.stop_step < self.next_check:
            self.next_check = self.stop_step

    def suspend(self, frame: Frame) -> None:
        """Make the record of everything up to the next instruction of `frame`, the innermost, to be
        taken up there again.
        """
        try:
            self.suspended = self.operations.suspend(self, frame)
        except GraphBreak as error:
            self.suspended = error

    # ------------------------------------------------------------ calls

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)`."""
        return self.operations.call(self, function, args, kwargs)

    def call_in_place(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)`, which the running instruction pushes as it is."""
        return self.operations.call(self, function, args, kwargs, in_place=True)

    def interpret(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function's own code, past any substitute."""
        return self.operations.interpret(self, function, args, kwargs)

    def load(self, obj: Any, name: str) -> Any:
        """`obj.name`."""
        return self.operations.load(self, obj, name)

    def check_receiver(self, receiver: Any) -> None:
        """Methods of C types may read containers of the program that stand on the stack as they
        are, but not change or advance them.
        """
        if not self.objects.is_known(receiver):
            return
        if isinstance(receiver, (*_READ_AT_ONCE, types.FunctionType)):
            return
        if type(receiver).__module__ in ("re", "enum", "torch") or isinstance(receiver, dict):
            return
        raise GraphBreak(
            "unknown-c-function",
            f"a method of a {type(receiver).__name__} that existed before the call",
        )

    def defer(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Replay a call for its side effect at exit."""
        self.deferred.append((function, args, kwargs))

    def depend_on_state(self, name: str) -> None:
        """Note that the frame has read a state of torch that is not among the usual ones."""
        self.torch_state.setdefault(name, torch_state.EXTRA[name]())

    # ------------------------------------------------------------ cells and globals

    def register_closure(self, function: types.FunctionType) -> None:
        """Note where the cells of a pre-existing function are."""
        if id(function) in self.made_functions or id(function) in self._closures:
            return
        self._closures.add(id(function))
        cells = function.__closure__ or ()
        if function is self.scope.function:
            for index, name in enumerate(function.__code__.co_freevars):
                self.objects.register(cells[index], Closure(name, index))
            return
        base = FunctionField(self.function_source(function), "closure")
        for index, cell in enumerate(cells):
            self.objects.register(cell, Item(base, index))

    def guard_function(self, function: types.FunctionType) -> None:
        """A function of the program is about to be followed: its code and defaults must stay."""
        key = id(function)
        if key in self._followed or key in self.made_functions:
            return
        self._followed[key] = function
        if self.is_library(function.__globals__):
            return
        guard_followed(self, function)

    def stands_in_tables(self, function: types.FunctionType) -> bool:
        """Whether something other than its code says what a call of a function is."""
        key = id(function)
        return (
            key in SUBSTITUTES
            or key in PYTHON_FUNCTIONS
            or id(function.__code__) in CODE_SUBSTITUTES
            or (bool(self.user_overrides) and key in self.user_overrides)
        )

    def function_source(self, function: types.FunctionType) -> Source:
        """Where a pre-existing function can be fetched from."""
        return function_source(self, function)

    def load_cell(self, cell: types.CellType, name: str, is_free: bool) -> Any:
        """What a cell holds."""
        written = self.objects.cells_written.get(id(cell))
        if written is not None:
            value = written[1]
        else:
            try:
                value = cell.cell_contents
            except ValueError:
                value = DELETED
            source = self.objects.source_of(cell)
            if source is not None:
                if value is DELETED:
                    self.guard("CELL_EMPTY", source)
                elif not (name == "__class__" and isinstance(value, type)):
                    value = self.objects.wrap(value, CellContents(source))
        if value is DELETED:
            if is_free:
                raise NameError(
                    f"cannot access free variable {name!r} where it is not associated with "
                    f"a value in enclosing scope",
                    name=name,
                )
            raise UnboundLocalError(
                f"cannot access local variable {name!r} where it is not associated with a value"
            )
        return value

    def store_cell(self, cell: types.CellType, value: Any) -> None:
        """Set (or with DELETED, empty) a cell."""
        if self.objects.is_known(cell):
            self.objects.cells_written[id(cell)] = (cell, value)
        elif value is DELETED:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def write_global(self, module_globals: dict[str, Any], name: str, value: Any) -> None:
        """Set (or with DELETED, delete) a global, replayed at exit."""
        key = (id(module_globals), name)
        self.objects.globals_written[key] = (module_globals, value)
        self.global_cache.pop(key, None)

    # ------------------------------------------------------------ objects

    def note_attribute_write(self, obj: Any, name: str, *, raw: bool) -> None:
        """Remember that an attribute of a known object is to be written at exit."""
        self.attribute_writes.pop((id(obj), name), None)
        self.attribute_writes[(id(obj), name)] = (obj, raw)

    def guard_native_read(self, obj: Any) -> None:
        """Native code is about to read a whole object that existed before the call."""
        found = self.objects.known.get(id(obj))
        if found is None or isinstance(obj, _READ_AT_ONCE):
            return
        if isinstance(obj, dict):
            self.guard("LENGTH", found[1], len(obj))
            return
        raise GraphBreak(
            "unsupported-input",
            f"contents of a {type(obj).__module__}.{type(obj).__qualname__} are read",
        )

    def known_key(self, key: Any, others: Any) -> Any:
        """A key of a container that existed before the call, to be put among `others` in the copy
        of it.
        """
        if not hashes_in_python(self, key):
            return key
        # What native code is to call natively must have no side effects: seen by interpreting it,
        # before it is called.
        before = side_effects_so_far(self)
        check_key(self, key, others)
        if side_effects_so_far(self) != before:
            raise GraphBreak(
                "unknown-c-function",
                f"the __hash__ or __eq__ of a {type(key).__qualname__}, a key, has effects",
            )
        return native_key(self, key, others)

    def whole_dict(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        """A tracked copy of a big dict that existed before the call, guarded whole."""
        if not self.objects.is_known(mapping):
            return mapping
        _, source = self.objects.known.pop(id(mapping))
        return self.objects.track_dict(mapping, source)
