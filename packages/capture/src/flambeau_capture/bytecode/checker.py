"""A checker of code objects: what CPython takes for granted of the code that its own compiler
makes.

    check_code(code)      ValueError: "fn: at unit 12, LOAD_DEREF of slot 7, which holds no cell"

The interpreter, debuggers (`frame.f_locals`, `sys.settrace`) and tracebacks read a code object
without looking twice; one that is wrong ends the process. Code that is assembled here is checked so
in every test. Sources: Objects/frameobject.c, Objects/codeobject.c and Python/compile.c.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
from typing import TYPE_CHECKING

from flambeau_capture.bytecode.instructions import (
    ENDS,
    VERSION,
    Instruction,
    Protected,
    cell_slots,
    instructions,
    net_effect,
    read_exception_table,
)
from flambeau_capture.bytecode.resume_code import _Maker

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

_READS_CELL = frozenset(
    {
        "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    }
)  # fmt: skip
_SLOT = _READS_CELL | {
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_AND_CLEAR",
    "STORE_FAST",
    "DELETE_FAST",
    "LOAD_CLOSURE",
    "MAKE_CELL",
}


def check_code(code: types.CodeType) -> None:
    """Raise ValueError for a code object that CPython's compiler could not have made."""
    problem = next(_problems(code), None)
    if problem is not None:
        raise ValueError(f"{code.co_qualname}: {problem}")


@contextlib.contextmanager
def assembled_code_checked() -> Iterator[None]:
    """Check each code object that is assembled in the block, in all threads; for tests."""
    assemble = _Maker.finished

    def checked(maker: _Maker, handlers: list[Protected]) -> types.CodeType:
        code = assemble(maker, handlers)
        check_code(code)
        return code

    _Maker.finished = checked  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        _Maker.finished = assemble  # type: ignore[method-assign]


def _problems(code: types.CodeType) -> Iterator[str]:
    listing = instructions(code)
    yield from _names(code)
    yield from _beginning(code, listing)
    yield from _operands(code, listing)
    yield from _tables(code, listing)
    yield from _flow(code, listing)


def _slot_count(code: types.CodeType) -> int:
    return (
        code.co_nlocals + len(set(code.co_cellvars) - set(code.co_varnames)) + len(code.co_freevars)
    )


def _names(code: types.CodeType) -> Iterator[str]:
    """One name for each slot: parameters, other locals, cells, free variables."""
    names = [code._varname_from_oparg(slot) for slot in range(_slot_count(code))]  # type: ignore[attr-defined]
    if len(set(names)) != len(names):
        yield f"slots share a name: {names}"
    if code.co_nlocals != len(code.co_varnames):
        yield f"co_nlocals is {code.co_nlocals}, for {code.co_varnames}"
    stars = sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    parameters = code.co_argcount + code.co_kwonlyargcount + stars
    if parameters > code.co_nlocals or code.co_posonlyargcount > code.co_argcount:
        yield f"{parameters} parameters, {code.co_nlocals} locals"


def _beginning(code: types.CodeType, listing: list[Instruction]) -> Iterator[str]:
    """Free variables are copied first, cells declared before RESUME, generators made before it."""
    at_resume = next((at for at, item in enumerate(listing) if item.name == "RESUME"), None)
    if at_resume is None:
        yield "no RESUME"
        return
    first = listing[0]
    copied = first.arg if first.name == "COPY_FREE_VARS" else 0
    if copied != len(code.co_freevars):
        yield f"{copied} of {len(code.co_freevars)} free variables are copied first"
    before = listing[:at_resume]
    declared = {item.arg for item in before if item.name == "MAKE_CELL"}
    if not declared >= set(cell_slots(code)):
        yield f"cells {cell_slots(code)}, declared are {sorted(declared)}"
    makes_generator = any(item.name == "RETURN_GENERATOR" for item in before)
    kinds = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if makes_generator != bool(code.co_flags & kinds):
        yield "RETURN_GENERATOR and the flags differ"


def _operands(code: types.CodeType, listing: list[Instruction]) -> Iterator[str]:
    """Each index is one of what it indexes."""
    slots, cells = _slot_count(code), set(cell_slots(code))
    free = set(range(slots - len(code.co_freevars), slots))
    for item in listing:
        op = dis.opmap[item.name]
        where = f"at unit {item.unit}, {item.name} {item.arg}"
        if item.name in _SLOT and item.arg >= slots:
            yield f"{where}: of {slots} slots"
        elif item.name in _READS_CELL | {"MAKE_CELL"} and item.arg not in cells | free:
            yield f"{where}: no slot of a cell"
        elif op in dis.hasconst and item.arg >= len(code.co_consts):
            yield f"{where}: of {len(code.co_consts)} constants"
        elif op in dis.hasname and _name_index(item) >= len(code.co_names):
            yield f"{where}: of {len(code.co_names)} names"


def _name_index(item: Instruction) -> int:
    if item.name == "LOAD_GLOBAL" or (item.name == "LOAD_ATTR" and VERSION >= (3, 12)):
        return item.arg >> 1
    return item.arg >> 2 if item.name == "LOAD_SUPER_ATTR" else item.arg


def _tables(code: types.CodeType, listing: list[Instruction]) -> Iterator[str]:
    """Handlers protect and begin at instructions; each unit has a source position or none."""
    units = len(code.co_code) // 2
    starts = {item.start for item in listing}
    for protected in read_exception_table(code):
        if protected.target not in starts:
            yield f"a handler begins within an instruction: {protected}"
        if not 0 <= protected.start < protected.end <= units:
            yield f"a handler protects what is not there: {protected}"
    places = len(list(code.co_positions()))
    if places != units:
        yield f"places of {places} units, of {units}"
    last = max((end for _, end, _ in code.co_lines()), default=0)
    if last > 2 * units:
        yield f"lines of {last} bytes, of {2 * units}"


def _jump(item: Instruction) -> int | None:
    """The unit an instruction may jump to."""
    op = dis.opmap[item.name]
    if op not in dis.hasjrel:
        return None
    return item.end - item.arg if "BACKWARD" in item.name else item.end + item.arg


def _flow(code: types.CodeType, listing: list[Instruction]) -> Iterator[str]:
    """On every path the stack is in bounds, one depth per instruction; cell slots hold cells."""
    index = {item.start: at for at, item in enumerate(listing)}
    handler: dict[int, Protected] = {}
    for entry in read_exception_table(code):
        for unit in range(entry.start, entry.end):
            handler.setdefault(unit, entry)
    slots = _slot_count(code)
    free = frozenset(range(slots - len(code.co_freevars), slots))
    stars = bin(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)).count("1")
    given = frozenset(range(code.co_argcount + code.co_kwonlyargcount + stars))
    before: dict[int, tuple[int, frozenset[int]]] = {}
    pending: list[tuple[int | None, int, frozenset[int], str]] = [(0, 0, given, "the beginning")]
    while pending:
        at, depth, bound, source = pending.pop()
        if at is None or at >= len(listing):
            yield f"{source} leads to what is no instruction"
            return
        known = before.get(at)
        item = listing[at]
        where = f"at unit {item.unit}, {item.name} {item.arg}"
        if known is not None:
            if known[0] != depth:
                yield f"{where}: the stack is {known[0]} or {depth} deep"
                return
            bound &= known[1]
            if bound == known[1]:
                continue
        before[at] = depth, bound
        if item.name in _READS_CELL and item.arg not in bound:
            yield f"{where}: the slot may hold no cell"
        if not 0 <= depth <= code.co_stacksize:
            yield f"{where}: {depth} entries, at most {code.co_stacksize}"
            return
        protected = handler.get(item.unit)
        if protected is not None:
            if protected.depth > depth:
                yield f"{where}: the handler expects {protected.depth} entries, there are {depth}"
            target = index.get(protected.target)
            pending.append((target, protected.depth + protected.lasti + 1, bound, where))
        bound = _bound_after(item, bound, free)
        target = _jump(item)
        if target is not None:
            pending.append((index.get(target), depth + _effect(item, jump=True), bound, where))
        if item.name not in ENDS and not _always_jumps(item.name):
            pending.append((at + 1, depth + _effect(item, jump=False), bound, where))


def _always_jumps(name: str) -> bool:
    return name.startswith("JUMP_") and "IF" not in name


def _bound_after(item: Instruction, bound: frozenset[int], free: frozenset[int]) -> frozenset[int]:
    match item.name:
        case "STORE_FAST" | "MAKE_CELL":
            return bound | {item.arg}
        case "DELETE_FAST" | "LOAD_FAST_AND_CLEAR":
            return bound - {item.arg}
        case "COPY_FREE_VARS":
            return bound | free
        case "STORE_FAST_STORE_FAST":
            return bound | {item.arg >> 4, item.arg & 15}
        case "STORE_FAST_LOAD_FAST":
            return bound | {item.arg >> 4}
    return bound


def _effect(item: Instruction, *, jump: bool) -> int:
    if item.name == "RETURN_GENERATOR":
        return 1  # what is sent first, None
    return net_effect(item.name, item.arg, jump=jump)
