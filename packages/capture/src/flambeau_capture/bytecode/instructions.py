"""CPython's bytecode, 3.11 to 3.13: where its versions differ, the instructions and the tables of a
code object.

Exception tables (`co_exceptiontable`) say which instructions each handler protects. A number is
written as six bits a byte, most significant first; bit 6 says that more follow, bit 7 begins an
entry. Location tables (`co_linetable`, PEP 626) say which source position each instruction shows.

`successors` says where a frame continues after an instruction, and with which stack:

    CALL 1        on (value, null, value, value)   ->   the next instruction, on (value, value)
    FOR_ITER 12   on (value,)                      ->   the next instruction, on (value, value);  or
                                                   by the jump, on ()

An instruction that it does not know cannot be performed between two graphs: the frame is then
left to the interpreter.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator


VERSION = sys.version_info[:2]

NULL_AFTER = VERSION >= (3, 13)
"""Whether the NULL of a call stands above the callable, not below it."""

PAST_END_FOR = {(3, 11): 0, (3, 12): 1, (3, 13): 2}[VERSION]
"""How many instructions an exhausted FOR_ITER skips: END_FOR, and in 3.13 POP_TOP."""

ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
"""Instructions that nothing follows."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its first unit (of EXTENDED_ARGs), that of its opcode, and its end."""

    start: int
    unit: int
    end: int
    name: str
    arg: int


def cell_slots(code: types.CodeType) -> list[int]:
    """The slots of variables shared with inner functions, ascending; parameters keep theirs."""
    local = {name: slot for slot, name in enumerate(code.co_varnames)}
    others = [name for name in code.co_cellvars if name not in local]
    slots = [local[name] for name in code.co_cellvars if name in local]
    return sorted(slots) + [code.co_nlocals + at for at in range(len(others))]


def instructions(code: types.CodeType) -> list[Instruction]:
    """The instructions of a code object, numbered as `DecodedCode` numbers them."""
    return instructions_in(code.co_code)


def instructions_in(raw: bytes) -> list[Instruction]:
    """The instructions of a piece of bytecode."""
    found: list[Instruction] = []
    start, arg, unit, units = 0, 0, 0, len(raw) // 2
    while unit < units:
        op, arg = raw[2 * unit], arg << 8 | raw[2 * unit + 1]
        end = unit + 1
        if op == dis.opmap["EXTENDED_ARG"]:
            unit = end
            continue
        while end < units and raw[2 * end] == dis.opmap["CACHE"]:
            end += 1
        found.append(Instruction(start, unit, end, dis.opname[op], arg))
        start, arg, unit = end, 0, end
    return found


# ---------------------------------------------------------------- stack effects

_PERFORMED = {
    **dict.fromkeys((
        "BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP",
        "UNARY_NOT", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "TO_BOOL", "LOAD_ATTR",
        "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "GET_ITER",
        "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "IMPORT_NAME",
        "IMPORT_FROM", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "WITH_EXCEPT_START",
        "CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "LIST_TO_TUPLE", "GET_LEN", "MATCH_MAPPING",
        "MATCH_SEQUENCE", "MATCH_KEYS", "MATCH_CLASS", "CHECK_EXC_MATCH", "BUILD_STRING",
        "BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SLICE",
        "MAKE_FUNCTION", "LOAD_BUILD_CLASS", "SET_FUNCTION_ATTRIBUTE",
    ), 1),
    **dict.fromkeys((
        "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR",
        "DELETE_SUBSCR", "DELETE_GLOBAL", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE",
        "LIST_APPEND", "SET_ADD", "MAP_ADD", "POP_TOP", "PRINT_EXPR",
    ), 0),
    "BEFORE_WITH": 2,
}  # fmt: skip
"""Instructions that CPython may perform between two graphs: how many entries they push.

LOAD_ATTR and its like push one more with the NULL of a call; UNPACK_SEQUENCE pushes its argument.
"""
_MOVED = {
    "LOAD_CONST": 1, "LOAD_FAST": 1, "LOAD_FAST_CHECK": 1, "LOAD_FAST_LOAD_FAST": 2, "PUSH_NULL": 1,
    "NOP": 0, "DELETE_FAST": 0, "PRECALL": 0, "KW_NAMES": 0,
}  # fmt: skip
"""Instructions at which no graph breaks: how many entries they push."""
LOADS_METHOD = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_GLOBAL"})
"""Instructions that may push a callable together with the NULL (or instance) of its call."""


def net_effect(name: str, arg: int, *, jump: bool | None = None) -> int:
    """How many entries deeper the stack is after an instruction."""
    if VERSION < (3, 12) and name in ("PRECALL", "CALL"):  # each counts a part of the call
        return 0 if name == "PRECALL" else -1 - arg
    op = dis.opmap[name]
    has_argument = op >= dis.HAVE_ARGUMENT if VERSION < (3, 13) else op in dis.hasarg  # type: ignore[attr-defined]
    return dis.stack_effect(op, arg if has_argument else None, jump=jump)


def pushes_null(instruction: Instruction) -> bool:
    """Whether an instruction pushes two entries, for a call."""
    if instruction.name == "LOAD_METHOD":
        return True
    if instruction.name == "LOAD_ATTR":
        return VERSION >= (3, 12) and bool(instruction.arg & 1)
    return instruction.name in ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") and bool(instruction.arg & 1)


def stack_effect(instruction: Instruction, *, moves: bool = False) -> tuple[int, int] | None:
    """How many entries an instruction pops and pushes; None for one that is not listed.

    With `moves`, instructions at which no graph breaks are listed too.
    """
    name, arg = instruction.name, instruction.arg
    if name == "UNPACK_SEQUENCE":
        return 1, arg
    if name == "UNPACK_EX":
        return 1, (arg & 0xFF) + 1 + (arg >> 8)
    pushed = _PERFORMED.get(name)
    if pushed is None and moves:
        pushed = _MOVED.get(name)
    if pushed is None:
        return None
    pushed += pushes_null(instruction)
    return pushed - net_effect(name, arg), pushed


# ---------------------------------------------------------------- exception table


class Protected(NamedTuple):
    """An exception in units `start` to `end` (excluded) jumps to `target`, stack at `depth`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool
    """Whether the number of the instruction is pushed below the exception."""


def read_exception_table(code: types.CodeType) -> Iterator[Protected]:
    """The protected ranges of a code object, in order."""
    table = iter(code.co_exceptiontable)
    for first in table:
        start = _read(first, table)
        length = _read(next(table), table)
        target = _read(next(table), table)
        packed = _read(next(table), table)
        yield Protected(start, start + length, target, packed >> 1, bool(packed & 1))


def _read(first: int, rest: Iterator[int]) -> int:
    value = first & 63
    while first & 64:
        first = next(rest)
        value = value << 6 | first & 63
    return value


def write_exception_table(ranges: Iterable[Protected]) -> bytes:
    """The table that reads as these ranges."""
    return b"".join(map(_entry, ranges))


def _entry(protected: Protected) -> bytes:
    start, end, target, depth, lasti = protected
    encoded = bytearray()
    for at, number in enumerate((start, end - start, target, depth << 1 | lasti)):
        groups = [number & 63]
        while number := number >> 6:
            groups.append(number & 63 | 64)
        groups.reverse()
        groups[0] |= 128 if at == 0 else 0
        encoded += bytes(groups)
    return bytes(encoded)


# ---------------------------------------------------------------- location table


def position_of(code: types.CodeType, unit: int) -> Any:
    """(line, end line, column, end column) of a unit, or None."""
    for at, position in enumerate(code.co_positions()):
        if at == unit:
            line, end_line, column, end_column = position
            return None if line is None else (line, end_line or line, column, end_column)
    return None


_NO_LOCATION, _LONG, _NO_COLUMNS = 15, 14, 13


def location_entries(length: int, position: Any, line: int) -> bytes:
    """Entries (Objects/locations.md) for `length` units that follow an entry of line `line`."""
    table = bytearray()
    while length > 0:
        part = min(length, 8)
        if position is None:
            table.append(0x80 | _NO_LOCATION << 3 | part - 1)
        else:
            start, end, column, end_column = position
            known = column is not None and end_column is not None
            table.append(0x80 | (_LONG if known else _NO_COLUMNS) << 3 | part - 1)
            table += _signed(start - line)
            if known:
                table += _unsigned(end - start) + _unsigned(column + 1) + _unsigned(end_column + 1)
            line = start
        length -= part
    return bytes(table)


def _unsigned(number: int) -> bytes:
    """Six bits a byte, least significant first, bit 6 says that more follow."""
    table = bytearray()
    while number > 63:
        table.append(number & 63 | 64)
        number >>= 6
    table.append(number)
    return bytes(table)


def _signed(number: int) -> bytes:
    return _unsigned(-number << 1 | 1 if number < 0 else number << 1)


VALUE, NULL, HANDLED = "value", "null", "handled"
"""Kinds of stack entry: a value, CPython's NULL, and the exception that PUSH_EXC_INFO saves, for
which the exception handled there is passed on. An int is the unit of the raising instruction, for
`RERAISE`.
"""


class NotResumable(Exception):
    """A frame that cannot be taken up again at this instruction; the text says why."""


def is_truth_jump(name: str) -> bool:
    """Whether an instruction jumps by the truth of the value it pops."""
    return name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE"))


@dataclass(frozen=True, slots=True)
class Successor:
    """Where a frame continues after an instruction, with these kinds of stack entry. `jumps`: by
    its jump. `pops`: the POP_TOP that follows belongs to it.
    """

    index: int
    stack: tuple[str | int, ...]
    jumps: bool = False
    pops: bool = False


def successors(
    code: types.CodeType, index: int, stack: tuple[str | int, ...]
) -> tuple[Successor, ...]:
    """Where the frame may continue after instruction `index` on this stack; empty where it ends."""
    listing = instructions(code)
    instruction = listing[index]
    name = instruction.name
    if name in ENDS:
        return ()
    if is_truth_jump(name):
        return (Successor(index, stack),)  # performed as bool(...), in front of the jump itself
    if name == "FOR_ITER":
        target = _jump_target(listing, instruction)
        return (
            Successor(index + 1, (*stack, VALUE)),
            Successor(target + PAST_END_FOR, stack[:-1], jumps=True),
        )
    if name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
        return (
            Successor(index + 1, stack[:-1]),
            Successor(_jump_target(listing, instruction), stack, jumps=True),
        )
    effect = stack_effect(instruction)
    if effect is None:
        raise NotResumable(f"no continuation after {name}")
    popped, pushed = effect
    under = stack[: len(stack) - popped]
    if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "WITH_EXCEPT_START"):
        return (after_call(code, index, under),)
    if pushes_null(instruction):
        return (Successor(index + 1, (*under, *((VALUE, NULL) if NULL_AFTER else (NULL, VALUE)))),)
    return (Successor(index + 1, under + (VALUE,) * pushed),)


def after_call(code: types.CodeType, index: int, stack: tuple[str | int, ...]) -> Successor:
    """Where the frame continues after the call at `index`; `stack` lies below its value."""
    if instructions(code)[index + 1].name == "POP_TOP":
        return Successor(index + 2, stack, pops=True)
    return Successor(index + 1, (*stack, VALUE))


def _jump_target(listing: list[Instruction], instruction: Instruction) -> int:
    unit = instruction.end + instruction.arg
    return next(at for at, item in enumerate(listing) if item.start == unit)
