"""Coins of a CPU's default generator are eager's, and leave the generator as eager does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flambeau_runtime import cpu_draws
from flambeau_runtime.native import core

COUNTS = (1024, 1025, 1247, 1248, 1249, 5000, 100_003)
PROBABILITIES = (0.0, 1e-17, 0.1, 1 / 3, 0.5, 0.9, 1 - 2**-53, 1.0)
EAGER = torch.ops.aten.bernoulli.p

same_as_eager = pytest.mark.skipif(
    core() is None or not cpu_draws._is_same_as_eager(),
    reason="eager draws from another generator here, or the extension is not built",
)


def advanced(seed: int, words: int) -> torch.Tensor:
    """The state of the default generator some words behind a seed."""
    torch.manual_seed(seed)
    for _ in range(words):
        torch.empty(1, dtype=torch.int32).random_()
    return torch.get_rng_state()


@same_as_eager
@pytest.mark.parametrize("words", [0, 1, 2, 622, 623, 624, 625])
@pytest.mark.parametrize("count", COUNTS)
def test_coins_and_the_state_behind_them(
    count: int, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.empty(count, dtype=torch.bool)
    for p in PROBABILITIES:
        state = advanced(count, words)
        expected, behind = EAGER(x, p), torch.get_rng_state()
        torch.set_rng_state(state)
        with monkeypatch.context() as patch:
            patch.delattr(cpu_draws, "_EAGER")
            out = cpu_draws.bernoulli(x, p)
        assert torch.equal(out, expected)
        assert torch.equal(torch.get_rng_state(), behind)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.empty(40, 50).t().to(torch.bool), torch.empty(2000)[::2].to(torch.bool),
        torch.empty(0, 3, dtype=torch.bool), torch.tensor(True), torch.empty(3000),
        torch.empty(3000, dtype=torch.float64), torch.empty(3000, dtype=torch.bfloat16),
        torch.empty(2, 8, 16, 16, dtype=torch.bool).to(memory_format=torch.channels_last),
    ],
    ids=lambda x: f"{x.dtype}-{tuple(x.shape)}",
)  # fmt: skip
def test_every_tensor(x: torch.Tensor, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not same:
        monkeypatch.setattr(cpu_draws, "_is_same_as_eager", lambda: False)
    torch.manual_seed(1)
    expected, behind = EAGER(x, 0.3), torch.get_rng_state()
    torch.manual_seed(1)
    out = cpu_draws.bernoulli(x, 0.3)
    assert torch.equal(out, expected)
    assert (out.dtype, out.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(torch.get_rng_state(), behind)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability(p: float) -> None:
    with pytest.raises(RuntimeError, match="bernoulli_ expects p to be in"):
        cpu_draws.bernoulli(torch.empty(3000, dtype=torch.bool), p)


def test_threads_draw_in_turn() -> None:
    """Each number is drawn once."""
    torch.manual_seed(2)
    total = torch.empty(8 * 50 * 1500, dtype=torch.bool)
    expected = EAGER(total, 0.5).view(400, 1500)
    behind = torch.get_rng_state()
    torch.manual_seed(2)
    part = torch.empty(1500, dtype=torch.bool)

    def draw(_: int) -> list[torch.Tensor]:
        return [cpu_draws.bernoulli(part, 0.5) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        drawn = [coins for result in pool.map(draw, range(8)) for coins in result]
    assert torch.equal(torch.get_rng_state(), behind)
    rows = {bytes(row.numpy()) for row in expected}
    assert rows == {bytes(coins.numpy()) for coins in drawn}


class Interrupted:
    """A generator from which another thread draws between two readings of its state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.readings = 0
        self.set_state = self.generator.set_state

    def get_state(self) -> torch.Tensor:
        self.readings += 1
        if self.readings == 2:
            torch.empty(7, dtype=torch.bool).bernoulli_(0.5, generator=self.generator)
        return self.generator.get_state()


@same_as_eager
def test_a_draw_of_another_thread_comes_first() -> None:
    """What eager draws meanwhile is not drawn again."""
    interrupted, generator = Interrupted(), torch.Generator().manual_seed(3)
    torch.empty(7, dtype=torch.bool).bernoulli_(0.5, generator=generator)
    expected, out = (torch.empty(5000, dtype=torch.bool) for _ in range(2))
    expected.bernoulli_(0.5, generator=generator)
    assert cpu_draws._draw(interrupted, out, 0.5)  # type: ignore[arg-type]
    assert torch.equal(out, expected)
    assert torch.equal(interrupted.generator.get_state(), generator.get_state())
    assert interrupted.readings == 3


class Unknown:
    """A generator that may not be written to."""

    def __init__(self, state: torch.Tensor) -> None:
        self.get_state = lambda: state


@same_as_eager
def test_a_state_that_is_not_known_is_left_alone() -> None:
    state = torch.Generator("cpu").get_state()
    state[8:12] = 0  # no words are left before the first block, nor is one begun
    out = torch.zeros(2000, dtype=torch.bool)
    before = state.clone()
    native = core()
    assert native is not None
    assert not native.draw_coins(Unknown(state), out.data_ptr(), 2000, 1 << 52)
    assert torch.equal(state, before)
    assert not out.any()
    with pytest.raises(AttributeError, match="get_state"):
        native.draw_coins(None, out.data_ptr(), 2000, 1 << 52)
