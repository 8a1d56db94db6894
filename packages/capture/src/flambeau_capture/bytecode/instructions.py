"""CPython's bytecode, 3.11 to 3.13: where its versions differ, and the instructions of a code
object.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

VERSION = sys.version_info[:2]

NULL_AFTER = VERSION >= (3, 13)
"""Whether the NULL of a call stands above the callable, not below it."""

PAST_END_FOR = {(3, 11): 0, (3, 12): 1, (3, 13): 2}[VERSION]
"""When its iterator is exhausted, FOR_ITER pops it and goes past END_FOR (3.12), or END_FOR and
POP_TOP (3.13): so many instructions.
"""

ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
"""Instructions that nothing follows."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: the unit where it starts (with its EXTENDED_ARGs), where its opcode stands,
    and where the next one starts.
    """

    start: int
    unit: int
    end: int
    name: str
    arg: int


def cell_slots(code: types.CodeType) -> list[int]:
    """The slots of the variables that inner functions share with this one, ascending; a parameter's
    is that of the parameter.
    """
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
