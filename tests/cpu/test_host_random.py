"""Random numbers of the host (`random`, `numpy.random`) under compile: values, streams and states
are eager's, and no value makes another entry.

Every program draws in one graph, without a break, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import random
import unittest.mock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import flambeau
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKENDS = ("eager", "aot_eager", "inductor")
OWN = random.Random()
STATE = np.random.RandomState()
RNG = np.random.default_rng()


def a_float(x: torch.Tensor) -> Any:
    return x * random.random()


def interleaved(x: torch.Tensor) -> Any:
    y = (x * 2).sin() + random.random()
    z = torch.rand(3) + random.randint(2, 9)
    w = np.random.uniform(0, 1)
    return (y * w + z).cos(), w, torch.rand(2), np.random.rand(), random.random()


def ints(x: torch.Tensor) -> Any:
    n = random.randint(2, 3)
    numbers = random.getrandbits(8), random.randrange(10), random.randrange(1, 10, 3)
    return x[:n] * n, n, numbers, np.random.randint(5), np.random.randint(-3, 8), 2 * n + 1


def arrays(x: torch.Tensor) -> Any:
    a = np.random.rand(3, 4)
    b = np.random.choice(np.arange(21), 3, replace=False)
    c = np.random.choice(np.arange(4) * 2.0, 2, p=np.array([0.1, 0.2, 0.3, 0.4]))
    d = np.random.normal(1.0, 2.0, size=(2, 3)) + np.random.randn(3)
    e = np.random.permutation(6), np.random.permutation(np.arange(8).reshape(4, 2))
    f = np.random.randint(0, 5, (3,), dtype=np.int32), np.random.choice(5, 2), np.random.choice(9)
    return torch.from_numpy(a).sum() + x.sum(), a * 2, b + 1, c, d, e, f


def of_given_arrays(x: torch.Tensor) -> Any:
    given = x.detach().numpy()
    return (
        x * 2,
        np.random.normal(given, 1.0),
        np.random.permutation(given),
        np.random.choice(given, 2),
    )


def of_dynamic_sizes(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return x + torch.from_numpy(np.random.rand(n)), np.random.permutation(n), RNG.random((2, n))


def of_random_sizes(x: torch.Tensor) -> Any:
    n = random.randint(2, 5)
    return np.random.rand(n) + 1, np.random.choice(np.arange(9), n, replace=False), x * n


def distributions(x: torch.Tensor) -> Any:
    own = [
        OWN.gauss(0, 1),
        OWN.uniform(1, 2),
        OWN.expovariate(2),
        OWN.betavariate(1, 2),
        OWN.triangular(),
    ]
    own += [
        OWN.normalvariate(0, 1),
        OWN.gammavariate(1, 2),
        OWN.vonmisesvariate(0, 4),
        OWN.random(),
    ]
    theirs = [
        STATE.gamma(2.0),
        STATE.poisson(3),
        STATE.binomial(10, 0.5),
        RNG.exponential(),
        RNG.standard_normal(),
    ]
    return own, theirs, x * own[0]


def own_generators(x: torch.Tensor) -> Any:
    drawn = (
        OWN.random(),
        OWN.randint(1, 6),
        RNG.integers(5),
        RNG.integers(2, 9, size=3),
        STATE.randn(2),
    )
    return (
        drawn,
        RNG.normal(size=(2,), loc=x.shape[0]),
        RNG.choice(7, 3),
        RNG.random(dtype=np.float32),
    )


def in_loops_and_calls(x: torch.Tensor) -> Any:
    def step(y: torch.Tensor) -> torch.Tensor:
        return y * random.random() + np.random.rand()

    for _ in range(4):
        x = step(x)
    return x, [random.random() for _ in range(3)]


def unused(x: torch.Tensor) -> Any:
    random.random()
    np.random.rand(3)
    RNG.integers(7)
    return x + 1


def only_draws(x: torch.Tensor) -> Any:
    return random.random(), np.random.rand(2)


def items(x: torch.Tensor) -> Any:
    epsilon = np.random.rand(1).item()
    spans = int(0.5 * 49 / 10 + epsilon)
    return x * epsilon, spans, max(spans, 2), round(epsilon * 10), np.random.rand(2)[1] + 1


def known_comparisons(x: torch.Tensor) -> Any:
    if random.random() < 0.0 or np.random.uniform(0, 1) >= 1 or random.uniform(2, 3) < 1.5:
        return x - 1
    return x + 1


def shuffled(x: torch.Tensor) -> Any:
    a = np.arange(6) + x.shape[0]
    np.random.shuffle(a)
    b = np.ones((3, 2)).cumsum(0)
    RNG.shuffle(b)
    return a, b, x * 2


def seeded(x: torch.Tensor) -> Any:
    random.seed(3)
    np.random.seed(4)
    STATE.seed(5)
    a, order, c = random.random(), np.random.permutation(5)[:2], np.random.rand()
    if a < 0.5 and order[0] >= 0 and STATE.randint(10) < 20:
        x = x + 1
    return x * a, order, c, np.random.rand(x.shape[0]), random.random()


def seeded_by_drawing(x: torch.Tensor) -> Any:
    random.seed(random.getrandbits(16))
    return x * random.random(), random.random()


def made_inside(x: torch.Tensor) -> Any:
    rng, state, own = np.random.default_rng(3), np.random.RandomState(2), random.Random(1)
    drawn = x * own.random(), rng.normal(size=2), state.rand(), own.random(), own.sample("abcde", 2)
    return drawn, own, [own, rng.permutation(3)]


def choices_of_numbers(x: torch.Tensor) -> Any:
    order = [3, 1, 4, 1, 5]
    random.shuffle(order)
    scales = random.choices([0.5, 1.0, 2.0], k=3), random.choices(range(9), [1] * 9, k=2)
    first = random.choice([0.25, 0.5]) * random.choice((3, 4))
    signs = [random.choice([1.0, -1.0]) == 1.0 for _ in range(8)]
    return (
        x * first + order[0],
        signs,
        order,
        scales,
        OWN.sample(range(20), 4),
        random.choice(range(5)),
    )


def without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        noise = torch.rand(3) * random.random()
    return x + noise * np.random.rand()


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    a_float,
    interleaved,
    ints,
    arrays,
    of_given_arrays,
    of_dynamic_sizes,
    of_random_sizes,
    distributions,
    own_generators,
    in_loops_and_calls,
    unused,
    only_draws,
    items,
    known_comparisons,
    shuffled,
    seeded,
    seeded_by_drawing,
    without_gradients,
    made_inside,
    choices_of_numbers,
]


# ---------------------------------------------------------------- with graph breaks


def broken(x: torch.Tensor) -> Any:
    p, k = random.random(), random.randint(2, 9)
    y = x * p
    flambeau.compiler.graph_break()
    return y + p * k, np.random.rand() * p, k


def broken_below(x: torch.Tensor) -> Any:
    q = np.random.rand()
    numbers = [random.random() for _ in range(3)]

    def inner(y: torch.Tensor) -> torch.Tensor:
        p = random.random()
        flambeau.compiler.graph_break()
        return y * p + torch.rand(3)

    y = inner(x) * q
    flambeau.compiler.graph_break()
    return y * q, numbers, random.random()


def choosing(x: torch.Tensor) -> Any:
    order = [1, 2, 3, 4]
    random.shuffle(order)
    return x * random.random(), order, random.choice("abc"), random.sample(range(9), 3)


def choosing_objects(x: torch.Tensor) -> Any:
    functions = [torch.sin, torch.cos, torch.tanh]
    random.shuffle(functions)
    many = list(range(100))
    random.shuffle(many)
    return functions[0](x) * random.choice([1, 2.5, 3]), many, random.sample(many, 90)


def reading_states(x: torch.Tensor) -> Any:
    first = random.random()
    state = random.getstate()
    second = random.random()
    random.setstate(state)
    theirs = np.random.get_state()
    third = np.random.rand()
    np.random.set_state(theirs)
    return (
        x * first,
        second,
        random.random() == second,
        third,
        RNG.random(),
        RNG.bit_generator.state,
    )


def made_of_nothing(x: torch.Tensor) -> Any:
    np.random.default_rng().normal(), np.random.RandomState().rand(), random.Random().random()
    return x * np.random.default_rng([1, random.randint(1, 5)]).random()


def reading_attributes(x: torch.Tensor) -> Any:
    return (
        x * OWN.gauss(0, 1),
        OWN.gauss_next,
        RNG.random(),
        RNG.bit_generator.state,
        OWN.gauss(0, 1),
    )


BREAKING: list[Callable[[torch.Tensor], Any]] = [
    broken,
    broken_below,
    choosing,
    choosing_objects,
    reading_states,
    reading_attributes,
    made_of_nothing,
]


# ---------------------------------------------------------------- comparison with eager


def states() -> list[Any]:
    numpys = [
        np.random.get_state(legacy=False),
        STATE.get_state(legacy=False),
        RNG.bit_generator.state,
    ]
    return [
        *parts(random.getstate()),
        *parts(OWN.getstate()),
        *parts(numpys),
        torch.get_rng_state(),
    ]


def set_states(seed: int) -> None:
    random.seed(seed)
    OWN.seed(seed + 1)
    np.random.seed(seed)
    STATE.seed(seed + 1)
    RNG.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    torch.manual_seed(seed)


def parts(value: Any) -> Iterator[Any]:
    if isinstance(value, random.Random):
        value = value.getstate()
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from parts(item)
    else:
        yield value


def outcome(program: Callable[..., Any], seed: int, *args: Any) -> tuple[list[Any], list[Any]]:
    """What a call gives, and the generators' states afterwards."""
    set_states(seed)
    return list(parts(program(*args))), states()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_and_one_entry(program: Any, fullgraph: bool, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=fullgraph)
    for seed in range(4):
        x = torch.randn(3)
        same(outcome(compiled, seed, x), outcome(program, seed, x))
    assert kinds(compiled) == ["capture"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", BREAKING, ids=lambda program: program.__name__)
def test_split_graphs(program: Any, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend)
    for seed in range(4):
        x = torch.randn(3)
        same(outcome(compiled, seed, x), outcome(program, seed, x))


@pytest.mark.parametrize("program", [broken, broken_below], ids=lambda program: program.__name__)
def test_numbers_that_live_across_a_break_make_no_entries(program: Any) -> None:
    compiled = flambeau.compile(program, backend="eager")
    for seed in range(5):
        x = torch.randn(3)
        same(outcome(compiled, seed, x), outcome(program, seed, x))
    assert "recompile" not in kinds(compiled)


def test_sizes_may_change() -> None:
    compiled = flambeau.compile(of_dynamic_sizes, backend="inductor", fullgraph=True)
    for seed, size in enumerate((3, 5, 8, 9)):
        x = torch.randn(size)
        same(outcome(compiled, seed, x), outcome(of_dynamic_sizes, seed, x))
    assert kinds(compiled) == ["capture", "recompile"]


# ---------------------------------------------------------------- generators that are given


def drawing(x: torch.Tensor, own: random.Random, rng: np.random.Generator) -> Any:
    return x * own.random() + own.randint(1, 5), rng.random(), rng.normal(size=3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_entry_serves_many_generators(backend: str) -> None:
    compiled = flambeau.compile(drawing, backend=backend, fullgraph=True)
    for seed in range(3):
        x = torch.randn(3)
        given = [(random.Random(seed), np.random.default_rng(seed)) for _ in range(2)]
        got, want = compiled(x, *given[0]), drawing(x, *given[1])
        same((list(parts(got)), []), (list(parts(want)), []))
        assert given[0][0].getstate() == given[1][0].getstate()
        assert given[0][1].bit_generator.state == given[1][1].bit_generator.state
    assert kinds(compiled) == ["capture"]


def by_function(x: torch.Tensor, draw: Callable[[], float]) -> torch.Tensor:
    return x * draw()


def test_functions_that_draw_are_told_apart() -> None:
    compiled = flambeau.compile(by_function, backend="eager")
    functions = [random.random, np.random.rand, np.random.randn, RNG.random, RNG.normal, OWN.random]
    for draw in [*functions, *functions]:
        x = torch.randn(3)
        same(outcome(compiled, 1, x, draw), outcome(by_function, 1, x, draw))


class Loaded(random.Random):
    """A die with a side."""

    def random(self) -> float:
        return super().random() * 0.5


@pytest.mark.parametrize("own", [Loaded(1), random.SystemRandom()], ids=["subclass", "system"])
def test_generators_of_other_classes(own: random.Random) -> None:
    compiled = flambeau.compile(
        lambda x: (x * 0 + own.random(), own.uniform(1, 2)), backend="eager"
    )
    for _ in range(3):
        state = None if isinstance(own, random.SystemRandom) else own.getstate()
        got, number = compiled(torch.ones(2))
        assert 0 <= got[0] < 1 and 1 <= number <= 2
        if state is not None:
            after = own.getstate()
            own.setstate(state)
            assert got[0] == torch.tensor(own.random()) and number == own.uniform(1, 2)
            assert own.getstate() == after


# ---------------------------------------------------------------- errors


def reading_at(x: torch.Tensor, i: torch.Tensor) -> Any:
    r = random.random()
    noise = torch.from_numpy(np.random.rand(3)) + RNG.random() + STATE.rand() + OWN.gauss(0, 1)
    return x[i] * r + torch.rand(3) * noise.sum(), np.random.rand()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_raises_draws_once(backend: str) -> None:
    compiled = flambeau.compile(reading_at, backend=backend, fullgraph=True)
    for seed in range(2):
        good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 7, 2])
        x = torch.randn(3)
        same(outcome(compiled, seed, x, good), outcome(reading_at, seed, x, good))
        found = []
        for program in (compiled, reading_at):
            set_states(seed)
            with pytest.raises(IndexError):
                program(x, bad)
            found.append(states())
        same((found[0], []), (found[1], []))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.randint(5, 3),
        lambda: random.uniform(1),  # type: ignore[call-arg]
        lambda: np.random.choice(np.arange(3), 5, replace=False),
        lambda: np.random.rand(-1),
        lambda: random.seed([]),
        lambda: np.random.seed(-1),
    ],
)
def test_errors_are_eagers(draw: Callable[[], Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        return x, draw()

    with pytest.raises((ValueError, TypeError)) as want:
        program(torch.ones(2))
    with pytest.raises(want.type) as got:
        flambeau.compile(program, backend="eager")(torch.ones(2))
    assert str(got.value) == str(want.value)


# ---------------------------------------------------------------- training


class Noisy(nn.Module):
    """Noise, a random scale and random places, as augmentations have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.embed = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = np.zeros((5, 3), dtype=bool)
        places = np.random.choice(np.arange(3), 2, replace=False)
        mask[:, places] = True
        y = self.linear(x).relu() * random.random()
        y[torch.tensor(mask)] = self.embed
        return self.linear(y + torch.rand(4) * np.random.uniform(0, 1)) ** 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend: str) -> None:
    model, twin = Noisy(), Noisy()
    twin.load_state_dict(model.state_dict())
    compiled = flambeau.compile(model.forward, backend=backend, fullgraph=True)
    for seed in range(3):
        x = torch.randn(5, 3, 4)
        results = []
        for each, plain in ((compiled, model), (twin, twin)):
            set_states(seed)
            each(x).sum().backward()
            results.append((states(), [parameter.grad for parameter in plain.parameters()]))
        same((results[0][0], []), (results[1][0], []))
        for one, other in zip(results[0][1], results[1][1], strict=True):
            torch.testing.assert_close(one, other)
    assert kinds(compiled) == ["capture"]


# ---------------------------------------------------------------- branches on what was drawn


def layer_drop(x: torch.Tensor) -> Any:
    kept = []
    for layer in range(3):
        if np.random.uniform(0, 1) < 0.5:
            continue
        x = (x * (layer + 2) + torch.rand(3)) * random.random()
        kept.append(layer)
    return x, kept


def by_a_die(x: torch.Tensor) -> Any:
    side = random.randint(1, 3)
    if side == 1:
        return x + 1, OWN.random()
    if side == 2 and RNG.random() < 0.5:
        return x - torch.rand(3), np.random.rand()
    return [x * 2] * side, random.random()


def until_it_is_small(x: torch.Tensor) -> Any:
    tries = 0
    while random.random() > 0.4:
        x, tries = x + np.random.rand(), tries + 1
    return x, tries


def of_arrays(x: torch.Tensor) -> Any:
    places = np.random.choice(np.arange(8), 3, replace=False)
    if places.max() > 6:
        places[places > 6] = 6
    return x * torch.tensor(places), places[0] in (1, 2), int(RNG.integers(3)) + 1


def out_of_bounds(x: torch.Tensor) -> Any:
    at = random.randint(0, 3)
    try:
        found: Any = x[at]
    except IndexError as error:
        found = str(error), random.random()
    return found, at


def indexed(x: torch.Tensor) -> Any:
    i, j = random.randint(0, 2), int(np.random.rand() * 3)
    grid = torch.arange(27.0).reshape(3, 3, 3) + x
    grid[i, :, j] = x
    grid[..., j] += 1
    grid[i] = grid[j] * 2
    return grid, grid[i, 1:, None, j], grid[:, i][j], grid[i, j, 0], grid[-1 - i], x[i]


def indexed_beside_new_dims(x: torch.Tensor) -> Any:
    i, j = random.randint(0, 2), int(np.random.rand() * 3)
    grid = torch.arange(81.0).reshape(3, 3, 3, 3) + x
    grid[1, None, i, None, j] += 1
    return (
        grid[None, i], grid[None, 1:, None, i, None, j], grid[..., None, i, None],
        grid[1, ..., None, j], grid[0, None, i, 1, None, j], grid[i, None, ..., None, j, None],
    )  # fmt: skip


def out_of_bounds_beside_new_dims(x: torch.Tensor) -> Any:
    i = random.randint(3, 5)
    try:
        return x.expand(2, 3)[1, None, i]
    except IndexError as error:
        return str(error)


BRANCHING: list[Callable[[torch.Tensor], Any]] = [
    layer_drop,
    by_a_die,
    until_it_is_small,
    of_arrays,
    out_of_bounds,
    indexed,
    indexed_beside_new_dims,
    out_of_bounds_beside_new_dims,
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", BRANCHING, ids=lambda program: program.__name__)
def test_branches(program: Any, fullgraph: bool, backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=fullgraph)
    for seed in range(8):
        x = torch.randn(3)
        same(outcome(compiled, seed, x), outcome(program, seed, x))


def test_replaced_methods_are_called() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * random.gammavariate(1.0, 3.14), random.uniform(0, 8)

    compiled = flambeau.compile(program, backend="eager")
    for draws in ([], [0.5, 0.25], []):
        with (
            unittest.mock.patch("random.Random.random", side_effect=draws * 2)
            if draws
            else (contextlib.nullcontext())
        ):
            random.seed(0)
            wanted = program(torch.ones(2))
            random.seed(0)
            found = compiled(torch.ones(2))
        assert repr(found) == repr(wanted)
    compiled = flambeau.compile(program, backend="eager")
    with unittest.mock.patch("random.Random.random", side_effect=[0.5, 0.25]):
        found = compiled(torch.ones(2))
    assert found[1] == 2.0
