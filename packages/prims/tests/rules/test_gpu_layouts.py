"""Layouts that a GPU's kernels give and a CPU's do not; no GPU is needed. `test_gpu.py` compares
them with eager.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from flambeau_prims.meta_fallback import infer_on_meta
from flambeau_prims.rules.registry import infer
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten


def _layout(rng: random.Random, dtype: torch.dtype) -> tuple[Spec, list[int]]:
    """A Spec of up to five dimensions in any order in memory, and dimensions to transform."""
    sizes = [rng.randint(2, 5) for _ in range(rng.randint(1, 5))]
    order = rng.sample(range(len(sizes)), len(sizes))
    made = torch.empty([sizes[dim] for dim in order], device="meta")
    made = made.permute([order.index(dim) for dim in range(len(sizes))])
    dims = rng.sample(range(made.ndim), rng.randint(1, made.ndim))
    spec = Spec.of(made.shape, stride=made.stride(), dtype=dtype, device=CUDA)
    return spec, sorted(dims) if rng.random() < 0.5 else dims


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13", reason="torch's meta kernels sort no dimensions"
)
@pytest.mark.parametrize("name", ["_fft_c2c", "_fft_r2c", "_fft_c2r"])
def test_fourier_transforms(name: str) -> None:
    """The strides of torch's own meta kernels, for one plan and for a chain of them."""
    rng = random.Random(name)
    op = getattr(aten, name).default
    for _ in range(300):
        spec, dims = _layout(rng, torch.float32 if name == "_fft_r2c" else torch.complex64)
        last: Any = 2 * spec.shape[dims[-1]] if name == "_fft_c2r" else rng.random() < 0.5
        args = (spec, dims, 0, last)
        wanted = infer_on_meta(op, args, {})
        assert infer(op, args) == wanted, args


def test_fourier_transforms_of_symbolic_sizes() -> None:
    """No size is fixed."""
    env = SizeEnv()
    size = env.symbol(6, "x")
    spec = Spec.of((size, 4, 8), stride=(4, 1, 4 * size), dtype=torch.complex64, device=CUDA)
    out = infer(aten._fft_c2c.default, (spec, (0, 2), 0, True))
    assert out.stride == (1, 8 * size, size)
    assert all(guard.op == ">=" for guard in env.guards)


def test_real_signals_at_an_odd_offset_are_copied() -> None:
    """The copy has the transformed dimension innermost, which orders the batch."""
    spec = Spec.of((3, 4, 5), stride=(5, 15, 1), device=CUDA)
    assert infer(aten._fft_r2c.default, (spec, (2,), 0, True)).stride == (3, 9, 1)
    odd = spec.replace(offset=1)
    assert infer(aten._fft_r2c.default, (odd, (2,), 0, True)).stride == (12, 3, 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_eigenvectors(device: str) -> None:
    spec = Spec.of((2, 3, 3), device=torch.device(device))
    _, vectors = infer(aten.linalg_eig.default, (spec,))
    assert vectors.stride == ((9, 1, 3) if device == "cpu" else (9, 3, 1))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_places_of_nonzeros(device: str) -> None:
    spec = Spec.of((2, 3), device=torch.device(device))
    places = infer(aten.nonzero_static.default, (spec,), {"size": 4})
    assert places.stride == ((2, 1) if device == "cpu" else (1, 4))


@pytest.mark.parametrize(("groups", "offset"), [(1, 7), (6, 7), (2, 0)])
def test_a_shuffle_that_moves_nothing_is_a_view(groups: int, offset: int) -> None:
    spec = Spec.of((2, 6, 3, 4), device=CUDA, offset=7)
    shuffled = infer(aten.channel_shuffle.default, (spec, groups))
    assert (shuffled.stride, shuffled.offset) == (spec.stride, offset)


def test_efficient_attention_of_rows_keeps_sizes_symbolic() -> None:
    env = SizeEnv()
    length = env.symbol(37, "x")
    query = Spec.of((2, length, 4, 16), device=CUDA)
    out = infer(
        aten._efficient_attention_forward.default,
        (query, query, query, None, None, None, None, None, 0.0, 0, True),
    )
    assert out[0].shape == (2, length, 4, 16)
    assert str(out[1].shape[2]) == str((length + 31) // 32 * 32)
    assert out[2].device == torch.device("cpu") and out[4] == out[5] == length
    assert not [guard for guard in env.guards if guard.op == "=="]


def _spec(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, **more: Any) -> Spec:
    return Spec.of(shape, stride=stride, device=CUDA, **more)


def test_one_kernel_over_lists_keeps_strides_of_dims_of_size_1() -> None:
    """As eager on a GPU, where it computes tensor by tensor if dtypes or layouts differ."""
    odd, plain, gaps = _spec((4, 1), (1, 8)), _spec((4, 1)), _spec((4, 6), (12, 2))
    whole = _spec((4, 6))

    def strides(name: str, *args: Any) -> list[tuple[Any, ...]]:
        return [spec.stride for spec in infer(getattr(aten, f"_foreach_{name}").default, args)]

    assert strides("sin", (odd, whole)) == [(1, 8), (6, 1)]
    assert strides("sin", (odd, gaps)) == [(1, 1), (6, 1)]
    assert strides("sin", (_spec((4, 1), (1, 8), dtype=torch.int32),)) == [(1, 1)]
    for second in (plain, odd):
        (out,) = infer(aten._foreach_add.List, ((odd,), (second,)))
        assert out.stride == (1, 8)
    (out,) = infer(aten._foreach_add.List, ((plain,), (odd,)))
    assert out.stride == (1, 1)


LAST = (60, 1, 12, 3)
"""The strides of an image [2, 3, 5, 4] whose channels lie side by side."""


@pytest.mark.parametrize("name", ["reflection_pad2d", "replication_pad2d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_borders(name: str, dtype: torch.dtype) -> None:
    """Row-major, as an H200 gives them with torch 2.11; a CPU keeps the memory format."""
    op, padding = getattr(aten, name).default, (1, 2, 1, 0)
    spec = _spec((2, 3, 5, 4), LAST, dtype=dtype)
    out = infer(op, (spec, padding))
    assert (out.shape, out.stride) == ((2, 3, 6, 7), (126, 42, 7, 1))
    on_cpu = infer(op, (spec.replace(device=torch.device("cpu")), padding))
    assert on_cpu.stride == (126, 1, 21, 3)
    backward = getattr(aten, f"{name}_backward").default
    assert infer(backward, (out, spec, padding)).stride == (60, 20, 4, 1)


def test_batch_norms() -> None:
    """cuDNN's (of float32) are row-major or channels-last; others (of bfloat16) keep the layout. As
    an H200 gives them with torch 2.11.
    """
    columns = (60, 20, 1, 5)

    def strides(stride: tuple[int, ...], dtype: torch.dtype, name: str, *rest: Any) -> Any:
        spec, channels = _spec((2, 3, 5, 4), stride, dtype=dtype), _spec((3,))
        args = (spec, channels, channels, channels, channels, True, 0.1, 1e-5, *rest)
        return infer(getattr(aten, name).default, args)[0].stride

    assert strides(columns, torch.float32, "cudnn_batch_norm") == (60, 20, 4, 1)
    assert strides(LAST, torch.float32, "cudnn_batch_norm") == LAST
    for stride in (columns, LAST):
        assert strides(stride, torch.bfloat16, "native_batch_norm") == stride


@pytest.mark.parametrize("size", [0, 1, 3])
def test_places_are_columns(size: int) -> None:
    out = infer(aten.nonzero_static.default, (_spec((5, 2)),), {"size": size})
    assert (out.shape, out.stride) == ((size, 2), (1, max(size, 1)))
