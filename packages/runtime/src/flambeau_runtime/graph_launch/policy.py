"""When a Program is launched kernel by kernel, when it is recorded, when recordings are dropped.

`csrc/launcher.c` replays a recording that serves a call, and calls the policy for every other call.
In the default setting ("auto") the first calls are launched plainly and one of them is timed: if
the device did not need much longer than the host took to launch, or if its kernels are so short
that the gaps between them count, the next call is recorded, if much memory is left. A Program that
is limited by its kernels stays as it is, since a recording would only hold memory. With "always"
the second call is recorded, without timing.

A recording serves the calls on its stream whose sizes and settings of libraries are equal, whose
library inputs have not moved, and whose earlier outputs in place were dropped. When calls miss
again and again, another recording is made, with what moves copied and what is held in fresh memory;
their number is bounded by how often recordings are used.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flambeau_runtime.graph_launch import stream_uses
from flambeau_runtime.graph_launch.device import Timing
from flambeau_runtime.graph_launch.other_threads import others_on_the_gpu
from flambeau_runtime.graph_launch.record import CannotRecord, NoRoom, NotNow, Recorded
from flambeau_runtime.program import Extern, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from types import ModuleType

    from flambeau_runtime.graph_launch.device import Gpu
    from flambeau_runtime.graph_launch.handover import Handover
    from flambeau_runtime.graph_launch.record import Recorder
    from flambeau_runtime.program import Program

TIMED_CALL = 3
"""The call that is timed: the ones before it load libraries and choose algorithms."""

HOST_BOUND = 2.0
LAST_KERNEL = 30e-6
"""A Program is recorded if the device took at most this multiple of the host's time, and the
seconds that it may need after the last launch: the host has other work beside launching this one.
"""

GAP = 1.5e-6
GAIN = 0.015
"""Seconds that a graph saves beside a plain step, which is a kernel or a library's few kernels, and
the share of the device's time that they must make for a Program to be recorded.
"""

MEMORY_SHARE = 0.5
"""The share of the available memory that a recording may hold for good."""

MISSES = 2
"""Calls that no recording served before another one is made."""

MOVES = 2
"""Changes of address after which an input of a library call is copied rather than left in place."""

COPY_SHARE = 0.1
"""The share of the host's time of a plain call that copies of inputs may take, at COPY_RATE."""

COPY_RATE = 1.5e12
"""Bytes a second: what a copy on the device moves, cautiously."""

COPIED_BYTES = 1 << 20
"""A library call's output of at most this size is copied to fresh memory on each replay; a larger
one stays in place if the caller was seen to drop it in time.
"""

FREE_RECORDINGS = 8
HITS_PER_RECORDING = 20
"""Recordings that are made at once, and the replays that pay for each further one."""

GIVEN_BACK = 6
"""Plain calls after which workspaces of libraries are given back: later ones are rare, or those of
a Program that is never recorded and would allocate them each time.
"""

KEPT_SITUATIONS = 64
"""Situations that are remembered, and MAX_RECORDINGS that serve at the same time."""
MAX_RECORDINGS = 8

Key: TypeAlias = tuple[int, bytes, tuple[Any, ...]]
"""A stream, symbolic sizes, and the settings of libraries."""

DEFAULT_STREAM = 0

OTHER, MOVED, HELD = 1, 2, 3
"""`Launcher.last_match`."""


@dataclass
class Situation:
    """The calls on one stream with equal symbolic sizes, under equal settings of libraries."""

    calls: int = 0
    launched: threading.local = field(default_factory=threading.local)
    """`here`: this thread has launched such a call plainly, so libraries are ready in it."""
    timing: Timing | None = None
    fits: bool = False
    """A recording was found to leave enough memory."""
    verdict: str | None = None
    """Why these calls stay plain, or None."""
    watched: list[tuple[int, StorageWeakRef]] = field(default_factory=list)
    """The numbers of the timed call's large outputs, and their memory: which is dropped?"""
    addresses: dict[int, int] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    in_place: set[int] = field(default_factory=set)
    """Large outputs that the caller was seen to drop before the next call."""
    apart: bool = False
    """Whether callers hold the results when they call the forward again, whose memory therefore is
    not taken over.
    """
    misses: int = 0
    records: list[Recorded] = field(default_factory=list)


PINNED: MutableMapping[int, Recorded] = weakref.WeakValueDictionary()
"""The recordings by the addresses of what they hand out in place: an input found there is expected
to come back.
"""


class LaunchPolicy:
    """What is done with the calls of one Program that no recording serves."""

    def __init__(
        self,
        program: Program,
        executor: Any,
        core: ModuleType,
        gpu: Gpu,
        recorder: Recorder,
        *,
        always: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.program = program
        self.executor = executor
        self.core = core
        self.gpu = gpu
        self.always = always
        self.tell = tell
        self.recorder = recorder
        self.situations: OrderedDict[Key, Situation] = OrderedDict()
        self.made = 0
        self.given_back = 0
        self.launcher: Any = None
        self.refusal: str | None = None
        self.postponed = "it was not called"
        self.launches = sum(isinstance(step, Launch | Extern) for step in program.steps)
        self._busy = threading.Lock()

    def attach(self, launcher: Any) -> None:
        """Bind the launcher that asks this policy."""
        self.launcher = weakref.proxy(launcher)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Launch one call. What comes while another thread, or a finalizer inside this one, asks is
        launched plainly.
        """
        return self._launch(args)

    def spend(self, args: list[Any]) -> tuple[Any, ...]:
        """Launch one call whose arguments nobody reads again, and empty their list."""
        try:
            return self._launch(args)
        finally:
            args.clear()

    def _launch(self, args: Sequence[Any]) -> tuple[Any, ...]:
        stream = self.gpu.current_stream()
        if self.gpu.is_capturing(stream):
            return self._postpone("the caller captures its stream", args)
        if not self._busy.acquire(blocking=False):
            return self._postpone("another thread called it at the same time", args)
        try:
            return self._call(stream, args)
        finally:
            self._busy.release()

    def _call(self, stream: int, args: Sequence[Any]) -> tuple[Any, ...]:
        symbols = self.core.read_symbols(self.executor, *args)
        settings = self.gpu.read_settings()
        if settings is None:  # the launcher could not tell which recording serves
            return self._postpone("torch refuses to read the settings of libraries", args)
        situation = self._situation((stream, symbols, settings))
        situation.calls += 1
        if situation.verdict is not None:
            return self._run(args)
        self._note_addresses(situation, args)
        timed_call = self._timed_call()
        if situation.timing is None:
            self.postponed = f"call {timed_call + 1} with equal sizes on one stream may be"
            if situation.calls < timed_call:
                return self._plain(situation, args)
            return self._timed(situation, args)
        if not self._wanted(situation, symbols, args):
            return self._plain(situation, args)
        if not getattr(situation.launched, "here", False):
            self.postponed = "the calling thread launches it for the first time"
            return self._plain(situation, args)
        if (thread := self._other_that_may_draw()) is not None:
            return self._postpone(f"another thread may draw random numbers ({thread})", args)
        return self._record(situation, stream, settings, args)

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
        reason = verdicts[0] if verdicts else f"not yet recorded: {self.postponed}"
        return f"launched kernel by kernel: {reason}"

    def _run(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Launch kernel by kernel; what is in a list goes after its last use."""
        result: tuple[Any, ...]
        result = self.executor.spend(args) if isinstance(args, list) else self.executor(*args)
        return result

    def _postpone(self, why: str, args: Sequence[Any]) -> tuple[Any, ...]:
        """Launch a call plainly that is not recorded for a reason that may pass."""
        self.postponed = why
        return self._run(args)

    def _plain(self, situation: Situation, args: Sequence[Any]) -> tuple[Any, ...]:
        outputs = self._run(args)
        situation.launched.here = True
        self._give_back_workspaces()
        return outputs

    def _give_back_workspaces(self) -> None:
        """After a first call: the forward's would lie there while the backward has its own."""
        if self.recorder.calls_blas and self.given_back < GIVEN_BACK:
            self.given_back += 1
            self.gpu.give_back_workspaces()

    # What is known of the calls

    def _situation(self, key: Key) -> Situation:
        found = self.situations.get(key)
        if found is None:
            found = self.situations[key] = Situation()
            if len(self.situations) > KEPT_SITUATIONS:
                self._forget_one(key)
        else:
            self.situations.move_to_end(key)
        return found

    def _forget_one(self, but: Key) -> None:
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
        """Launch plainly, take the time if it counts, and remember the outputs."""
        if self.always:
            outputs, situation.timing = self._run(args), Timing(0.0)
        else:
            outputs, situation.timing = self.gpu.timed(self._run, (args,))
        situation.launched.here = True
        situation.watched = [
            (number, StorageWeakRef(out.untyped_storage()))
            for number, out in enumerate(outputs[: self.recorder.public])
            if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > COPIED_BYTES
        ]
        self._give_back_workspaces()
        return outputs

    def _wanted(self, situation: Situation, symbols: bytes, args: Sequence[Any]) -> bool:
        """Whether this call shall be recorded."""
        situation.in_place |= {number for number, memory in situation.watched if memory.expired()}
        situation.watched.clear()
        if not situation.records:
            # A plain backward could not free what the recording of its forward holds.
            follows = self._handover(situation, args) is not None
            return (
                self.always
                or follows
                or (self._is_host_bound(situation) and self._fits(situation, symbols))
            )
        self._forget_borrowers(situation)
        self._note_held(situation)
        situation.misses += 1
        return situation.misses >= MISSES

    def _is_host_bound(self, situation: Situation) -> bool:
        timing = situation.timing
        assert timing is not None
        device = timing.device()
        if device is None:
            self.postponed = "the device was still busy with the timed call"
            return False
        if device <= HOST_BOUND * timing.host + LAST_KERNEL or self.launches * GAP >= GAIN * device:
            return True
        self._stay_plain(
            situation,
            f"the device is the limit ({device * 1e3:.2f} ms, the host {timing.host * 1e3:.2f} ms)",
        )
        return False

    def _fits(self, situation: Situation, symbols: bytes) -> bool:
        """Whether enough memory stays for what the caller does between calls, where plain launches
        hold none.
        """
        if situation.fits:
            return True
        held, available = self.recorder.held_bytes(symbols), self.gpu.available_bytes()
        situation.fits = held <= MEMORY_SHARE * available
        if situation.fits:
            return True
        self._stay_plain(
            situation, f"a recording would hold {held:,} of the {available:,} bytes available"
        )
        return False

    def _other_that_may_draw(self) -> str | None:
        """The name of another thread that may draw random numbers during a recording, which would
        fail; None if there is none, or if the Program draws none.
        """
        if not self.recorder.random:
            return None
        return next((each.name for each in others_on_the_gpu()), None)

    def _note_held(self, situation: Situation) -> None:
        """Outputs in place that the caller keeps holding go to fresh memory from now on, or to
        memory that no backward takes over.
        """
        if self.launcher.last_match != HELD:
            return
        for record in list(situation.records):
            if record.handover is not None and record.handover.is_held(self.core):
                record.handover.overstayed = True
                situation.records.remove(record)
                self._drop(record)
        for record in [each for each in situation.records if each.in_place]:
            situation.in_place -= record.in_place
            situation.records.remove(record)
            self._drop(record)

    def _forget_borrowers(self, situation: Situation) -> None:
        """Drop the recordings of a backward whose forward's recording has been dropped."""
        for record in list(situation.records):
            if record.borrowed is not None and record.borrowed.ended:
                situation.apart |= record.borrowed.overstayed
                situation.records.remove(record)
                self._drop(record)

    def _handover(self, situation: Situation, args: Sequence[Any]) -> Handover | None:
        """What the recording of a forward left to this call, which nobody reads again."""
        if situation.apart or not isinstance(args, list):
            return None
        for position in self.recorder.freed:
            forward = PINNED.get(args[position].data_ptr())
            if forward is not None and forward.handover is not None and forward.handover.is_open:
                return forward.handover
        return None

    # What is done

    def _record(
        self, situation: Situation, stream: int, settings: tuple[Any, ...], args: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Record this call and replay it; launch it plainly where that cannot be."""
        paid = sum(each.hits for each in self.launcher.recordings) // HITS_PER_RECORDING
        if self.made >= FREE_RECORDINGS + paid:
            return self._postpone(f"the {self.made} recordings made were too rarely replayed", args)
        try:
            staged = self._staged(situation, args)
            if staged is None:
                return self._run(args)
            self._make_room(situation)
            symbols = self.core.read_symbols(self.executor, *args)
            self.gpu.free_unused(self.recorder.held_bytes(symbols))
            # On another stream, torch's engine notes who else reads a gradient where nothing here
            # can see it.
            in_place = frozenset(situation.in_place if stream == DEFAULT_STREAM else ())
            handover = self._handover(situation, args)
            recorded = self.recorder.record(args, stream, settings, staged, in_place, handover)
        except CannotRecord as reason:
            self._give_up(str(reason))
            if self.always:
                self.tell(str(reason))
            return self._run(args)
        except NoRoom as reason:
            self._stay_plain(situation, str(reason))
            return self._run(args)
        except NotNow as reason:
            return self._postpone(str(reason), args)
        self.made += 1
        situation.misses = 0
        # Before other threads can find it: what it hands out in place is ours.
        outputs = recorded.recording.replay(*args)
        situation.records.append(recorded)
        for address in recorded.pinned:
            PINNED[address] = recorded
        stream_uses.watch(recorded)
        self.launcher.add(recorded.recording)
        return outputs

    def _staged(self, situation: Situation, args: Sequence[Any]) -> frozenset[int] | None:
        """The inputs that a recording copies; None if it is not worth it."""
        moving = {number for number, moves in situation.moves.items() if moves >= MOVES}
        moving = {number for number in moving if situation.addresses[number] not in PINNED}
        if not moving <= self.recorder.stageable:
            self._stay_plain(
                situation, "a library call writes to an input that moves, or draws for it"
            )
            return None
        size = sum(args[number].numel() * args[number].element_size() for number in moving)
        timing = situation.timing
        if not self.always and timing and size / COPY_RATE > COPY_SHARE * timing.host:
            self._stay_plain(situation, f"{size:,} bytes of inputs that move would be copied")
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
        if record.handover is not None:
            record.handover.ended = True
        self.launcher.remove(record.recording)

    def _stay_plain(self, situation: Situation, verdict: str) -> None:
        situation.verdict = verdict
        if self.always:
            self.tell(verdict)
        if not self.program.symbols and len(self.situations) == 1:
            self._give_up(verdict)

    def _give_up(self, reason: str) -> None:
        """Launch every later call plainly."""
        self.refusal = reason
        self.launcher.launch_plainly()
