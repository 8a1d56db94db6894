"""Sizes and data-dependent numbers: one graph under fullgraph=True, a break by default, the
results eager's in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

import flambeau
from flambeau_capture import CaptureError
from flambeau_capture.compiled import state_of

if TYPE_CHECKING:
    from collections.abc import Callable


def assign_by_mask(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[x > 0] = x[x > 0] * 2
    x[x < -1] = 7.0
    return x


def sizes_of_a_selection(x: torch.Tensor) -> tuple[Any, ...]:
    y = x[x > 0]
    return y.shape[0], y * y.shape[0], len(y) // 2, y.numel() + 1


def numbers(x: torch.Tensor) -> tuple[Any, ...]:
    return (
        x.sum().item(),
        (x > 0).sum().item(),
        (x > 0).any().item(),
        float(x[0, 0]),
        int((x > 1).sum()),
    )


def lists(x: torch.Tensor) -> tuple[Any, ...]:
    values = (x.abs() * 2).long()[0].tolist()
    return [value + 1 for value in values], values, x[:2].tolist()


def split_by_a_count(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = (x[0] > 0).sum().item()
    return x.flatten().split([count, x.numel() - count])


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item of an int": lambda x: x * (x > 0).sum().item(),
    "item of a float": lambda x: x * x.sum().item() + x.max().item() ** 2 / 3,
    "numbers": numbers,
    "lists": lists,
    "zeros": lambda x: torch.zeros((x > 0).sum().item()) + 1,
    "full": lambda x: torch.full(((x > 0).sum().item(), 3), x.max().item()),
    "arange": lambda x: torch.arange((x > 0).sum().item()) * 2,
    "nonzero": lambda x: (x > 0).nonzero() * 2,
    "nonzero as tuple": lambda x: [part * 2 for part in (x > 0).nonzero(as_tuple=True)],
    "argwhere": lambda x: torch.argwhere(x > 0),
    "where of one": lambda x: torch.where(x > 0),
    "where as index": lambda x: x[torch.where(x > 0)],
    "masked_select": lambda x: torch.masked_select(x, x > 0).sin(),
    "mask": lambda x: x[x > 0] + 1,
    "rows by mask": lambda x: x[x[:, 0] > 0].sum(0),
    "mask and int index": lambda x: x[x[:, 0] > 0, 1:],
    "assignment by mask": assign_by_mask,
    "sizes": sizes_of_a_selection,
    "unique": lambda x: torch.unique((x * 2).long()),
    "unique with all": lambda x: torch.unique(
        (x * 2).long(), return_inverse=True, return_counts=True
    ),
    "unique along a dim": lambda x: torch.unique((x * 2).long(), dim=1),
    "unique_consecutive": lambda x: torch.unique_consecutive((x * 2).long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, torch.arange(x.shape[0]), dim=0),
    "bincount": lambda x: torch.bincount((x.abs() * 3).long().flatten(), minlength=2),
    "split": split_by_a_count,
    "cat and softmax": lambda x: torch.cat([x[x > 0], x[x < 0]]).softmax(0),
    "linear": lambda x: F.linear(x[x[:, 0] > 0], torch.ones(7, 5)).relu().sum(),
    "two selections of one size": lambda x: x[x > 0] * x.detach()[x > 0],
    "loop over numbers": lambda x: sum(x[i] * float(x[i, 0]) for i in range(x.shape[0])),
    "layer norm": lambda x: F.layer_norm(x[x[:, 0] > 0], (5,)),
    "views": lambda x: x[x[:, 0] > -9].view(-1).reshape(-1, 5).t().contiguous(),
}


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    one = -torch.rand(4, 5)
    one[1, 2] = 0.5
    layouts = [torch.randn(5, 4).t(), torch.randn(8, 10)[::2, ::2]]
    return [
        torch.randn(4, 5),
        torch.randn(4, 5),
        torch.zeros(4, 5),
        one,
        torch.ones(4, 5),
        *layouts,
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_graphs(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = flambeau.compile(program, fullgraph=True, backend=backend)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    # One for each layout: what the data holds costs nothing.
    assert len(state_of(compiled).entries) <= 3


@pytest.mark.parametrize("name", ["item of an int", "nonzero", "mask", "unique", "lists"])
def test_by_default_the_graph_breaks(name: str) -> None:
    program = PROGRAMS[name]
    compiled = flambeau.compile(program)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_assignment_by_mask_of_a_number_needs_no_size(fullgraph: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[x > 0] = 0.0
        x[x < -1] = x.mean()
        return x

    compiled = flambeau.compile(program, fullgraph=fullgraph)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x))
    assert not [event for event in state_of(compiled).events if event.kind == "break"]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_flow_through_selections(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0] ** 2).sum() + x.masked_select(x < 0).exp().sum() * (x > 0).sum().item()

    compiled = flambeau.compile(program, fullgraph=True, backend=backend)
    for x in inputs():
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).backward()
        program(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("packed", [False, True])
def test_connectionist_temporal_classification(backend: str, packed: bool) -> None:
    def program(logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        known = labels >= 0
        targets = labels.masked_select(known) if packed else labels.clamp(min=1)
        with torch.backends.cudnn.flags(enabled=False):
            return F.ctc_loss(
                logits.log_softmax(-1), targets, lengths, known.sum(-1), zero_infinity=True
            )

    compiled = flambeau.compile(program, fullgraph=True, backend=backend)
    for longest in (4, 3, 6):
        logits, lengths = torch.randn(9, 2, 5), torch.tensor([9, 8])
        labels = torch.randint(1, 5, (2, longest))
        labels[1, longest - 2 :] = -100
        found = []
        for function in (compiled, program):
            own = logits.clone().requires_grad_()
            loss = function(own, labels, lengths)
            loss.backward()
            found.append((loss.detach(), own.grad))
        torch.testing.assert_close(found[0], found[1])


def test_effects_on_objects_with_numbers_of_the_data() -> None:
    seen: dict[str, Any] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        seen["count"], seen["mean"], seen["rows"] = y.shape[0], x.mean().item(), y
        return y + seen["count"]

    compiled = flambeau.compile(program, fullgraph=True)
    for x in inputs():
        got, noted = compiled(x), dict(seen)
        torch.testing.assert_close(got, program(x))
        torch.testing.assert_close(noted, seen)
        assert type(noted["count"]) is int and type(noted["mean"]) is float


def test_a_branch_on_the_data_is_an_error_that_names_the_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if (x > 0).sum().item() > 3:
            return x
        return -x

    with pytest.raises(
        CaptureError, match=r"test_unbacked\.py:\d+: u0 > 3 is asked(.|\n)*torch\._check"
    ):
        flambeau.compile(program, fullgraph=True, options={"speculate": False})(torch.randn(4, 5))
    compiled = flambeau.compile(program)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x))


def test_what_is_checked_decides_branches() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        count = (x > 0).sum().item()
        torch._check(count <= x.numel())
        torch._check_is_size(count)
        if count <= 20 and count >= 0:
            return x + count
        return x - 1

    compiled = flambeau.compile(program, fullgraph=True)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x))


def test_a_check_that_fails_raises() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        count = (x > 0).sum().item()
        torch._check(count < 3)
        return x + 1 if count < 3 else x

    compiled = flambeau.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(torch.zeros(4, 5)), torch.ones(4, 5))
    with pytest.raises(RuntimeError):
        compiled(torch.ones(4, 5))


def test_sizes_that_must_agree_are_checked_as_the_program_runs() -> None:
    compiled = flambeau.compile(lambda x: x[x > 0] + torch.ones(3), fullgraph=True)
    x = torch.zeros(4, 5)
    x[0, :3] = 2.0
    torch.testing.assert_close(compiled(x), torch.full((3,), 3.0))
    with pytest.raises(RuntimeError):
        compiled(torch.ones(4, 5))


def test_dynamic_and_unbacked_sizes_together() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[x[:, 0] > 0]
        return torch.cat([y, x]).sum(1) * y.shape[0] / x.shape[0]

    compiled = flambeau.compile(program, fullgraph=True, dynamic=True)
    for rows in (3, 7, 12, 5):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), program(x))
    assert len(state_of(compiled).entries) == 1


def test_pieces_of_sizes_in_the_data_are_reshaped() -> None:
    """Each piece keeps the strides of the whole, whatever its own size."""

    def program(x: torch.Tensor, counts: torch.Tensor) -> list[torch.Tensor]:
        graph_split = torch.split(x, counts.tolist(), dim=2)
        return [piece.reshape(1, -1, piece.shape[2], 8) for piece in graph_split]

    compiled = flambeau.compile(program, fullgraph=True)
    x = torch.randn(1, 4, 10, 8)
    for counts in ([3, 7], [6, 4], [9, 1]):
        results = compiled(x, torch.tensor(counts))
        for result, expected in zip(results, program(x, torch.tensor(counts)), strict=True):
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()


def test_divisors_in_the_data() -> None:
    """A divisor that nobody has seen is none that is zero; if it is, the program raises as eager
    does.
    """

    def program(x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        height, width = size.tolist()
        return x * (17 % (height - width)) + 9 // (width - height) + 1 / (height // width - 1)

    compiled = flambeau.compile(program, fullgraph=True)
    x = torch.randn(3)
    for size in ([8, 3], [9, 2], [12, 5]):
        torch.testing.assert_close(compiled(x, torch.tensor(size)), program(x, torch.tensor(size)))
    with pytest.raises(ZeroDivisionError):
        compiled(x, torch.tensor([4, 4]))


def test_distances_of_a_selection() -> None:
    """A vector quantiser's: the rows that a mask selects, to the nearest of a codebook."""

    def program(x: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[mask][None], codes[None], p=2)[0].argmin(-1)

    compiled = flambeau.compile(program, fullgraph=True)
    codes = torch.randn(64, 8)
    for rows in (40, 90, 3):
        x, mask = torch.randn(rows, 8), torch.arange(rows) % 3 == 0
        torch.testing.assert_close(compiled(x, mask, codes), program(x, mask, codes))
