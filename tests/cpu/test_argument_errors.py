"""Errors of torch about its arguments, in programs that handle them: kind and text are eager's,
with symbolic sizes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

X, LINE, FIVE = torch.randn(3, 4), torch.randn(9), torch.randn(5)
THREE, GRID = torch.arange(3), torch.randint(0, 3, (3, 4))
BOOLS = X > 0
COMPLEX = torch.randn(3, 4, dtype=torch.complex64)

CALLS: list[Callable[[], Any]] = [
    lambda: torch.zeros(2, -3),
    lambda: torch.ones(-1),
    lambda: torch.eye(-1),
    lambda: X.new_zeros(-2),
    lambda: torch.empty(2, -2),
    lambda: torch.dist(BOOLS, BOOLS),
    lambda: torch.dist(BOOLS, X),
    lambda: torch.dist(GRID, GRID),
    lambda: BOOLS - BOOLS,
    lambda: BOOLS - True,
    lambda: X - BOOLS,
    lambda: torch.rsub(BOOLS, BOOLS),
    lambda: torch.rsub(X, BOOLS),
    lambda: X & X,
    lambda: X | X,
    lambda: X ^ X,
    lambda: X << 1,
    lambda: X >> 1,
    lambda: torch.bitwise_left_shift(X, X),
    lambda: ~X,
    lambda: torch.gcd(X, X),
    lambda: X.clone().__ilshift__(1),
    lambda: torch.bitwise_and(X, 1.5),
    lambda: X.gather(0, THREE),
    lambda: X.gather(0, GRID[:, :, None]),
    lambda: X.scatter(0, THREE, X),
    lambda: X.scatter(0, GRID, FIVE),
    lambda: X.scatter_add(0, THREE[:, None], FIVE),
    lambda: X.scatter(0, THREE, 1.0),
    lambda: X.clone().scatter_(0, THREE, X),
    lambda: X.index_add(0, THREE, FIVE),
    lambda: X.index_add(1, THREE, X),
    lambda: X.index_add(0, GRID, X),
    lambda: X.index_add(0, THREE, X[:, :2]),
    lambda: X.index_copy(0, THREE, FIVE),
    lambda: X.index_fill(0, THREE[None], 1.0),
    lambda: X.clone().index_add_(0, THREE, X[:2]),
    lambda: COMPLEX.clamp(0, 1),
    lambda: COMPLEX.clamp_min(0),
    lambda: torch.clamp_max(COMPLEX, X),
    lambda: torch.clamp(COMPLEX, X, X),
    lambda: torch.clamp(X, COMPLEX),
    lambda: X.clamp(1j),
    lambda: COMPLEX.clone().clamp_(0, 1),
    lambda: COMPLEX.clone().clamp_min_(0),
    lambda: X.clone().clamp_(COMPLEX),
    lambda: COMPLEX.amax(0),
    lambda: COMPLEX.aminmax(),
    lambda: F.glu(FIVE),
    lambda: F.glu(X[:, :3], 1),
    lambda: F.glu(X[:3], -2),
    lambda: torch.bmm(X, X),
    lambda: torch.bmm(X[None], X),
    lambda: torch.baddbmm(X, X, X),
    lambda: torch.mm(LINE, X),
    lambda: torch.mm(X, X),
    lambda: torch.addmm(FIVE, LINE, X),
    lambda: torch.addmm(FIVE, X, LINE),
    lambda: torch.mv(LINE, X),
    lambda: torch.mv(X, X),
    lambda: F.max_pool2d(X, 2),
    lambda: F.max_pool2d(LINE, 2),
    lambda: F.avg_pool3d(X, 2),
    lambda: torch.linalg.inv(LINE),
    lambda: torch.linalg.cholesky(LINE),
    lambda: torch.linalg.qr(LINE),
    lambda: torch.linalg.inv(X),
    lambda: torch.linalg.inv(X.int()),
    lambda: torch.linalg.solve(LINE, LINE),
    lambda: X.tile((-1,)),
    lambda: X.repeat(-1, 2),
    lambda: X.repeat(2, -3),
    lambda: X.masked_fill(FIVE > 0, 0),
    lambda: F.embedding(X, X),
    lambda: F.layer_norm(X, (5,)),
    lambda: F.layer_norm(X, (4,), FIVE),
    lambda: F.group_norm(X, 3),
    lambda: torch.meshgrid(X, X, indexing="ij"),
    lambda: X[5],
    lambda: X[0, 0, 0],
    lambda: X + FIVE,
    lambda: X @ FIVE,
    lambda: X.view(5),
    lambda: X.sum(3),
    lambda: torch.cat([X, FIVE]),
    lambda: X.expand(2, 4),
    lambda: X.split([1, 1]),
    lambda: X.narrow(0, 2, 5),
]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("the call is to raise an error")


def test_texts_are_eagers() -> None:
    for call in CALLS:

        def program(call: Callable[[], Any] = call) -> Any:
            return outcome(call)

        assert flambeau.compile(program, backend="eager")() == program()


SYMBOLIC: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x.view(7),
    lambda x, y: x @ x,
    lambda x, y: torch.cat([x, y]),
    lambda x, y: x.expand(9, -1, 2),
    lambda x, y: x.view(-1, 4)[x.shape[0] * 5],
    lambda x, y: x.split([x.shape[1] + 1, x.shape[0]]),
    lambda x, y: y.unfold(0, x.shape[0] * x.shape[1] * 2, 1),
    lambda x, y: F.linear(x, y[None]),
    lambda x, y: x.as_strided((99,), (1,)),
]


@pytest.mark.parametrize("at", range(len(SYMBOLIC)))
def test_sizes_are_numbers(at: int) -> None:
    """Though they are symbols in the capture; another size has a text of its own."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return outcome(lambda: SYMBOLIC[at](x, y))

    run = flambeau.compile(program, backend="eager", dynamic=True)
    for rows, columns, length in ((2, 4, 7), (3, 4, 9), (2, 4, 7), (5, 8, 3)):
        x, y = torch.randn(rows, columns), torch.randn(length)
        assert run(x, y) == program(x, y)


@pytest.mark.parametrize("bad", [-3, 2, -3_000_000])
def test_an_index_of_an_update_outside_of_its_input(bad: int) -> None:
    """`y` is read after it is written, so it is not updated in place."""

    def update(
        x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.softmax(y, 1)
        y[rows] = x
        before.masked_fill_(y > 0.5, 0.25)
        return x * 1.5, before[1:]

    compiled = flambeau.compile(update, fullgraph=True)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    compiled(x, y, torch.tensor([0, 1]))
    held = y.clone()
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, y, torch.tensor([0, bad]))
    assert torch.equal(y, held)
