"""What the code after an instruction does with local variables, and with a value on the stack.

    x = f(a); y = g(x); return y    before g(x) x is live; a is dead, and is not handed over

    config["lr"]             LOAD_FAST config, LOAD_CONST 'lr', BINARY_SUBSCR   reads one entry
    f"{name}: {loss}"        LOAD_FAST name, FORMAT_VALUE                       reads nothing
    self.losses.append(x)    LOAD_ATTR losses, LOAD_ATTR append                 only appends

Liveness is a backward data flow along jumps and exception handlers. A cell or free variable counts
as live wherever a later instruction names it. The use of a pushed value is looked up along straight
code, as far as its instructions are simple.
"""

from __future__ import annotations

import dis
import enum
import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import ENDS, PAST_END_FOR, stack_effect
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    import types

    from flambeau_capture.interpreter.code.decode import DecodedCode

_USES = frozenset(
    {
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "DELETE_FAST",
        "LOAD_FAST_AND_CLEAR",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        # the cell of an argument holds the argument
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "MAKE_CELL",
    }
)
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})
_CACHE: dict[int, tuple[weakref.ref[types.CodeType], list[int]]] = {}
_LOCK = fork_safe_lock()


def sees_locals(code: types.CodeType) -> bool:
    """Whether the code may read its local variables by name, which would show our slots."""
    return not _SEES_LOCALS.isdisjoint(code.co_names)


def live_slots(decoded: DecodedCode, index: int) -> frozenset[int]:
    """The slots that are read before they are written, from instruction `index` on."""
    code = decoded.code_reference()
    assert code is not None
    found = _CACHE.get(id(code))
    if found is None or found[0]() is not code:
        key = id(code)
        found = (weakref.ref(code, lambda _: _CACHE.pop(key, None)), _live(decoded))
        with _LOCK:
            _CACHE[key] = found
    bits = found[1][index]
    return frozenset(slot for slot in range(decoded.n_locals) if bits >> slot & 1)


def _live(decoded: DecodedCode) -> list[int]:
    """For each instruction, the set (as bits) of slots live before it."""
    code = decoded.code_reference()
    assert code is not None
    always = _implicit(decoded, code)
    count = len(decoded.instructions)
    side_effects = [
        _uses_and_writes(name, argument)
        for name, (_, argument) in zip(decoded.names_at, decoded.instructions, strict=True)
    ]
    after_each = [following(decoded, at) for at in range(count)]
    live = [always] * count
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            after = 0
            for successor in after_each[at]:
                after |= live[successor]
            uses, writes = side_effects[at]
            unwind = decoded.unwinds[at]
            before = uses | (after & ~writes) | (0 if unwind is None else live[unwind.target])
            if before | live[at] != live[at]:
                live[at] |= before
                changed = True
    return live


def _implicit(decoded: DecodedCode, code: types.CodeType) -> int:
    """What `super()` reads without naming it: the first argument and the `__class__` cell."""
    if "super" not in code.co_names:
        return 0
    bits = 1 if code.co_argcount else 0
    for slot, name in enumerate(decoded.local_names):
        if name == "__class__":
            bits |= 1 << slot
    return bits


def _uses_and_writes(name: str, argument: Any) -> tuple[int, int]:
    if name in _USES:
        return 1 << argument, 0
    match name:
        case "STORE_FAST":
            return 0, 1 << argument
        case "LOAD_FAST_LOAD_FAST":
            return 1 << argument[0] | 1 << argument[1], 0
        case "STORE_FAST_LOAD_FAST":
            reads = 0 if argument[0] == argument[1] else 1 << argument[1]
            return reads, 1 << argument[0]
        case "STORE_FAST_STORE_FAST":
            return 0, 1 << argument[0] | 1 << argument[1]
    return 0, 0


def following(decoded: DecodedCode, at: int) -> list[int]:
    """The instructions that control may go to next, other than by an exception."""
    name = decoded.names_at[at]
    argument = decoded.instructions[at][1]
    if name in ENDS:
        return []
    if name.startswith("JUMP_") and "IF" not in name:
        return [argument]
    found = [at + 1]
    if "JUMP" in name or name == "SEND":
        found.append(argument)
    elif name == "FOR_ITER":
        found.append(argument + PAST_END_FOR)
    return found


def reachable(
    decoded: DecodedCode, starts: list[int], stops: frozenset[str] = frozenset()
) -> set[int]:
    """The instructions that control may reach, other than by an exception or behind `stops`."""
    seen: set[int] = set()
    pending = list(starts)
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            if decoded.names_at[at] not in stops:
                pending += following(decoded, at)
    return seen


# ---------------------------------------------------------------- uses of pushed values


class Use(enum.Enum):
    """The uses of a container that do not depend on all that it holds."""

    APPEND = "append or extend is called"
    ENTRY = "one entry is read, or looked for"
    IS_NONE = "it is compared with None"
    LOCAL = "it is stored in a local variable"
    ARGUMENT = "it is an argument of a call"
    RETURN = "it is returned"
    TEXT = "it is put into text, or into a container or attribute"


_APPENDING = frozenset({"append", "extend"})
_NONE_TESTS = frozenset({
    "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
})  # fmt: skip
_TO_LOCALS = frozenset({"STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"})

_LOOKS_BELOW = frozenset({
    "GET_LEN", "MATCH_MAPPING", "MATCH_SEQUENCE", "MATCH_KEYS", "IMPORT_FROM", "CHECK_EXC_MATCH",
    "WITH_EXCEPT_START",
})  # fmt: skip
"""Instructions that read an entry and leave it on the stack."""
_FAR = 100
"""How many instructions ahead is looked."""


def use_of(code: DecodedCode, index: int, above: int = 0) -> Use | None:
    """The use of the value under `above` others, from instruction `index` on; None if unknown."""
    key = (index, above)
    found = code.uses.get(key, key)
    if found is key:
        found = code.uses[key] = _use(code, index, above)
    return found  # type: ignore[return-value]


def _use(code: DecodedCode, index: int, above: int) -> Use | None:
    at = index - 1
    for _ in range(_FAR):
        at += 1
        if at == len(code.instructions):
            break
        name, argument = code.names_at[at], code.instructions[at][1]
        if name == "JUMP_FORWARD":  # as a resumed frame begins
            at = argument - 1
            continue
        found = _taken_by(name, argument, above)
        if found is not None:
            return found
        effect = stack_effect(code.listing[at], moves=True)
        if effect is None or effect[0] > above or name in _LOOKS_BELOW:
            return None
        above += effect[1] - effect[0]
    return None


def _taken_by(name: str, argument: Any, above: int) -> Use | None:
    if above == 0:
        if name in _TO_LOCALS:
            return Use.LOCAL
        if name in _NONE_TESTS:
            return Use.IS_NONE
        if name == "RETURN_VALUE":
            return Use.RETURN
        if name == "LOAD_METHOD" or (name == "LOAD_ATTR" and argument[1]):
            method = argument if name == "LOAD_METHOD" else argument[0]
            if method in _APPENDING:
                return Use.APPEND
            return Use.ENTRY if method == "get" else None
    if (name == "BINARY_SUBSCR" and above == 1) or (name == "CONTAINS_OP" and above == 0):
        return Use.ENTRY
    if name == "CALL" and above < argument:
        return Use.ARGUMENT
    if name == "CALL_KW" and 0 < above <= argument:
        return Use.ARGUMENT
    return Use.TEXT if _is_put(name, argument, above) else None


_PUT_AT = {
    "CONVERT_VALUE": 0, "FORMAT_SIMPLE": 0, "FORMAT_WITH_SPEC": 1, "LIST_APPEND": 0,
    "STORE_ATTR": 1, "STORE_SUBSCR": 2,
}  # fmt: skip


def _is_put(name: str, argument: Any, above: int) -> bool:
    """Whether an instruction puts the value under `above` others into a text, or stores it."""
    match name:
        case "FORMAT_VALUE":
            return above == (1 if argument & 4 else 0)
        case "BUILD_STRING" | "BUILD_TUPLE" | "BUILD_LIST":
            return bool(above < argument)
        case "BUILD_MAP":
            return bool(above < 2 * argument and above % 2 == 0)
        case "BUILD_CONST_KEY_MAP":
            return bool(0 < above <= argument)
        case "BINARY_OP":
            return above < 2 and argument in _ADDITIONS
    return _PUT_AT.get(name) == above


_ADDITIONS = tuple(at for at, (_, symbol) in enumerate(dis._nb_ops) if symbol in ("+", "+="))  # type: ignore[attr-defined]
