"""Traces in inference mode, where operators that consist of others arrive whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from flambeau_prims.fake import make_fake
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

Program = "Callable[[torch.Tensor], Any]"
IMAGES = 2, 8, 12, 12


def fake(device: str, *shape: int) -> torch.Tensor:
    return make_fake(Spec.of(shape, device=device))


def norm(x: torch.Tensor) -> torch.Tensor:
    mean, scale = (x.new_empty(8) for _ in range(2))
    return F.batch_norm(x, mean, scale, training=True)


def attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "convolution": lambda x: F.conv2d(x, x[:, :, :3, :3], padding=1),
    "transposed": lambda x: F.conv_transpose2d(x, x.new_empty(8, 4, 3, 3), stride=2),
    "batch_norm": norm,
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[2:]),
    "attention": attention,
    "linear": lambda x: F.linear(x, x[0, 0], x[0, 0, 0]),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_of_nothing": lambda x: F.dropout(x, 0.0) * 2,
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "pools": lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3), F.avg_pool2d(x, 2)),
    "resized": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "padded": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "loss": lambda x: F.cross_entropy(x, x[:, 0].long()),
    "products": lambda x: (x @ x, torch.einsum("abij,abjk->abik", x, x), torch.tensordot(x, x, 4)),
    "gathered": lambda x: (F.embedding(x[0, 0].long(), x[0, 0]), x[x[0, 0, 0].long()]),
    "stacked": lambda x: (torch.hstack([x, x]), torch.block_diag(x[0, 0], x[0, 1])),
    "written": lambda x: (x.clone().divide_(2), torch.subtract(x, x, out=torch.empty_like(x))),
    "spectrum": lambda x: torch.fft.rfft2(x).abs(),
}


def traced(program: Callable[[torch.Tensor], Any], device: str, *, inference: bool) -> list[Any]:
    """The calls of a trace: operators, and the Specs of their results."""
    tracer = Tracer(device=device)
    with torch.no_grad(), torch.inference_mode(inference), tracer:
        program(fake(device, *IMAGES))
    return [(str(node.op), [out and out.spec for out in node.outputs]) for node in tracer.nodes]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_are_those_without_gradients(name: str, device: str) -> None:
    want = traced(PROGRAMS[name], device, inference=False)
    assert traced(PROGRAMS[name], device, inference=True) == want
    assert want


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.type_as(x),
        lambda x: x.sum_to_size(IMAGES),
        lambda x: torch.einsum("abij->baij", x),
    ],
)
def test_results_that_are_arguments(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.inference_mode(), Tracer():
        x = fake("cpu", *IMAGES)
        result = program(x)
        assert result.storage_record is x.storage_record  # type: ignore[attr-defined]
