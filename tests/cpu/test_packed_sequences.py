"""Packed sequences and recurrent networks on them: one graph, beside eager, with gradients."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)
from torch.utils import _pytree as pytree

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Tagger(nn.Module):
    """Embedding, recurrent network on packed rows, projection."""

    def __init__(self, network: nn.Module, width: int, **options: Any) -> None:
        super().__init__()
        self.network, self.options = network, options
        self.batch_first = network.batch_first
        self.out = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, lengths: Any) -> Any:
        x = x if self.batch_first else x.transpose(0, 1)
        packed = pack_padded_sequence(
            x.tanh(), lengths, batch_first=self.batch_first, enforce_sorted=False
        )
        out, state = self.network(packed)
        padded, found = pad_packed_sequence(out, batch_first=self.batch_first, **self.options)
        return self.out(padded).relu(), found, state


MODULES: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Tagger(nn.LSTM(4, 5, batch_first=True), 5),
    "lstm_time_first": lambda: Tagger(nn.LSTM(4, 5), 5, padding_value=-1.5),
    "lstm_projected": lambda: Tagger(nn.LSTM(4, 5, batch_first=True, proj_size=2), 2),
    "gru_of_two_directions": lambda: Tagger(
        nn.GRU(4, 5, 2, batch_first=True, bidirectional=True), 10, total_length=9
    ),
    "rnn_tanh": lambda: Tagger(nn.RNN(4, 5, batch_first=True, bias=False), 5, total_length=7),
    "rnn_relu": lambda: Tagger(nn.RNN(4, 5, nonlinearity="relu"), 5),
}
LENGTHS = ((5, 2, 7), (1, 1, 1), (3, 7, 4), (7, 6, 5))


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def same(found: Any, want: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(want)
    for ours, theirs in zip(leaves(found), leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad


def compiled_whole(function: Any, **options: Any) -> Any:
    return flambeau.compile(function, fullgraph=True, **options)


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_networks(name: str, fullgraph: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    twin = copy.deepcopy(module)
    compiled = flambeau.compile(twin, fullgraph=fullgraph)
    for lengths in LENGTHS:
        given = torch.tensor(lengths)
        x = torch.randn(3, 7, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        want, found = module(x, given), compiled(y, given)
        same(found, want)
        for result in (want, found):
            (result[0].square().sum() + sum(leaf.sum() for leaf in leaves(result[2]))).backward()
        torch.testing.assert_close(y.grad, x.grad)
        for (key, ours), theirs in zip(twin.named_parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, msg=key)
    events = [event for _, event in report_of(compiled).arrivals]
    assert "capture" in [event.kind for event in events]
    assert not [event for event in events if event.kind == "break"]


def unsorted(x: torch.Tensor, lengths: Any) -> Any:
    packed = pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
    return packed.data.sin(), packed


def sorted_rows(x: torch.Tensor, lengths: Any) -> Any:
    packed = pack_padded_sequence(x * 2, lengths, batch_first=True)
    return pad_packed_sequence(packed, padding_value=3.0)


def of_list(x: torch.Tensor, lengths: Any) -> Any:
    packed = pack_sequence([x[0, :2], x[1], x[2, :1]], enforce_sorted=False)
    return [row.cos() for row in unpack_sequence(packed)]


def of_constants(x: torch.Tensor, lengths: Any) -> Any:
    packed = pack_padded_sequence(x, [7, 4, 1], batch_first=True)
    return pad_packed_sequence(packed, batch_first=True, total_length=8)[0] + 1


def rows_beside(x: torch.Tensor, lengths: Any) -> Any:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    scaled = PackedSequence(packed.data * 3, packed.batch_sizes, *packed[2:])
    return pad_packed_sequence(scaled, batch_first=True)[0].sum(1)


@pytest.mark.parametrize("function", [unsorted, of_list, of_constants, rows_beside])
@pytest.mark.parametrize("kind", ["tensor", "list", "int32"])
def test_packing(function: Any, kind: str) -> None:
    compiled = compiled_whole(function)
    for lengths in LENGTHS:
        given: Any = list(lengths)
        if kind != "list":
            given = torch.tensor(lengths, dtype=torch.int64 if kind == "tensor" else torch.int32)
        x = torch.randn(3, 7, 2, 2, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        want, found = function(x, given), compiled(y, given)
        same(found, want)
        assert [type(part) for part in want] == [type(part) for part in found]
        for result in (want, found):
            sum(leaf.square().sum() for leaf in leaves(result) if leaf.requires_grad).backward()
        torch.testing.assert_close(y.grad, x.grad)


def test_sorted_rows() -> None:
    compiled = compiled_whole(sorted_rows)
    for lengths in ((7, 7, 2), (3, 2, 1), (1, 1, 1)):
        x = torch.randn(3, 7, 2)
        same(compiled(x, torch.tensor(lengths)), sorted_rows(x, torch.tensor(lengths)))


WRONG = {
    "unsorted": torch.tensor([2, 3, 1]),
    "zero": torch.tensor([3, 1, 0]),
    "too_long": torch.tensor([9, 1, 1]),
    "too_few": torch.tensor([3, 2]),
    "matrix": torch.tensor([[3, 2, 1]]),
    "floats": torch.tensor([3.5, 2.0, 1.0]),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_lengths_raise_as_eagerly(name: str, first: bool) -> None:
    compiled = flambeau.compile(sorted_rows)
    x = torch.randn(3, 7, 2)
    if not first:
        compiled(x, torch.tensor([5, 2, 1]))
    try:
        want: Any = sorted_rows(x, WRONG[name])
    except Exception as error:
        want = type(error), str(error)
    try:
        found: Any = compiled(x, WRONG[name])
    except Exception as error:
        found = type(error), str(error)
    if isinstance(want[0], torch.Tensor):
        same(found, want)
    else:
        assert found == want


def with_state(network: nn.Module) -> Any:
    def function(packed: PackedSequence, *state: torch.Tensor) -> Any:
        out, last = network(packed, state if len(state) > 1 else state[0])
        return out, last

    return function


def packed(lengths: list[int]) -> PackedSequence:
    return pack_padded_sequence(
        torch.randn(len(lengths), 7, 4), lengths, batch_first=True, enforce_sorted=False
    )


def test_given_packed_sequences_and_states() -> None:
    for network, count in ((nn.LSTM(4, 5), 2), (nn.GRU(4, 5), 1)):
        function = with_state(network)
        compiled = compiled_whole(function)
        for lengths in ([3, 7, 4], [1, 2, 1], [7, 7]):
            rows = packed(lengths)
            state = [torch.randn(1, len(lengths), 5) for _ in range(count)]
            same(compiled(rows, *state), function(rows, *state))
        rows = packed([2, 3])
        with pytest.raises(RuntimeError) as want:
            function(rows, *[torch.randn(1, 2, 6)] * count)
        with pytest.raises(RuntimeError) as found:
            flambeau.compile(function)(rows, *[torch.randn(1, 2, 6)] * count)
        assert str(found.value) == str(want.value)


def test_dropout_between_layers_draws_as_eagerly() -> None:
    module = Tagger(nn.LSTM(4, 5, 3, batch_first=True, dropout=0.5), 5)
    x, lengths = torch.randn(3, 7, 4), torch.tensor([5, 2, 7])
    compiled = compiled_whole(module)
    torch.manual_seed(1)
    want = module(x, lengths)
    torch.manual_seed(1)
    same(compiled(x, lengths), want)
    assert torch.rand(()) is not None


def test_half_precision_and_no_grad() -> None:
    module = Tagger(nn.GRU(4, 5, batch_first=True), 5).double()
    x, lengths = torch.randn(3, 7, 4, dtype=torch.float64), torch.tensor([5, 2, 7])
    compiled = compiled_whole(module)
    with torch.no_grad():
        same(compiled(x, lengths), module(x, lengths))
    with torch.inference_mode():
        torch.testing.assert_close(leaves(compiled(x, lengths)), leaves(module(x, lengths)))
