"""Guards -> a flat program for the C core: loads of sources into registers, each once, and checks
in order.

    L['x'] is f32[4, 8]                 r1 = ARGUMENT 0
    L['self'].weight is f32[8, 8]       TENSOR r1
                                        r2 = ARGUMENT 1
                                        r3 = INSTANCE_DICT r2
                                        r4 = DICT_ENTRY r3 '_parameters' ...

A source is loaded when the first guard (or input) needs it, so a failing early check costs little:
put guards that tell calls apart first (`order`). A load that finds nothing fails as the guard that
needed it.

`PythonProgram` is the reference: it evaluates guards one by one through their sources. The C
programs agree with it. It explains failures, and serves calls where the C core is not built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol

from flambeau_capture import sources
from flambeau_capture.core import core
from flambeau_capture.guards import constants
from flambeau_capture.guards.kinds import KINDS, distinct_storages
from flambeau_capture.guards.tensor_layout import configure
from flambeau_capture.record import Guard
from flambeau_capture.sources import Scope, Source, SourceLost
from flambeau_prims.size_floats import is_float_symbol


class GuardProgram(Protocol):
    """What the C core's GuardProgram and `PythonProgram` both are."""

    def failed(self, function: FunctionType, arguments: tuple[Any, ...]) -> int | None:
        """Index of the first guard that fails on this call; None when all hold."""

    def load(self, function: FunctionType, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values of the inputs, or None when a guard fails."""


_FUNCTION_FIELDS = ("code", "defaults", "kwdefaults", "closure", "globals")
_MAX_GUARDS = 60_000


class TooManyGuards(ValueError):
    """The program exceeds the 16-bit operands of the C core, which takes no other programs."""


def guard_program(
    guards: Sequence[Guard], inputs: Sequence[Source], arguments: int
) -> GuardProgram:
    """The program that checks `guards` (already `kinds.prepared`) and loads `inputs`, for calls of
    `arguments` bound arguments.

    Raises TooManyGuards.
    """
    if core is not None:
        return ProgramBuilder(guards, inputs).build(arguments)
    return PythonProgram(guards, inputs)


# ---------------------------------------------------------------- the reference check


def holds(guard: Guard, scope: Scope) -> bool:
    """Whether one guard holds on a call."""
    try:
        # The condition of a RELATION, and the state of torch, are not about the source's value.
        has_value = guard.kind not in ("RELATION", "TORCH_STATE", "STATE")
        value = guard.source.load(scope) if has_value else None
        return KINDS[guard.kind].holds(value, guard.payload, scope)
    except SourceLost:
        return False


def first_failing(guards: Sequence[Guard], scope: Scope) -> int | None:
    """Index of the first guard that does not hold on a call, or None."""
    return next((at for at, guard in enumerate(guards) if not holds(guard, scope)), None)


class PythonProgram:
    """A guard program run in Python; see `GuardProgram`."""

    def __init__(self, guards: Sequence[Guard], inputs: Sequence[Source]) -> None:
        self._guards = tuple(guards)
        self._inputs = tuple(inputs)

    def failed(self, function: FunctionType, arguments: tuple[Any, ...]) -> int | None:
        """Index of the first guard that fails on this call; None when all hold."""
        return first_failing(self._guards, Scope(function, arguments))

    def load(self, function: FunctionType, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values of the inputs, or None when a guard fails or an input is lost."""
        scope = Scope(function, arguments)
        if first_failing(self._guards, scope) is not None:
            return None
        try:
            return tuple(source.load(scope) for source in self._inputs)
        except SourceLost:
            return None


# ---------------------------------------------------------------- programs for the C core


def order(guards: Sequence[Guard]) -> list[Guard]:
    """Each guard once, in order: torch's state, then those of arguments, then the others."""
    seen: set[Any] = set()
    unique = []
    for guard in guards:
        key = (guard.kind, guard.source, _payload_key(guard.payload))
        if key not in seen:
            seen.add(key)
            unique.append(guard)
    return sorted(unique, key=_distance)


def _payload_key(payload: Any) -> Any:
    # Scalars compare equal across types (1 == True): the type is part of the key.  Others by
    # identity.
    return (
        (type(payload), payload) if type(payload) in (int, bool, str, type(None)) else id(payload)
    )


def _distance(guard: Guard) -> int:
    if guard.kind == "TORCH_STATE":
        return 0
    if guard.kind in ("RELATION", "NOT_ALIAS", "ALIAS", "DISTINCT_MEMORY", "DISTINCT_RANGES"):
        return 4
    return 1 if isinstance(guard.source, sources.Argument) else 3


class ProgramBuilder:
    """Registers and operations of a program. Register 0 is the source of those that have none."""

    def __init__(self, guards: Sequence[Guard], inputs: Sequence[Source]) -> None:
        self.codes = _operation_codes()
        self.ops: list[tuple[int, int, int, int, int, Any]] = []
        self.registers: dict[Any, int] = {}
        self.symbols: dict[Source, int] = {}
        self.at = 0
        """Index of the guard that operations now belong to."""
        if len(guards) >= _MAX_GUARDS:
            raise TooManyGuards
        for self.at, guard in enumerate(guards):
            KINDS[guard.kind].emit(self, guard)
        self.inputs = tuple(self.load(source) for source in inputs)
        self.ops = self._with_dict_reads_grouped()

    def build(self, arguments: int) -> GuardProgram:
        """The C program."""
        assert core is not None
        if len(self.registers) >= _MAX_GUARDS:
            raise TooManyGuards
        return core.GuardProgram(
            ops=tuple(self.ops),
            inputs=self.inputs,
            arguments=arguments,
            registers=len(self.registers) + 1,
            symbols=len(self.symbols),
        )

    def _with_dict_reads_grouped(self) -> list[tuple[int, int, int, int, int, Any]]:
        """The operations with all reads of one dict under string keys put together, where the first
        of them stood.

        The C core then does a group at once, or skips it while the dict has not changed.
        """
        reads = {self.codes[name] for name in ("DICT_ENTRY", "HAS_KEY", "NO_KEY")}
        groups: dict[int, list[tuple[int, int, int, int, int, Any]]] = {}
        for op in self.ops:
            if op[0] in reads and type(op[5]) is str:
                groups.setdefault(op[2], []).append(op)
        grouped = []
        for op in self.ops:
            if op[0] in reads and type(op[5]) is str:
                group = groups.pop(op[2], [])
                if len(group) > 1:
                    grouped.append(
                        (self.codes["DICT_GROUP"], 0, op[2], group[0][3], len(group), None)
                    )
                grouped += group
            else:
                grouped.append(op)
        return grouped

    def check(
        self, name: str, source: Source | None, *, number: int = 0, payload: Any = None
    ) -> None:
        """One check of the value at `source`."""
        source_register = 0 if source is None else self.load(source)
        self.ops.append((self.codes[name], 0, source_register, self.at, number, payload))

    def check_in_python(self, guard: Guard, holds: Callable[[Any], bool]) -> None:
        """A check that C has no operation for: calls `holds(value)`."""
        if guard.kind == "TORCH_STATE":
            self._call_check(functools.partial(holds, None), ())
        else:
            self._call_check(holds, (self.load(guard.source),))

    def symbol(self, source: Source) -> int:
        """Index of the symbol for the int at `source`: a size, a stride, or an int itself."""
        found = self.symbols.get(source)
        if found is None:
            found = self.symbols[source] = len(self.symbols)
            match source:
                case sources.TensorSize(base=base, dim=dim):
                    name, base_register, number = "SYMBOL_SIZE", self.load(base), dim
                case sources.TensorStride(base=base, dim=dim):
                    name, base_register, number = "SYMBOL_STRIDE", self.load(base), dim
                case _:
                    name, base_register, number = "SYMBOL_INT", self.load(source), 0
            self.ops.append((self.codes[name], found, base_register, self.at, number, None))
        return found

    def relation(self, guard: Guard) -> None:
        """A condition on symbols; one that postfix code cannot express is evaluated in Python."""
        relation: constants.Relation = guard.payload
        if not self._is_expressible(relation.condition):
            names = list(relation.names)
            gathered = self._gather([self.load(source) for source in relation.names.values()])
            self._call_check(
                lambda values: relation.holds_for(dict(zip(names, values, strict=True))),
                (gathered,),
            )
        else:
            words = constants.postfix(
                relation.condition, lambda name: self.symbol(relation.names[name]), self.codes
            )
            self.ops.append((self.codes["RELATION"], 0, 0, self.at, 0, words))

    def _is_expressible(self, condition: constants.Condition) -> bool:
        """Whether postfix code has the condition. Asked before symbols are loaded: a relation that
        needs Python must not ask for ints.
        """
        if not configure():  # C reads no sizes
            return False
        try:
            constants.postfix(condition, _index_of_an_int, self.codes)
        except constants.Inexpressible:
            return False
        return True

    def distinct_memory(self, guard: Guard, tensors: tuple[Source, ...], written: int) -> None:
        """No storage shared with the first `written` of these tensors."""
        registers = tuple(self.load(source) for source in tensors)
        if configure():
            self.ops.append((self.codes["DISTINCT_MEMORY"], 0, 0, self.at, written, registers))
            return
        gathered = self._gather(list(registers))
        self._call_check(
            lambda values: distinct_storages(values[:written], values[written:]), (gathered,)
        )

    def check_together(
        self, sources: tuple[Source, ...], holds: Callable[[tuple[Any, ...]], bool]
    ) -> None:
        """A check in Python of the values at several sources."""
        gathered = self._gather([self.load(source) for source in sources])
        self._call_check(holds, (gathered,))

    def _call_check(self, holds: Callable[..., bool], sources: tuple[int, ...]) -> None:
        register = self._call(_as_bool(holds), sources)
        self.ops.append((self.codes["IS"], 0, register, self.at, 0, True))

    def _call(self, function: Callable[..., Any], sources: tuple[int, ...]) -> int:
        """The register of what a Python function returns."""
        register = self._new_register(object())
        self.ops.append((self.codes["CALL"], register, 0, self.at, 0, (function, sources)))
        return register

    def _gather(self, registers: list[int]) -> int:
        """A register that holds a tuple of others (a CALL takes at most four sources)."""
        gathered = self._call(_as_tuple, tuple(registers[:4]))
        for start in range(4, len(registers), 3):
            gathered = self._call(_append, (gathered, *registers[start : start + 3]))
        return gathered

    def _new_register(self, key: Any) -> int:
        register = self.registers[key] = len(self.registers) + 1
        return register

    def load(self, source: Source) -> int:
        """The register that holds the object at `source`."""
        register = self.registers.get(source)
        if register is None:
            name, base_register, number, payload = self._load_operation(source)
            register = self._new_register(source)
            self.ops.append((self.codes[name], register, base_register, self.at, number, payload))
        return register

    def _load_operation(self, source: Source) -> tuple[str, int, int, Any]:
        """(operation, source register, number, payload) of the load; its bases are loaded first."""
        if type(source) in _LOADS:
            name, number, payload = _LOADS[type(source)]
            bases = [self.load(base) for base in source.parents()]
            return (
                name,
                bases[0] if bases else 0,
                getattr(source, number) if number else 0,
                getattr(source, payload) if payload else None,
            )
        match source:
            case sources.Global(module_globals=module_globals, name=name):
                return "DICT_ENTRY", self.load(sources.Constant(module_globals)), 0, name
            case sources.Closure(index=index):
                closure = sources.FunctionField(sources.CapturedFunction(""), "closure")
                return "ITEM", self.load(closure), index, None
            case sources.FunctionField(base=base, field=field):
                return "FUNCTION_FIELD", self.load(base), _FUNCTION_FIELDS.index(field), None
            case sources.MethodPart(base=base, part=part):
                return "METHOD_PART", self.load(base), int(part == "self"), None
            case sources.GradOf(base=base):
                return "GETATTR", self.load(base), 0, "grad"
        function = source.function if isinstance(source, sources.CallOf) else source.read
        registers = [self.load(parent) for parent in source.parents()]
        if len(registers) <= 4:
            return "CALL", 0, 0, (function, tuple(registers))
        return "CALL", 0, 0, (lambda values: function(*values), (self._gather(registers),))


_LOADS: dict[type[Source], tuple[str, str, str]] = {
    sources.Argument: ("ARGUMENT", "index", ""),
    sources.Attribute: ("GETATTR", "", "name"),
    sources.CapturedFunction: ("FUNCTION", "", ""),
    sources.CellContents: ("CELL_CONTENTS", "", ""),
    sources.Constant: ("CONSTANT", "", "value"),
    sources.DictEntry: ("DICT_ENTRY", "", "key"),
    sources.DictKeyAt: ("DICT_KEY_AT", "index", ""),
    sources.GlobalsDict: ("CONSTANT", "", "module_globals"),
    sources.InstanceDict: ("INSTANCE_DICT", "", ""),
    sources.Item: ("ITEM", "index", ""),
    sources.TypeAttribute: ("TYPE_ATTRIBUTE", "", "name"),
    sources.TypeOf: ("TYPE_OF", "", ""),
    sources.WeakrefTo: ("WEAKREF", "", "reference"),
}
"""The operation that loads a source, and the fields that are its number and its payload."""


@functools.cache
def _operation_codes() -> dict[str, int]:
    assert core is not None
    core.set_absent(sources.ABSENT)
    return core.operations()


def _index_of_an_int(name: str) -> int:
    if is_float_symbol(name):
        raise constants.Inexpressible(name)
    return 0


def _as_bool(holds: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *values: bool(holds(*values))


def _as_tuple(*values: Any) -> tuple[Any, ...]:
    return values


def _append(gathered: tuple[Any, ...], *values: Any) -> tuple[Any, ...]:
    return (*gathered, *values)
