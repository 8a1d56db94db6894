"""Spec: what the compiler knows of a tensor without its data.

A Spec is interned: two tensors of the same shape, stride, offset, dtype and device share one
object, so rules and caches compare Specs by identity. Sizes are Python ints or symbolic
`flambeau_prims.sizes.Expr`s, which are interned too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.sizes import ExprEnv

Size: TypeAlias = "int | Expr"
"""A size, stride or offset, in elements."""
Sizes: TypeAlias = "Sequence[Size]"


class Spec:
    """Shape, stride and storage offset (in elements), dtype and device of a strided tensor.

    Make one with `Spec.of`; the constructor is not for callers, since it would bypass interning.
    """

    __slots__ = ("__weakref__", "device", "dtype", "env", "offset", "shape", "stride")

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype
    device: torch.device
    env: ExprEnv | None
    """The env of the symbolic sizes, or None when all are ints."""

    @classmethod
    def of(
        cls,
        shape: Sequence[Size],
        *,
        stride: Sequence[Size] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        offset: Size = 0,
    ) -> Spec:
        """The interned Spec with these fields; `stride=None` means contiguous (row-major)."""
        shape = tuple(shape)
        stride = contiguous_stride(shape) if stride is None else tuple(stride)
        if not isinstance(device, torch.device):
            device = torch.device(device)
        key = (shape, stride, offset, dtype, device)
        known = _INTERNED.get(key)
        if known is None:
            if len(shape) != len(stride):
                raise ValueError(f"shape {shape} and stride {stride} differ in length")
            env = next(
                (size.env for size in (*shape, *stride, offset) if isinstance(size, Expr)), None
            )
            # Symbolic Specs live as long as their env.  dict.setdefault is atomic: two threads
            # agree on one object.
            table = _INTERNED if env is None else env.specs
            known = table.get(key)
            if known is None:
                new = object.__new__(cls)
                new.shape, new.stride, new.offset, new.dtype, new.device = key
                new.env = env
                known = table.setdefault(key, new)
        return known

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> Size:
        """Number of elements: the product of the sizes."""
        product: Size = 1
        for size in self.shape:
            product = size * product
        return product

    def fresh(
        self,
        shape: Sequence[Size] | None = None,
        stride: Sequence[Size] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Spec:
        """A new tensor on this device, with its shape and dtype, row-major, unless given."""
        shape = self.shape if shape is None else shape
        return Spec.of(shape, stride=stride, dtype=dtype or self.dtype, device=self.device)

    def replace(self, **changes: object) -> Spec:
        """This Spec with some fields changed; a new shape alone makes it contiguous."""
        if "shape" in changes and "stride" not in changes:
            changes["stride"] = None
        fields = {
            "shape": self.shape,
            "stride": self.stride,
            "dtype": self.dtype,
            "device": self.device,
        }
        fields.update(offset=self.offset, **changes) if "offset" not in changes else fields.update(
            changes
        )
        return Spec.of(fields.pop("shape"), **fields)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.shape, self.stride, self.offset, self.dtype, self.device))

    def __repr__(self) -> str:
        text = f"{_DTYPE_NAMES.get(self.dtype, self.dtype)}{list(self.shape)}"
        if self.stride != contiguous_stride(self.shape):
            text += f" stride {list(self.stride)}"
        if self.offset != 0:
            text += f" offset {self.offset}"
        return text if self.device.type == "cpu" else f"{text} {self.device}"


_INTERNED: dict[tuple[object, ...], Spec] = {}

_DTYPE_NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def contiguous_stride(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, in elements, as of `torch.empty(shape)` (sizes 0 and 1 count as 1)."""
    strides: list[Size] = []
    running: Size = 1
    for size in reversed(shape):
        strides.append(running)
        if not isinstance(size, int) or size > 1:
            running = size * running
    return tuple(reversed(strides))


def spec_of(tensor: torch.Tensor) -> Spec:
    """The Spec of a real strided tensor."""
    return Spec.of(
        tensor.shape,
        stride=tensor.stride(),
        dtype=tensor.dtype,
        device=tensor.device,
        offset=int(tensor.storage_offset()),
    )


def _rebuild(shape, stride, offset, dtype, device) -> Spec:  # type: ignore[no-untyped-def]
    return Spec.of(shape, stride=stride, offset=offset, dtype=dtype, device=device)
