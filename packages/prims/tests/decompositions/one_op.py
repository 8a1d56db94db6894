"""One ATen call, as a graph: decomposed, checked, run, and compared with eager.

Shapes, dtypes and strides must be eager's. Integers and bools must be equal; floats may err from a
float64 reference by no more than a small factor of eager's own greatest error, or a few units in
the last place.
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_prims.check import check_graph
from flambeau_prims.decompose import decompose
from flambeau_prims.evaluate import run_graph
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.operator_facts import is_check
from flambeau_prims.primitives import Kind, Prim
from flambeau_prims.spec import spec_of

LAYOUTS = ("contiguous", "contiguous", "permuted", "sliced", "expanded")
SPECIAL = (
    float("nan"),
    float("inf"),
    float("-inf"),
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    100.0,
    -100.0,
    1e-7,
)


class Make:
    """Random tensors for cases, of one dtype, in random layouts. `special` mixes NaN, infinities
    and zeros into floats.
    """

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        *,
        special: bool = False,
        layouts: tuple[str, ...] = LAYOUTS,
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.special = special
        self.layouts = layouts

    def integer(self, low: int, high: int) -> int:
        """low <= i < high."""
        return int(torch.randint(low, high, (), generator=self.generator))

    def __call__(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        low: float | None = None,
        high: float = 1.0,
    ) -> torch.Tensor:
        """Normal floats, or uniform ones in [low, high); integers in [-9, 9]; bools."""
        return self._lay_out(
            lambda sizes: self._values(sizes, dtype or self.dtype, low, high), shape
        )

    def index(self, size: int, *shape: int, negative: bool = False) -> torch.Tensor:
        """int64 indices into a dim of `size`."""
        low = -size if negative else 0
        return self._lay_out(
            lambda sizes: torch.randint(low, size, sizes, generator=self.generator), shape
        )

    def _values(
        self, shape: tuple[int, ...], dtype: torch.dtype, low: float | None, high: float
    ) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=self.generator).bool()
        if not dtype.is_floating_point:
            least = 0 if dtype is torch.uint8 else -9
            least = least if low is None else int(low)
            return torch.randint(
                least, 10 if low is None else int(high), shape, generator=self.generator
            ).to(dtype)
        if low is None:
            made = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        else:
            made = (
                torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low)
                + low
            )
        if self.special and made.numel():
            picks = torch.randint(0, 3 * len(SPECIAL), shape, generator=self.generator)
            for i, value in enumerate(SPECIAL):
                made[picks == i] = value
        return made.to(dtype)

    def _lay_out(self, values: Any, shape: tuple[int, ...]) -> torch.Tensor:
        layout = self.layouts[self.integer(0, len(self.layouts))]
        if layout == "permuted":
            order = torch.randperm(len(shape), generator=self.generator).tolist()
            return values(tuple(shape[d] for d in order)).permute(
                [order.index(d) for d in range(len(shape))]
            )
        if layout == "sliced" and shape:
            wide = values((*shape[:-1], 2 * shape[-1] + 1))
            return wide[..., 1::2]
        if layout == "expanded" and len(shape) > 1:
            return values((*shape[:-1], 1)).expand(shape)
        return values(shape)


def same_layout_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own that is laid out alike, overlaps included."""
    storage = tensor.untyped_storage()
    memory = torch.empty(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype).set_(
        storage.clone(), 0, (storage.nbytes() // tensor.element_size(),)
    )
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def decomposed(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]
) -> tuple[Graph, list[torch.Tensor]]:
    """The call as a decomposed one-op graph whose inputs are the tensors in its arguments."""
    tensors: list[torch.Tensor] = []
    inputs: list[Value] = []

    def lift(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            tensors.append(arg)
            inputs.append(Value(f"x{len(inputs)}", spec_of(arg)))
            return inputs[-1]
        if isinstance(arg, (list, tuple)):
            return type(arg)(map(lift, arg))
        return arg

    node = Node(
        op,
        tuple(map(lift, args)),
        {name: lift(arg) for name, arg in kwargs.items()},
        (),
        "model.py:1",
    )
    outputs = [
        None if result is None else Value(f"y{i}", spec_of(result), node)
        for i, result in enumerate(results)
    ]
    node.outputs = tuple(outputs)
    graph = decompose(Graph(inputs, [node], list(outputs)))
    check_graph(graph)
    return graph, tensors


def is_decomposed(graph: Graph) -> bool:
    """Whether only primitives are left, and checks of what is in tensors."""
    return all(isinstance(node.op, Prim) or is_check(node.op) for node in graph.nodes)


def flat(result: Any) -> list[Any]:
    """An operator's results as a list."""
    return (
        [item for entry in result for item in flat(entry)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def check(
    op: Any,
    *args: Any,
    exact: bool = False,
    factor: float = 4.0,
    near: float = 0.0,
    undefined: bool = False,
    **kwargs: Any,
) -> None:
    """Assert that the decomposition agrees with eager on this call.

    `exact`: floats must be equal too, the sign of zeros included. `near`: the size of what is
    summed, if the result may be much smaller. `undefined`: only Specs are compared.
    """
    results = flat(op(*args, **kwargs))
    graph, tensors = decomposed(op, args, kwargs, results)
    assert is_decomposed(graph), f"{op} is left to ATen:\n{graph}"
    ours = run_graph(graph, [same_layout_copy(tensor) for tensor in tensors])
    wide = None if exact or undefined else reference(op, args, kwargs)
    for i, (mine, eager) in enumerate(zip(ours, results, strict=True)):
        where = f"{op}, result {i}, of {short(args)}, {kwargs}\n{graph}"
        if eager is None:
            assert mine is None, where
            continue
        assert (mine.dtype, mine.shape) == (eager.dtype, eager.shape), where
        assert meaningful_stride(mine) == meaningful_stride(eager), (
            mine.stride(),
            eager.stride(),
            where,
        )
        if not undefined:
            compare(mine, eager, None if wide is None else wide[i], exact, factor, near, where)
    assert_owns_memory(op, graph)


def short(arg: Any) -> Any:
    """An argument for messages: tensors as their Specs."""
    if isinstance(arg, (tuple, list)):
        return [short(item) for item in arg]
    return spec_of(arg) if isinstance(arg, torch.Tensor) else arg


def assert_owns_memory(op: Any, graph: Graph) -> None:
    """A result that eager makes in new memory is not a view of an input here, nor of another
    result.
    """
    if any(argument.alias_info for argument in op._schema.arguments) or "unsafe" in op._schema.name:
        return
    seen: set[Value] = set(graph.inputs)
    for out in graph.outputs:
        while out is not None and out.producer is not None and out.producer.op.kind is Kind.VIEW:
            out = out.producer.args[0]
        assert out not in seen, f"{out} shares memory:\n{graph}"
        if out is not None:
            seen.add(out)


def meaningful_stride(tensor: torch.Tensor) -> list[int]:
    """Strides of the dims that address memory."""
    if tensor.numel() == 0:
        return []
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def reference(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The results in float64, or None where the operator does not take it."""

    def widen(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and arg.dtype.is_floating_point:
            return arg.double()
        if isinstance(arg, torch.dtype) and arg.is_floating_point:
            return torch.float64
        if isinstance(arg, (list, tuple)):
            return type(arg)(map(widen, arg))
        return arg

    try:
        return flat(op(*map(widen, args), **{name: widen(arg) for name, arg in kwargs.items()}))
    except RuntimeError:
        return None


def compare(
    mine: torch.Tensor,
    eager: torch.Tensor,
    wide: torch.Tensor | None,
    exact: bool,
    factor: float,
    near: float,
    where: str,
) -> None:
    """Assert that values agree."""
    if exact or not eager.dtype.is_floating_point:
        equal = (
            torch.equal(mine.nan_to_num(12345.0), eager.nan_to_num(12345.0))
            if eager.dtype.is_floating_point
            else torch.equal(mine, eager)
        )
        assert equal, f"{mine}\n{eager}\n{where}"
        if eager.dtype.is_floating_point:
            numbers = ~eager.isnan()
            assert torch.equal(mine[numbers].signbit(), eager[numbers].signbit()), (
                f"signs {mine}\n{eager}\n{where}"
            )
        return
    if wide is None or wide.shape != eager.shape or not wide.dtype.is_floating_point:
        wide = eager
    mine, wide = mine.double(), wide.double()
    assert torch.equal(mine.isnan(), eager.isnan()), f"NaN: {mine}\n{eager}\n{where}"
    limits = torch.finfo(eager.dtype)
    eager = eager.double()
    assert torch.equal(mine.isinf() & (mine > 0), eager.isinf() & (eager > 0)), (
        f"inf: {mine}\n{eager}\n{where}"
    )
    assert torch.equal(mine.isinf() & (mine < 0), eager.isinf() & (eager < 0)), (
        f"-inf: {mine}\n{eager}\n{where}"
    )
    finite = eager.isfinite() & wide.isfinite()
    if not finite.any():
        return
    mine, eager, wide = mine[finite], eager[finite], wide[finite]
    scale = wide.abs() + max(near, min(1.0, wide.abs().max().item()))
    of_eager = ((eager - wide).abs() / scale.clamp_min(limits.tiny)).max()
    allowed = (factor * of_eager + 6 * limits.eps) * scale + limits.tiny
    if limits.bits == 64:  # eager is its own reference: leave room for another order of summation
        allowed = allowed + 100 * limits.eps * (wide.abs() + 1.0)
    error = (mine - wide).abs()
    assert bool((error <= allowed).all()), (
        f"error {error.max()}, allowed {allowed[error.argmax()]}\n{mine}\n{eager}\n{wide}\n{where}"
    )
