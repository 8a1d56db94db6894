"""Tensors of several devices in one call, refused and accepted as eager does; indices of Python
numbers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flambeau_prims.fake import FakeTensor
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.rules.registry import infer
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import Unsupported

CUDA = torch.device("cuda:0")


def trace(program: Any) -> tuple[Any, Tracer]:
    """The result of program(x, n): f32[8, 8] on a GPU, i64[2] on the CPU."""
    tracer = Tracer(device=CUDA)
    x = tracer.fake(Spec.of((8, 8), device=CUDA))
    n = tracer.fake(Spec.of((2,), dtype=torch.int64))
    with FunctionTable(CUDA), tracer:
        return program(x, n), tracer


@pytest.mark.parametrize(
    ("program", "argument"),
    [
        (lambda x, n: x.take(n), "index"),
        (lambda x, n: x.gather(0, n[None]), "index"),
        (lambda x, n: x.index_select(0, n), "index"),
        (lambda x, n: torch.cat([x, torch.ones(1, 8)]), "tensors"),
        (lambda x, n: F.embedding(n, x), "indices"),
        (lambda x, n: x.clamp(torch.tensor(0.0)), "min"),
        (lambda x, n: x @ torch.ones(8, 8), "mat2"),
        (lambda x, n: F.mse_loss(x, torch.ones(8, 8)), "target"),
        (lambda x, n: torch.logical_and(x, torch.tensor(1.0)), "other"),
        (lambda x, n: torch.dist(x, torch.ones(8, 8)), "other"),
        (lambda x, n: x.masked_fill(torch.ones(8, 8) > 0, 1.0), "mask"),
        (lambda x, n: F.cross_entropy(x, torch.zeros(8, dtype=torch.long)), "target"),
    ],
)
def test_refused(program: Any, argument: str) -> None:
    with pytest.raises(RuntimeError, match=f"same device, but got {argument} is on cpu"):
        trace(program)


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda x, n: torch.maximum(x, torch.tensor(0.0)), (8, 8)),
        (lambda x, n: x + torch.tensor(1), (8, 8)),
        (lambda x, n: torch.where(x > 0, x, torch.tensor(0.0)), (8, 8)),
        (lambda x, n: x[n], (2, 8)),
        (lambda x, n: x.clone().index_put_((n,), torch.tensor(1.0)), (8, 8)),
        (lambda x, n: x.clone().masked_fill_(x > 0, torch.tensor(1.0)), (8, 8)),
        (lambda x, n: torch.lerp(x, x, torch.tensor(0.5)), (8, 8)),
    ],
)
def test_accepted(program: Any, shape: tuple[int, ...]) -> None:
    result, _ = trace(program)
    assert tuple(result.spec.shape) == shape
    assert result.spec.device == CUDA


@pytest.mark.parametrize(
    ("input", "target", "weight", "accepted"),
    [
        ("cuda", "cuda", "cpu", True),
        ("cuda", "cpu", None, False),
        ("cpu", "cuda", None, True),
        ("cpu", "cuda", "cuda", True),
        ("cpu", "cpu", "cuda", False),
    ],
)
def test_a_loss_of_logits_is_where_its_target_is(
    input: str, target: str, weight: str | None, accepted: bool
) -> None:
    """Numbers of the CPU may be read, not written."""
    specs = [d and Spec.of((), device=torch.device(d)) for d in (input, target, weight)]
    op = torch.ops.aten.binary_cross_entropy_with_logits.default
    if accepted:
        assert infer(op, tuple(specs)).device.type == "cuda"
    else:
        with pytest.raises(RuntimeError, match="same device"):
            infer(op, tuple(specs))


def test_numbers_of_the_cpu_are_not_written_from_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        trace(lambda x, n: torch.tensor(1.0).add_(x[0, 0]))


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda x, n: x[[1, 2, 3]], (3, 8)),
        (lambda x, n: x[range(3)], (3, 8)),
        (lambda x, n: x[[]], (0, 8)),
        (lambda x, n: x[:, [0, 1]], (8, 2)),
        (lambda x, n: x[n, [0, 1]], (2,)),
        (lambda x, n: x[0, (0, 1), None], (2, 1)),
        (lambda x, n: x[..., [1]], (8, 1)),
    ],
)
def test_sequences_of_numbers_as_indices(program: Any, shape: tuple[int, ...]) -> None:
    result, tracer = trace(program)
    assert tuple(result.spec.shape) == shape
    # Made by C++, they would be on meta, without contents.
    assert tracer.constants
    assert not any(real.is_meta for real in tracer.constants.values())


def test_sequences_of_numbers_to_write_to() -> None:
    def program(x: FakeTensor, _: FakeTensor) -> FakeTensor:
        y = x.clone()
        y[[1, 2]] = 0.0
        y[0, [1]] = torch.tensor(3.0)
        return y

    result, tracer = trace(program)
    assert tuple(result.spec.shape) == (8, 8)
    held = sorted(real.tolist() for real in tracer.constants.values() if real.dim())
    assert held == [[1], [1, 2]]


def test_contents_that_were_lost_are_noticed() -> None:
    tracer = Tracer(device=CUDA)
    with pytest.raises(Unsupported, match="contents"):
        tracer.constant(torch.empty(2, device="meta"))
