"""Arguments that eager refuses: compiled programs raise the same, though a shape rule would have an
answer.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch.torch_version import TorchVersion

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

X, IMAGE, BOOLS = torch.randn(2, 3, 8), torch.randn(2, 3, 8, 8), torch.ones(4, dtype=torch.bool)

CALLS: dict[str, Callable[[], Any]] = {
    "avg_pool1d": lambda: F.avg_pool1d(X, 2, padding=-1),
    "avg_pool2d": lambda: F.avg_pool2d(IMAGE, 2, padding=-1),
    "avg_pool1d of none": lambda: F.avg_pool1d(torch.zeros(0, 3, 8), 2, padding=-1),
    "max_pool1d": lambda: F.max_pool1d(X, 2, padding=-1),
    "max_pool1d of none": lambda: F.max_pool1d(torch.zeros(0, 3, 8), 2, padding=-1),
    "max_pool3d of none": lambda: F.max_pool3d(torch.zeros(0, 3, 8, 8, 8), 2, padding=-1),
    "max_pool3d of no channels": lambda: F.max_pool3d(torch.zeros(1, 0, 8, 8, 8), 2),
    "channel_shuffle of no groups": lambda: F.channel_shuffle(X, 0),
    "channel_shuffle of negative groups": lambda: F.channel_shuffle(X, -3),
    "_chunk_cat of dtypes": lambda: torch._chunk_cat([X, X.int()], 1, 2),
    "_chunk_cat of rows": lambda: torch._chunk_cat([X, X[:1]], 1, 2),
    "_chunk_cat of dims": lambda: torch._chunk_cat([X, X[0]], 1, 1),
    "index_fill of much": lambda: X.index_fill(0, torch.tensor([1]), 1e40),
    "index_fill of bytes": lambda: X.byte().index_fill(0, torch.tensor([1]), torch.tensor(300)),
    "huber_loss": lambda: F.huber_loss(X, X, delta=0.0),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(X, X, beta=-1.0),
    "gelu": lambda: F.gelu(X, approximate="asdf"),
    "softshrink": lambda: F.softshrink(X, lambd=-0.5),
    "amax": lambda: torch.ones([1] * 65).amax(0),
    "amax of 65 dims": lambda: torch.ones(1).reshape([1] * 65).amax(tuple(range(65))),
    "clamp of bools": lambda: torch.clamp(BOOLS, BOOLS, BOOLS),
    "addcmul of bools": lambda: torch.addcmul(BOOLS, BOOLS, BOOLS),
    "addcmul_ of bools": lambda: BOOLS.clone().addcmul_(BOOLS, BOOLS),
    "celu": lambda: F.celu(X, 0.0),
    "mm of bools": lambda: torch.mm(
        torch.ones(30, 20, dtype=torch.bool), torch.ones(20, 30, dtype=torch.bool)
    ),
    "linear of bools": lambda: F.linear(
        torch.ones(3, 4, dtype=torch.bool), torch.ones(5, 4, dtype=torch.bool)
    ),
    "bmm of float8": lambda: torch.bmm(X.to(torch.float8_e4m3fn), X.mT.to(torch.float8_e4m3fn)),
    "prelu of ints": lambda: F.prelu(X.long(), torch.ones(1, dtype=torch.long)),
    "glu of ints": lambda: F.glu(X.long()),
    "nll_loss of ints": lambda: F.nll_loss(
        torch.zeros(3, 4, dtype=torch.long), torch.tensor([0, 1, 2])
    ),
    "mse_loss of ints": lambda: F.mse_loss(X.long(), X.long()),
    "bce_with_logits of ints": lambda: F.binary_cross_entropy_with_logits(X.long(), X.long()),
    "group_norm of ints": lambda: F.group_norm(X.long(), 3),
    "group_norm of bools": lambda: F.group_norm(X.bool(), 3),
    "layer_norm of ints": lambda: F.layer_norm(X.long(), (8,)),
    "layer_norm of bools": lambda: torch.native_layer_norm(X.bool(), (8,), None, None, 1e-5),
    "max_pool2d of bools": lambda: F.max_pool2d(IMAGE.bool(), 2),
    "nearest of ints": lambda: F.interpolate(IMAGE.long(), scale_factor=2),
    "softmax_backward of ints": lambda: torch._softmax_backward_data(
        X.long(), X.long(), -1, torch.long
    ),
    "batch_norm of ints": lambda: torch._native_batch_norm_legit(
        X.long(),
        None,
        None,
        torch.zeros(3, dtype=torch.long),
        torch.ones(3, dtype=torch.long),
        True,
        0.1,
        1e-5,
    ),
    "soft_margin_loss of ints": lambda: F.soft_margin_loss(X.long(), X.long()),
    "cauchy_ of ints": lambda: torch.zeros(4, dtype=torch.long).cauchy_(),
    "exponential_ of bools": lambda: torch.zeros(4, dtype=torch.bool).exponential_(),
    "exponential_ of no rate": lambda: torch.zeros(4).exponential_(-1.0),
    "random_ beyond the dtype": lambda: torch.zeros(4, dtype=torch.int8).random_(0, 300),
    "copy_ to an expanded tensor": lambda: torch.zeros(()).expand(8).copy_(X[0, 0]),
    "acos of float8": lambda: torch.acos(X.to(torch.float8_e4m3fn)),
}
if TorchVersion(torch.__version__) < "2.14":  # which copies what is not contiguous
    CALLS["group_norm of strides"] = lambda: torch.native_group_norm(
        X.mT.contiguous().mT, None, None, 2, 3, 8, 3, 1e-5
    )


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("the call is to raise an error")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_raises_as_eager(name: str, dynamic: bool) -> None:
    call = CALLS[name]
    assert outcome(flambeau.compile(call, backend="aot_eager", dynamic=dynamic)) == outcome(call)


INTS = torch.ones(2, 3, 8, 8, dtype=torch.int64)
NO_KERNELS: dict[str, Callable[[], Any]] = {
    "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(INTS, 2),
    "adaptive_max_pool3d": lambda: F.adaptive_max_pool3d(INTS, 2),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(INTS, 2),
    "adaptive_avg_pool3d": lambda: F.adaptive_avg_pool3d(INTS, 2),
    "nearest": lambda: F.interpolate(INTS, scale_factor=2),
    "nearest of bools": lambda: F.interpolate(INTS[0].bool(), scale_factor=2),
    "bicubic": lambda: F.interpolate(INTS, scale_factor=2, mode="bicubic"),
    "bmm of bools": lambda: torch.bmm(INTS[0].bool(), INTS[0].bool()),
    "addmm of bools": lambda: torch.addmm(*[INTS[0, 0].bool()] * 3),
    "nll_loss": lambda: F.nll_loss(INTS[0, 0], torch.zeros(8, dtype=torch.int64)),
    "nll_loss of images": lambda: F.nll_loss(INTS, torch.zeros(2, 8, 8, dtype=torch.int64)),
    "prelu": lambda: F.prelu(INTS, INTS[0, :, 0, 0]),
    "exponential_": lambda: INTS.clone().exponential_(),
    "cauchy_": lambda: INTS.clone().cauchy_(),
}


@pytest.mark.parametrize("name", NO_KERNELS)
@pytest.mark.parametrize("backend", ["aot_eager", None])
def test_dtypes_without_kernels(name: str, backend: str | None) -> None:
    """The type of the error is eager's; which kernel the text names depends on the layout, and on
    the operator that is called.
    """
    call = NO_KERNELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(flambeau.compile(call, backend=backend))[0] == outcome(call)[0]


def test_a_program_handles_the_error() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return F.softshrink(x, lambd=-0.5)
        except RuntimeError:
            return x + 1

    compiled = flambeau.compile(program, fullgraph=True)
    assert torch.equal(compiled(X), X + 1)


def test_asking_a_fill_leaves_the_random_state() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            x.cauchy_()
        except RuntimeError:
            return torch.rand(3)

    torch.manual_seed(3)
    wanted = program(torch.zeros(4, dtype=torch.long))
    torch.manual_seed(3)
    assert torch.equal(
        flambeau.compile(program, backend="aot_eager")(torch.zeros(4, dtype=torch.long)), wanted
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_gradient_of_dropout_of_integers_is_float(dtype: torch.dtype) -> None:
    grad, mask = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([True, True, False])
    program = torch.ops.aten.native_dropout_backward
    found = flambeau.compile(lambda g, m: program(g, m, 2.5))(grad, mask)
    assert found.dtype == torch.float32 and torch.equal(found, program(grad, mask, 2.5))
