"""torch.compile's backends under Flambeau's capture: `flambeau.compile(model,
backend=torch._inductor.compile_fx.compile_fx)`.

A backend that was written for torch.compile asks the TracingContext in force for fake tensors in
place of its example inputs, whose sizes are symbols of a ShapeEnv, and takes its guards there. Such
a context is in force while a backend from elsewhere compiles one of our graphs. When the backend
returns, its guards become guards of the graph's SizeEnv.

    graph          x: f32[s0, 8], n: s1        SizeEnv     s0 >= 2                    s0 == 2*s1
    backend        x: FakeTensor (s0, 8), n: SymInt s1     ShapeEnv    Eq(s0, 2*s1)   (asked while
                   it compiles)

The example inputs are as torch.compile gives them: real tensors, and SymInts for symbolic ints. A
float is given as it is, and specialised where the backend has asked for fake tensors. For a backend
that asks for nothing, and a graph without symbolic ints, nothing is made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import GuardSource, Source, TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from flambeau.interop_sizes import current, give_guards, size_to_torch, take_guards
from flambeau_prims import sizes
from flambeau_prims.size_floats import FloatExpr, as_float, is_float_symbol
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from flambeau_prims.size_ranges import SizeGuard
    from flambeau_prims.sizes import Size, SizeEnv

    Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., tuple[Any, ...]]]


def compile_with(
    backend: Backend, gm: fx.GraphModule, example_inputs: list[Any]
) -> Callable[..., tuple[Any, ...]]:
    """The result of a foreign backend; its guards are added to `gm.meta["size_env"]`."""
    inputs = _Inputs(gm, example_inputs)
    examples = [
        inputs.number(spec) if isinstance(spec, Expr) else example
        for spec, example in zip(inputs.specs, example_inputs, strict=True)
    ]
    context = _Context(inputs)
    with tracing(context):
        try:
            compiled = backend(gm, examples)
            context.take_guards()
            return compiled
        finally:
            context.close()


class _Context(TracingContext):
    """A TracingContext whose fake mode is made when somebody asks for it."""

    def __init__(self, inputs: _Inputs) -> None:
        self._inputs: _Inputs | None = inputs
        self._asked = False
        super().__init__(None)

    @property
    def fake_mode(self) -> Any:
        """The mode in which the graph's inputs have fake tensors."""
        if self._inputs is None:
            return None
        self._asked = True
        return self._inputs.fake_mode()

    @fake_mode.setter
    def fake_mode(self, value: Any) -> None:
        if value is not None:
            raise AttributeError("the fake mode of a graph of Flambeau's is made by it")

    def take_guards(self) -> None:
        """Take the backend's guards; it may have built in what it got as plain floats."""
        assert self._inputs is not None
        self._inputs.take_guards()
        if self._asked:
            for spec in self._inputs.specs:
                if isinstance(spec, FloatExpr):
                    as_float(spec)

    def close(self) -> None:
        """Give the inputs free; there is no fake mode any more."""
        self._inputs = None


class _Inputs:
    """The inputs of a graph for torch's compiler: symbols of a ShapeEnv, and fake tensors."""

    def __init__(self, gm: fx.GraphModule, examples: list[Any]) -> None:
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.specs = [node.meta.get("spec") for node in placeholders]
        self._examples = examples
        self._writes = any(
            not node.meta.get("pure", True) and node.all_input_nodes for node in gm.graph.nodes
        )
        self._env: SizeEnv | None = gm.meta.get("size_env")
        self._shape_env: Any = None
        self._fake_mode: Any = None
        self._fakes: list[torch.Tensor] = []
        self._symbols: dict[str, Expr] = {}
        self._symints: dict[str, Any] = {}

    def number(self, size: Expr) -> int | torch.SymInt:
        """torch's number for a symbolic int that is an input."""
        self._make_shape_env()
        return size_to_torch(current(size), self._symints)  # type: ignore[no-any-return]

    def fake_mode(self) -> Any:
        """The FakeTensorMode that knows fake tensors of all inputs."""
        if self._fake_mode is None:
            self._make_shape_env()
            self._fake_mode = FakeTensorMode(shape_env=self._shape_env)
            memory = Counter(x.untyped_storage()._cdata for x in self._examples if _is_strided(x))
            for spec, example in zip(self.specs, self._examples, strict=True):
                if not isinstance(example, torch.Tensor):
                    continue
                if isinstance(spec, Spec) and spec.env is not None and _is_strided(example):
                    if not self._writes or memory[example.untyped_storage()._cdata] == 1:
                        fake = self._symbolic_fake(example, spec)
                        self._fake_mode.fake_tensor_converter.set_tensor_memo(example, fake)
                        self._fakes.append(fake)
                        continue
                    # Only torch's own conversion sees which inputs share the memory that is written
                    # to.
                    for size in (*spec.shape, *spec.stride, spec.offset):
                        sizes.as_int(size)
                self._fakes.append(self._fake_mode.from_tensor(example, static_shapes=True))
        return self._fake_mode

    def take_guards(self) -> None:
        """Take in the graph's SizeEnv the guards taken in the ShapeEnv."""
        if self._shape_env is not None:
            take_guards([guard.expr for guard in self._shape_env.guards], self._symbols)

    def _make_shape_env(self) -> None:
        if self._shape_env is not None:
            return
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._shape_env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        if self._env is None:
            return
        for name, atom in self._env.symbols.items():
            if atom.index not in self._env.unbacked_atoms and not is_float_symbol(name):
                self._make_symbol(name, atom.hint)
        give_guards(
            [guard for guard in self._env.guards if self._is_of_sizes(guard)], self._symints
        )

    def _is_of_sizes(self, guard: SizeGuard) -> bool:
        sides = [side for side in (guard.lhs, guard.rhs) if not isinstance(side, (int, float))]
        return all(
            isinstance(side, Expr) and side.symbols() <= self._symints.keys() for side in sides
        )

    def _make_symbol(self, name: str, hint: int) -> None:
        """A symbol of torch's for one of ours.

        torch takes a symbol that is not negative for positive. So one of ours is guarded to be
        positive, or specialised where it is 0.
        """
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        assert self._env is not None
        ours = self._env.bare_symbol(name)
        lower = self._env.ranges.bounds(ours)[0]
        not_negative = lower is not None and lower >= 0
        if not_negative and sizes.eq(ours, 0):
            return
        source = _Input(name)
        theirs = self._shape_env.create_symbol(
            hint,
            source,
            dynamic_dim=DimDynamic.DYNAMIC,
            positive=True if not_negative else None,
            do_not_specialize_zero_one=lower is None or lower < 2,
        )
        self._symbols[theirs.name] = ours
        self._symints[name] = self._shape_env.create_symintnode(theirs, hint=hint, source=source)

    def _symbolic_fake(self, example: torch.Tensor, spec: Spec) -> torch.Tensor:
        shape = [self._size(size) for size in spec.shape]
        stride = [self._size(size) for size in spec.stride]
        offset = self._size(spec.offset)
        inference = example.is_inference()
        with self._fake_mode, torch._C._InferenceMode(inference), torch.no_grad():
            fake = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
            if not isinstance(offset, int) or offset != 0:
                extent = sum(((n - 1) * step for n, step in zip(shape, stride, strict=True)), 1)
                whole = torch.empty(offset + extent, dtype=spec.dtype, device=spec.device)
                fake = whole.as_strided(shape, stride, offset).detach()
            torch._C._set_conj(fake, example.is_conj())
            torch._C._set_neg(fake, example.is_neg())
        if example.requires_grad:
            fake.requires_grad_()
            if not example.is_leaf:
                with self._fake_mode, torch.enable_grad():
                    fake = _Interior.apply(fake)  # type: ignore[assignment]
        return fake

    def _size(self, size: Size) -> Any:
        return size_to_torch(current(size) if isinstance(size, Expr) else size, self._symints)


class _Interior(torch.autograd.Function):
    """The identity: gives a fake tensor its real one's history, so that writes are no error."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


@dataclass(frozen=True)
class _Input(Source):
    """Where a symbol comes from, for torch's messages."""

    symbol: str

    @property
    def _name_template(self) -> str:
        return self.symbol

    @property
    def guard_source(self) -> GuardSource:
        return GuardSource.CONSTANT


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
