"""Flambeau as a backend of torch.compile: `torch.compile(model, backend="flambeau")`.

torch finds `flambeau_backend` through the entry-point group `torch_dynamo_backends`. Sizes that
torch's capture has made symbolic are symbolic here, too: their SymInts become symbols of a SizeEnv,
and the guards that our compilers take are asked of the SymInts once more, so that torch guards
them. Numbers that no SymInt is (floats) are specialised by the same means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, detect_fake_mode

from flambeau.backend_registry import lookup_backend
from flambeau.compile_context import Context
from flambeau.debug_folder import debug_folder_of
from flambeau.environment import read_environment
from flambeau.interop_sizes import Untranslatable, give_guards, size_from_torch
from flambeau.options import resolve
from flambeau.report import Report
from flambeau_prims import sizes
from flambeau_prims.size_floats import unbacked_float
from flambeau_prims.sizes import Expr, Size, SizeEnv
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def flambeau_backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that torch's capture made with Flambeau's autograd, inductor and runtime."""
    resolved = resolve(
        fullgraph=False, dynamic=None, mode=mode, options=options, environment=read_environment()
    )
    name = "torch.compile graph"
    folder = debug_folder_of(name, resolved.environment)
    context = Context(resolved, Report(name, folder))
    imported = ImportedSizes(gm, example_inputs)
    compiled = lookup_backend("inductor", context)(gm, imported.examples)
    imported.hand_guards_back()
    return compiled


class ImportedSizes:
    """The sizes of a graph of torch's as symbols of a SizeEnv, which the graph is given: in
    `gm.meta` and in each node's "spec".

    `examples` are the example inputs, with plain numbers for symbolic ones.
    """

    def __init__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> None:
        self.env = SizeEnv()
        self._symbols: dict[str, Expr] = {}
        self._symints: dict[str, torch.SymInt] = {}
        self._fake_mode = detect_fake_mode(example_inputs)
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.examples = [
            self._import_input(node, example)
            for node, example in zip(placeholders, example_inputs, strict=True)
        ]
        calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        if any(_is_unbacked(node.meta.get("example_value")) for node in calls):
            # Such a graph is cut into pieces, which are compiled by what their inputs are.
            for node in calls:
                node.meta["spec"] = self._imported(node.meta.get("example_value"))
        if self.env.symbols:
            gm.meta["size_env"] = self.env

    def hand_guards_back(self) -> None:
        """Have torch take the guards that were taken while the graph was compiled."""
        give_guards(self.env.guards, self._symints)

    def _import_input(self, node: torch.fx.Node, example: Any) -> Any:
        if isinstance(example, torch.SymInt):
            node.meta["spec"] = size = self._size(example)
            return sizes.hint_of(size)
        if isinstance(example, (torch.SymFloat, torch.SymBool)):
            return float(example) if isinstance(example, torch.SymFloat) else bool(example)
        if isinstance(example, torch.Tensor):
            spec = self._imported(self._fake(example))
            if isinstance(spec, Spec) and spec.env is not None:
                node.meta["spec"] = spec
        return example

    def _fake(self, example: torch.Tensor) -> torch.Tensor:
        """The tensor with torch's symbolic sizes, which torch's own backends ask for by the same
        means.

        A placeholder's "example_value" is no substitute: the graph may have changed its sizes.
        """
        context = TracingContext.try_get()
        symbolic = None if context is None else context.tensor_to_context.get(example)
        if symbolic is None or self._fake_mode is None:
            return example
        fake: torch.Tensor = self._fake_mode.from_tensor(
            example, symbolic_context=symbolic, source=symbolic.tensor_source, trace=False
        )
        return fake

    def _imported(self, value: Any) -> Any:
        """The spec of an example value: Specs and sizes, nested as it is, or None."""
        if isinstance(value, (tuple, list)):
            return tuple(map(self._imported, value))
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, torch.SymFloat):
            return unbacked_float(self.env) if _is_unbacked(value) else float(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value if isinstance(value, (int, float)) else None
        return Spec.of(
            [self._size(size) for size in value.shape],
            stride=[self._size(stride) for stride in value.stride()],
            offset=self._size(value.storage_offset()),
            dtype=value.dtype,
            device=value.device,
        )

    def _size(self, size: int | torch.SymInt) -> Size:
        """Our size for one of torch's; one without a form here is specialised, guarded by torch."""
        if not isinstance(size, torch.SymInt):
            return size
        node = size.node
        for symbol in sorted(node.expr.free_symbols, key=str):
            if symbol.name not in self._symbols:
                self._import_symbol(symbol, node.shape_env)
        try:
            return size_from_torch(node.expr, self._symbols)
        except Untranslatable:
            return int(size)

    def _import_symbol(self, symbol: Any, shape_env: Any) -> None:
        bounds = shape_env.bound_sympy(symbol)
        lower = int(bounds.lower) if bounds.lower.is_Integer else None
        hint = shape_env.backed_var_to_val.get(symbol)
        if hint is None:
            self._symbols[symbol.name] = self.env.unbacked(lower=lower)
            return
        result = self.env.symbol(int(hint), symbol, lower=lower)
        self._symbols[symbol.name] = result
        self._symints[str(result)] = shape_env.create_symintnode(symbol, hint=int(hint))


def _is_unbacked(value: Any) -> bool:
    """Whether an example value is, or has a size that is, known only when the graph runs."""
    if isinstance(value, (tuple, list)):
        return any(map(_is_unbacked, value))
    if isinstance(value, torch.Tensor):
        return any(map(_is_unbacked, value.shape))
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        node = value.node
        return any(map(node.shape_env.is_unbacked_symint, node.expr.free_symbols))
    return False
