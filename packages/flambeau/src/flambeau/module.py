"""CompiledModule: an nn.Module whose call is compiled and whose state is the original module's.

The surface is torch.compile's `OptimizedModule`: `_orig_mod` holds the module, `state_dict` keys carry the prefix
`_orig_mod.`, and attributes that CompiledModule does not have are read from and written to the original.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OWN = frozenset({"_orig_mod", "_compiled", "_recompile", "training"})
_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CompiledModule(nn.Module):
    """What `flambeau.compile(module)` returns.

    Copies (deepcopy, pickle) hold a copy of the module and compile anew: compiled code belongs to one process and one module.
    """

    _orig_mod: nn.Module
    _compiled: Callable[..., Any]

    def __init__(
        self,
        module: nn.Module,
        compiled: Callable[..., Any],
        recompile: Callable[[nn.Module], CompiledModule],
    ) -> None:
        super().__init__()
        self._orig_mod = module
        object.__setattr__(self, "_compiled", compiled)
        object.__setattr__(self, "_recompile", recompile)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module.  Hooks of the original run as part of it; hooks on this wrapper run around it."""
        if any(self.__dict__[hooks] for hooks in _OWN_HOOKS):
            return super().__call__(*args, **kwargs)
        return self._compiled(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling it: the compiled unit is the module's whole call."""
        return self._compiled(*args, **kwargs)

    @property
    def training(self) -> bool:  # type: ignore[override]
        """The original module's flag."""
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        # nn.Module's constructor sets the flag before there is a module to set it on.
        if "_orig_mod" in self.__dict__.get("_modules", ()):
            self._orig_mod.training = mode

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return super().__getattr__(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # What nn.Module itself keeps about a module (its hooks) is the wrapper's own.
        own = self.__dict__
        if name in _OWN or name in own or "_orig_mod" not in own.get("_modules", ()):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    # Python finds these on the type only: for containers (Sequential, ModuleList, ModuleDict).

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload,no-any-return]

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __contains__(self, item: Any) -> bool:
        return item in self._orig_mod  # type: ignore[operator]

    def __repr__(self) -> str:
        body = repr(self._orig_mod).replace("\n", "\n  ")
        return f"CompiledModule(\n  (_orig_mod): {body}\n)"

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return self._recompile(copy.deepcopy(self._orig_mod, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_compile_again, (self._recompile, self._orig_mod))


def _compile_again(
    recompile: Callable[[nn.Module], CompiledModule], module: nn.Module
) -> CompiledModule:
    return recompile(module)
