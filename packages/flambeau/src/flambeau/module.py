"""CompiledModule: an nn.Module whose call is compiled and whose state is the original module's.

The surface is torch.compile's `OptimizedModule`: `_orig_mod` holds the module, `state_dict` keys carry the prefix
`_orig_mod.`, and attributes that CompiledModule does not have are read from and written to the original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = frozenset({"_orig_mod", "_compiled_call", "training"})


class CompiledModule(nn.Module):
    """What `flambeau.compile(module)` returns."""

    _orig_mod: nn.Module

    def __init__(self, module: nn.Module, compiled_call: Callable[..., Any]) -> None:
        super().__init__()
        self._orig_mod = module
        object.__setattr__(self, "_compiled_call", compiled_call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module; its own hooks run as nn.Module's call runs them."""
        return self._compiled_call(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling it: the compiled unit is the module's whole call."""
        return self._compiled_call(*args, **kwargs)

    @property
    def training(self) -> bool:  # type: ignore[override]
        """The original module's flag."""
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in self.__dict__ and "_orig_mod" in self._modules:
            self._orig_mod.training = mode

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or "_modules" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __repr__(self) -> str:
        body = repr(self._orig_mod).replace("\n", "\n  ")
        return f"CompiledModule(\n  (_orig_mod): {body}\n)"
