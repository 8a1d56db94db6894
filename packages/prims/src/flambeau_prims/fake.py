"""FakeTensor: a torch.Tensor with a Spec and no data.

Eager PyTorch runs on it (autograd, C++ composites, nn.Modules) under a `tracer.Tracer`, which
answers every ATen call by a shape rule. To C++ a fake lives on `cpu`, or on `meta` when its Spec
says another device, so that a program for a GPU is traced on any machine; Python sees the Spec's
device. To C++ each fake also has separate memory: what memory it really shares is kept in
`storage_record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from flambeau_prims.autocast_key import AUTOCAST_KEY
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import to_symint
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flambeau_prims.graph import Value
    from flambeau_prims.sizes import Size, SizeEnv

_CPU = torch.device("cpu")
_META = torch.device("meta")
_STRIDED = torch.strided
AUTOCAST_KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, AUTOCAST_KEY))
"""What fakes for a GPU have besides, for autocast.py."""


class GivenMemory(Protocol):
    """Who knows of the memory of an input what its Spec does not say, and guards what it tells."""

    def offset(self) -> int:
        """Where in it the input begins, in elements."""

    def size(self) -> int:
        """How many bytes it has."""


class StorageRecord:
    """The memory that a fake tensor and its views share; `version` counts the writes to it.

    `first`: the geometry of the first tensor over it, which says how much there is. There may be
    more of it where it is `given` from outside; `memory` says so, if there is somebody to ask.
    """

    __slots__ = ("first", "given", "memory", "version")

    def __init__(self, *, given: bool = False) -> None:
        self.version = 0
        self.first: Spec | None = None
        self.given = given
        self.memory: GivenMemory | None = None

    def written(self) -> None:
        """Note a write."""
        self.version += 1


ONE_OF_SEVERAL = -(1 << 62)
"""`FakeTensor.chain` of a view that autograd refuses writes to."""


class FakeTensor(torch.Tensor):
    """A tensor without data.  Made by `make_fake` (Tracer.fake is the caller's way)."""

    spec: Spec
    value: Value | None
    """The graph Value that a recording Tracer gave it."""
    storage_record: StorageRecord
    literal: torch.Tensor | None
    """The contents that the program's text gives (`torch.tensor([1, 2])`), or None."""
    chain = 0
    """The number of views between it and its base; negative if one call gives several."""
    no_grad_view = False
    """Whether one of these views was made without gradients."""

    @property
    def contents(self) -> torch.Tensor | None:
        """A real tensor with the same contents, if known: a literal that nothing has written to."""
        return self.literal if self.storage_record.version == 0 else None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the tensor stands for."""
        return self.spec.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether that device is a GPU."""
        return self.spec.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """Whether that device is the CPU."""
        return self.spec.device.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether that device is `meta`."""
        return self.spec.device.type == "meta"

    def get_device(self) -> int:  # type: ignore[override]
        """The index of that device, or -1."""
        index = self.spec.device.index
        return -1 if index is None else index

    def tolist(self) -> Any:
        """The elements of a literal."""
        return self._read("tolist").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """The elements of a literal."""
        return self._read("numpy").numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        return self._read("numpy").__array__(dtype)

    def data_ptr(self) -> int:
        """Raises: there is no memory."""
        raise DataDependent(f"data_ptr of {self!r} was asked for")

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise DataDependent(f"{self!r} has no memory to share with another library")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise DataDependent(f"{self!r} cannot be saved")

    def _read(self, how: str) -> torch.Tensor:
        contents = self.contents
        if contents is None:
            raise DataDependent(f"{how} needs the contents of {self!r}")
        return contents

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol "
                "at the moment"
            )
        with torch.no_grad():
            copy = self.clone()
        copy.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copy
        return copy  # type: ignore[return-value]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        name = "" if self.value is None else f"{self.value.name}: "
        return f"FakeTensor({name}{self.spec!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(kind is not cls for kind in types):
            return NotImplemented  # a wrapper subclass among the arguments answers
        raise RuntimeError(f"{func} was called on a fake tensor outside its Tracer")


_make_wrapper = torch.Tensor._make_wrapper_subclass


def make_fake(
    spec: Spec,
    storage: StorageRecord | None = None,
    *,
    requires_grad: bool = False,
    inference: bool | None = None,
) -> FakeTensor:
    """A new FakeTensor of this Spec over this memory (None: new memory); `value` and `literal` are
    None.

    `inference` says whether it is an inference tensor; None: as this thread's mode has it for new
    tensors.
    """
    if inference is not None and inference != torch.is_inference_mode_enabled():
        with torch._C._InferenceMode(inference):
            return make_fake(spec, storage, requires_grad=requires_grad)
    shape: Sequence[Any] = spec.shape
    stride: Sequence[Any] = spec.stride
    offset: Any = spec.offset
    if spec.env is not None:
        shape = [to_symint(size) for size in shape]
        stride = [to_symint(size) for size in stride]
        offset = to_symint(offset)
    device = spec.device.type
    fake = _make_wrapper(  # type: ignore[call-arg]
        FakeTensor,
        shape,
        stride,
        offset,
        None,
        spec.dtype,
        _STRIDED,
        _CPU if device == "cpu" else _META,
        False,
        requires_grad,
        None,
        False,
        False,
        AUTOCAST_KEYS if device == "cuda" else None,
        0,
    )
    fake.spec = spec
    storage = fake.storage_record = StorageRecord() if storage is None else storage
    if storage.first is None:
        storage.first = spec
    fake.value = None
    fake.literal = None
    return fake


def carry_lazy_bits(source: FakeTensor, view: FakeTensor, flips: str | None) -> None:
    """Give a view its source's conjugate and negative bits, one of them (`flips`: "conj" or "neg")
    turned over.

    C++ looks at them: it resolves the operands of most operators, and refuses some views.
    """
    conjugate = source.is_conj() != (flips == "conj")
    if conjugate and not view.is_complex():
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate "
            "tensor so you can view it as real, use self.resolve_conj(); however, be warned that "
            "the resulting tensor will NOT alias the original."
        )
    torch._C._set_conj(view, conjugate)
    torch._C._set_neg(view, source.is_neg() != (flips == "neg"))


def set_geometry(fake: FakeTensor, spec: Spec) -> None:
    """Give a fake tensor another geometry, as `squeeze_` does; autograd sees the same tensor."""
    with torch._C._DisableTorchDispatch():
        torch._C.TensorBase.data.__set__(fake, make_fake(spec, fake.storage_record))  # type: ignore[attr-defined]
    fake.spec = spec


def fake_like(
    real: torch.Tensor,
    env: SizeEnv | None = None,
    dynamic_dims: Mapping[int, Size] | Iterable[int] = (),
    *,
    source: str = "",
) -> FakeTensor:
    """A FakeTensor with a real tensor's geometry, dtype, device, requires_grad, and
    nn.Parameter-ness.

    `dynamic_dims` says which dims are symbolic: a mapping to the Exprs to use, or dim numbers,
    which get fresh symbols of `env` with `f"{source}.shape[{dim}]"` as their source. The result is
    a leaf exactly if the real tensor is.
    """
    if not isinstance(dynamic_dims, dict):
        if env is None and dynamic_dims:
            raise ValueError("fresh symbols for dynamic_dims need an env")
        dynamic_dims = {
            dim: env.symbol(real.shape[dim], f"{source}.shape[{dim}]")  # type: ignore[union-attr]
            for dim in dynamic_dims
        }
    spec = symbolic_spec(real, dynamic_dims) if dynamic_dims else spec_of(real)
    inference = real.is_inference()
    fake = make_fake(spec, StorageRecord(given=True), inference=inference)
    if real.requires_grad:
        with torch._C._InferenceMode(inference):
            fake.requires_grad_()
            if not real.is_leaf:
                fake = _non_leaf(fake)
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True  # type: ignore[attr-defined]
    return fake


def symbolic_spec(real: torch.Tensor, sizes: Mapping[int, Size]) -> Spec:
    """The Spec of a real tensor with some sizes replaced; strides that are products follow."""
    shape: list[Size] = [sizes.get(dim, size) for dim, size in enumerate(real.shape)]
    stride: list[Size] = list(real.stride())
    order = sorted(range(real.dim()), key=lambda dim: (real.stride(dim), -dim))
    product: Size = 1
    for position, dim in enumerate(order):
        if position:
            inner = order[position - 1]
            product = shape[inner] * stride[inner]
            if real.stride(dim) == real.shape[inner] * real.stride(inner) and isinstance(
                product, Expr
            ):
                stride[dim] = product
    return Spec.of(
        shape,
        stride=stride,
        dtype=real.dtype,
        device=real.device,
        offset=int(real.storage_offset()),
    )


class _NonLeaf(torch.autograd.Function):
    """The identity, to give a fake input a grad_fn."""

    @staticmethod
    def forward(ctx: Any, fake: FakeTensor) -> FakeTensor:
        return make_fake(fake.spec, fake.storage_record)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def is_outside_history(node: object) -> bool:
    """Whether an autograd node is the unknown history of a `fake_like` of a non-leaf."""
    return getattr(node, "_forward_cls", None) is _NonLeaf


def _non_leaf(fake: FakeTensor) -> FakeTensor:
    with torch.enable_grad():
        return _NonLeaf.apply(fake)  # type: ignore[return-value]
