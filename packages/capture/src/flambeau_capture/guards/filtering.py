"""Leaving out guards at the user's own risk: the option `guard_filter_fn`, and ready-made filters.

A filter takes a list of `GuardEntry`s and returns as many booleans: whether to keep each. Guards on
what generated code reads (tensors, symbolic numbers and their relations, memory) are kept whatever
a filter says: kernels rely on them, so that dropping them could corrupt memory. All others may go;
what they protected is then assumed not to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.guards.kinds import guard_text
from flambeau_capture.sources import Global, GlobalsDict, Scope, Source, SourceLost

if TYPE_CHECKING:
    from flambeau_capture.record import Guard

_ALWAYS_KEPT = frozenset({"TENSOR", "INT", "FLOAT", "RELATION", "DISTINCT_MEMORY", "PREDICATE"})
_TORCH_NAMES = {
    "TENSOR": "TENSOR_MATCH",
    "RELATION": "SHAPE_ENV",
    "TORCH_STATE": "GLOBAL_STATE",
    "STATE": "GLOBAL_STATE",
}


@dataclass(frozen=True)
class GuardEntry:
    """One guard, as a filter sees it.

    guard_type: its kind, under torch's name where torch has that kind ("TENSOR_MATCH", "SHAPE_ENV",
    "GLOBAL_STATE"). name: what it is about, `L['x']`; `text` the whole guard; `where` the user's
    line that made it. is_global: whether that was read from a module's globals. value: what stands
    there now; None where `has_value` is False.
    """

    guard_type: str
    name: str
    text: str
    where: str
    is_global: bool
    has_value: bool
    value: Any
    modules: tuple[torch.nn.Module, ...]
    """The modules that it was read through."""

    # torch's ready-made filters ask `entry.orig_guard.source` these questions.

    @property
    def orig_guard(self) -> GuardEntry:
        """The entry itself."""
        return self

    @property
    def source(self) -> GuardEntry:
        """The entry itself."""
        return self

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it was read through a module."""
        return bool(self.modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether it was read from one of torch's own modules."""
        return bool(self.modules) and type(self.modules[0]).__module__.startswith("torch.nn.")


GuardFilter = Callable[[list[GuardEntry]], Sequence[bool]]


def filtered(guards: Sequence[Guard], keep: GuardFilter | None, scope: Scope) -> tuple[Guard, ...]:
    """The guards that a filter keeps. ValueError if it returns another number of answers."""
    if keep is None:
        return tuple(guards)
    entries = [_entry(guard, scope) for guard in guards]
    answers = list(keep(entries))
    if len(answers) != len(guards):
        raise ValueError(
            f"guard_filter_fn returned {len(answers)} answers for {len(guards)} guards"
        )
    return tuple(
        guard
        for guard, answer in zip(guards, answers, strict=True)
        if answer or guard.kind in _ALWAYS_KEPT
    )


def _entry(guard: Guard, scope: Scope) -> GuardEntry:
    chain = list(_chain(guard.source))
    try:
        has_value, value = True, guard.source.load(scope)
    except SourceLost:
        has_value, value = False, None
    return GuardEntry(
        guard_type=_TORCH_NAMES.get(guard.kind, guard.kind),
        name=guard.source.text(),
        text=guard_text(guard),
        where=guard.where,
        is_global=any(isinstance(source, (Global, GlobalsDict)) for source in chain),
        has_value=has_value,
        value=value,
        modules=tuple(_modules(chain, scope)),
    )


def _chain(source: Source) -> Iterator[Source]:
    """The source, and those it is read through, the nearest first."""
    yield source
    for base in source.parents():
        yield from _chain(base)


def _modules(chain: list[Source], scope: Scope) -> Iterator[torch.nn.Module]:
    for source in chain:
        try:
            value = source.load(scope)
        except SourceLost:
            continue
        if isinstance(value, torch.nn.Module):
            yield value


# ---------------------------------------------------------------- ready-made


def skip_guard_on_inbuilt_nn_modules_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Assume that torch's own modules stay as they are."""
    return [not entry.is_unspecialized_builtin_nn_module() for entry in guard_entries]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Assume that modules stay as they are."""
    return [not entry.is_unspecialized_nn_module() for entry in guard_entries]


def skip_guard_on_globals_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Assume that globals stay as they are."""
    return [not entry.is_global for entry in guard_entries]


def keep_tensor_guards_unsafe(
    guard_entries: list[GuardEntry], keep_parameters: bool = False
) -> list[bool]:
    """Keep the guards on tensors only; on parameters, too, with `keep_parameters`."""
    return [
        entry.guard_type == "TENSOR_MATCH"
        and (keep_parameters or not isinstance(entry.value, torch.nn.Parameter))
        for entry in guard_entries
    ]


def keep_portable_guards_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Keep the guards on tensors that are no globals, on sizes, and on torch's own state."""
    return [
        entry.guard_type in ("GLOBAL_STATE", "SHAPE_ENV")
        or (entry.guard_type == "TENSOR_MATCH" and not entry.is_global)
        for entry in guard_entries
    ]


def skip_all_guards_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Assume that everything but the tensors and numbers of the graph stays as it is."""
    return [False for _ in guard_entries]
