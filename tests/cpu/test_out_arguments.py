"""out= arguments: what eager resizes, casts to, warns of and refuses, compiled programs do, too."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.differential import differences

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.randn(4, 5)
Q = X @ X.t() + 4 * torch.eye(4)
LONG = torch.zeros(0, dtype=torch.long)


def shape_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "topk of empty": (lambda o, x: torch.topk(x, 2, out=o), lambda: (shape_of((0,)), LONG.clone())),
    "topk of rows": (
        lambda o, x: torch.topk(x, 2, out=o),
        lambda: (shape_of((4, 2)), shape_of((4, 2), torch.long)),
    ),
    "topk of ints": (
        lambda o, x: torch.topk(x, 2, out=o),
        lambda: (shape_of((4, 2)), shape_of((4, 2), torch.int32)),
    ),
    "sort of empty": (lambda o, x: torch.sort(x, out=o), lambda: (shape_of((0,)), LONG.clone())),
    "softmax of empty": (lambda o, x: torch.softmax(x, 0, out=o), lambda: shape_of((0,))),
    "sum to another shape": (lambda o, x: torch.sum(x, 0, out=o), lambda: shape_of((2, 2))),
    "cholesky of empty": (
        lambda o, x: torch.linalg.cholesky(x[:, :4] @ x[:, :4].t() + torch.eye(4), out=o),
        lambda: shape_of((0,)),
    ),
    "cholesky": (
        lambda o, x: torch.linalg.cholesky(x[:, :4] @ x[:, :4].t() + torch.eye(4), out=o),
        lambda: shape_of((4, 4)),
    ),
    "amax, other dtype": (
        lambda o, x: torch.amax(x, 0, out=o),
        lambda: shape_of((5,), torch.float64),
    ),
    "amin, other dtype": (
        lambda o, x: torch.amin(x, 0, out=o),
        lambda: shape_of((5,), torch.int64),
    ),
    "aminmax, other dtype": (
        lambda o, x: torch.aminmax(x, dim=0, out=o),
        lambda: (shape_of((5,), torch.float64),) * 2,
    ),
    "gather, other dtype": (
        lambda o, x: torch.gather(x, 0, torch.zeros(2, 2, dtype=torch.long), out=o),
        lambda: shape_of((2, 2), torch.long),
    ),
    "multinomial, other dtype": (
        lambda o, x: torch.multinomial(x.exp(), 2, out=o),
        lambda: shape_of((4, 2)),
    ),
    "mul, wider": (lambda o, x: torch.mul(x, 2, out=o), lambda: shape_of((4, 5), torch.float64)),
    "mul, narrower": (lambda o, x: torch.mul(x, 2, out=o), lambda: shape_of((4, 5), torch.int64)),
    "sum, wider": (lambda o, x: torch.sum(x, 0, out=o), lambda: shape_of((5,), torch.float64)),
    "gather, overlapping": (
        lambda o, x: torch.gather(x, 0, torch.zeros(2, 2, dtype=torch.long), out=o),
        lambda: shape_of(()).expand(2, 2),
    ),
    "cat, overlapping": (
        lambda o, x: torch.cat([x, x], out=o),
        lambda: shape_of((1, 5)).expand(8, 5),
    ),
    "bernoulli, overlapping": (
        lambda o, x: torch.bernoulli(x.sigmoid(), out=o),
        lambda: shape_of((1, 5)).expand(4, 5),
    ),
    "gather from what it writes": (
        lambda o, x: torch.gather(o, 0, torch.zeros(4, 5, dtype=torch.long), out=o),
        lambda: X.clone(),
    ),
    "take from what it writes": (
        lambda o, x: torch.take(o, torch.tensor([1, 0]), out=o[0, :2]),
        lambda: X.clone(),
    ),
    "cat of what it writes": (lambda o, x: torch.cat([o[:2], x[:2]], out=o), lambda: X.clone()),
    "cumsum of what it writes": (lambda o, x: torch.cumsum(o, 0, out=o), lambda: X.clone()),
    "addmv_ of another shape": (lambda o, x: o.addmv_(x, x[0]), lambda: shape_of(())),
    "addbmm_ of another shape": (
        lambda o, x: o.addbmm_(x[None], x.t()[None]),
        lambda: shape_of(()),
    ),
    "addmm_ of another shape": (lambda o, x: o.addmm_(x, x.t()), lambda: shape_of((1, 4))),
    "baddbmm_ of another shape": (
        lambda o, x: o.baddbmm_(x[None], x.t()[None]),
        lambda: shape_of((1, 1, 4)),
    ),
    "matrix_rank": (
        lambda o, x: torch.linalg.matrix_rank(x, out=o),
        lambda: shape_of((), torch.long),
    ),
    "matrix_rank, other dtype": (
        lambda o, x: torch.linalg.matrix_rank(x, out=o),
        lambda: shape_of(()),
    ),
    "ndtr, overlapping": (
        lambda o, x: torch.special.ndtr(x, out=o),
        lambda: shape_of((1, 5)).expand(4, 5),
    ),
    "tensordot, overlapping": (lambda o, x: torch.tensordot(x, x, 2, out=o), lambda: shape_of(())),
    "mul of what it writes": (lambda o, x: torch.mul(o, x, out=o), lambda: X.clone()),
    "mul of a part of what it writes": (
        lambda o, x: torch.mul(o[:3], 2, out=o[1:]),
        lambda: X.clone(),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_eager(name: str) -> None:
    program, make = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = differences(
            lambda o, x: program(o, x), lambda: (make(), X.clone()), calls=1, backend="aot_eager"
        )
    assert not found


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_empty_tensor_of_the_graph_takes_the_result_s_shape(dynamic: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        found = torch.topk(x, 2, out=(values, indices))
        return (
            found[0] is values,
            values.shape,
            values + 1,
            indices,
            torch.mm(x, x.t(), out=torch.empty(0)),
        )

    assert not differences(
        program, lambda: (torch.randn(4, 5),), calls=1, fullgraph=True, dynamic=dynamic
    )


def test_reason() -> None:
    compiled = flambeau.compile(lambda x, o: torch.sum(x, 0, out=o), backend="aot_eager")
    compiled(X, torch.zeros(5, dtype=torch.float64))
    assert [reason.id for reason in flambeau.explain(compiled).breaks] == ["out-argument"]


def test_addr_has_the_strides_of_an_elementwise_loop() -> None:
    def make() -> tuple[torch.Tensor, ...]:
        return torch.randn(20, 10)[::2].t(), torch.randn(20)[::2], torch.randn(20)[::2]

    assert not differences(torch.addr, make, calls=1, backend="aot_eager")
