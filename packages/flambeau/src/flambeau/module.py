"""CompiledModule: an nn.Module whose call is compiled and whose state is the original module's.

The surface is torch.compile's `OptimizedModule`: `_orig_mod` holds the module, `state_dict` keys
carry the prefix `_orig_mod.`, and attributes that CompiledModule does not have are read from and
written to the original.

Libraries (accelerate, diffusers, Lightning, torch.distributed) recognise a compiled module by
`isinstance(x, OptimizedModule)`, and unwrap it then. A CompiledModule answers yes through its
`__class__`, which `isinstance` asks where the type itself is no subclass. A true subclass would
have to import torch's compiler, and a class registered beforehand would be too early: programs
import torch._dynamo at any time, accelerate by that very question. `type(x)` stays CompiledModule.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from flambeau_capture.python_core import without_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CompiledModule(nn.Module):
    """What `flambeau.compile(module)` returns.

    Copies (deepcopy, pickle) hold a copy of the module and of what the wrapper has (hooks), and
    recompile: compiled code belongs to one process and one module.
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
        object.__setattr__(self, "_compiled", compiled)
        object.__setattr__(self, "_recompile", recompile)
        super().__setattr__("_orig_mod", module)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """torch.compile's class of compiled modules if the program has loaded it, else ours."""
        loaded = sys.modules.get("torch._dynamo.eval_frame")
        recognised = getattr(loaded, "OptimizedModule", None)
        return recognised if isinstance(recognised, type) else type(self)

    @property
    def dynamo_ctx(self) -> Callable[[Any], Any]:
        """Compiles a function as this module is compiled, as the attribute of OptimizedModule does
        (Lightning compiles its steps so).
        """
        return self._recompile

    @property
    def _compile_kwargs(self) -> dict[str, Any]:
        """What `torch.compile` needs to compile as this module is compiled (Lightning's Fabric
        unwraps modules and compiles them again so).
        """
        given = getattr(self._recompile, "keywords", {})
        names = ("fullgraph", "dynamic", "mode", "options", "disable")
        chosen = {name: given[name] for name in names if given.get(name) is not None}
        backend = given.get("backend")
        ours = backend is None or backend == "inductor"
        return chosen | {"backend": "flambeau" if ours else backend}

    @without_frame
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module. Hooks of the original run as part of it; hooks on this wrapper,
        and a `forward` assigned to it, around it.
        """
        own = self.__dict__
        if "forward" in own or any(own[hooks] for hooks in _OWN_HOOKS):
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
        own = self.__dict__
        if "_orig_mod" not in own.get("_modules", ()):
            super().__setattr__(name, value)
        elif name == "_orig_mod":
            # What is compiled belongs to the module that it was compiled for.
            compiled = self._compiled if value is self._orig_mod else self._recompile(value)
            object.__setattr__(self, "_compiled", getattr(compiled, "_compiled", compiled))
            super().__setattr__(name, value)
        elif name in own or hasattr(type(self), name):
            # What nn.Module itself keeps about a module (its hooks), and what is patched over the
            # class (`forward`), is the wrapper's own.
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__ or hasattr(type(self), name):
            super().__delattr__(name)
        else:
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
        copied = self._recompile(copy.deepcopy(self._orig_mod, memo))
        memo[id(self)] = copied  # a hook or a `forward` bound to this module is bound to the copy
        copied.__dict__.update(copy.deepcopy(self._own_state(), memo))
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_compile_again, (self._recompile, self._orig_mod), self._own_state())

    def _own_state(self) -> dict[str, Any]:
        """What the wrapper has besides what each new one makes: hooks, an assigned `forward`."""
        fresh = ("_compiled", "_recompile")
        return {name: value for name, value in self.__dict__.items() if name not in fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _compile_again(
    recompile: Callable[[nn.Module], CompiledModule], module: nn.Module
) -> CompiledModule:
    return recompile(module)
