"""Decoded code objects: instructions with their handlers and resolved arguments, jump targets as
instruction indices.

Decoding happens once per code object (cached weakly by identity) and is immutable afterwards, so
that threads may share it.
"""

from __future__ import annotations

import dis
import weakref
from typing import TYPE_CHECKING, Any

from flambeau_capture.bytecode.instructions import VERSION, instructions, read_exception_table
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from flambeau_capture.bytecode.instructions import Instruction

    Handler = Callable[[Any, Any], Any]
    """Takes the frame and the argument of the instruction."""

_RELATIVE_JUMPS = frozenset(dis.hasjrel)
_CO_VARARGS, _CO_VARKEYWORDS, _CO_GENERATOR = 0x04, 0x08, 0x20 | 0x80 | 0x200

_BY_NAME = frozenset({
    "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR",
    "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM", "LOAD_METHOD", "LOAD_FROM_DICT_OR_GLOBALS",
})  # fmt: skip
_BY_CONSTANT = frozenset({"LOAD_CONST", "RETURN_CONST", "KW_NAMES"})


class Unwind:
    """Where an exception in a range of instructions goes: handler, and stack depth to cut to."""

    __slots__ = ("depth", "push_lasti", "target")

    def __init__(self, target: int, depth: int, push_lasti: bool) -> None:
        self.target, self.depth, self.push_lasti = target, depth, push_lasti


class DecodedCode:
    """One code object, ready to run.

    `instructions[i]` is (handler, argument); `unwinds[i]` says where an exception raised there
    goes, or is None.
    """

    __slots__ = (
        "_lines", "argcount", "code_reference", "filename", "flags", "free_start", "instructions",
        "is_generator", "kwonly", "listing", "local_names", "n_locals", "name", "names_at",
        "offsets", "posonly", "unwinds", "uses", "varnames",
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
        """The results of `data_flow.use_of`."""
        self._decode(code, handlers)

    def _decode(self, code: types.CodeType, handlers: list[Handler]) -> None:
        self.listing = instructions(code)
        units = len(code.co_code) // 2
        index_at = [0] * (units + 1)  # unit -> index of the instruction that it belongs to
        for index, item in enumerate(self.listing):
            index_at[item.start : item.end] = [index] * (item.end - item.start)
        index_at[units] = len(self.listing)
        self.names_at = [item.name for item in self.listing]
        self.offsets = [item.unit for item in self.listing] + [units]
        self.instructions = [
            (handlers[dis.opmap[item.name]], self._argument(item, index_at, code))
            for item in self.listing
        ]
        self.unwinds = self._unwinds(code, index_at, len(self.listing))

    @staticmethod
    def _argument(item: Instruction, index_at: list[int], code: types.CodeType) -> Any:
        name, arg = item.name, item.arg
        if name in _BY_CONSTANT:
            return code.co_consts[arg]
        if dis.opmap[name] in _RELATIVE_JUMPS:
            return index_at[item.end + (-arg if "BACKWARD" in name else arg)]
        if name in _BY_NAME:
            return code.co_names[arg]
        if name == "LOAD_GLOBAL":
            return code.co_names[arg >> 1], bool(arg & 1)
        if name == "LOAD_ATTR":
            is_flagged = VERSION >= (3, 12)
            return code.co_names[arg >> is_flagged], is_flagged and bool(arg & 1)
        if name == "LOAD_SUPER_ATTR":
            return code.co_names[arg >> 2], bool(arg & 1), bool(arg & 2)
        if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
            return arg >> 4, arg & 15
        if name == "COMPARE_OP":
            shift = {(3, 11): 0, (3, 12): 4, (3, 13): 5}[VERSION]
            return dis.cmp_op[arg >> shift], VERSION >= (3, 13) and bool(arg & 16)
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
    """The decoded form of `code`, cached by identity: equal code objects may differ in lines."""
    found = _DECODED.get(id(code))
    if found is not None and found[0]() is code:
        return found[1]
    made = DecodedCode(code, handlers)
    key = id(code)
    with _LOCK:
        _DECODED[key] = (weakref.ref(code, lambda _: _DECODED.pop(key, None)), made)
    return made
