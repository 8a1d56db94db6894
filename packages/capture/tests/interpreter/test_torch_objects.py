"""torch's objects as the interpreter meets them: history, tables of modules, dicts keyed by
tensors, numbers in tensors, modes.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from capture_harness import breaks, check, compiled, same
from torch import nn

import flambeau_capture
from flambeau_capture.interpreter.values.subclasses import is_admitted


def kinds(callable_: Any) -> list[str]:
    return [event.kind for event in flambeau_capture.state_of(callable_).events]


def test_history_is_part_of_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        other = x.detach()
        other.requires_grad = True
        cut = leaf * 2
        cut.detach_()
        return leaf.requires_grad, leaf * 2, other * 3, cut, x.requires_grad_(False) * 2

    check(program, torch.randn(3))


def test_a_flag_of_an_input_is_set_and_guarded() -> None:
    weight = nn.Parameter(torch.ones(3))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * weight
        weight.requires_grad_(False)
        return y + x * weight

    callable_ = compiled(program)
    assert callable_(torch.ones(3)).requires_grad
    assert not weight.requires_grad
    assert not callable_(torch.ones(3)).requires_grad
    assert kinds(callable_) == ["capture", "recompile"]


def test_numbers_kept_in_tensors() -> None:
    def program(p: torch.Tensor, a: torch.Tensor, step: torch.Tensor) -> Any:
        size = 0.1 / (1 - 0.9**step)
        p.addcdiv_(a, a.abs() + 1, value=-size)
        p.add_(a, alpha=size).sub_(a, alpha=size)
        return p.addcmul(a, a, value=size), torch.tensor(2.0).add(step, alpha=torch.tensor(3.0))

    check(program, torch.randn(3), torch.randn(3), torch.tensor(2.0))


def test_a_step_with_a_float_factor_keeps_its_dtype() -> None:
    def program(p: torch.Tensor, factor: torch.Tensor) -> Any:
        return p.add(p, alpha=factor), p.addcmul(p, p, value=factor)

    check(program, torch.tensor(1.5), torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("dtypes", [
    (torch.float32, torch.bfloat16), (torch.float16, torch.float32), (torch.float64, torch.float32),
])  # fmt: skip
def test_factors_in_tensors_multiply_in_the_precision_of_the_call(dtypes: Any) -> None:
    """Eager itself rounds factors of half precision in vectors, and not in what remains of them."""

    def program(p: torch.Tensor, a: torch.Tensor, factor: torch.Tensor) -> Any:
        q = p.clone()
        return q.add_(a, alpha=factor), p.sub(a, alpha=-factor), p.addcmul(a, a, value=factor)

    p, a = (torch.randn(40).to(dtype) for dtype in dtypes)
    for factor in (torch.tensor(0.3), torch.tensor(0.7, dtype=torch.float64)):
        ours, theirs = compiled(program)(p, a, factor), program(p, a, factor)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.dtype is other.dtype
            torch.testing.assert_close(mine, other, rtol=3e-7, atol=1e-7)


def test_an_integer_refuses_a_float_in_a_tensor() -> None:
    def program(p: torch.Tensor, factor: torch.Tensor) -> Any:
        return p.add(p, alpha=factor)

    with pytest.raises(RuntimeError, match="alpha must not be a floating point number"):
        compiled(program, fullgraph=False)(torch.arange(3), torch.tensor(2.5))


def test_functions_of_torch_that_take_objects_are_followed() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        far = nn.functional.triplet_margin_with_distance_loss(
            a, b, a - b, distance_function=nn.PairwiseDistance(), swap=True
        )
        near = nn.functional.triplet_margin_with_distance_loss(
            a, b, a - b, distance_function=lambda x, y: (x - y).abs().sum(-1)
        )
        return far, near

    check(program, torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.skipif(
    not hasattr(nn, "LinearCrossEntropyOptions"), reason="torch before 2.13 has no such options"
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_with_options_is_captured(reduction: str) -> None:
    options = nn.LinearCrossEntropyOptions(allow_retain_graph=True, batch_chunk_size=2)

    def program(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear_cross_entropy(
            x, weight, target, reduction=reduction, options=options
        )

    check(program, torch.randn(5, 4), torch.randn(7, 4), torch.randint(0, 7, (5,)))


def test_functions_of_torch_that_look_at_data_are_followed() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, var: torch.Tensor) -> Any:
        return nn.functional.gaussian_nll_loss(x, y, var)

    args = [torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4)]
    for fullgraph in (False, True):
        callable_ = compiled(program, fullgraph=fullgraph)
        same(callable_(*args), program(*args))
        assert kinds(callable_) == ["capture"]
        with pytest.raises(ValueError, match="var has negative"):
            callable_(*args[:2], -args[2])


def test_packed_sequences_of_any_number_of_lengths() -> None:
    networks = (nn.RNN(4, 6), nn.GRU(4, 6), nn.LSTM(4, 6, bidirectional=True))

    def program(*rows: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_sequence(list(rows), enforce_sorted=False)
        results = [network(packed)[0] for network in networks]
        return [nn.utils.rnn.pad_packed_sequence(result) for result in results]

    callable_ = compiled(program, fullgraph=False, dynamic=None)
    for lengths in ((3, 5), (3, 5), (4, 2), (1, 7)):
        rows = [torch.randn(length, 4) for length in lengths]
        same(callable_(*rows), program(*rows))
    assert "break" not in kinds(callable_)


def test_numpy_scalars() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * numpy.float32(2.0), x + numpy.int64(3), torch.clamp(x, numpy.float64(0))

    check(program, torch.randn(3))


class Descriptor:
    @property
    def broken(self) -> Any:
        raise AttributeError("inside")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 7


def test_a_descriptor_that_raises_falls_to_getattr() -> None:
    check(lambda x, owner: x + owner.broken, torch.ones(2), Descriptor())


class Missing(nn.Module):
    @property
    def broken(self) -> Any:
        return self.absent

    def forward(self, x: torch.Tensor) -> Any:
        try:
            return x + self.broken
        except AttributeError as error:
            return str(error)


def test_a_module_says_what_is_missing_as_eager_does() -> None:
    check(Missing(), torch.ones(2))


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        self.mean = self.mean + 1
        self.other = self.linear
        names = [name for name, _ in self.named_modules()], sorted(self._modules)
        return self._buffers["mean"] + x, names, "mean" in vars(self), "other" in vars(self)


def test_tables_show_what_was_set() -> None:
    ours, theirs = Tables(), Tables()
    theirs.load_state_dict(ours.state_dict())
    callable_ = compiled(ours)
    for _ in range(2):
        x = torch.randn(3)
        got, want = callable_(x), theirs(x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]
    assert list(vars(ours)) == list(vars(theirs))
    assert list(ours._modules) == list(theirs._modules)


def test_a_bound_builtin_is_guarded_by_its_parts() -> None:
    def program(x: torch.Tensor, append: Any) -> torch.Tensor:
        append(1)
        return x + 1

    callable_ = compiled(program)
    for _ in range(3):
        items: list[int] = []
        callable_(torch.ones(2), items.append)
        assert items == [1]
    assert kinds(callable_) == ["capture"]


def test_dicts_of_tensors_are_guarded_in_order() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))

    def program(x: torch.Tensor, table: dict[Any, float]) -> Any:
        return [key * x for key in table], table[first]

    callable_ = compiled(program)
    for table in ({first: 1.0, second: 2.0}, {second: 2.0, first: 1.0}, {first: 1.0, second: 2.0}):
        got, want = callable_(torch.ones(2), table), program(torch.ones(2), table)
        for mine, other in zip(got[0], want[0], strict=True):
            torch.testing.assert_close(mine, other)
        assert got[1] == want[1]
    assert kinds(callable_) == ["capture", "recompile"]


def test_big_dicts_of_tensors_are_read_entry_by_entry() -> None:
    keys = [torch.full((), float(at)) for at in range(200)]
    table = {key: at for at, key in enumerate(keys)}
    stranger = torch.ones(())

    def program(x: torch.Tensor) -> Any:
        return x * table[keys[3]], keys[5] in table, stranger in table, table.get(stranger, -1)

    callable_ = compiled(program)
    for _ in range(2):
        got, want = callable_(torch.ones(2)), program(torch.ones(2))
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]
    table[stranger] = 9
    assert callable_(torch.ones(2))[1:] == (True, True, 9)


def test_parameters_are_made_between_graphs() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return nn.Parameter(x) * 2

    callable_ = compiled(program, fullgraph=False)
    torch.testing.assert_close(callable_(torch.ones(3)), program(torch.ones(3)))
    assert "break" in kinds(callable_)


@pytest.mark.parametrize("program", [
    lambda x: torch.manual_seed(3) and torch.rand(3),
    lambda x: torch.Generator().manual_seed(1).initial_seed() + x,
    lambda x: torch.rand(3, generator=torch.Generator().manual_seed(x.shape[0])),
], ids=["seed", "seed of a generator", "generator"])  # fmt: skip
def test_generators_are_seeded_in_the_graph(program: Any) -> None:
    callable_ = compiled(program)
    for _ in range(2):
        torch.testing.assert_close(callable_(torch.ones(3)), program(torch.ones(3)))
    assert kinds(callable_) == ["capture"]


def test_which_subclasses_are_admitted() -> None:
    class Plain(torch.Tensor):
        pass

    class Dispatching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError

    assert is_admitted(Plain)
    assert not is_admitted(Dispatching)
    assert not is_admitted(nn.UninitializedParameter)


def test_a_tensor_with_an_unknown_kind_of_storage_is_left_alone() -> None:
    found = breaks(lambda x: x * 2, torch.eye(3).to_sparse())
    assert found.id == "unsupported-tensor"


def test_settings_of_torch_backends_are_guarded() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.backends.cudnn.benchmark else x - 1

    callable_ = compiled(program)
    before, x = torch.backends.cudnn.benchmark, torch.randn(3)
    try:
        for setting in (False, True, False):
            torch.backends.cudnn.benchmark = setting
            assert torch.equal(callable_(x), program(x))
    finally:
        torch.backends.cudnn.benchmark = before
    assert kinds(callable_) == ["capture", "recompile"]


def test_settings_of_torch_backends_are_set_between_graphs() -> None:
    def program(x: torch.Tensor) -> Any:
        torch.backends.cudnn.benchmark = True
        return x * 2, torch.backends.cudnn.benchmark

    callable_ = compiled(program, fullgraph=False)
    before = torch.backends.cudnn.benchmark
    try:
        for _ in range(2):
            torch.backends.cudnn.benchmark = False
            assert callable_(torch.ones(2))[1]
            assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before
    assert "benchmark" not in vars(torch.backends.cudnn)
    events = flambeau_capture.state_of(callable_).events
    assert "torch-state" in {event.reason.id for event in events if event.reason is not None}
