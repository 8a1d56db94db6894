"""What C calls where it could not allocate a tensor: Python tries again, and raises as eager does.

torch's C interface says that memory could not be had, but neither why nor by which exception.
"""

from __future__ import annotations

import torch

from flambeau_runtime.dispatch import DEVICE_CODES, DTYPE_CODES

_DTYPES = {code: getattr(torch, name) for name, code in DTYPE_CODES.items()}
_DEVICES = {code: name for name, code in DEVICE_CODES.items()}


def allocate_again(
    geometry: tuple[int, ...], dtype: int, device_type: int, index: int
) -> torch.Tensor:
    """An uninitialised tensor; `geometry` is its sizes, then its strides.

    Raises what torch raises, as torch.OutOfMemoryError.
    """
    ndim = len(geometry) // 2
    name = _DEVICES[device_type]
    device = torch.device(name) if name == "cpu" else torch.device(name, index)
    sizes, strides = geometry[:ndim], geometry[ndim:]
    return torch.empty_strided(sizes, strides, dtype=_DTYPES[dtype], device=device)
