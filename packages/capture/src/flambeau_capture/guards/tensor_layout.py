"""Finds where libtorch keeps a tensor's fields, so that C can read them without torch headers.

Nothing is assumed of c10::TensorImpl: each field's offset is the only one at which memory agrees,
for all of a set of differently shaped and typed tensors, with what the Python API says. When an
offset is not unique, or the final check of the C reader against Python fails, `configure()` says no
and guards on tensors are checked in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from flambeau_capture.core import core

_SCANNED = 192
"""Bytes of a TensorImpl to look at, at most."""
_INLINE_DIMS = 5


@functools.cache
def configure() -> bool:
    """Tells the C core the layout, once; whether it now reads tensors."""
    if core is None:
        return False
    folder = Path(torch.__file__).parent / "lib"
    c10, libtorch = folder / "libc10.so", folder / "libtorch_cpu.so"
    if not (c10.exists() and libtorch.exists()):
        return False
    with _usual_modes():
        try:
            core.configure(
                tensor_type=torch.Tensor,
                c10=str(c10),
                libtorch=str(libtorch),
                **find_layout(c10),
                forward_ad=torch.autograd.forward_ad.__dict__,
            )
        except (LookupError, OSError, AttributeError):
            return False
        return _agrees_with_python()


@contextlib.contextmanager
def _usual_modes() -> Iterator[None]:
    """As a process begins, whatever the modes of the call that asks first."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),  # type: ignore[attr-defined]
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def find_layout(c10: Path) -> dict[str, int]:
    """Offsets, in bytes: of the TensorImpl pointer in a Python tensor, of fields in it, and of the
    mode bits in AutogradState.

    LookupError when a field is not found at exactly one place.
    """
    samples = _samples()
    size = min(_SCANNED, *(_allocated(tensor._cdata) for tensor in samples))
    fields = {
        "keys": _only(
            range(0, size - 7, 8),
            samples,
            lambda t, at: _word(t._cdata + at) == torch._C._dispatch_keys(t).raw_repr(),
        ),
        "storage": _only(
            range(0, size - 7, 8),
            samples,
            lambda t, at: _word(t._cdata + at) == t.untyped_storage()._cdata,
        ),
        "ndim": _only(range(0, size - 7, 8), samples, lambda t, at: _word(t._cdata + at) == t.ndim),
        "extents": _only(range(0, size - 8 * (2 * _INLINE_DIMS) + 1, 8), samples, _has_extents_at),
        "kind": _only(range(0, size - 3, 2), samples, _has_kind_at),
    }
    return {
        "impl": _only(
            range(0, torch.Tensor.__basicsize__, 8),
            samples,
            lambda t, at: _word(id(t) + at) == t._cdata,
        ),
        **fields,
        "autograd_flags": _find_autograd_flags(c10),
    }


def _samples() -> list[torch.Tensor]:
    return [
        _empty(2, 3, 7).transpose(0, 2),
        _empty(5, dtype=torch.float64),
        _empty(dtype=torch.int64),
        _empty(4, 1, 3, 2, 6, dtype=torch.bfloat16).permute(4, 0, 2, 1, 3),
        _empty(2, 1, 3, dtype=torch.uint8),
        _empty(3, 2, device="meta", dtype=torch.float16),
        _empty(6, 4).requires_grad_()[1:, ::2],
    ]


def _empty(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """Whatever the default dtype and device."""
    return torch.empty(shape, dtype=dtype, device=device)


def _allocated(address: int) -> int:
    """How many bytes the C allocator set aside at an address."""
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.argtypes, usable.restype = [ctypes.c_void_p], ctypes.c_size_t
    return int(usable(address))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _only(
    offsets: range, samples: list[torch.Tensor], agrees: Callable[[torch.Tensor, int], bool]
) -> int:
    found = [at for at in offsets if all(agrees(tensor, at) for tensor in samples)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} places agree where one was expected")
    return found[0]


def _has_extents_at(tensor: torch.Tensor, at: int) -> bool:
    address, ndim, gap = tensor._cdata + at, tensor.ndim, _INLINE_DIMS
    words = (ctypes.c_int64 * (2 * gap)).from_address(address)
    return (
        tuple(words[:ndim]) == tuple(tensor.shape)
        and tuple(words[gap : gap + ndim]) == tensor.stride()
    )


_DTYPE_CODES = {
    torch.uint8: 0,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bfloat16: 15,
}
_DEVICE_CODES = {"cpu": 0, "meta": 14}


def _has_kind_at(tensor: torch.Tensor, at: int) -> bool:
    data = ctypes.string_at(tensor._cdata + at, 4)
    index = -1 if tensor.device.index is None else tensor.device.index
    return (
        int.from_bytes(data[:2], "little") == _DTYPE_CODES[tensor.dtype]
        and data[2] == _DEVICE_CODES[tensor.device.type]
        and int.from_bytes(data[3:], "little", signed=True) == index
    )


def _find_autograd_flags(c10: Path) -> int:
    state = ctypes.CDLL(str(c10))._ZN3c1013AutogradState13get_tls_stateEv
    state.restype = ctypes.c_void_p

    def read() -> bytes:
        return ctypes.string_at(state(), 32)

    readings = []
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            readings.append(read())
    changed = [at for at in range(32) if len({reading[at] for reading in readings}) == 3]
    if len(changed) != 1:
        raise LookupError("the mode bits of AutogradState were not found")
    return changed[0]


def _agrees_with_python() -> bool:
    """Check the configured C reader: each sample matches its own facts only."""
    assert core is not None
    code = core.operations()
    # More than five dimensions stand outside the TensorImpl, behind a pointer where the inline ones
    # would begin.
    many_dims = _empty(2, 1, 3, 1, 2, 1, 4, dtype=torch.uint8)
    samples = [
        *_samples(),
        many_dims,
        torch.nn.Parameter(_empty(3, 4)),
        _empty(0, 3),
        _empty(4, 1).expand(4, 6),
    ]
    for at, tensor in enumerate(samples):
        keys, kind = core.tensor_words(tensor)
        facts = (
            type(tensor),
            keys,
            kind,
            tensor.requires_grad,
            tuple(tensor.shape),
            tensor.stride(),
        )
        ops = ((code["ARGUMENT"], 1, 0, 0, 0, None), (code["TENSOR"], 0, 1, 1, 0, facts))
        program = core.GuardProgram(ops=ops, inputs=(), arguments=1, registers=2, symbols=0)
        for other_at, other in enumerate(samples):
            if (program.failed(None, (other,)) is None) != (at == other_at):
                return False
    return True
