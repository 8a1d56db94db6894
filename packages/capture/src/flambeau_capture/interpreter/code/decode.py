"""Decoded code objects: instructions with their handlers and resolved arguments, jump targets as
instruction indices.

Decoding happens once per code object (cached weakly by identity) and is immutable afterwards, so
that threads may share it.
"""

from __future__ import annotations

import dis
import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import VERSION, read_exception_table
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    Handler = Callable[[Any, Any], Any]
    """Takes the frame and the argument of the instruction."""

_CACHE = dis.opmap["CACHE"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_RELATIVE_JUMPS = frozenset(dis.hasjrel)
_CO_VARARGS, _CO_VARKEYWORDS, _CO_GENERATOR = 0x04, 0x08, 0x20 | 0x80 | 0x200

_BY_NAME = frozenset({
    "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR",
    "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM", "LOAD_METHOD", "LOAD_FROM_DICT_OR_GLOBALS",
})  # fmt: skip
_BY_CONSTANT = frozenset({"LOAD_CONST", "RETURN_CONST", "KW_NAMES"})


class Unwind:
    """Where an exception raised in a range of instructions goes: the handler's index, the stack
    depth to cut to.
    """

    __slots__ = ("depth", "push_lasti", "target")

    def __init__(self, target: int, depth: int, push_lasti: bool) -> None:
        self.target, self.depth, self.push_lasti = target, depth, push_lasti


class DecodedCode:
    """One code object, ready to run.

    `instructions[i]` is (handler, argument); `unwinds[i]` says where an exception raised there
    goes, or is None.
    """

    __slots__ = (
        "_lines",
        "argcount",
        "code_reference",
        "filename",
        "flags",
        "free_start",
        "instructions",
        "is_generator",
        "kwonly",
        "local_names",
        "n_locals",
        "name",
        "names_at",
        "offsets",
        "posonly",
        "unwinds",
        "uses",
        "varnames",
    )  # fmt: skip

    def __init__(self, code: types.CodeType, handlers: list[Handler]) -> None:
        self.code_reference = weakref.ref(code)
        self.name = code.co_name
        self.filename = code.co_filename
        self.flags = code.co_flags
        self.argcount = code.co_argcount
        self.posonly = code.co_posonlyargcount
        self.kwonly = code.co_kwonlyargcount
        self.is_generator = bool(code.co_flags & _CO_GENERATOR)
        self.varnames = code.co_varnames
        cells = [name for name in code.co_cellvars if name not in code.co_varnames]
        self.local_names = (*code.co_varnames, *cells, *code.co_freevars)
        self.n_locals = len(self.local_names)
        self.free_start = self.n_locals - len(code.co_freevars)
        self._lines: list[int] | None = None
        self.uses: dict[tuple[int, int], Any] = {}
        """What was found by `uses.use_of`."""
        self._decode(code, handlers)

    def _decode(self, code: types.CodeType, handlers: list[Handler]) -> None:
        raw = code.co_code
        units = len(raw) // 2
        found: list[tuple[int, int, int]] = []  # (unit of the opcode, opcode, argument)
        index_at = [0] * (
            units + 1
        )  # unit -> index of the instruction that starts (or whose prefix starts) there
        arg = 0
        for unit in range(units):
            op = raw[2 * unit]
            index_at[unit] = len(found)
            if op == _CACHE and unit:
                continue
            arg = (arg << 8) | raw[2 * unit + 1]
            if op == _EXTENDED_ARG:
                continue
            found.append((unit, op, arg))
            arg = 0
        index_at[units] = len(found)
        starts = [unit for unit, _, _ in found] + [units]
        opname = dis.opname
        instructions = []
        for unit, op, value in found:
            name = opname[op]
            after = unit + 1
            while after < units and raw[2 * after] == _CACHE:
                after += 1
            resolved = self._argument(name, op, value, after, index_at, code)
            instructions.append((handlers[op], resolved))
        self.instructions = instructions
        self.names_at = [opname[op] for _, op, _ in found]
        self.offsets = starts
        self.unwinds = self._unwinds(code, index_at, len(found))

    @staticmethod
    def _argument(
        name: str, op: int, arg: int, after: int, index_at: list[int], code: types.CodeType
    ) -> Any:
        if name in _BY_CONSTANT:
            return code.co_consts[arg]
        if op in _RELATIVE_JUMPS:
            return index_at[after - arg if "BACKWARD" in name else after + arg]
        if name in _BY_NAME:
            return code.co_names[arg]
        if name == "LOAD_GLOBAL":
            return code.co_names[arg >> 1], bool(arg & 1)
        if name == "LOAD_ATTR":
            return (
                (code.co_names[arg], False)
                if VERSION < (3, 12)
                else (code.co_names[arg >> 1], bool(arg & 1))
            )
        if name == "LOAD_SUPER_ATTR":
            return code.co_names[arg >> 2], bool(arg & 1), bool(arg & 2)
        if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
            return arg >> 4, arg & 15
        if name == "COMPARE_OP":
            if VERSION < (3, 12):
                return dis.cmp_op[arg], False
            return (
                (dis.cmp_op[arg >> 4], False)
                if VERSION < (3, 13)
                else (dis.cmp_op[arg >> 5], bool(arg & 16))
            )
        return arg

    @staticmethod
    def _unwinds(code: types.CodeType, index_at: list[int], count: int) -> list[Unwind | None]:
        unwinds: list[Unwind | None] = [None] * count
        for start, end, target, depth, lasti in read_exception_table(code):
            unwind = Unwind(index_at[target], depth, lasti)
            for index in range(index_at[start], index_at[end]):
                unwinds[index] = unwind
        return unwinds

    def line(self, index: int) -> int:
        """The user's line number of an instruction."""
        if self._lines is None:
            code = self.code_reference()
            if code is None:
                return 0
            lines = [code.co_firstlineno] * (len(code.co_code) // 2 + 1)
            for start, end, line in code.co_lines():
                if line is not None:
                    lines[start // 2 : end // 2] = [line] * ((end - start) // 2)
            self._lines = [lines[unit] for unit in self.offsets]
        return self._lines[index]


_DECODED: dict[int, tuple[weakref.ref[types.CodeType], DecodedCode]] = {}
_LOCK = fork_safe_lock()


def decode(code: types.CodeType, handlers: list[Handler]) -> DecodedCode:
    """The decoded form of `code`; cached while the code object lives (by identity: equal code
    objects may differ in lines).
    """
    found = _DECODED.get(id(code))
    if found is not None and found[0]() is code:
        return found[1]
    made = DecodedCode(code, handlers)
    key = id(code)
    with _LOCK:
        _DECODED[key] = (weakref.ref(code, lambda _: _DECODED.pop(key, None)), made)
    return made
