"""Guard collectives: before each call of a compiled callable all ranks of the default process group
tell one another whether their guards hold.

    rank 0: f, has an entry  rank 0 waits until rank 1 has compiled; both report which guards differ
    rank 1: f, missed

Nothing runs before all ranks have compiled what they lack: a rank whose compile raises, or that
calls another function, is an error on all ranks, where the others would wait in a collective for
it. The ranks meet in the group's store, which needs no device and makes no group. A program must
call the same compiled callables on all ranks; only calls from outside of compiled code count.
"""

from __future__ import annotations

import functools
import json
import threading
import types
import warnings
import zlib
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from flambeau_capture.events import Event, failure_of
from flambeau_capture.frame_hook import is_capturing
from flambeau_capture.python_core import binder
from flambeau_capture.record import defined_at
from flambeau_capture.sources import Scope
from flambeau_capture.stance import join_calls
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Report:
    """What a rank says of a call: whether an entry serves it, which guards failed, and what runs
    (one graph, or the reason of a break); `error` is what compiling it raised.
    """

    function: str
    has_entry: bool
    failures: tuple[str, ...] = ()
    outcome: str = ""
    error: str = ""


class _Meetings:
    """The exchanges of one default process group, numbered."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.number = 0
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore("flambeau_guards", store)
        self._mine: list[str] = []

    def agree(self, function: str, has_entry: bool) -> bool:
        """Whether all ranks call the same function and all have an entry that serves."""
        number = str(self.number)
        self.number += 1
        name = zlib.crc32(function.encode())
        if not has_entry:
            self.store.add(f"{number}/missed", 1)
        names = self.store.add(f"{number}/names", name)
        if self.store.add(f"{number}/there", 1) == self.ranks:
            # The last one: what others have added is complete, its own sum of names included.
            names = self.store.add(f"{number}/names", 0)
            missed = self.store.add(f"{number}/missed", 0)
            alike = names == name * self.ranks
            self.store.set(f"{number}/verdict", "same" if alike and not missed else "differ")
        verdict = self._wait(function, f"{number}/verdict", f"{number}/there")
        if self.rank == 0:
            keys = [f"{number}/{key}" for key in ("missed", "names", "there", "verdict")]
            self._forget(keys)
        return verdict == b"same"

    def exchange(self, report: Report) -> list[Report]:
        """The reports of all ranks."""
        number = str(self.number)
        self.number += 1
        self.store.set(f"{number}/{self.rank}", json.dumps(asdict(report)))
        self.store.add(f"{number}/there", 1)
        keys = [f"{number}/{rank}" for rank in range(self.ranks)]
        texts = [self._wait(report.function, key, f"{number}/there") for key in keys]
        self._forget([keys[self.rank], *([f"{number}/there"] if self.rank == 0 else [])])
        return [Report(**json.loads(text)) for text in texts]

    def _wait(self, function: str, key: str, there: str) -> bytes:
        limit: timedelta = dist.constants.default_pg_timeout
        try:
            self.store.wait([key], limit)
        except RuntimeError as error:  # DistStoreError
            count = self.store.add(there, 0)
            raise RuntimeError(
                f"guard collectives: {count} of {self.ranks} ranks have called {function} within "
                f"{limit}. All ranks must call the same compiled functions; "
                "flambeau.compiler.set_enable_guard_collectives(False) lets them differ"
            ) from error
        return self.store.get(key)  # type: ignore[no-any-return]

    def _forget(self, keys: Sequence[str]) -> None:
        """Drop keys of the exchange before this one, which all ranks have read by now."""
        for key in self._mine:
            self.store.delete_key(key)
        self._mine = list(keys)


class _Process:
    enabled = False
    meetings: _Meetings | None = None
    lock = fork_safe_lock()

    def of_group(self) -> _Meetings:
        group = dist.group.WORLD
        with self.lock:
            if self.meetings is None or self.meetings.group is not group:
                self.meetings = _Meetings(group)
            return self.meetings


class _Thread(threading.local):
    """Whether this thread is in a call whose ranks have met."""

    inside = False


_PROCESS = _Process()
_THREAD = _Thread()


def set_enable_guard_collectives(enabled: bool) -> bool:
    """Have all ranks compare at each call of a compiled callable whether their guards hold, before
    any of them runs it; what was set before.

    Where they differ, each rank that has no entry for the call compiles one while the others wait,
    and all report which guards failed on which rank (an event, and a warning). Each call costs a
    few messages to the process group's store. All ranks must call the same compiled callables in
    the same order, from one thread each; RuntimeError where they do not, or where a rank fails to
    compile.
    """
    before = _PROCESS.enabled
    _PROCESS.enabled = bool(enabled)
    join_calls(_together if enabled else None)
    return before


def _together(compiled: Any) -> Any:
    """What to call in place of a compiled callable; None if its ranks do not meet."""
    if _THREAD.inside or compiled.on_miss is None or is_capturing():
        return None
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return functools.partial(_call, compiled)


def _call(compiled: Any, /, *args: Any, **kwargs: Any) -> Any:
    _THREAD.inside = True
    try:
        _meet(compiled, args, kwargs)
        return compiled(*args, **kwargs)
    finally:
        _THREAD.inside = False


def _meet(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Return when all ranks have an entry for the call, or raise on all."""
    function = compiled.__wrapped__
    bind = types.FunctionType(binder(function.__code__), {}, "bind", function.__defaults__)
    bind.__kwdefaults__ = function.__kwdefaults__
    meetings = _PROCESS.of_group()
    where = f"{function.__qualname__} ({defined_at(function)})"
    try:
        bound = bind(*args, **kwargs)
    except TypeError as error:  # the call raises it again if the ranks agree
        meetings.agree(where, False)
        meetings.exchange(Report(where, False, error=f"{type(error).__name__}: {error}"))
        return
    serving = _serving(compiled, function, bound)
    if meetings.agree(where, serving is not None):
        return
    failures: tuple[str, ...] = ()
    failed: BaseException | None = None
    if serving is None:
        scope = Scope(function, bound)
        failures = tuple(str(failure_of(entry.info.guards, scope)) for entry in compiled.entries)
        del scope
        try:
            entry = compiled.on_miss(bound)
        except BaseException as error:
            failed = error
            entry = None
    else:
        entry = serving
    report = Report(
        where,
        serving is not None,
        failures,
        _outcome(entry),
        "" if failed is None else f"{type(failed).__name__}: {failed}",
    )
    reports = meetings.exchange(report)
    if failed is not None:
        raise failed
    _judge(compiled, reports)


def _serving(compiled: Any, function: Any, bound: tuple[Any, ...]) -> Any:
    for entry in compiled.entries:
        if entry.program.failed(function, bound) is None and not entry.info.is_dead():
            return entry
    return None


def _outcome(entry: Any) -> str:
    if entry is None:
        return "eager"
    broken = entry.info.broken or entry.info.skipped
    return "one graph" if broken is None else f"break: {broken.cause}"


def _judge(compiled: Any, reports: Sequence[Report]) -> None:
    """Raise where the ranks cannot go on together; report where they differ."""
    functions = [report.function for report in reports]
    if len(set(functions)) > 1:
        calls = _by_rank(functions)
        raise RuntimeError(f"guard collectives: the ranks call different functions\n{calls}")
    if any(report.error for report in reports):
        errors = _by_rank([report.error or "compiled" for report in reports])
        raise RuntimeError(f"guard collectives: {functions[0]} fails on some ranks\n{errors}")
    with_entries = {report.has_entry for report in reports}
    outcomes = {report.outcome for report in reports}
    if len(with_entries) == 1 and len(outcomes) == 1:
        return
    states = [
        ("has an entry" if report.has_entry else "; ".join(("compiled", *report.failures)))
        + (f" [{report.outcome}]" if len(outcomes) > 1 else "")
        for report in reports
    ]
    text = f"{functions[0]} differs between ranks\n{_by_rank(states)}"
    compiled.state.note(Event("ranks_differ", text))
    warnings.warn(f"flambeau: {text}", RuntimeWarning, stacklevel=5)


def _by_rank(texts: Sequence[str]) -> str:
    return "\n".join(f"- rank {rank}: {text}" for rank, text in enumerate(texts))
