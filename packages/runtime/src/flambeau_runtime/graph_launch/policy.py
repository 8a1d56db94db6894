"""When a Program is launched kernel by kernel, when it is recorded, when recordings are dropped.

`csrc/launcher.c` replays a recording that serves a call, and calls the policy for every other call.
In the default setting ("auto") the first calls are launched plainly and one of them is timed: if
the device needed no longer than the host took to launch, the host is the limit, and the next call
is recorded. A Program that is limited by the device stays as it is, since a recording would only
hold memory. With "always" the second call is recorded, without timing.

A recording serves the calls on its stream whose sizes are equal, whose library inputs have not
moved, and whose earlier outputs in place were dropped. When calls miss again and again, another
recording is made, with what moves copied and what is held in fresh memory; their number is bounded
by how often recordings are used.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime.graph_launch.record import CannotRecord, Recorded, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from flambeau_runtime.program import Program

_LOG = logging.getLogger(__name__)

TIMED_CALL = 3
"""The call that is timed: the ones before it load libraries and choose algorithms."""

HOST_BOUND = 1.15
LAST_KERNEL = 30e-6
"""A Program is limited by the host if the device took at most this multiple of the host's time, and
the seconds that the device may need after the last launch.
"""

MISSES = 2
"""Calls that no recording served before another one is made."""

MOVES = 2
"""Changes of address after which an input of a library call is copied rather than left in place."""

COPY_SHARE = 0.1
"""The share of a call's time that copies of inputs may take, at COPY_RATE."""

COPY_RATE = 1.5e12
"""Bytes a second: what a copy on the device moves, cautiously."""

COPIED_BYTES = 1 << 20
"""A library call's output of at most this size is copied to fresh memory on each replay; a larger
one stays in place if the caller was seen to drop it in time.
"""

FREE_RECORDINGS = 8
HITS_PER_RECORDING = 20
"""Recordings that are made at once, and the replays that pay for each further one."""

KEPT_SITUATIONS = 64
"""Streams and sizes that are remembered, and MAX_RECORDINGS that serve at the same time."""
MAX_RECORDINGS = 8

OTHER, MOVED, HELD = 1, 2, 3
"""`Launcher.last_match`."""


@dataclass
class Timing:
    """The time of one plain call: of the host, and of the device once it is known."""

    host: float
    start: Any
    end: Any

    def device(self) -> float | None:
        """Seconds on the device; None while the call is under way."""
        return self.start.elapsed_time(self.end) * 1e-3 if self.end.query() else None


@dataclass
class Situation:
    """The calls on one stream with the same symbolic sizes."""

    calls: int = 0
    timing: Timing | None = None
    verdict: str | None = None
    """Why these calls stay plain, or None."""
    watched: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    """(number, tensor on the same memory) of the timed call's large outputs: which are dropped?"""
    addresses: dict[int, int] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    in_place: set[int] = field(default_factory=set)
    """Large outputs that the caller was seen to drop before the next call."""
    misses: int = 0
    records: list[Recorded] = field(default_factory=list)


class PinnedAddresses:
    """Where outputs of recordings stay in place: an input found there is expected to come back."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, addresses: frozenset[int]) -> None:
        """Count the outputs of a recording in."""
        with self._lock:
            self._counts.update(addresses)

    def discard(self, addresses: frozenset[int]) -> None:
        """Count the outputs of a dropped recording out."""
        with self._lock:
            self._counts -= Counter(addresses)

    def __contains__(self, address: int) -> bool:
        return address in self._counts


PINNED = PinnedAddresses()


class LaunchPolicy:
    """What is done with the calls of one Program that no recording serves."""

    def __init__(
        self, program: Program, executor: Any, core: ModuleType, device: int, *, always: bool
    ) -> None:
        self.program = program
        self.executor = executor
        self.core = core
        self.device = device
        self.always = always
        self.recorder = Recorder(program, executor, core, device)
        self.situations: OrderedDict[tuple[int, bytes], Situation] = OrderedDict()
        self.made = 0
        self.launcher: Any = None
        self.refusal: str | None = None
        self._recording = threading.Lock()

    def attach(self, launcher: Any) -> None:
        """Bind the launcher that asks this policy."""
        self.launcher = weakref.proxy(launcher)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if self.core.is_capturing(stream):
            return self.executor(*args)
        situation = self._situation((stream, self.core.read_symbols(self.executor, *args)))
        situation.calls += 1
        if situation.verdict is not None:
            return self.executor(*args)
        self._note_addresses(situation, args)
        if situation.calls < self._timed_call():
            return self.executor(*args)
        if situation.timing is None:
            return self._timed(situation, args)
        if not self._wanted(situation) or self._others_may_draw():
            return self.executor(*args)
        return self._record(situation, stream, args)

    def describe(self) -> str:
        """How the Program is launched, in a line for `explain`."""
        if self.refusal is not None:
            return f"launched kernel by kernel: {self.refusal}"
        records = [each for situation in self.situations.values() for each in situation.records]
        if records:
            copied = max(each.staged_bytes for each in records)
            copies = f", which copies {copied:,} bytes of inputs" if copied else ""
            return f"launched as one CUDA graph ({len(records)} recorded){copies}"
        verdicts = [each.verdict for each in self.situations.values() if each.verdict]
        return f"launched kernel by kernel: {verdicts[0] if verdicts else 'not yet recorded'}"

    # What is known of the calls

    def _situation(self, key: tuple[int, bytes]) -> Situation:
        found = self.situations.get(key)
        if found is None:
            found = self.situations[key] = Situation()
            if len(self.situations) > KEPT_SITUATIONS:
                self._forget_one(key)
        else:
            self.situations.move_to_end(key)
        return found

    def _forget_one(self, but: tuple[int, bytes]) -> None:
        """Forget the situation that was asked about longest ago, one without recordings first."""
        keys = [key for key in self.situations if key != but]
        oldest = next((key for key in keys if not self.situations[key].records), keys[0])
        for record in self.situations.pop(oldest).records:
            self._drop(record)

    def _note_addresses(self, situation: Situation, args: Sequence[Any]) -> None:
        """Count how often each library input moved; where a recording keeps it, it did not."""
        for position in self.recorder.library_inputs:
            address = args[position].data_ptr()
            known = situation.addresses.get(position)
            situation.addresses[position] = address
            if known not in (None, address) and address not in PINNED:
                situation.moves[position] += 1

    def _timed_call(self) -> int:
        return 1 if self.always else TIMED_CALL

    def _timed(self, situation: Situation, args: Sequence[Any]) -> tuple[Any, ...]:
        """Launch plainly, take the time, and remember the outputs."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.device)
        before = time.perf_counter()
        start.record(stream)
        outputs = self.executor(*args)
        end.record(stream)
        situation.timing = Timing(time.perf_counter() - before, start, end)
        if not torch.is_inference_mode_enabled():
            situation.watched = self._large_outputs(outputs)
        return outputs

    def _large_outputs(self, outputs: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
        """Tensors on the memory of the outputs that are too large to be copied on each replay."""
        large = []
        for number, out in enumerate(outputs[: self.recorder.public]):
            if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > COPIED_BYTES:
                alias = torch.empty(0, dtype=out.dtype, device=out.device)
                large.append((number, alias.set_(out.detach().untyped_storage())))
        return large

    def _wanted(self, situation: Situation) -> bool:
        """Whether this call shall be recorded."""
        situation.in_place |= {
            number for number, alias in situation.watched if self.core.use_count(alias) == 1
        }
        situation.watched.clear()
        if not situation.records:
            return self.always or self._is_host_bound(situation)
        self._note_held(situation)
        situation.misses += 1
        return situation.misses >= MISSES

    def _is_host_bound(self, situation: Situation) -> bool:
        timing = situation.timing
        assert timing is not None
        device = timing.device()
        if device is None:
            return False
        if device <= HOST_BOUND * timing.host + LAST_KERNEL:
            return True
        self._stay_plain(
            situation,
            f"the device is the limit ({device * 1e3:.2f} ms, the host {timing.host * 1e3:.2f} ms)",
        )
        return False

    def _others_may_draw(self) -> bool:
        """Whether another thread may draw random numbers during a recording, which would fail."""
        if not self.recorder.random or self.always:
            return False
        here = threading.current_thread()
        return any(not (each is here or each.daemon) for each in threading.enumerate())

    def _note_held(self, situation: Situation) -> None:
        """Outputs in place that the caller keeps holding go to fresh memory from now on."""
        if self.launcher.last_match != HELD:
            return
        for record in [each for each in situation.records if each.in_place]:
            situation.in_place -= record.in_place
            situation.records.remove(record)
            self._drop(record)

    # What is done

    def _record(self, situation: Situation, stream: int, args: Sequence[Any]) -> tuple[Any, ...]:
        """Record this call and replay it; launch it plainly where that cannot be."""
        paid = sum(each.hits for each in self.launcher.recordings) // HITS_PER_RECORDING
        if self.made >= FREE_RECORDINGS + paid or not self._recording.acquire(blocking=False):
            return self.executor(*args)
        try:
            staged = self._staged(situation)
            if staged is None:
                return self.executor(*args)
            self._make_room(situation)
            in_place = frozenset(situation.in_place)
            recorded = self.recorder.record(args, stream, staged, in_place)
        except CannotRecord as reason:
            self._give_up(str(reason))
            return self.executor(*args)
        finally:
            self._recording.release()
        if recorded is None:
            return self.executor(*args)
        self.made += 1
        situation.misses = 0
        situation.records.append(recorded)
        PINNED.add(recorded.pinned)
        weakref.finalize(recorded, PINNED.discard, recorded.pinned)
        self.launcher.add(recorded.recording)
        return recorded.recording.replay(*args)

    def _staged(self, situation: Situation) -> frozenset[int] | None:
        """The inputs that a recording copies; None if it is not worth it."""
        moving = {number for number, moves in situation.moves.items() if moves >= MOVES}
        moving = {number for number in moving if situation.addresses[number] not in PINNED}
        if not moving <= self.recorder.stageable:
            self._stay_plain(situation, "a library call writes to an input that moves")
            return None
        return frozenset(moving)

    def _make_room(self, situation: Situation) -> None:
        recordings = self.launcher.recordings
        if len(recordings) < MAX_RECORDINGS:
            return
        for other in self.situations.values():
            for record in other.records:
                if record.recording is recordings[-1]:
                    other.records.remove(record)
                    self._drop(record)
                    return

    def _drop(self, record: Recorded) -> None:
        self.launcher.remove(record.recording)

    def _stay_plain(self, situation: Situation, verdict: str) -> None:
        situation.verdict = verdict
        if not self.program.symbols and len(self.situations) == 1:
            self._give_up(verdict)

    def _give_up(self, reason: str) -> None:
        """Launch every later call plainly."""
        self.refusal = reason
        self.launcher.settle()
        level = logging.WARNING if self.always else logging.DEBUG
        _LOG.log(level, "%s is launched kernel by kernel: %s", self.program.name, reason)
