"""Where a frame goes on after an instruction, and with what on its stack.

    CALL 1        on (value, null, value, value)   ->   the next instruction, on (value, value)
    FOR_ITER 12   on (value,)                      ->   the next instruction, on (value, value);  or
                                                   by the jump, on ()

An instruction that is not listed here cannot be performed between two graphs: the frame is then
left to the interpreter.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_capture.bytecode.instructions import (
    ENDS,
    NULL_AFTER,
    PAST_END_FOR,
    VERSION,
    Instruction,
    instructions,
)

if TYPE_CHECKING:
    import types

VALUE, NULL, HANDLED = "value", "null", "handled"
"""Kinds of stack entry: a value, CPython's NULL, and what PUSH_EXC_INFO keeps under an exception:
which one was handled before.

What is handed over for the last is the exception that is being handled from there on. An int is
where the instruction that raised stands, in units, as `RERAISE` wants it.
"""


class NotResumable(Exception):
    """A frame that cannot be taken up again at this instruction; the text says why."""


_PUSHES_ONE = frozenset({
    "BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT",
    "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "TO_BOOL", "LOAD_ATTR", "LOAD_METHOD",
    "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "GET_ITER", "FORMAT_VALUE",
    "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "IMPORT_NAME", "IMPORT_FROM",
    "CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "LIST_TO_TUPLE", "GET_LEN", "MATCH_MAPPING",
    "MATCH_SEQUENCE", "MATCH_KEYS", "MATCH_CLASS", "CHECK_EXC_MATCH", "BUILD_STRING", "BUILD_TUPLE",
    "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SLICE", "MAKE_FUNCTION",
    "LOAD_BUILD_CLASS", "SET_FUNCTION_ATTRIBUTE",
})  # fmt: skip
_PUSHES_NONE = frozenset({
    "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR",
    "DELETE_SUBSCR", "DELETE_GLOBAL", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE",
    "LIST_APPEND", "SET_ADD", "MAP_ADD", "POP_TOP", "PRINT_EXPR",
})  # fmt: skip
LOADS_METHOD = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_GLOBAL"})
"""Instructions that may push a callable together with the NULL (or instance) of its call."""


def is_truth_jump(name: str) -> bool:
    """Whether an instruction jumps by the truth of the value it pops."""
    return name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE"))


def pushes_null(instruction: Instruction) -> bool:
    """Whether an instruction pushes two entries, for a call."""
    if instruction.name == "LOAD_METHOD":
        return True
    if instruction.name == "LOAD_ATTR":
        return VERSION >= (3, 12) and bool(instruction.arg & 1)
    return instruction.name in ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") and bool(instruction.arg & 1)


def _effect(instruction: Instruction) -> int:
    if instruction.name == "CALL" and VERSION < (3, 13):
        return -1 - instruction.arg  # 3.11 counts a part of it for PRECALL
    op = dis.opmap[instruction.name]
    if sys.version_info < (3, 13):
        has_argument = op >= dis.HAVE_ARGUMENT
    else:
        has_argument = op in dis.hasarg
    return dis.stack_effect(op, instruction.arg if has_argument else None)


@dataclass(frozen=True, slots=True)
class Successor:
    """Where a frame goes on after an instruction, and with what kinds of stack entry.

    `jumps`: by the instruction's jump. `pops`: the value it pushed is not wanted; the POP_TOP that
    follows is part of it.
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
    if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "WITH_EXCEPT_START"):
        depth = len(stack) + _effect(instruction)
        return (after_call(code, index, stack[: depth - 1]),)
    if is_truth_jump(name):
        return (
            Successor(index, stack),
        )  # performed as bool(...); the jump itself comes afterwards
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
    if name == "BEFORE_WITH":
        return (Successor(index + 1, (*stack[:-1], VALUE, VALUE)),)
    if name == "UNPACK_SEQUENCE":
        return (Successor(index + 1, (*stack[:-1], *[VALUE] * instruction.arg)),)
    if name == "UNPACK_EX":
        pushed = (instruction.arg & 0xFF) + 1 + (instruction.arg >> 8)
        return (Successor(index + 1, (*stack[:-1], *[VALUE] * pushed)),)
    if name in _PUSHES_NONE:
        return (Successor(index + 1, stack[: len(stack) + _effect(instruction)]),)
    if name not in _PUSHES_ONE:
        raise NotResumable(f"no continuation after {name}")
    if pushes_null(instruction):
        depth = len(stack) - (0 if name == "LOAD_GLOBAL" else 3 if name == "LOAD_SUPER_ATTR" else 1)
        pair = (VALUE, NULL) if NULL_AFTER else (NULL, VALUE)
        return (Successor(index + 1, (*stack[:depth], *pair)),)
    depth = len(stack) + _effect(instruction)
    return (Successor(index + 1, (*stack[: depth - 1], VALUE)),)


def after_call(code: types.CodeType, index: int, stack: tuple[str | int, ...]) -> Successor:
    """Where the frame continues after the call at `index`; `stack` lies below its value."""
    if instructions(code)[index + 1].name == "POP_TOP":
        return Successor(index + 2, stack, pops=True)
    return Successor(index + 1, (*stack, VALUE))


def _jump_target(listing: list[Instruction], instruction: Instruction) -> int:
    unit = instruction.end + instruction.arg
    return next(at for at, item in enumerate(listing) if item.start == unit)
