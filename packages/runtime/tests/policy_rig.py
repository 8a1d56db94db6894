"""A launch policy on fakes: a GPU, a recorder, a launcher; and how its calls were launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from flambeau_runtime.graph_launch.handover import Handover
from flambeau_runtime.graph_launch.policy import HELD, MOVED, TIMED_CALL, LaunchPolicy
from flambeau_runtime.graph_launch.record import NotNow, Recorded
from flambeau_runtime.program import Extern, Program, Symbol

SECOND = 1.0


@dataclass
class FakeTiming:
    host: float
    seconds: float | None

    def device(self) -> float | None:
        return self.seconds


@dataclass
class FakeGpu:
    """Its calls take `host` seconds to launch and `device` seconds to run."""

    stream: int = 0
    capturing: bool = False
    host: float = SECOND
    device: float | None = 0.0
    timed_calls: int = 0
    settings: tuple[Any, ...] | None = ()
    available: int = 0
    needed: list[int] = field(default_factory=list)
    given_back: int = 0

    def give_back_workspaces(self) -> None:
        self.given_back += 1

    def free_unused(self, needed: int) -> None:
        self.needed.append(needed)

    def available_bytes(self) -> int:
        return self.available

    def read_settings(self) -> tuple[Any, ...] | None:
        return self.settings

    def current_stream(self) -> int:
        return self.stream

    def is_capturing(self, stream: int) -> bool:
        assert stream == self.stream
        return self.capturing

    def timed(self, call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, FakeTiming]:
        self.timed_calls += 1
        return call(*args), FakeTiming(self.host, self.device)


@dataclass(eq=False)
class FakeRecording:
    recorder: FakeRecorder
    stream: int
    sizes: bytes
    settings: tuple[Any, ...]
    addresses: dict[int, int]
    hits: int = 0

    def replay(self, *args: Any) -> tuple[Any, ...]:
        if self.recorder.during_replay is not None:
            self.recorder.during_replay()
        self.hits += 1
        return ("replayed",)


@dataclass
class FakeRecorder:
    """Records what it is asked for; library inputs have to stay at their addresses."""

    library_inputs: list[int] = field(default_factory=list)
    freed: tuple[int, ...] = ()
    stageable: frozenset[int] = frozenset()
    random: bool = False
    public: int = 1
    pinned: frozenset[int] = frozenset()
    error: Exception | None = None
    busy: bool = False
    held: int = 0
    calls_blas: bool = False
    asked: list[tuple[frozenset[int], frozenset[int]]] = field(default_factory=list)
    offered: list[Handover | None] = field(default_factory=list)
    leaves: Handover | None = None
    during_replay: Callable[[], None] | None = None

    def held_bytes(self, symbols: bytes) -> int:
        return self.held

    def record(
        self,
        args: Any,
        stream: int,
        settings: tuple[Any, ...],
        staged: frozenset[int],
        in_place: frozenset[int],
        handover: Handover | None = None,
    ) -> Recorded:
        self.asked.append((staged, in_place))
        self.offered.append(handover)
        if self.error is not None:
            raise self.error
        if self.busy:
            raise NotNow("another thread records for the stream")
        fixed = {
            position: args[position].data_ptr()
            for position in self.library_inputs
            if position not in staged
        }
        recording = FakeRecording(self, stream, sizes_of(None, *args), settings, fixed)
        staged_bytes = 8 * len(staged)
        return Recorded(recording, self.pinned, in_place, staged_bytes, self.leaves, handover)


def sizes_of(executor: Any, *args: torch.Tensor) -> bytes:
    return b"".join(arg.shape[0].to_bytes(8, "little") for arg in args if arg.dim())


class FakeLauncher:
    """Finds recordings as csrc/launcher.c does, as far as the policy can tell."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.recordings: tuple[FakeRecording, ...] = ()
        self.last_match = 0
        self.gave_up = False

    def add(self, recording: FakeRecording) -> None:
        self.recordings = (recording, *self.recordings)

    def remove(self, recording: FakeRecording) -> None:
        self.recordings = tuple(each for each in self.recordings if each is not recording)

    def launch_plainly(self) -> None:
        self.gave_up = True
        self.recordings = ()

    def __call__(self, *args: torch.Tensor) -> str:
        rig = self.rig
        if self.gave_up:
            return rig.executor(*args)[0]
        self.last_match = 1
        for recording in () if rig.gpu.capturing else self.recordings:
            situation = (rig.gpu.stream, sizes_of(None, *args), rig.gpu.settings)
            if (recording.stream, recording.sizes, recording.settings) != situation:
                continue
            if any(args[at].data_ptr() != address for at, address in recording.addresses.items()):
                self.last_match = max(self.last_match, MOVED)
            elif rig.held:
                self.last_match = HELD
            else:
                others = (each for each in self.recordings if each is not recording)
                self.recordings = (recording, *others)
                return recording.replay(*args)[0]
        return rig.policy(*args)[0]


class FakeExecutor:
    """Launches kernel by kernel."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.spent = 0

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        rig = self.rig
        if rig.during_call is not None:
            rig.during_call()
        if rig.outputs is not None:
            outputs, rig.outputs = rig.outputs, None
            return outputs
        return ("plain",)

    def spend(self, args: list[Any]) -> tuple[Any, ...]:
        self.spent += 1
        given = tuple(args)
        args.clear()
        return self(*given)


class Rig:
    """A launcher and its policy, on fakes; `rig(*args)` is how the call was launched."""

    def __init__(
        self,
        recorder: FakeRecorder | None = None,
        *,
        always: bool = False,
        symbols: int = 0,
        launches: int = 1,
    ) -> None:
        self.gpu = FakeGpu()
        self.recorder = recorder or FakeRecorder()
        self.outputs: tuple[Any, ...] | None = None
        self.held = False
        self.during_call: Callable[[], None] | None = None
        program = Program(
            inputs=("x",),
            tensors=(),
            symbols=tuple(Symbol(f"s{at}", at, 0) for at in range(symbols)),
            sources=(),
            kernels=(),
            steps=(Extern("aten.mm.default", ()),) * launches,
            outputs=("y",),
        )
        core: Any = SimpleNamespace(read_symbols=sizes_of, use_count=lambda tensor: 1)
        gpu: Any = self.gpu
        made: Any = self.recorder
        self.told: list[str] = []
        self.executor = FakeExecutor(self)
        self.policy = LaunchPolicy(
            program, self.executor, core, gpu, made, always=always, tell=self.told.append
        )
        self.launcher = FakeLauncher(self)
        self.policy.attach(self.launcher)

    def __call__(self, *args: torch.Tensor) -> str:
        return self.launcher(*args)

    def calls(self, count: int, *args: torch.Tensor) -> list[str]:
        return [self(*args) for _ in range(count)]


X = torch.zeros(4)
PLAIN, REPLAYED = "plain", "replayed"


def warmed(recorder: FakeRecorder | None = None, **options: Any) -> Rig:
    """A rig whose next call is the first that may be recorded."""
    rig = Rig(recorder, **options)
    warm_up = 1 if options.get("always") else TIMED_CALL
    assert rig.calls(warm_up, X) == [PLAIN] * warm_up
    return rig
