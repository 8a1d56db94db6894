"""Where a frame continues after an instruction, and with which stack.

    CALL 1        on (value, null, value, value)   ->   the next instruction, on (value, value)
    FOR_ITER 12   on (value,)                      ->   the next instruction, on (value, value);  or
                                                   by the jump, on ()

An instruction that is not listed here cannot be performed between two graphs: the frame is then
left to the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_capture.bytecode.instructions import (
    ENDS,
    NULL_AFTER,
    PAST_END_FOR,
    Instruction,
    instructions,
    pushes_null,
    stack_effect,
)

if TYPE_CHECKING:
    import types

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
