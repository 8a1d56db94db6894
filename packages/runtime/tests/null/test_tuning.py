"""The tuner with a stand-in for the device: what it chooses, refuses, stores; the end of time."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from flambeau_runtime import Program, RuntimeOptions
from flambeau_runtime.tuning.contest import Candidate, Contest, DeviceFacts
from flambeau_runtime.tuning.inputs import copied_memory
from flambeau_runtime.tuning.sampling import Sampling
from flambeau_runtime.tuning.table import Outcome, TuningTable
from flambeau_runtime.tuning.tuner import MeasuringTuner, fastest, relative_error


class Clock:
    """Seconds that pass only when the bench works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeBench:
    """Programs are named after the milliseconds that they take; "wrong" and "broken" are not right.
    The device is slower by `drift` with every sample, which all candidates must feel alike.
    """

    noise = 0.01
    sampling = Sampling()

    def __init__(self, clock: Clock, drift: float = 0.0) -> None:
        self.clock = clock
        self.drift = drift
        self.built: list[str] = []
        self.samples: list[str] = []
        self.device = "a GPU"

    def facts(self, device: str) -> DeviceFacts:
        return DeviceFacts()

    def identity(self, device: str) -> str:
        return self.device

    def build(self, program: Program, *, trusted: bool):
        self.built.append(program.name)
        if not trusted and "spills" in program.name:
            raise ValueError("80 bytes of a thread are spilled")
        if "unbuilt" in program.name:
            raise ValueError("no such instruction")

        def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if "broken" in program.name:
                raise RuntimeError("launch failed")
            return (x * (1.5 if "wrong" in program.name else 1),)

        run.program = program.name  # type: ignore[attr-defined]
        return run

    def inputs(self, program: Program, numbers) -> list[torch.Tensor]:
        return [torch.ones(4)]

    @contextmanager
    def timed(self, runs, inputs):
        def time_of(number: int) -> float:
            name = runs[number].program
            self.samples.append(name)
            self.clock.now += 1
            return float(name.split()[-1]) * (1 + self.drift * len(self.samples))

        yield time_of


def contest(*names: str, key: str = "key") -> Contest:
    def program(name: str) -> Program:
        return Program((), (), (), (), (), (), (), name=name)

    candidates = tuple(Candidate(name, lambda name=name: program(name)) for name in names)
    return Contest("mm(4x4, 4x4)", key, "cuda:0", candidates, 1e-2)


class Table:
    """A tuner with its bench, clock and reports."""

    def __init__(self, tmp_path: Path, seconds: float = 1000.0, drift: float = 0.0) -> None:
        self.clock = Clock()
        self.bench = FakeBench(self.clock, drift)
        self.reports: list[TuningTable] = []
        self.tuner = MeasuringTuner(
            {"cuda": self.bench}, RuntimeOptions(cache_dir=tmp_path / "cache"), seconds=seconds,
            report=self.reports.append, clock=self.clock,
        )  # fmt: skip

    def choose(self, *contests: Contest) -> list[int]:
        return self.tuner.choose(contests)


def test_the_fastest_is_chosen_and_printed_first(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.choose(contest("library 2.0", "a 1.5", "b 1.0", "c 3.0")) == [2]
    (text,) = map(str, table.reports)
    lines = text.splitlines()
    assert lines[0] == "AUTOTUNE mm(4x4, 4x4)"
    assert lines[1:5] == [
        "  b 1.0 1.0000 ms 100.0%",
        "  a 1.5 1.5000 ms 66.7%",
        "  library 2.0 2.0000 ms 50.0%",
        "  c 3.0 3.0000 ms 33.3%",
    ]
    assert lines[5].endswith("4 choices")


def test_only_the_first_may_be_slow_for_sure(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.choose(contest("spills 2.0", "spills 1.0", "a 1.5")) == [2]
    assert "80 bytes of a thread are spilled" in str(table.reports[0])
    assert table.choose(contest("a 2.0", "spills 1.0")) == [0]


def test_those_far_behind_leave_after_the_first_rounds(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.choose(contest("library 1.0", "slow 9.0", "near 1.1"))
    counts = {name: table.bench.samples.count(name) for name in table.bench.samples}
    assert counts == {"library 1.0": 7, "slow 9.0": 2, "near 1.1": 7}


def test_a_gain_within_noise_changes_nothing(tmp_path: Path) -> None:
    assert Table(tmp_path).choose(contest("library 1.000", "a 0.995")) == [0]
    assert Table(tmp_path).choose(contest("library 1.000", "a 0.985")) == [1]


def test_a_drifting_clock_does_not_favour_the_first(tmp_path: Path) -> None:
    names = ["library 1.0", "a 0.96", "b 0.98"]
    assert Table(tmp_path, drift=0.01).choose(contest(*names)) == [1]


class Interrupted(FakeBench):
    """A CPU whose cores others take for a whole time slice, now and then, until `quiet` samples."""

    sampling = Sampling(60, early_rounds=8, patience=150.0, interrupted=True)

    def __init__(self, clock: Clock, quiet: int, busy: str = "") -> None:
        super().__init__(clock)
        self.quiet = quiet
        self.busy = busy

    @contextmanager
    def timed(self, runs, inputs):
        with super().timed(runs, inputs) as time_of:

            def disturbed(number: int) -> float:
                time = time_of(number)
                late = len(self.samples) <= self.quiet and self.busy in self.samples[-1]
                return 7.9 * (1 + len(self.samples) % 2) if late else time

            yield disturbed


def interrupted(tmp_path: Path, quiet: int, busy: str = "") -> Table:
    table = Table(tmp_path)
    table.bench = Interrupted(table.clock, quiet, busy)
    table.tuner.benches = {"cuda": table.bench}
    return table


def test_times_of_other_programs_are_not_a_candidate_s(tmp_path: Path) -> None:
    """The first samples of the library take time slices; that makes no slower candidate faster."""
    table = interrupted(tmp_path, 10, "library")
    assert table.choose(contest("library 0.27", "a 1.5")) == [0]
    assert "library 0.27 0.2700 ms" in str(table.reports[0])
    assert interrupted(tmp_path, 40).choose(contest("library 0.27", "a 0.2", key="b")) == [1]


def test_a_quiet_machine_needs_few_samples(tmp_path: Path) -> None:
    table = interrupted(tmp_path, 0)
    assert table.choose(contest("library 0.27", "a 0.25")) == [1]
    assert len(table.bench.samples) == 2 * Interrupted.sampling.early_rounds


def test_a_slow_candidate_of_a_cpu_leaves_when_patience_is_over(tmp_path: Path) -> None:
    table = interrupted(tmp_path, 0)
    table.choose(contest("library 0.27", "slow 400"))
    assert table.bench.samples.count("slow 400") == 1


def test_a_first_candidate_that_never_stable_is_replaced_by_much_faster_ones_only(
    tmp_path: Path,
) -> None:
    samples = iter([0.30, 0.33, 0.36, 0.39] * 30)

    def choice(other: str) -> int:
        table = interrupted(tmp_path, 0)
        real = table.bench.timed

        @contextmanager
        def timed(runs, inputs):
            with real(runs, inputs) as time_of:
                yield lambda n: time_of(n) if n else next(samples) + len(table.bench.samples) / 1e2

        table.bench.timed = timed  # type: ignore[method-assign]
        return table.choose(contest("library 0.30", other, key=other))[0]

    assert choice("a 0.28") == 0
    assert choice("a 0.15") == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong 0.1", "result 0 differs by 5.0e-01"),
        ("broken 0.1", "RuntimeError: launch failed"),
        ("unbuilt 0.1", "ValueError: no such instruction"),
    ],
)
def test_what_is_not_right_is_never_chosen(tmp_path: Path, name: str, reason: str) -> None:
    table = Table(tmp_path)
    assert table.choose(contest("library 1.0", name, "a 0.5")) == [2]
    assert f"  {name} rejected: {reason}" in str(table.reports[0]).splitlines()


def test_choices_are_kept(tmp_path: Path) -> None:
    asked = contest("library 1.0", "a 0.5")
    assert Table(tmp_path).choose(asked) == [1]
    again = Table(tmp_path)
    assert again.choose(asked, contest("library 1.0", "b 0.5", key="other")) == [1, 1]
    assert "a 0.5" not in again.bench.built and len(again.reports) == 1
    elsewhere = Table(tmp_path)
    elsewhere.bench.device = "another GPU"
    assert elsewhere.choose(asked) == [1]
    assert "a 0.5" in elsewhere.bench.built


def test_a_stored_choice_that_is_no_candidate_is_measured_again(tmp_path: Path) -> None:
    table = Table(tmp_path)
    asked = contest("library 1.0", "a 0.5")
    table.choose(asked)
    key = table.tuner.key(asked)
    stored = json.loads(table.tuner.cache.read("tuning", key) or b"")
    content = json.dumps(stored | {"chosen": "gone"}).encode()
    table.tuner.cache.store("tuning", key, content, ".json")
    again = Table(tmp_path)
    assert again.choose(asked) == [1] and again.bench.samples


def test_when_time_is_over_what_was_measured_decides_and_is_not_stored(tmp_path: Path) -> None:
    table = Table(tmp_path, seconds=2.5)
    asked = contest("library 1.0", "a 0.5", "b 0.4")
    other = contest("library 1.0", "a 0.5", key="other")
    assert table.choose(asked, other) == [2, 1]
    assert len(table.bench.samples) == 3 + 2  # one round each
    table = Table(tmp_path, seconds=-1.0)
    assert table.choose(contest("library 1.0", "a 0.5", key="late")) == [0]
    assert "a 0.5" not in table.bench.built
    again = Table(tmp_path)
    assert again.choose(contest("library 1.0", "a 0.5", key="late")) == [1]
    again = Table(tmp_path)
    assert again.choose(asked) == [2] and again.bench.samples


def test_without_memory_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(program: Program, numbers) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("no memory")

    table = Table(tmp_path)
    monkeypatch.setattr(table.bench, "inputs", no_memory)
    assert table.choose(contest("library 1.0", "a 0.5")) == [0]
    assert list(map(str, table.reports)) == ["AUTOTUNE mm(4x4, 4x4)\n  not measured: no memory"]


def test_the_first_candidate_must_be_built(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such instruction"):
        Table(tmp_path).choose(contest("unbuilt 1.0", "a 0.5"))


def test_nothing_measured_means_the_first() -> None:
    assert fastest([Outcome("a", None), Outcome("b", 1.0)], 0.01) == 0
    text = str(TuningTable("mm", (Outcome("a", None),)))
    assert "a not measured" in text


def test_errors_are_relative_to_the_whole_result() -> None:
    x = torch.tensor([3.0, 4.0, float("inf"), float("nan")])
    assert relative_error(x, x) == 0
    assert relative_error(x + torch.tensor([0.5, 0, 0, 0]), x) == pytest.approx(0.1)
    assert not relative_error(torch.zeros(4), x) <= 1
    assert relative_error(torch.tensor([True] * 4), torch.tensor([True, False] * 2)) == 0.5
    assert relative_error(torch.tensor([3, 900]), torch.tensor([3, 1])) == 0.5
    assert relative_error(torch.zeros(0), torch.zeros(0)) == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5, 14)[:, ::2],
        torch.randn(7).expand(3, 7),
        torch.randn(6, 5).t(),
        torch.randn(6, 5)[1:, 2:],
        torch.randn(0, 3),
        torch.tensor(2.0),
    ],
    ids=["gaps", "expanded", "transposed", "slice", "empty", "number"],
)
def test_a_copied_input_lies_in_memory_as_it_did(tensor: torch.Tensor) -> None:
    """Kernels read by the strides that a Program declares: `clone` leaves gaps out."""
    copy = copied_memory(tensor)
    assert copy.stride() == tensor.stride() and torch.equal(copy, tensor)
    spanned = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    assert copy.untyped_storage().nbytes() >= 4 * spanned * (0 not in tensor.shape)
    assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()
