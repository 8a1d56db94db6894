"""Interception above the dispatcher: a program for a GPU is traced as eager would run it there, on
a machine without one.
"""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flambeau_prims.fake import FakeTensor
from flambeau_prims.function_table import ANYWHERE, FunctionTable
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.sizes_node import to_symint
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import MetadataMutation

CUDA = torch.device("cuda:0")
HALF = torch.float16


def run(fn, *specs, requires_grad=False):
    tracer = Tracer(device="cuda")
    fakes = [tracer.fake(spec, requires_grad=requires_grad) for spec in specs]
    with FunctionTable(tracer.device), tracer:
        result = fn(*fakes)
    return result, [str(node.op) for node in tracer.nodes], fakes


def heads(dtype=torch.float32, size=16, length=5):
    return Spec.of((2, 3, length, size), dtype=dtype, device=CUDA)


def test_moving_to_where_it_is_gives_the_tensor_itself():
    for move in (
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda:0"),
        lambda x: x.to(CUDA, torch.float32),
        lambda x: x.to(device=CUDA, non_blocking=True),
        lambda x: x.cuda(),
        lambda x: x.to(torch.float32),
    ):
        result, ops, (x,) = run(move, Spec.of((2,), device=CUDA))
        assert result is x and ops == []


def test_moving_elsewhere_copies():
    for move in (lambda x: x.to("cpu"), lambda x: x.cpu(), lambda x: x.to("cuda:1")):
        result, ops, _ = run(move, Spec.of((2,), device=CUDA))
        assert ops == ["aten._to_copy.default"] and result.device != CUDA
    result, ops, _ = run(lambda x: x.to("cuda"), Spec.of((2,)))
    assert ops == ["aten._to_copy.default"] and result.device == CUDA
    result, ops, _ = run(lambda x: x.cuda(), Spec.of((2,)))
    assert ops == ["aten._to_copy.default"] and result.device == CUDA


def test_literals_on_the_gpu_are_cpu_constants_moved():
    for make in (
        lambda x: torch.tensor([1.0, 2.0], device="cuda"),
        lambda x: torch.tensor([1.0, 2.0], device=x.device),
        lambda x: torch.as_tensor([1.0, 2.0], device="cuda:0"),
        lambda x: x.new_tensor([1.0, 2.0]),
    ):
        result, ops, _ = run(make, Spec.of((2,), device=CUDA))
        assert isinstance(result, FakeTensor) and result.spec == Spec.of((2,), device=CUDA)
        assert ops == ["aten._to_copy.default"]


def test_factories_name_the_indexed_device():
    result, _, _ = run(lambda: torch.zeros(3, device="cuda"))
    assert result.spec == Spec.of((3,), device=CUDA)


def test_dropout_is_one_kernel():
    result, ops, _ = run(lambda x: F.dropout(x, 0.1), Spec.of((4,), device=CUDA))
    assert ops == ["aten.native_dropout.default"] and result.device == CUDA
    result, ops, _ = run(lambda x: F.dropout(x, 0.1, training=False), Spec.of((4,), device=CUDA))
    assert "aten.native_dropout.default" not in ops


def test_attention_takes_eagers_kernel():
    attend = F.scaled_dot_product_attention
    _, ops, _ = run(lambda q, k, v: attend(q, k, v, is_causal=True), *[heads(HALF)] * 3)
    assert ops == ["aten._scaled_dot_product_flash_attention.default"]
    result, ops, _ = run(attend, *[heads()] * 3)
    assert ops == [
        "aten._scaled_dot_product_efficient_attention.default"
    ] and result.spec.shape == (2, 3, 5, 16)
    _, ops, _ = run(
        attend, *[heads(HALF)] * 3, Spec.of((2, 1, 5, 5), dtype=torch.bool, device=CUDA)
    )
    assert ops[-1] == "aten._scaled_dot_product_efficient_attention.default"
    _, ops, _ = run(attend, *[heads(torch.float64)] * 3)
    assert "aten.bmm.default" in ops
    result, ops, _ = run(attend, *[heads(HALF, 12)] * 3)
    assert "aten._scaled_dot_product_flash_attention.default" in ops and result.spec.shape == (
        2,
        3,
        5,
        12,
    )


@pytest.fixture
def cudnn_chosen(monkeypatch):
    """A machine with a GPU whose C++ takes cuDNN's kernel; what it was asked about."""
    asked = []

    def choose(*tensors, scale=None, enable_gqa=False):
        asked.append(tensors)
        return int(torch._C._SDPBackend.CUDNN_ATTENTION)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    return asked


@pytest.mark.parametrize("layout", [torch.preserve_format, torch.contiguous_format])
def test_torch_is_asked_about_the_operands(cudnn_chosen, layout):
    def fn(q, k, v, mask):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, mask, 0.1)
        return out, torch.autograd.Variable._execution_engine.run_backward(
            (out,),
            (torch.ones_like(out, memory_format=layout),),
            False,
            False,
            (q, k, v),
            allow_unreachable=True,
            accumulate_grad=False,
        )

    mask = Spec.of((5, 5), dtype=torch.bool, device=CUDA)
    tracer = Tracer(device="cuda")
    inside = Spec.of((2, 5, 3, 16), dtype=HALF, device=CUDA)
    fakes = [tracer.fake(inside, requires_grad=True) for _ in range(3)] + [tracer.fake(mask)]
    with FunctionTable(tracer.device), tracer:
        out, grads = fn(*fakes)
    ((q, *_, given_mask, dropout, causal),) = cudnn_chosen
    assert (q.shape, q.stride(), q.dtype) == ((2, 3, 5, 16), (240, 16, 48, 1), HALF)
    assert q.device == CUDA and q.requires_grad and not given_mask.requires_grad
    assert (given_mask.dtype, dropout, causal) == (torch.bool, 0.1, False)
    assert out.stride() == (240, 16, 48, 1)
    assert [grad.stride() for grad in grads] == [(240, 16, 48, 1)] * 3
    calls = {str(node.op): node for node in tracer.nodes}
    forward = calls["aten._scaled_dot_product_cudnn_attention.default"]
    assert forward.args[3].spec == Spec.of((5, 5), dtype=HALF, device=CUDA)
    assert forward.args[4] is True and forward.args[5] == pytest.approx(0.1)
    backward = calls["aten._scaled_dot_product_cudnn_attention_backward.default"]
    assert backward.args[0].spec.stride == out.stride()


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5, 1e-20])
def test_cudnn_plans_of_backwards_are_not_those_of_eager(cudnn_chosen, dropout):
    """ATen finds them by the bits of the probability, too."""
    tracer = Tracer(device="cuda")
    spec = Spec.of((2, 3, 5, 16), dtype=HALF, device=CUDA)
    fakes = [tracer.fake(spec, requires_grad=True) for _ in range(3)]
    with FunctionTable(tracer.device), tracer:
        out = F.scaled_dot_product_attention(*fakes, dropout_p=dropout)
        torch.autograd.grad(out, fakes, torch.ones_like(out))
    calls = {str(node.op): node for node in tracer.nodes}
    backward = calls["aten._scaled_dot_product_cudnn_attention_backward.default"].args[13]
    assert backward == pytest.approx(dropout, rel=2**-23)
    assert struct.pack("f", backward) != struct.pack("f", dropout)
    forward = calls["aten._scaled_dot_product_cudnn_attention.default"].args[5:6]
    assert forward == ((backward,) if dropout else ())


def test_attention_that_eager_refuses_is_no_choice_of_kernels(cudnn_chosen):
    mask = Spec.of((5, 5), dtype=HALF, device=CUDA)
    with pytest.raises(RuntimeError, match="is_causal"):
        run(
            lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, is_causal=True),
            *[heads(HALF)] * 3,
            mask,
        )
    assert not cudnn_chosen


def test_attention_backward():
    def fn(q, k, v):
        out = F.scaled_dot_product_attention(q, k, v)
        return torch.autograd.Variable._execution_engine.run_backward(
            (out,),
            (torch.ones_like(out),),
            False,
            False,
            (q, k, v),
            allow_unreachable=True,
            accumulate_grad=False,
        )

    for dtype, kernel in ((HALF, "flash"), (torch.float32, "efficient")):
        grads, ops, _ = run(fn, *[heads(dtype)] * 3, requires_grad=True)
        assert f"aten._scaled_dot_product_{kernel}_attention_backward.default" in ops
        assert [grad.spec.shape for grad in grads] == [(2, 3, 5, 16)] * 3


def test_autocast_casts_by_function():
    # Torch refuses to turn autocast on for CUDA where there is no GPU, so the state is set by hand.
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:

        def fn(x, w):
            y = F.gelu(x @ w)
            z = F.softmax(y, -1)
            wide = [y.square(), torch.trapz(y), F.pairwise_distance(y, y)]
            assert all(each.dtype is torch.float32 for each in wide)  # all parts but differences
            return y, z, torch.einsum("ij,jk->ik", z, w), y + x.sum(), x.double() @ w.double()

        (y, z, e, s, d), ops, _ = run(
            fn, Spec.of((3, 4), device=CUDA), Spec.of((4, 4), device=CUDA)
        )
        assert (y.dtype, z.dtype, e.dtype, s.dtype, d.dtype) == (
            torch.bfloat16, torch.float32, torch.bfloat16, torch.bfloat16, torch.float64,
        )  # fmt: skip
        assert ops.count("aten.mm.default") == 2
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            run(lambda x: F.binary_cross_entropy(x, x), Spec.of((3,), device=CUDA))
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", HALF)
    _, ops, _ = run(torch.mm, *[Spec.of((4, 4), device=CUDA)] * 2)
    assert ops == ["aten.mm.default"]


def test_functions_inside_python_functions_are_seen():
    attention = nn.MultiheadAttention(16, 4, batch_first=True, dropout=0.1).to(dtype=HALF)

    def fn(x, *weights):
        return F.multi_head_attention_forward(
            x,
            x,
            x,
            16,
            4,
            weights[0],
            weights[1],
            None,
            None,
            False,
            0.1,
            weights[2],
            weights[3],
            need_weights=False,
        )[0]

    specs = [Spec.of(weight.shape, dtype=HALF, device=CUDA) for weight in attention.parameters()]
    _, ops, _ = run(fn, Spec.of((5, 2, 16), dtype=HALF, device=CUDA), *specs)
    assert "aten._scaled_dot_product_flash_attention.default" in ops
    _, ops, _ = run(lambda x: F.max_pool2d(x, 2).split(1), Spec.of((2, 3, 4, 4), device=CUDA))
    assert ops == ["aten.max_pool2d_with_indices.default", "aten.split.Tensor"]
    _, ops, _ = run(lambda x: 1 - x, Spec.of((2,), device=CUDA))
    assert ops == ["aten.rsub.Scalar"]


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda out: torch.eye(3, 4, out=out, device="cuda:0"), "aten.eye.m_out"),
        (lambda out: torch.zeros((3, 4), out=out, device=CUDA), "aten.zeros.out"),
        (
            lambda out: torch.normal(0.0, 1.0, (3, 4), out=out, device="cuda"),
            "aten.normal.float_float_out",
        ),
        (lambda out: torch.full((3, 4), 2.0, out=out, device="cuda"), "aten.full.out"),
    ],
)
def test_factories_write_to_tensors_of_their_device(make, op):
    result, ops, (out,) = run(make, Spec.of((3, 4), device=CUDA))
    assert result is out and ops == [op]


def test_random_factories_leave_sizes_to_eager():
    with pytest.raises(MetadataMutation):
        run(lambda out: torch.randn(3, 4, out=out, device="cuda"), Spec.of((3, 4), device=CUDA))


def test_factories_refuse_tensors_of_another_device():
    with pytest.raises(RuntimeError, match="device type cpu does not match"):
        run(lambda out: torch.randn(3, 4, out=out, device="cpu"), Spec.of((3, 4), device=CUDA))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_channel_shuffle_is_a_chain_of_views(groups):
    out, ops, _ = run(
        lambda x: F.channel_shuffle(x, groups), Spec.of((2, 6, 3, 4), device=CUDA, offset=5)
    )
    assert "aten.channel_shuffle.default" not in ops
    assert ("aten.clone.default" in ops) == (groups == 2)
    assert out.spec.offset == (0 if groups == 2 else 5)


def test_checks_ask_conditions():
    env = SizeEnv()
    size = to_symint(env.symbol(8, "x"))
    ANYWHERE[torch._check](size < 100)
    assert str(env.guards[-1]) == "s0 <= 99"
    with pytest.raises(RuntimeError, match="too small"):
        ANYWHERE[torch._check](size > 100, lambda: "too small")
    with pytest.raises(ValueError):
        ANYWHERE[torch._check_value](math.pi < 3)


def test_the_cpu_path_is_left_alone():
    tracer = Tracer()
    q, k, v = (tracer.fake(Spec.of((2, 3, 5, 16))) for _ in range(3))
    with FunctionTable(), tracer:
        F.scaled_dot_product_attention(q, k, v)
    assert [str(node.op) for node in tracer.nodes] == [
        "aten._scaled_dot_product_flash_attention_for_cpu.default"
    ]
