"""Random generators under compile: seeds, states, forks and `torch.Generator` objects, in one graph
and in the order of the program.

After each call every generator must be in the state in which eager leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._utils import wrapper_set_seed

import flambeau
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKENDS = ("eager", "aot_eager", "inductor")
SHARED = torch.Generator()


def seeded(x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    y = torch.rand(3) + x
    return y, F.dropout(y, 0.5), torch.initial_seed(), torch.default_generator.initial_seed()


def seeded_by_an_argument(x: torch.Tensor, seed: int = 11) -> Any:
    generator = torch.manual_seed(seed + x.shape[0])
    same = generator is torch.default_generator
    return torch.rand(2, generator=generator), same, generator.initial_seed()


def set_back(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first, torch.rand(3), x * 2, state


def forked(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        inside = torch.rand(3)
    return inside, torch.rand(3), (x * 2).sin()


def forked_and_raised(x: torch.Tensor) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            y = x + torch.rand(3)
            raise ValueError
    except ValueError:
        return y, torch.rand(3)


def made_inside(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(4)
    drawn = torch.rand(3, generator=generator) + x
    normal = x.detach().clone().normal_(generator=generator)
    order = torch.randperm(5, generator=generator)
    return drawn, normal, order, generator.initial_seed(), generator.device


def made_and_returned(x: torch.Tensor) -> Any:
    generator = torch.Generator(device="cpu")
    generator.manual_seed(11)
    state = generator.get_state()
    first = torch.rand(3, generator=generator)
    generator.set_state(state)
    clone = generator.clone_state()
    return generator, first, torch.rand(3, generator=generator), torch.rand(2, generator=clone), x


def of_the_program(x: torch.Tensor) -> Any:
    y = (x * 2).sin().cos() + torch.rand(3, generator=SHARED)
    counts = torch.randint(0, 10, (3,), generator=SHARED)
    coins = torch.bernoulli(torch.full((3,), 0.5), generator=SHARED)
    return y, counts, coins, torch.multinomial(torch.ones(5), 2, generator=SHARED), F.dropout(y)


def initialised(x: torch.Tensor) -> Any:
    with torch.no_grad():
        weight = torch.empty(3, 3)
        nn.init.normal_(weight, generator=SHARED)
        nn.init.uniform_(weight[0], generator=SHARED)
    return weight, x @ weight


def reseeded(x: torch.Tensor) -> Any:
    SHARED.manual_seed(2)
    return torch.rand(3, generator=SHARED) + x, SHARED.initial_seed()


def asks_for_seeds(x: torch.Tensor) -> Any:
    return torch.initial_seed(), SHARED.initial_seed(), x + 1


def frozen(x: torch.Tensor) -> Any:
    """As torch's own tests call functions that draw."""
    return wrapper_set_seed(F.dropout, x, 0.5), torch.rand(2)


def wrong_seed(x: torch.Tensor) -> Any:
    torch.manual_seed(2**70)
    return x


def handles_a_wrong_seed(x: torch.Tensor) -> Any:
    try:
        torch.manual_seed(2**70)
    except ValueError:
        return x + torch.rand(3)


PROGRAMS: list[Any] = [
    seeded,
    seeded_by_an_argument,
    set_back,
    forked,
    forked_and_raised,
    made_inside,
    made_and_returned,
    of_the_program,
    initialised,
    reseeded,
    asks_for_seeds,
    frozen,
    wrong_seed,
    handles_a_wrong_seed,
]


def parts(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value.detach().clone()
    elif isinstance(value, torch.Generator):
        yield value.get_state()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from parts(item)
    else:
        yield value


def outcome(program: Callable[..., Any], *args: Any) -> list[Any]:
    """What a call gives or raises, the gradient by the first argument, and the generators' states
    afterwards.
    """
    torch.manual_seed(31)
    SHARED.manual_seed(32)
    torch.rand(3)
    try:
        result = program(*args)
    except (ValueError, RuntimeError) as error:
        result = type(error), str(error)
    found = list(parts(result))
    first = result[0] if isinstance(result, tuple) else result
    if isinstance(first, torch.Tensor) and first.requires_grad:
        found += torch.autograd.grad(first.sum(), args[0])
    return [*found, *parts((torch.default_generator, SHARED, list(args[1:])))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_generators_in_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    for call in range(3):
        x = torch.randn(3, 3).requires_grad_(call == 1)
        same(outcome(compiled, x), outcome(program, x), tolerance=1e-5, strides=False)


def drawing(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.rand(3, generator=generator)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_entry_serves_many_generators(backend: str) -> None:
    compiled = flambeau.compile(drawing, backend=backend, fullgraph=True)
    for seed in range(3):
        one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
        x = torch.randn(3, 3)
        torch.testing.assert_close(compiled(x, one), drawing(x, other))
        assert torch.equal(one.get_state(), other.get_state())
    assert kinds(compiled) == ["capture"]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=self.generator)
        return self.linear(x + noise).relu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_with_a_generator_trains(backend: str) -> None:
    model, twin = Noisy(), Noisy()
    twin.load_state_dict(model.state_dict())
    compiled = flambeau.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3)
        for each in (compiled, twin):
            each(x).square().sum().backward()
        for got, want in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
    assert torch.equal(model.generator.get_state(), twin.generator.get_state())


def mapped(x: torch.Tensor) -> torch.Tensor:
    def seeding(row: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return row + torch.rand(3)

    return torch.vmap(seeding, randomness="same")(x)


def test_a_seed_inside_a_transform_is_left_to_eager() -> None:
    compiled = flambeau.compile(mapped, backend="aot_eager")
    x = torch.randn(2, 3)
    same(outcome(compiled, x), outcome(mapped, x), tolerance=1e-5, strides=False)
    (broken,) = flambeau.explain(compiled).breaks
    assert broken.id == "higher-order-operator"


def test_a_seed_that_nobody_set_needs_the_whole_graph() -> None:
    compiled = flambeau.compile(asks_for_seeds, backend="eager")
    x = torch.randn(3, 3)
    same(outcome(compiled, x), outcome(asks_for_seeds, x), tolerance=1e-5, strides=False)
    assert flambeau.explain(compiled).breaks[0].id == "data-dependent"


def drawing_and_failing(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    y = x + torch.rand(3, generator=generator)
    torch.manual_seed(5)
    try:
        return y[torch.full((1,), 9)]
    except IndexError:
        return y + torch.rand(3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_raises_has_drawn_once(backend: str) -> None:
    compiled = flambeau.compile(drawing_and_failing, backend=backend, fullgraph=True)
    for seed in range(2):
        x = torch.randn(3, 3)
        want, got = (
            outcome(program, x, torch.Generator().manual_seed(seed))
            for program in (drawing_and_failing, compiled)
        )
        same(got, want, tolerance=1e-5, strides=False)


LAYOUTS = {
    "rows": lambda: torch.zeros(6, 8),
    "columns": lambda: torch.zeros(8, 6).t(),
    "gaps": lambda: torch.zeros(6, 16)[:, ::2],
    "part of each row": lambda: torch.zeros(6, 8)[:, 2:7],
    "columns with gaps": lambda: torch.zeros(16, 6)[::2].t(),
    "few with gaps": lambda: torch.zeros(3, 8)[:, ::2],
    "channels last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["normal_", "uniform_", "bernoulli_", "exponential_", "random_"])
def test_draws_in_place_are_eagers_in_every_layout(name: str, layout: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return getattr(x, name)()

    results = []
    for function in (program, flambeau.compile(program, backend="aot_eager")):
        torch.manual_seed(1)
        results.append((function(LAYOUTS[layout]()), torch.get_rng_state()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
