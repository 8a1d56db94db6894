"""Trials: drawn from a seed, run beside eager, compared, shortened."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import torch

from tests.launches import replays
from tools.fuzz.launches import calling, surroundings, training
from tools.fuzz.launches.models import MODELS
from tools.fuzz.launches.side import DEVICE, MODES, Action, Side
from tools.fuzz.processes import is_fatal

_ANYWHERE: dict[Action, int] = {
    calling.infer: 4,
    calling.infer_often: 5,
    calling.hold_outputs: 5,
    calling.write_to_held: 3,
    calling.drop_held: 3,
    calling.collect: 2,
    calling.wait_with_backward: 4,
    calling.run_waiting_backward: 4,
    calling.call_another_function: 2,
    calling.call_in_a_finalizer: 1,
    calling.fail: 1,
    calling.seed: 1,
    training.train: 12,
    training.optimise: 4,
    surroundings.replace_weights: 2,
    surroundings.switch: 2,
    surroundings.set_flags: 2,
    surroundings.call_in_a_thread: 2,
}
_ON_A_GPU: dict[Action, int] = {
    calling.copy_to_the_host: 2,
    surroundings.call_on_a_stream: 3,
    surroundings.read_on_a_stream: 2,
    surroundings.call_in_a_pool: 1,
    surroundings.capture_a_call: 1,
}
ACTIONS = {action.__name__: action for action in _ANYWHERE | _ON_A_GPU}
"""By name."""


@dataclass(frozen=True)
class Trial:
    """All that decides what happens: `actions` are names of `ACTIONS` with a seed each."""

    seed: int
    mode: str
    model: str
    dropout: float
    autocast: bool
    actions: tuple[tuple[str, int], ...]

    @classmethod
    def read(cls, text: str) -> Trial:
        """The trial that `str` has written, as JSON."""
        fields = json.loads(text)
        return cls(**fields | {"actions": tuple(map(tuple, fields["actions"]))})

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Difference:
    """Action number `index` of a trial left another state than eager, or raised another error."""

    index: int
    text: str


@dataclass(frozen=True)
class Outcome:
    """What came of a trial, and how often a recorded CUDA graph was replayed in it."""

    difference: Difference | None
    replays: int


class Differs(Exception):
    """The text says what differs."""


def drawn(seed: int) -> Trial:
    """The trial of a seed; its actions are those that the machine's device allows."""
    random = Random(seed)
    weights = _ANYWHERE | (_ON_A_GPU if DEVICE == "cuda" else {})
    actions: list[tuple[str, int]] = []
    for _ in range(random.randint(12, 40)):
        (action,) = random.choices(list(weights), list(weights.values()))
        times = random.randint(3, 8) if random.random() < 0.2 else 1
        actions += [(action.__name__, random.randrange(1 << 30))] * times
    return Trial(
        seed=seed,
        mode=random.choice(["reduce-overhead", *MODES]),
        model=random.choice(list(MODELS)),
        dropout=random.choice([0.0, 0.0, 0.3]),
        autocast=random.random() < 0.2,
        actions=tuple(actions[:60]),
    )


def run(
    trial: Trial, begin: Callable[[int], object] = lambda index: None, limit: float = float("inf")
) -> Outcome:
    """Run a trial beside eager, up to the first difference or for `limit` seconds. `begin` is
    called with the number of each action.

    Raises what breaks the process: CUDA's errors.
    """
    surroundings.reset_flags()
    torch.manual_seed(trial.seed)
    model = MODELS[trial.model](trial.dropout).to(DEVICE)
    eager = Side.of(copy.deepcopy(model), None, autocast=trial.autocast)
    compiled = Side.of(model, trial.mode, autocast=trial.autocast)
    rounds = trial.autocast
    end = time.monotonic() + limit
    difference = None
    for index, (name, seed) in enumerate(trial.actions):
        if time.monotonic() > end:
            break
        begin(index)
        before = _generator_state()
        outcomes = []
        for side in (eager, compiled):
            _set_generator_state(before)
            outcomes.append((_done(ACTIONS[name], side, Random(seed)), _generator_state()))
        rounds |= eager.autocast or surroundings.rounds_more()
        try:
            raised = _compare_outcomes(outcomes[0], outcomes[1], rounds)
            if not raised:
                _compare_sides(eager, compiled, rounds)
        except Differs as text:
            difference = Difference(index, f"{name}: {text}")
            break
        if raised:
            for side in (eager, compiled):  # how far each came before it raised may differ
                side.pending.clear()
                side.model.zero_grad()
    return Outcome(difference, sum(replays(each) for each in (compiled.run, compiled.other)))


def _done(action: Action, side: Side, random: Random) -> Any:
    """The results of an action, or the error that it raises."""
    try:
        return action(side, random)
    except Exception as error:
        if is_fatal(error):
            raise
        return error


def _generator_state() -> torch.Tensor:
    return torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state()


def _set_generator_state(state: torch.Tensor) -> None:
    if DEVICE == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _compare_outcomes(want: tuple[Any, Any], got: tuple[Any, Any], rounds: bool) -> bool:
    """Whether both raised; raises Differs."""
    (theirs, their_state), (ours, our_state) = want, got
    errors = isinstance(theirs, Exception), isinstance(ours, Exception)
    if any(errors):
        if type(theirs) is not type(ours):
            raise Differs(f"{_shown(ours)}, not {_shown(theirs)}")
        return True
    _compare(ours, theirs, "results", _tolerance(rounds))
    if not torch.equal(our_state, their_state):
        raise Differs("the generator has another state")
    return False


def _shown(outcome: Any) -> str:
    if not isinstance(outcome, Exception):
        return "a result"
    return f"{type(outcome).__name__}: {str(outcome)[:300]}"


def _tolerance(rounds: bool) -> float:
    """In parts of a tensor's largest element. Memory that is overwritten differs by far more."""
    return 6e-2 if rounds else 4e-3


def _compare_sides(eager: Side, compiled: Side, rounds: bool) -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    tolerance = _tolerance(rounds)
    _compare(compiled.held, eager.held, "held outputs", tolerance)
    _compare(compiled.held_gradients, eager.held_gradients, "held gradients", 2 * tolerance)
    ours, theirs = compiled.model, eager.model
    _compare(list(ours.parameters()), list(theirs.parameters()), "parameters", tolerance)
    _compare(list(ours.buffers()), list(theirs.buffers()), "buffers", tolerance)
    gradients = [[each.grad for each in model.parameters()] for model in (ours, theirs)]
    _compare(*gradients, "gradients", 2 * tolerance)


def _compare(got: Any, want: Any, path: str, tolerance: float) -> None:
    if isinstance(want, list):
        if len(got) != len(want):
            raise Differs(f"{path}: {len(got)} items, not {len(want)}")
        for number, pair in enumerate(zip(got, want, strict=True)):
            _compare(*pair, f"{path}[{number}]", tolerance)
        return
    if got is None or want is None:
        if got is not want:
            raise Differs(f"{path}: one of {type(got).__name__} and {type(want).__name__}")
        return
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        raise Differs(f"{path}: {got.shape} {got.dtype}, not {want.shape} {want.dtype}")
    ours, theirs = got.detach().double(), want.detach().double()
    if not want.numel() or not bool(torch.isfinite(theirs).all()):
        return
    error, largest = float((ours - theirs).abs().max()), float(theirs.abs().max()) + 1e-3
    if not error <= tolerance * largest:
        raise Differs(f"{path}: differs by {error:.4g} of {largest:.4g}")


def shortened(trial: Trial, difference: Difference, limit: float) -> tuple[Trial, Difference]:
    """The trial up to the action that differs, without what can be left out in `limit` seconds."""
    end = time.monotonic() + limit
    best = replace(trial, actions=trial.actions[: difference.index + 1])
    size = max(1, len(best.actions) // 2)
    while True:
        start, smaller = 0, False
        while start < len(best.actions) - 1:
            if time.monotonic() > end:
                return best, difference
            *rest, last = best.actions
            shorter = replace(best, actions=(*rest[:start], *rest[start + size :], last))
            again = run(shorter).difference
            if again is None:
                start += size
            else:
                best = replace(shorter, actions=shorter.actions[: again.index + 1])
                difference, smaller = again, True
        if size == 1 and not smaller:
            return best, difference
        size = max(1, size // 2)
