"""Which locals a suspended frame still needs: backward data flow over decoded code, along jumps and
exception handlers.

    x = f(a); y = g(x); return y         before g(x): {x};  a is dead, and is not handed over

A cell or free variable counts as needed wherever a later instruction names it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import ENDS, PAST_END_FOR
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
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
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
