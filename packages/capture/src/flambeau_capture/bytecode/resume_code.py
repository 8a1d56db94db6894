"""Functions that go on in the middle of another function: how a frame continues after a graph
break.

    resume(i)      [restore locals and stack]  jump to instruction i of the original code
    perform(k)     [restore]  instruction k, for real  ->  Tail(the compiled resume(k + 1), its
                   arguments)
    call(k)        [restore]  the next frame's value, where instruction k was calling  ->  Tail(...)
                   as above

Each is the original code with a prologue before it, so that line numbers, exception handlers and
names stay the program's own; nothing of the original instructions is translated. `perform` and
`call` keep them only for their exception handlers. Parameters are flat: every fast local in its own
slot (None where it is dead), then live cells, then the stack, bottom first.

Relies on CPython's bytecode of 3.11 to 3.13: exception tables, location tables and the stack side
effects that `dis` knows.
"""

from __future__ import annotations

import dis
import inspect
import opcode
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flambeau_capture.bytecode.instructions import (
    HANDLED,
    LOADS_METHOD,
    NULL,
    NULL_AFTER,
    PAST_END_FOR,
    VALUE,
    VERSION,
    Instruction,
    NotResumable,
    Protected,
    Successor,
    cell_slots,
    instructions,
    instructions_in,
    is_truth_jump,
    location_entries,
    position_of,
    pushes_null,
    read_exception_table,
    write_exception_table,
)
from flambeau_capture.core import Tail, release_arguments


@dataclass(frozen=True, slots=True)
class Layout:
    """What a suspended frame passes on: live local slots, ascending; kinds of stack entries."""

    locals: tuple[int, ...]
    stack: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FrameCode:
    """The function that a suspended frame runs."""

    code: types.CodeType
    globals: dict[str, Any] = field(hash=False, compare=False)
    name: str
    qualname: str


class Raiser(int):
    """The offset, in units, of the instruction that raised the exception above."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ResumedFrom:
    """The function that a resume function continues; the last constant of its code. The original
    code begins at instruction `first` and unit `start`; its cells moved by `shift`.
    """

    frame_code: FrameCode
    first: int
    start: int
    shift: int


def resumed_from(code: types.CodeType) -> ResumedFrom | None:
    """What the code is the rest of; None for a code object of the program."""
    last = code.co_consts[-1] if code.co_consts else None
    return last if isinstance(last, ResumedFrom) else None


# ---------------------------------------------------------------- making functions


@dataclass(frozen=True, slots=True)
class Continuation:
    """A continuation of `perform` or `call`: the successor, its layout, and the callable."""

    successor: Successor
    layout: Layout
    function: Any


def argument_order(code: types.CodeType, layout: Layout) -> list[tuple[str, int]]:
    """The parameters of a resume function: ("local", slot), ("cell", slot), ("stack", position)."""
    count = code.co_nlocals
    order = [("local", slot) for slot in range(count)]
    order += [("cell", slot) for slot in layout.locals if slot >= count]
    order += [("stack", at) for at, kind in enumerate(layout.stack) if kind in (VALUE, HANDLED)]
    return order


def resume_function(frame_code: FrameCode, index: int, layout: Layout) -> types.FunctionType:
    """The rest of `source` from instruction `index` on."""
    maker = _Maker(frame_code, layout, 0, with_next=False)
    maker.restore()
    maker.append_body(instructions(frame_code.code)[index].start)
    return maker.function()


def perform_function(
    frame_code: FrameCode,
    index: int,
    layout: Layout,
    keyword_names: tuple[str, ...],
    continuations: tuple[Continuation, ...],
) -> types.FunctionType:
    """Performs instruction `index` in CPython; returns a Tail that calls one of `continuations`."""
    maker = _Maker(frame_code, layout, _temporaries(continuations), with_next=False)
    maker.restore()
    maker.perform(index, keyword_names, continuations)
    return maker.function()


def call_function(
    frame_code: FrameCode, index: int, layout: Layout, continuations: tuple[Continuation, ...]
) -> types.FunctionType:
    """As `perform_function`, for a call at `index` whose value the last parameter computes."""
    maker = _Maker(frame_code, layout, _temporaries(continuations), with_next=True)
    maker.restore()
    maker.take_value(index, continuations)
    return maker.function()


def generator_function(
    frame_code: FrameCode, index: int, layout: Layout, *, suspended: bool
) -> types.FunctionType:
    """A generator that continues at `index`; if `suspended`, advanced once to its YIELD_VALUE."""
    maker = _Maker(frame_code, layout, 0, with_next=False)
    maker.restore(is_generator=True)
    if suspended:
        maker.suspend(index - 1)
    maker.append_body(instructions(frame_code.code)[index].start)
    return maker.function()


def _temporaries(continuations: tuple[Continuation, ...]) -> int:
    return max([len(item.layout.stack) for item in continuations], default=0)


class _Maker:
    """Assembles one function: prologue, then what it does, then (shifted) the original code."""

    def __init__(
        self, frame_code: FrameCode, layout: Layout, temporaries: int, *, with_next: bool
    ) -> None:
        code = frame_code.code
        self.frame_code, self.code, self.layout = frame_code, code, layout
        self.order = argument_order(code, layout)
        extra = [f".{kind}{at}" for kind, at in self.order[code.co_nlocals :]]
        if with_next:
            extra.append(".next")
        self.parameter_count = code.co_nlocals + len(extra)
        extra += [f".temporary{at}" for at in range(temporaries)]
        self.names = (*code.co_varnames, *_unlike(extra, code))
        self.shift = len(extra)
        self.body = _shifted(code, self.shift)
        self.units = bytearray()
        self.constants = list(code.co_consts)
        self.raisers: list[int] = []  # constants that are offsets in the original code
        self.locations: list[tuple[int, Any]] = []
        self.handlers: list[Protected] = []
        self.body_start: int | None = None

    # ------------------------------------------------------------ assembling

    @property
    def at(self) -> int:
        """The unit that is emitted next."""
        return len(self.units) // 2

    def emit(self, name: str, arg: int = 0) -> None:
        """One instruction, with its prefixes and inline caches."""
        assert arg < 1 << 16
        if arg > 255:
            self.units += bytes((dis.opmap["EXTENDED_ARG"], arg >> 8))
        op = dis.opmap[name]
        self.units += bytes((op, arg & 255))
        table = opcode._inline_cache_entries  # type: ignore[attr-defined]
        caches = table.get(name, 0) if isinstance(table, dict) else table[op]
        self.units += bytes((dis.opmap["CACHE"], 0)) * caches

    def constant(self, value: Any) -> int:
        """The index of a constant."""
        self.constants.append(value)
        return len(self.constants) - 1

    def _push_callable(self, value: Any) -> None:
        if not NULL_AFTER:
            self.emit("PUSH_NULL")
        self.emit("LOAD_CONST", self.constant(value))
        if NULL_AFTER:
            self.emit("PUSH_NULL")

    def _call(self, argument_count: int) -> None:
        if VERSION < (3, 12):
            self.emit("PRECALL", argument_count)
        self.emit("CALL", argument_count)

    def slot(self, slot: int) -> int:
        """Where a slot of the original code is now."""
        return slot if slot < self.code.co_nlocals else slot + self.shift

    # ------------------------------------------------------------ parts

    def declare_cells(self) -> None:
        """Copy the frame's cells as `PyFrame_GetLocals` expects: free variables hold cells from the
        first instruction on, and each cell variable has a MAKE_CELL, which is not run.
        """
        if self.code.co_freevars:
            self.emit("COPY_FREE_VARS", len(self.code.co_freevars))
        cells = [self.slot(slot) for slot in cell_slots(self.code)]
        if cells:
            self.emit("JUMP_FORWARD", sum(1 + (slot > 255) for slot in cells))
            for slot in cells:
                self.emit("MAKE_CELL", slot)

    def restore(self, *, is_generator: bool = False) -> None:
        """Restore locals and stack of the suspended frame; only the frame holds them."""
        self.declare_cells()
        if is_generator:
            self.emit("RETURN_GENERATOR")
            self.emit("POP_TOP")
        self.emit("RESUME")
        if release_arguments is not None and not is_generator:
            self._push_callable(release_arguments)
            self._call(0)
            self.emit("POP_TOP")
        count = self.code.co_nlocals
        live = set(self.layout.locals)
        parameter = {item: at for at, item in enumerate(self.order)}
        for slot in range(count):
            if slot not in live:
                self.emit("DELETE_FAST", slot)
        for slot in self.layout.locals:
            if slot >= count:
                self.emit("LOAD_FAST", parameter["cell", slot])
                self.emit("STORE_FAST", self.slot(slot))
        for at, kind in enumerate(self.layout.stack):
            if kind == NULL:
                self.emit("PUSH_NULL")
            elif kind == HANDLED:
                self.emit("LOAD_FAST", parameter["stack", at])
                self.emit("PUSH_EXC_INFO")
                self.emit("POP_TOP")
            elif kind == VALUE:
                self.emit("LOAD_FAST", parameter["stack", at])
                self.emit("DELETE_FAST", parameter["stack", at])
            else:
                self.raisers.append(self.constant(kind))
                self.emit("LOAD_CONST", self.raisers[-1])

    def perform(
        self, index: int, keyword_names: tuple[str, ...], continuations: tuple[Continuation, ...]
    ) -> None:
        """The instruction itself, covered by the original's exception handler."""
        instruction = instructions(self.code)[index]
        start = self.at
        # CPython 3.13 looks for the handler of what a Python function raises in the unit before its
        # call.
        self.emit("NOP")
        if keyword_names and instruction.name == "CALL":
            self.emit("KW_NAMES", self.constant(keyword_names))
        if is_truth_jump(instruction.name):
            self.emit("UNARY_NOT")
            self.emit("UNARY_NOT")
        elif len(continuations) == 2:
            self._covered(index, start, self._perform_jump(instruction, continuations))
            self._keep_handlers()
            return
        elif instruction.name in LOADS_METHOD and pushes_null(instruction):
            self._load_method(instruction)
        else:
            self.units += self.body[2 * instruction.start : 2 * instruction.end]
        self._covered(index, start, self.at)
        for item in continuations:
            self._go_on(item)
        self._keep_handlers()

    def _load_method(self, instruction: Instruction) -> None:
        """The callable as an attribute load leaves it: the form is known before the load."""
        match instruction.name:
            case "LOAD_METHOD":
                self.emit("LOAD_ATTR", instruction.arg)
            case "LOAD_SUPER_ATTR" | "LOAD_ATTR" | "LOAD_GLOBAL":
                self.emit(instruction.name, instruction.arg & ~1)
        self.emit("PUSH_NULL")
        if not NULL_AFTER:
            self.emit("SWAP", 2)

    def _perform_jump(
        self, instruction: Instruction, continuations: tuple[Continuation, ...]
    ) -> int:
        """An instruction that jumps or continues, a continuation each; the unit where it ends."""
        straight, jumped = continuations
        at = len(self.units)
        self.emit(instruction.name, 256)  # room for a long jump
        end = self.at
        self._go_on(straight)
        distance = self.at - end
        self.units[at + 1], self.units[at + 3] = distance >> 8, distance & 255
        if instruction.name == "FOR_ITER":
            for name in ("END_FOR", "POP_TOP")[:PAST_END_FOR]:
                self.emit(name)
        self._go_on(jumped)
        return end

    def take_value(self, index: int, continuations: tuple[Continuation, ...]) -> None:
        """The value of the next frame, where the original instruction got it from its call."""
        start = self.at
        following = self.parameter_count - 1
        if NULL_AFTER:
            self.emit("LOAD_FAST", following)
            self.emit("PUSH_NULL")
        else:
            self.emit("PUSH_NULL")
            self.emit("LOAD_FAST", following)
        self.emit("DELETE_FAST", following)  # not among the locals that a traceback shows
        self._call(0)
        self._covered(index, start, self.at)
        for item in continuations:
            self._go_on(item)
        self._keep_handlers()

    def suspend(self, index: int) -> None:
        """Yield as the YIELD_VALUE at `index` does: exceptions thrown in reach the same handler."""
        start = self.at
        self.emit("LOAD_CONST", self.constant(None))
        self.emit("YIELD_VALUE", instructions(self.code)[index].arg)
        self._covered(index, start, self.at)

    def _go_on(self, item: Continuation) -> None:
        """Return a Tail: save the stack, leave the handlers, and pass everything on."""
        first = self.parameter_count  # where the temporaries are
        stack = item.layout.stack
        if item.successor.pops:
            self.emit("POP_TOP")
        for at in reversed(range(len(stack))):
            if stack[at] == HANDLED:
                self.emit("POP_EXCEPT")
            elif stack[at] in (VALUE, NULL):
                self.emit("STORE_FAST", first + at)
            else:
                self.emit("POP_TOP")
        order = argument_order(self.code, item.layout)
        self._push_callable(Tail)
        self.emit("LOAD_CONST", self.constant(item.function))
        live = set(item.layout.locals)
        none = self.constant(None)
        for kind, at in order:
            if kind == "stack" and stack[at] == HANDLED:
                self.emit("LOAD_FAST", self.order.index(("stack", at)))
            elif kind == "stack":
                self.emit("LOAD_FAST", first + at)
            elif at in live:
                self.emit("LOAD_FAST", self.slot(at))
            else:
                self.emit("LOAD_CONST", none)
        self._call(1 + len(order))
        self.emit("RETURN_VALUE")

    def _covered(self, index: int, start: int, end: int) -> None:
        """Units [start, end) have the handler and the position of the original instruction."""
        instruction = instructions(self.code)[index]
        self.locations.append((start, self._first_line))
        self.locations.append((end, position_of(self.code, instruction.unit)))
        for protected in read_exception_table(self.code):
            if protected.start <= instruction.unit < protected.end:
                self.handlers.append(protected._replace(start=start, end=end))
                break

    def _keep_handlers(self) -> None:
        """Keep the original code where its exception handler is needed."""
        if self.handlers:
            self.append_body(None)

    def append_body(self, jump_to: int | None) -> None:
        """The original code; with `jump_to`, entered at that unit."""
        if jump_to is not None:
            at = len(self.units)
            self.emit("JUMP_FORWARD", 256)  # room for a long jump
            distance = 1 + jump_to
            if distance >= 1 << 16:
                raise NotResumable("the function is too long")
            self.units[at + 1], self.units[at + 3] = distance >> 8, distance & 255
        self.emit("NOP")  # never run: the location table goes back to the first line on it
        self.body_start = self.at
        self.units += self.body

    # ------------------------------------------------------------ the result

    def function(self) -> types.FunctionType:
        """The function that has been assembled."""
        code = self.code
        start = self.body_start
        for at in self.raisers:
            self.constants[at] = Raiser(self.constants[at] + (start or 0))
        if start is not None:
            first = len(list(instructions_in(bytes(self.units[: 2 * start]))))
            self.constants.append(ResumedFrom(self.frame_code, first, start, self.shift))
        entries = [item._replace(target=item.target + (start or 0)) for item in self.handlers]
        if start is not None:
            entries += [
                item._replace(
                    start=item.start + start, end=item.end + start, target=item.target + start
                )
                for item in read_exception_table(code)
            ]
        made = self.finished(entries)
        frame_code = self.frame_code
        # The cells themselves are arguments: those that the frame needs no more stay empty.
        closure = tuple(types.CellType() for _ in code.co_freevars) or None
        function = types.FunctionType(made, frame_code.globals, frame_code.name, None, closure)
        function.__qualname__ = frame_code.qualname
        return function

    def finished(self, handlers: list[Protected]) -> types.CodeType:
        """The code object (`code_check.check_code` says what it keeps to)."""
        return self.code.replace(
            co_code=bytes(self.units),
            co_argcount=self.parameter_count,
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_varnames=self.names,
            co_nlocals=len(self.names),
            co_stacksize=self.code.co_stacksize + self.parameter_count + 8,
            co_flags=self.code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
            co_consts=tuple(self.constants),
            co_exceptiontable=write_exception_table(handlers),
            co_linetable=self._line_table(),
        )

    @property
    def _first_line(self) -> Any:
        """The position of our own instructions: RESUME's, because `inspect` needs a line."""
        line = self.code.co_firstlineno
        return line, line, None, None

    def _line_table(self) -> bytes:
        """The first line for our own instructions, the original table for the original code."""
        first = self.code.co_firstlineno
        places = [*self.locations]
        if self.body_start is None:
            places.append((self.at, places[-1][1] if places else self._first_line))
        else:
            places.append((self.body_start, self._first_line))
        table = bytearray()
        at, line = 0, first
        for until, position in places:
            table += location_entries(until - at, position, line)
            line = line if position is None else position[0]
            at = until
        return bytes(table) if self.body_start is None else bytes(table) + self.code.co_linetable


def _unlike(names: list[str], code: types.CodeType) -> Iterator[str]:
    """New names for slots with cells and stack values. They are no identifiers, like CPython's
    `.0`, so that no user of a debugger can assign them.
    """
    taken = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for name in names:
        while name in taken:
            name += "_"
        yield name


_LOCAL_OPS = frozenset(
    {
        "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "STORE_FAST", "DELETE_FAST",
        "LOAD_CLOSURE", "MAKE_CELL", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
    }
)  # fmt: skip
_PAIRED_OPS = frozenset({"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"})


def _shifted(code: types.CodeType, by: int) -> bytes:
    """The code with its cells `by` slots further on: the names that are added stand before them."""
    raw = bytearray(code.co_code)
    if by == 0 or not (code.co_cellvars or code.co_freevars):
        return bytes(raw)
    count = code.co_nlocals
    for item in instructions(code):
        if item.name in _LOCAL_OPS and item.arg >= count:
            if item.arg + by > 255:
                raise NotResumable("the function has too many local variables")
            raw[2 * item.unit + 1] = item.arg + by
        elif item.name in _PAIRED_OPS and max(item.arg >> 4, item.arg & 15) >= count:
            raise NotResumable("cells in paired instructions")
    return bytes(raw)
