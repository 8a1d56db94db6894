"""The tuner that measures: cache, build, check, time, choose, store.

A contest whose answer is stored is not run again. Candidates are built side by side by worker
threads. Each is run once and its results compared with those of the first candidate; one that
raises or differs is out. The rest are timed in rounds, each candidate once a round: a change of
the device's clock then meets all of them. Whoever is far behind the best after a round leaves.
Another candidate than the first is chosen only if it is faster by more than noise, and by much more
if other programs disturbed the samples of the first to the end (`sampling`).
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from flambeau_runtime.cache import binding, key_of
from flambeau_runtime.object_stores import cache_of
from flambeau_runtime.tuning.inputs import fill_indices
from flambeau_runtime.tuning.table import Outcome, TuningTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flambeau_runtime.options import RuntimeOptions
    from flambeau_runtime.program import Program
    from flambeau_runtime.tuning.contest import Contest, CpuFacts, DeviceFacts
    from flambeau_runtime.tuning.sampling import Sampling

Run = "Callable[..., tuple[Any, ...]]"
Inputs = list[Any]

FAR_BEHIND = 1.3
"""After the first rounds, a candidate that takes this many times the best one's time leaves."""

UNSTABLE_NOISE = 0.25
"""A candidate replaces a first one whose samples never agreed only if it is faster by this share.
"""

BUILD_THREADS = 16

LATE = "the time for tuning is over"


class Bench(Protocol):
    """Builds and times Programs on a device."""

    noise: float
    """A candidate replaces the first one only if it takes less time by more than this share."""

    sampling: Sampling

    def facts(self, device: str) -> DeviceFacts | CpuFacts | None:
        """The device, or None if nothing can be measured on it now."""

    def identity(self, device: str) -> str:
        """What a stored time depends on: the device and the tools' versions."""

    def build(self, program: Program, *, trusted: bool) -> Callable[..., tuple[Any, ...]]:
        """The Program made callable. Raises if it cannot be built; one that is not `trusted`, also
        if it is sure to be slow.
        """

    def inputs(self, program: Program, numbers: Sequence[int]) -> Inputs:
        """What the Program can be called with: tensors, then the values of its int inputs."""

    @contextmanager
    def timed(
        self, runs: Sequence[Callable[..., tuple[Any, ...]]], inputs: Inputs
    ) -> Iterator[Callable[[int], float]]:
        """Within, `time(number)` is the milliseconds of one call of a run, the mean of some."""


@dataclass
class Measured:
    """One candidate in a contest."""

    run: Callable[..., tuple[Any, ...]] | None
    reason: str = ""
    times: list[float] | None = None


class MeasuringTuner:
    """`contest.Tuner` over benches by device type ("cpu"). `seconds`: the time that `choose` may
    take, building included; what is not measured then is not chosen. `report` gets each table.
    """

    def __init__(
        self, benches: Mapping[str, Bench], options: RuntimeOptions, *, seconds: float,
        report: Callable[[TuningTable], None], clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.benches = benches
        self.cache = cache_of(options)
        self.use_cache = options.use_cache
        self.seconds = seconds
        self.report = report
        self.clock = clock

    def facts(self, device: str) -> DeviceFacts | CpuFacts | None:
        """The device as cost models see it."""
        return self.bench(device).facts(device)

    def bench(self, device: str) -> Bench:
        """Who times on a device."""
        return self.benches[device.partition(":")[0]]

    def choose(self, contests: Sequence[Contest]) -> list[int]:
        """For each contest the number of the fastest candidate."""
        answers = {number: self.stored(contest) for number, contest in enumerate(contests)}
        pending = [contests[number] for number, answer in answers.items() if answer is None]
        fresh = iter(self.run(pending) if pending else [])
        return [next(fresh) if answer is None else answer for answer in answers.values()]

    # The cache

    def key(self, contest: Contest) -> str:
        """Under what a contest's answer is stored."""
        names = [candidate.name for candidate in contest.candidates]
        identity = self.bench(contest.device).identity(contest.device)
        return key_of("tuning", identity, contest.title, contest.key, *names)

    def stored(self, contest: Contest) -> int | None:
        """The stored answer to a contest."""
        key = self.key(contest)
        data = self.cache.read("tuning", key) if self.use_cache else None
        if data is None:
            return None
        try:
            chosen = json.loads(data)["chosen"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        names = [candidate.name for candidate in contest.candidates]
        return names.index(chosen) if chosen in names else None

    def store(self, contest: Contest, outcomes: Sequence[Outcome], chosen: int) -> None:
        """Store an answer, with the times that led to it."""
        key = self.key(contest)
        content = {
            "binding": binding("tuning", key),
            "title": contest.title,
            "chosen": contest.candidates[chosen].name,
            "milliseconds": {outcome.name: outcome.milliseconds for outcome in outcomes},
        }
        self.cache.store("tuning", key, json.dumps(content, indent=1).encode(), ".json")

    # Measuring

    def run(self, contests: Sequence[Contest]) -> Iterator[int]:
        """Build all candidates of all contests, then measure contest after contest."""
        start = self.clock()
        deadline = start + self.seconds
        with ThreadPoolExecutor(BUILD_THREADS) as pool, progress(contests) as advance:

            def build(contest: Contest, number: int) -> Measured:
                if number and self.clock() > deadline:
                    return Measured(None, LATE)
                try:
                    bench = self.bench(contest.device)
                    program = contest.candidates[number].make()
                    return Measured(bench.build(program, trusted=number == 0))
                except Exception as error:
                    if number == 0:
                        raise
                    return Measured(None, f"{type(error).__name__}: {str(error)[:200]}")
                finally:
                    advance()

            tasks = [
                [pool.submit(build, contest, number) for number in range(len(contest.candidates))]
                for contest in contests
            ]
            # Nothing is timed while others still compile.
            candidates = [[future.result() for future in futures] for futures in tasks]
        building = self.clock() - start
        for contest, measured in zip(contests, candidates, strict=True):
            start = self.clock()
            try:
                complete = self.measure(contest, measured, deadline)
            except torch.OutOfMemoryError as error:
                self.report(TuningTable(contest.title, problem=str(error)))
                yield 0
                continue
            bench = self.bench(contest.device)
            sampling, first = bench.sampling, measured[0].times
            outcomes = [
                Outcome(candidate.name, sampling.time(each.times) if each.times else None,
                        each.reason)
                for candidate, each in zip(contest.candidates, measured, strict=True)
            ]  # fmt: skip
            stable = first is None or sampling.is_stable(first)
            chosen = fastest(outcomes, bench.noise if stable else UNSTABLE_NOISE)
            if complete and not any(each.reason == LATE for each in measured):
                self.store(contest, outcomes, chosen)
            measuring = self.clock() - start
            self.report(TuningTable(contest.title, tuple(outcomes), chosen, building, measuring))
            yield chosen

    def measure(self, contest: Contest, measured: list[Measured], deadline: float) -> bool:
        """Check each candidate's results, then time those that are right, in rounds. False if time
        was over before the last round.
        """
        program = contest.candidates[0].make()
        bench = self.bench(contest.device)
        inputs = bench.inputs(program, contest.numbers)
        fill_indices(inputs, contest.indices)
        assert measured[0].run is not None
        expected = measured[0].run(*inputs)
        for each in measured[1:]:
            if each.run is not None:
                each.reason = wrong(each.run, inputs, expected, contest.tolerance)
                if each.reason:
                    each.run = None
        racing = [each for each in measured if each.run is not None]
        if len(racing) < 2:
            return True
        with bench.timed([each.run for each in racing], inputs) as time_of:  # type: ignore[misc]
            return self.race(racing, time_of, bench.sampling, deadline)

    def race(
        self, racing: Sequence[Measured], time_of: Callable[[int], float], sampling: Sampling,
        deadline: float,
    ) -> bool:  # fmt: skip
        """Time candidates in rounds; False if time was over before the last round."""
        numbers = list(range(len(racing)))
        end = self.clock() + sampling.seconds
        for round_number in range(sampling.rounds):
            samples = [racing[number].times or [] for number in numbers]
            if round_number and self.clock() > deadline:
                return False
            if (round_number and self.clock() > end) or sampling.is_over(round_number, samples):
                return True
            for number in numbers:
                each = racing[number]
                each.times = [*(each.times or ()), time_of(number)]
            times = {number: racing[number].times or [] for number in numbers}
            best = min(sampling.time(each) for each in times.values())
            numbers = [
                number
                for number, each in times.items()
                if sampling.time(each) <= FAR_BEHIND * best
                or not sampling.may_leave(each)
                or (number == 0 and not sampling.is_stable(each))
            ]
        return True


def fastest(outcomes: Sequence[Outcome], noise: float) -> int:
    """The number of the fastest candidate: the first, unless another is faster beyond noise."""
    times = [outcome.milliseconds for outcome in outcomes]
    timed = [number for number, each in enumerate(times) if each is not None]
    if times[0] is None or not timed:
        return 0
    best = min(timed, key=lambda number: times[number])  # type: ignore[arg-type, return-value]
    return best if times[best] < times[0] * (1 - noise) else 0  # type: ignore[operator]


def wrong(
    run: Callable[..., tuple[Any, ...]], inputs: Inputs, expected: Sequence[torch.Tensor],
    tolerance: float,
) -> str:  # fmt: skip
    """Why a candidate's results are refused; "" if they are right."""
    try:
        results = run(*inputs)
        for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
                return f"result {number} is {ours.dtype} {tuple(ours.shape)}"
            error = relative_error(ours, theirs)
            if not error <= tolerance:
                return f"result {number} differs by {error:.1e}"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The norm of the difference relative to the norm of `theirs`; nan if one has a NaN where the
    other has none. Of bools and of positions, which are int64, the share that differs.
    """
    if not theirs.numel():
        return 0.0
    if theirs.dtype in (torch.bool, torch.int64):
        return float((ours != theirs).double().mean())
    ours, theirs = ours.double(), theirs.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    difference = torch.where(same, 0.0, ours - theirs).norm()
    scale = torch.where(theirs.isfinite(), theirs, 0.0).norm().clamp(min=1e-30)
    return float(difference / scale)


@contextmanager
def progress(contests: Sequence[Contest]) -> Iterator[Callable[[], None]]:
    """A progress bar over the builds, if stderr is a terminal and rich is installed."""
    total = sum(len(contest.candidates) for contest in contests)
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("autotune: building", total=total)
        yield lambda: bar.advance(task)
