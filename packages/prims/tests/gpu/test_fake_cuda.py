"""A program traced on fake CUDA tensors makes the ATen calls, with the geometry, that eager makes
on a real GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from flambeau_prims.fake import fake_like
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.tracer import Tracer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

HALF = torch.float16


class Recorder(TorchDispatchMode):
    """Runs operators on real tensors and notes each with the Specs of its results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        items = result if isinstance(result, (tuple, list)) else [result]
        self.calls.append((str(func), [spec_of(t) for t in items if isinstance(t, torch.Tensor)]))
        return result


def attend(**options):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **options)


def of_data(q, k, dtype=torch.bool):
    """A mask [2, 1, length, length] that is no constant."""
    attends = q.detach()[:, :1, :, :1] >= k.detach()[:, :1, :, :1].transpose(-2, -1)
    return attends.to(dtype)


def heads(*, dtype=HALF, size=16, length=5, count=3):
    return [torch.randn(2, 4, length, size, dtype=dtype) for _ in range(count)]


PROGRAMS = {
    "mlp": (
        lambda x, w, b: F.layer_norm(F.gelu(F.linear(x, w, b)), (7,)),
        [(5, 3, 8), (7, 8), (7,)],
    ),
    "softmax": (lambda x: x.transpose(0, 1).softmax(-1).log_softmax(0), [(4, 6)]),
    "literal": (lambda x: x * torch.tensor(2.0, device=x.device) + x.new_tensor([1.0]), [(4,)]),
    "factories": (
        lambda x: x + torch.arange(6, device="cuda") + torch.zeros(6, device=x.device),
        [(4, 6)],
    ),
    "dropout": (lambda x: F.dropout(x, 0.25) * 2, [(4, 6)]),
    "to": (lambda x: x.to("cuda").to(torch.float64).cuda().to(x.device, torch.float32), [(4, 6)]),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=x.device)),
        [(4, 6)],
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        [(2, 3, 8, 8), (4, 3, 3, 3), (4,)],
    ),
    "max_pool": (lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1), [(2, 3, 8, 8)]),
    "embedding": (
        lambda w: F.embedding(torch.ones(2, 3, dtype=torch.long, device=w.device), w),
        [(9, 4)],
    ),
    "flash": (attend(), heads()),
    "flash_causal": (attend(is_causal=True, scale=0.3), heads()),
    "flash_padded": (attend(), heads(size=12)),
    "flash_dropout": (attend(dropout_p=0.1), heads()),
    "efficient": (attend(), heads(dtype=torch.float32)),
    "efficient_causal": (attend(is_causal=True), heads(dtype=torch.float32)),
    "efficient_mask": (
        lambda q, k, v: attend()(q, k, v, of_data(q, k)),
        heads(),
    ),
    "efficient_float_mask": (
        lambda q, k, v: attend()(q, k, v, of_data(q, k, torch.float32)[0, 0]),
        heads(dtype=torch.float32),
    ),
    "efficient_aligned_mask": (
        lambda q, k, v: attend()(q, k, v, of_data(q, k, torch.float32)),
        heads(dtype=torch.float32, length=16),
    ),
    "half_mask": (
        lambda q, k, v: attend()(q, k, v, of_data(q, k, HALF)),
        heads(length=16),
    ),
    "mask_dropout": (
        lambda q, k, v: attend(dropout_p=0.2)(
            q, k, v, torch.ones(16, 16, dtype=torch.bool, device=q.device).tril()
        ),
        heads(dtype=torch.bfloat16, length=16),
    ),
    "heads_inside": (
        lambda q, k, v: attend(is_causal=True)(*(x.transpose(1, 2) for x in (q, k, v))),
        heads(dtype=torch.bfloat16, size=64, length=128),
    ),
    "longer_keys": (
        lambda q, k, v: attend()(q[:, :, :3], k, v),
        heads(dtype=torch.bfloat16, size=64, length=128),
    ),
    "math_unaligned": (attend(), heads(dtype=torch.float32, size=7)),
    "math_double": (attend(), heads(dtype=torch.float64)),
    "grouped": (
        lambda q, k, v: attend(enable_gqa=True)(q, k[:, :2], v[:, :2]),
        heads(),
    ),
}


WITHOUT_CUDNN = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
KERNELS = {
    "all": (*WITHOUT_CUDNN, SDPBackend.CUDNN_ATTENTION),
    "without_cudnn": WITHOUT_CUDNN,
    "cudnn_or_math": (SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        (name, kernels)
        for name, (_, given) in PROGRAMS.items()
        for kernels in (KERNELS if isinstance(given[0], torch.Tensor) else ["all"])
    ],
)
def test_same_calls_as_eager(name, kernels, training):
    fn, given = PROGRAMS[name]
    reals = [torch.randn(item) if isinstance(item, tuple) else item for item in given]
    reals = [real.cuda().requires_grad_(training) for real in reals]

    def program(*tensors):
        out = fn(*tensors)
        if training:
            torch.autograd.Variable._execution_engine.run_backward(
                (out,),
                (torch.ones_like(out),),
                False,
                False,
                tensors,
                allow_unreachable=True,
                accumulate_grad=False,
            )

    recorder = Recorder()
    tracer = Tracer(device="cuda")
    with sdpa_kernel(list(KERNELS[kernels])):
        with recorder:
            program(*reals)
        fakes = [tracer.adopt(fake_like(real)) for real in reals]
        with FunctionTable(tracer.device), tracer:
            program(*fakes)
    traced = [
        (str(node.op), [out.spec for out in node.outputs if out is not None])
        for node in tracer.nodes
    ]
    if name == "literal":
        # Eager fills GPU memory from Python; the trace has a CPU constant and a copy of it.
        traced = [call for call in traced if call[0] != "aten._to_copy.default"]
    assert essential(traced) == essential(recorder.calls)


AUTOCAST = {
    "mlp": PROGRAMS["mlp"],
    "mixed": (lambda x, w: (x @ w).softmax(-1) + F.gelu(x).sum(), [(4, 6), (6, 6)]),
    "convolution": PROGRAMS["convolution"],
    "cross_entropy": PROGRAMS["cross_entropy"],
    "attention": (attend(), heads(dtype=torch.float32)),
    "einsum": (lambda x, w: torch.einsum("bij,jk->bik", x, w), [(2, 4, 6), (6, 5)]),
    "norms": (
        lambda x: F.group_norm(x, 2).pow(2).mean() + x.norm() + (1 / x).exp().cumsum(0).mean(),
        [(3, 4)],
    ),
    "vector_norm": (lambda x: x / torch.linalg.norm(x, dim=-1, keepdim=True), [(3, 4)]),
    "square": (lambda x, w: torch.trapezoid((x @ w).square()), [(3, 4), (4, 4)]),
    "inner": (lambda x, w: torch.inner(x, w).square(), [(4, 4), (4, 4)]),
    "embedding": (
        lambda w: F.embedding(torch.ones(3, dtype=torch.long, device=w.device), w) @ w.t(),
        [(9, 4)],
    ),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_computes_in_eagers_dtypes(name, training):
    fn, given = AUTOCAST[name]
    reals = [torch.randn(item) if isinstance(item, tuple) else item for item in given]
    reals = [real.cuda().requires_grad_(training) for real in reals]

    def program(*tensors):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = fn(*tensors)
        grads = ()
        if training:
            grads = torch.autograd.Variable._execution_engine.run_backward(
                (out,),
                (torch.ones_like(out),),
                False,
                False,
                tensors,
                allow_unreachable=True,
                accumulate_grad=False,
            )
        return out, *grads

    recorder = Recorder()
    with recorder:
        expected = program(*reals)
    tracer = Tracer(device="cuda")
    fakes = [tracer.adopt(fake_like(real)) for real in reals]
    with FunctionTable(tracer.device), tracer:
        results = program(*fakes)
    assert [(x.dtype, x.shape) for x in results] == [(x.dtype, x.shape) for x in expected]
    traced = [
        (str(node.op), [out.spec for out in node.outputs if out is not None])
        for node in tracer.nodes
    ]
    assert computations(traced) == computations(recorder.calls)


def computations(calls):
    """What is computed in which dtype: casts are cached by eager, and sums may be told their dtype
    instead.
    """
    kept = [call for call in essential(calls) if call[0] != "aten._to_copy.default"]
    return [(op, [spec.dtype for spec in specs]) for op, specs in kept if "view" not in op]


def essential(calls):
    """Calls but for those that make no difference: aliases, literals, and how many bytes a random
    state has.
    """
    kept = []
    for op, specs in calls:
        if op.startswith(
            ("aten.detach", "aten.lift_fresh", "aten._local_scalar_dense", "aten.alias")
        ):
            continue
        if "attention" in op and "backward" not in op:
            specs = specs[:2]
        kept.append((op, [free_strides(spec) for spec in specs]))
    return kept


def free_strides(spec):
    stride = [
        0 if size == 1 else stride for size, stride in zip(spec.shape, spec.stride, strict=True)
    ]
    return Spec.of(spec.shape, stride=stride, dtype=spec.dtype, device=spec.device)


def test_a_training_step_of_a_module():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
        nn.Dropout(0.2),
    ).cuda()
    x = torch.randn(2, 3, 8, 8, device="cuda")
    parameters = list(model.parameters())

    def step(inputs, wanted):
        loss = F.cross_entropy(model(inputs), torch.zeros(2, dtype=torch.long, device="cuda"))
        return torch.autograd.Variable._execution_engine.run_backward(
            (loss,),
            (torch.ones_like(loss),),
            False,
            False,
            tuple(wanted),
            allow_unreachable=True,
            accumulate_grad=False,
        )

    real = step(x, parameters)
    tracer = Tracer(device="cuda")
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                table[key] = tracer.adopt(fake_like(tensor))
    with FunctionTable(tracer.device), tracer:
        fake = step(tracer.adopt(fake_like(x)), model.parameters())
    assert [free_strides(grad.spec) for grad in fake] == [
        free_strides(spec_of(grad)) for grad in real
    ]
    assert all(
        out.spec.device == x.device
        for node in tracer.nodes
        for out in node.outputs
        if out is not None
    )
