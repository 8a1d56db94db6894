"""Draws inside kernels, without a GPU: the CPU is taken for one, with a generator that counts.

The numbers are those of eager's kernels on such a device, computed from their formula; tests/gpu
compares with eager itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flambeau
from flambeau_prims.decompositions import random
from flambeau_prims.gpu_draws import GpuFacts
from flambeau_prims.philox import random_member, random_words
from flambeau_runtime import random_state

SEED = 2**64 - 5
FACTS = GpuFacts(multiprocessors=2, threads=512)
CPU = torch.device("cpu")


class Generators(dict):
    """In place of torch's: the generator of one GPU."""

    def __init__(self) -> None:
        self.offset = 40
        self[0] = self

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def initial_seed(self) -> int:
        return SEED


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Generators]:
    """A CPU that draws as a GPU with these facts."""
    made = Generators()
    monkeypatch.setattr(torch.cuda, "default_generators", made)
    monkeypatch.setattr(random, "gpu_facts", lambda device: FACTS)
    monkeypatch.setattr(random_state, "device_index", lambda device: 0)
    yield made


def uniform(offset: int, shape: tuple[int, ...], pattern: str = "strided") -> torch.Tensor:
    """Numbers in (0, 1], as eager's kernels make them of one word each."""
    numel = torch.Size(shape).numel()
    threads = 256 * min(FACTS.blocks, -(-numel // 256))
    state = torch.tensor([SEED - 2**64, offset])
    words = random_words(state, shape, threads, pattern, 0, CPU)
    return words.float() * 2.0**-32 + 2.0**-33


def compiled(function, **options):
    return flambeau.compile(function, fullgraph=True, **options)


def native(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.native_dropout(x, p, True)[0]


@pytest.mark.parametrize("shape", [(1,), (7,), (255,), (33, 77), (4, 1024, 3)])
def test_uniform_numbers(generator: Generators, shape: tuple[int, ...]) -> None:
    draw = compiled(lambda x: torch.empty_like(x).uniform_())
    for _ in range(3):
        offset = generator.offset
        expected = uniform(offset, shape)
        expected[expected == 1] = 0
        assert torch.equal(draw(torch.empty(shape)), expected)
        turns = -(-torch.Size(shape).numel() // (4 * 1024))
        assert generator.offset == offset + 4 * turns


def test_numbers_of_a_permuted_tensor_are_drawn_in_the_order_of_memory(
    generator: Generators,
) -> None:
    drawn = compiled(lambda x: torch.empty_like(x).uniform_())(torch.empty(5, 8).t())
    assert torch.equal(drawn.t(), uniform(40, (5, 8)))


@pytest.mark.parametrize(
    ("shape", "dtype", "pattern"),
    [
        ((64, 32), torch.float32, "adjacent4"),
        ((64, 32), torch.bfloat16, "adjacent8"),
        ((4, 25), torch.bfloat16, "adjacent4"),
        ((6, 5), torch.float32, "adjacent2"),
        ((3, 77), torch.float32, "strided"),
        ((8, 32), torch.float64, "adjacent2"),
    ],
)
def test_dropout(
    generator: Generators, shape: tuple[int, ...], dtype: torch.dtype, pattern: str
) -> None:
    x = torch.randn(shape, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    keep = torch.tensor(0.7, dtype=torch.float64).to(wide)
    mask = uniform(40, shape, pattern).to(wide) < keep
    expected = (x.to(wide) * mask * (1 / keep.double()).to(wide)).to(dtype)
    assert torch.equal(compiled(native)(x, 0.3), expected)


@pytest.mark.parametrize("part", [slice(None), slice(4, None)], ids=["whole", "a view"])
def test_dropout_is_not_compiled_for_the_offset_of_its_first_argument(
    generator: Generators, part: slice
) -> None:
    function = compiled(lambda x: native(x[part], 0.3))
    function(torch.randn(65)[1:])  # not aligned: eager's kernel draws for it
    x, offset = torch.randn(64), generator.offset
    mask = uniform(offset, x[part].shape, "adjacent4") < 0.7
    expected = (x[part].double() * mask / 0.7).float()
    torch.testing.assert_close(function(x), expected)


def test_a_backward_computes_the_mask_from_the_state(generator: Generators) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return native(torch.sin(x), 0.25).relu()

    x = torch.randn(64, 128, requires_grad=True)
    report = flambeau.explain(program)(x)
    assert "saves 1 tensor (16 bytes)" in str(report)
    generator.offset = 40
    model = compiled(program)
    first, second = model(x), model(x)
    for offset, result in ((48, second), (40, first)):  # two turns of 1,024 threads
        mask = uniform(offset, (64, 128), "adjacent4") < 0.75
        scale = torch.tensor(1 / 0.75)
        sine = x.detach().sin()
        torch.testing.assert_close(result.detach(), (sine * mask * scale).relu())
        (gradient,) = torch.autograd.grad(result.sum(), x)
        expected = torch.where((sine > 0) & mask, x.detach().cos() * scale, 0.0)
        torch.testing.assert_close(gradient, expected)


def test_symbolic_sizes(generator: Generators) -> None:
    draw = compiled(lambda x: torch.empty_like(x).uniform_(), dynamic=True)
    for rows in (3, 50, 301):
        offset = generator.offset
        assert torch.equal(draw(torch.empty(rows, 9)), uniform(offset, (rows, 9)))


def test_draws_of_a_graph_follow_each_other(generator: Generators) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.empty_like(x).uniform_(), torch.bernoulli(x, 0.5), native(x, 0.5)

    x = torch.ones(6, 8)
    one, two, three = compiled(program)(x)
    assert torch.equal(one, uniform(40, (6, 8)))
    assert torch.equal(two, (uniform(44, (6, 8)) < 0.5).float())
    assert torch.equal(three, (uniform(48, (6, 8), "adjacent4") < 0.5).float() * 2)
    assert generator.offset == 52


def test_an_input_that_is_not_aligned_is_drawn_for_by_eager(generator: Generators) -> None:
    model = compiled(lambda x: native(x, 0.5))
    model(torch.ones(8))
    assert generator.offset == 44
    storage = torch.ones(9)
    torch.manual_seed(0)
    expected = native(storage[1:], 0.5)
    torch.manual_seed(0)
    assert torch.equal(model(storage[1:]), expected)
    assert generator.offset == 44


def test_integers(generator: Generators) -> None:
    drawn = compiled(lambda: torch.randint(-3, 9, (50,)))()
    state = torch.tensor([SEED - 2**64, 40])
    assert torch.equal(drawn, random_words(state, (50,), 256, "strided", 0, CPU) % 12 - 3)


def test_numbers_between_bounds(generator: Generators) -> None:
    drawn = compiled(lambda: torch.empty(5000).uniform_(-2.3, 5.1))()
    start, end = torch.tensor(-2.3), torch.tensor(5.1)
    exact = uniform(40, (5000,)).double() * (end - start).double() + start.double()
    assert torch.equal(drawn, exact.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_to_the_end_is_the_start(generator: Generators, dtype: torch.dtype) -> None:
    both = compiled(lambda: (torch.empty(5000, dtype=dtype).uniform_(), torch.zeros(1)))
    wide = compiled(lambda: torch.empty(5000, dtype=dtype).uniform_().float())
    expected = uniform(40, (5000,)).to(dtype)
    assert (expected == 1).any()
    expected[expected == 1] = 0
    assert torch.equal(both()[0], expected)
    generator.offset = 40
    assert torch.equal(wide(), expected.float())


def test_numbers_like_another_tensors_are_those_of_the_fills(generator: Generators) -> None:
    x = torch.empty(7, 30).t()
    like = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x)))
    filled = compiled(lambda x: (torch.empty_like(x).uniform_(), torch.empty_like(x).normal_()))
    start = generator.offset
    got = like(x)
    end, generator.offset = generator.offset, start
    for one, want in zip(got, filled(x), strict=True):
        assert one.stride() == want.stride()
        assert torch.equal(one, want)
    assert generator.offset == end > start


def test_normal_numbers(generator: Generators) -> None:
    first, second = compiled(lambda: (torch.randn(6000), torch.empty(60, 100).normal_(1.5, 0.25)))()
    for drawn, offset, mean, std in ((first, 40, 0.0, 1.0), (second, 48, 1.5, 0.25)):
        state, shape = torch.tensor([SEED - 2**64, offset]), (6000,)
        radius, angle = (
            random_words(state, shape, 1024, "strided_pairs", word, CPU).double() * 2.0**-32
            + 2.0**-33
            for word in range(2)
        )
        is_first = random_member(shape, 1024, "strided_pairs", CPU) == 0
        turn = 2 * torch.pi * angle
        side = torch.where(is_first, turn.sin(), turn.cos())
        expected = (-2 * radius.log()).sqrt() * side * std + mean
        torch.testing.assert_close(drawn.flatten().double(), expected, rtol=1e-5, atol=1e-5)
    assert generator.offset == 56


def test_exponential_numbers(generator: Generators) -> None:
    drawn = compiled(lambda: torch.empty(5000).exponential_(1.7))()
    torch.testing.assert_close(drawn, -uniform(40, (5000,)).log() / 1.7)


def test_a_given_generator_draws_itself(generator: Generators) -> None:
    own = torch.Generator().manual_seed(3)
    expected = torch.empty(7).uniform_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(compiled(lambda: torch.empty(7).uniform_(generator=own))(), expected)
    assert generator.offset == 40
