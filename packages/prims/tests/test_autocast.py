"""Autocast on fakes for a GPU, beside torch's own kernels, which cast tensors that say that they
are on one.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from flambeau_prims import autocast
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import Unsupported

CUDA = torch.device("cuda:0")
LOWER = torch.bfloat16
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


class OnGpu(torch.Tensor):
    """A tensor with data that C++ and Python take for one on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return CUDA

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return CUDA
        args, kwargs = tree_map(data_of, (args, {**(kwargs or {})}))
        kwargs = {name: "cpu" if name == "device" else value for name, value in kwargs.items()}
        return tree_map(on_gpu, func(*args, **kwargs))


def data_of(x):
    return x.data_ if isinstance(x, OnGpu) else x


def on_gpu(x):
    if not isinstance(x, torch.Tensor):
        return x
    tensor = torch.Tensor._make_wrapper_subclass(
        OnGpu, x.shape, x.stride(), x.storage_offset(), None, x.dtype, torch.strided,
        torch.device("cpu"), False, False, None, True, False, _KEYS, None,
    )  # fmt: skip
    tensor.data_ = x
    return tensor


@pytest.fixture
def autocast_on():
    # Torch refuses `torch.autocast("cuda")` where there is no GPU, so the state is set by hand.
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", LOWER)
    yield
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


def dtypes(results):
    return [x.dtype for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def fakes(tracer, tensors):
    return [
        tracer.fake(Spec.of(x.shape, stride=x.stride(), dtype=x.dtype, device=CUDA))
        for x in tensors
    ]


def norms(x):
    return torch.norm(x), x.norm(2, 1), x.norm(2, 1, True), x.norm(dim=0)


def softmaxes(x):
    return x.softmax(0), F.log_softmax(x, -1), F.softmax(x, 0, dtype=LOWER)


def sums(x):
    return x.sum(), x.sum(0), x.sum(0, dtype=LOWER), x.prod(), x.cumsum(1)


def widest(x, y):
    return torch.dot(x, y), torch.addcmul(x, x, y), torch.atan2(x, y)


def losses(x, y):
    return F.mse_loss(x, y), F.l1_loss(x, y), F.kl_div(x, y, reduction="sum")


def not_listed(x, y):
    return F.gelu(x) + y, x.mean(), x.amax(), torch.cat([x, y])


PROGRAMS = {
    "matmul": (lambda x, y: x @ y, (3, 3), (3, 3)),
    "inner": (torch.inner, (3,), (3,)),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), (3, 3)),
    "ldexp": (torch.ldexp, (3,), (3,)),
    "square": (torch.square, (3,)),
    "pow": (lambda x: 2 ** x + x ** 2, (3,)),
    "trapezoid": (torch.trapezoid, (3,)),
    "vector_norm": (lambda x: torch.linalg.norm(x, ord=2, dim=-1, keepdim=True), (3, 4)),
    "matrix_norm": (lambda x: torch.linalg.matrix_norm(x, "fro"), (3, 4)),
    "old_norm": (norms, (3, 4)),
    "normalize": (lambda x: F.normalize(x), (3, 4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), (3, 4), (4,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 3, 4)),
    "nearest": (lambda x: F.interpolate(x, size=7), (1, 2, 3, 4)),
    "cosine_similarity": (lambda x, y: (x * y).sum(-1) / torch.dist(x, y), (3, 4), (3, 4)),
    "softmax": (softmaxes, (3, 4)),
    "sums": (sums, (3, 4)),
    "widest": (widest, (4,), (4,)),
    "index_put": (lambda x, y: x.index_put(((y * 0).long(),), y), (4,), (4,)),
    "bilinear": (F.bilinear, (2, 3), (2, 4), (5, 3, 4)),
    "convolution": (F.conv2d, (1, 2, 5, 5), (3, 2, 3, 3), (3,)),
    "transposed": (F.conv_transpose1d, (1, 2, 5), (2, 3, 3)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (3, 4), (2, 4)),
    "multi_dot": (lambda *xs: torch.linalg.multi_dot(xs), (2, 3), (3, 4), (4, 2)),
    "prelu": (F.prelu, (3, 4), (4,)),
    "losses": (losses, (3,), (3,)),
    "embedding_loss": (F.cosine_embedding_loss, (3, 4), (3, 4), (3,)),
    "distances": (lambda x, y: (torch.cdist(x, y), F.pairwise_distance(x, y)), (3, 4), (3, 4)),
    "not_listed": (not_listed, (3, 4), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "lower", "first lower", "others lower", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_casts_as_torchs_own_kernels(name, kind, autocast_on):
    program, *shapes = PROGRAMS[name]
    lower = {"lower": range(9), "first lower": [0], "others lower": range(1, 9)}.get(kind, ())
    tensors = [
        torch.rand(shape, dtype=LOWER if position in lower else torch.float32)
        for position, shape in enumerate(shapes)
    ]
    if kind == "float64":
        tensors = [x.double() for x in tensors]
    try:
        expected = dtypes(program(*map(on_gpu, tensors)))
    except RuntimeError as error:
        expected = type(error)
    tracer = Tracer(device="cuda")
    try:
        with FunctionTable(tracer.device), tracer:
            found = dtypes(program(*fakes(tracer, tensors)))
    except RuntimeError as error:
        found = type(error)
    assert found == expected


def test_every_operator_that_torch_casts_is_known():
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    named = {name for name in registered if name.startswith("aten::")}
    named -= {"aten::_cudnn_rnn"}  # of builds for CUDA: fakes do not reach it
    named = {name for name in named if "name" not in name.lower()}  # no fake has named dimensions
    lists = (
        autocast._TO_LOWER, autocast._TO_FLOAT32, autocast._RESULT_FLOAT32, autocast._TO_WIDEST,
        autocast._WITH_DTYPE, autocast._REFUSED,
    )  # fmt: skip
    known = [f"aten::{name}" for each in lists for name in each]
    assert len(known) == len(set(known))
    assert named <= set(known)


def test_a_custom_operators_own_rule_is_taken(autocast_on):
    @torch.library.custom_op("autocast_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    double.register_autocast("cuda", torch.float16)
    tracer = Tracer(device="cuda")
    with FunctionTable(tracer.device), tracer:
        x, y = fakes(tracer, [torch.rand(3), torch.rand(3, dtype=torch.float64)])
        assert double(x).dtype is torch.float16
        assert double(y).dtype is torch.float64


def test_the_program_turns_it_on_and_off():
    def program(x):
        before = x @ x
        torch.set_autocast_enabled("cuda", True)
        inside = x @ x
        torch.set_autocast_enabled("cuda", False)
        return before, inside, x @ x

    tracer = Tracer(device="cuda")
    lower = torch.get_autocast_dtype("cuda")
    with FunctionTable(tracer.device), tracer:
        results = program(*fakes(tracer, [torch.rand(3, 3)]))
    assert dtypes(results) == [torch.float32, lower, torch.float32]
    assert not torch.is_autocast_enabled("ipu")


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_recurrent_networks_are_left_to_eager(kind, autocast_on):
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}[kind](3, 4)
    tracer = Tracer(device="cuda")
    x, state, *weights = fakes(
        tracer, [torch.rand(5, 2, 3), torch.rand(1, 2, 4), *module._flat_weights]
    )
    states = (state, state) if kind == "lstm" else state
    function = getattr(torch, kind)
    with FunctionTable(tracer.device), tracer:
        with pytest.raises(Unsupported, match="cuDNN"):
            function(x, states, weights, True, 1, 0.0, False, False, False)
        torch.set_autocast_enabled("cuda", False)
        output = function(x, states, weights, True, 1, 0.0, False, False, False)[0]
    assert output.dtype is torch.float32 and output.shape == (5, 2, 4)


def test_tensors_on_other_devices_are_not_cast(autocast_on):
    tracer = Tracer(device="cuda")
    with FunctionTable(tracer.device), tracer:
        x = tracer.fake(Spec.of((3, 3)))
        assert (x @ x).dtype is torch.float32
