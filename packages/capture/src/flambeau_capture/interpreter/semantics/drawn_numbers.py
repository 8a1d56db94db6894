"""Numbers that a frame draws from a counter of torch or the standard library.

    handle = module.register_forward_hook(f)    its id is RemovableHandle.next_id, which grows
    ...
    handle.remove()

Entries are good for other states of the counter if nothing depends on the numbers: code of the
program has seen none of them, and nothing that outlives the frame holds one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau_capture.trusted import is_trusted

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Frame, Machine

_DEPTH = 3
"""How deep in containers a number is looked for."""
_EMPTY: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
_VIEWS = [view for made in _EMPTY for view in (made.keys(), made.values(), made.items())]
_CONTAINERS = frozenset({list, tuple, set, frozenset, *map(type, _VIEWS)})


@dataclass(slots=True)
class DrawnNumbers:
    """The numbers that the frame has drawn so far."""

    numbers: set[int] = field(default_factory=set)
    seen: bool = False
    """Whether code of the program may have seen one."""

    def draw(self, machine: Machine, held: int, value: Any) -> None:
        """The frame sets a counter, which holds a number."""
        if not self.numbers:
            machine.progress.watch(lambda: self._look(machine.frame))
        self.numbers.update((held, value) if type(value) is int else (held,))
        self.seen |= type(value) is not int or value <= held or is_of_program(machine.frame)

    def _look(self, frame: Frame | None) -> None:
        """Look at the value that the instruction before has pushed."""
        if frame is None or not frame.stack or self.seen or not is_of_program(frame):
            return
        value = frame.stack[-1]
        constants = frame.function.__code__.co_consts
        self.seen = self._holds(value) and not any(value is each for each in constants)

    def _holds(self, value: Any, depth: int = _DEPTH) -> bool:
        if type(value) is int:
            return value in self.numbers
        if depth == 0:
            return False
        if isinstance(value, dict):
            value = (*dict.keys(value), *dict.values(value))
        elif type(value) not in _CONTAINERS:
            return False
        return any(self._holds(item, depth - 1) for item in value)


def is_of_program(frame: Frame | None) -> bool:
    """Whether a frame runs code of the program, not of torch or the standard library."""
    return frame is None or not is_trusted(frame.globals.get("__name__"))
