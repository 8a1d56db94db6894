"""Entries that are compiled in the background: which calls they will serve, what became of them.

A pending entry has the guards of its capture. A call for which these hold runs eagerly and is not
captured again. If the compile raised, the next such call raises the error, as a compile in the
foreground would, and the one after it is captured again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Sequence

    from flambeau_capture.events import EntryInfo


@dataclass(eq=False, slots=True)
class PendingEntry:
    """An entry that is being compiled; like an entry, it has an `info` and a guard `program`."""

    info: EntryInfo
    program: Any
    error: BaseException | None = None


class PendingEntries:
    """Those of one callable, whose lock guards them."""

    def __init__(self) -> None:
        self._pending: list[PendingEntry] = []

    def __iter__(self) -> Iterator[PendingEntry]:
        return iter(tuple(self._pending))

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, pending: PendingEntry) -> bool:
        return pending in self._pending

    def add(self, pending: PendingEntry) -> None:
        """Keep one."""
        self._pending.append(pending)

    def discard(self, pending: PendingEntry) -> None:
        """Forget one, if it is still kept."""
        if pending in self._pending:
            self._pending.remove(pending)

    def clear(self) -> None:
        """Forget them all."""
        self._pending.clear()

    def serves(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> bool:
        """Whether one of them is for this call; its error is raised, once."""
        for pending in self:
            if pending.info.is_dead():
                self._pending.remove(pending)
            elif pending.program.failed(function, arguments) is None:
                if pending.error is not None:
                    self._pending.remove(pending)
                    raise pending.error
                return True
        return False


def stand_ins(examples: Sequence[Any]) -> list[Any]:
    """Example inputs that the program cannot change: tensors of the same memory and requires_grad.

    A program may set `requires_grad`, `data` or sizes of its tensors while a graph is compiled for
    what they were. Tensors of other classes stand for themselves.
    """
    with torch._C.DisableTorchFunction():
        return [_stand_in(example) for example in examples]


def _stand_in(example: Any) -> Any:
    if type(example) not in (torch.Tensor, torch.nn.Parameter):
        return example
    if example.layout is not torch.strided:
        return example
    with torch.no_grad():
        made = example.detach()
    if type(example) is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=example.requires_grad)
    if example.requires_grad:
        made.requires_grad_()
        if not example.is_leaf:
            with torch.enable_grad():
                made = made.view_as(made)
    return made
