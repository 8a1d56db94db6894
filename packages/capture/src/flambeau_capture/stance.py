"""The stance: what compiled callables do in place of compiling, for as long as it is in force.

A stance is torch.compile's notion (`torch.compiler.set_stance`) and so belongs to the process, not
to one compiled callable. This module holds it: one default for the process, and one override a
context (a `with` block or a decorated call), which neither other threads nor other asyncio tasks
see. `current_stance()` is what holds here and now.

The default stance costs nothing: calls that an entry serves look at one C pointer. Only while
another stance is in force somewhere does each call of a compiled callable ask `_redirect` which
callable is to run.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flambeau_capture.core import core
from flambeau_prims.fork_safety import fork_safe_lock

STANCES = (
    "default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile",
    "aot_eager_then_compile",
)  # fmt: skip

KEEPS_ENTRIES = frozenset({"force_eager", "eager_on_recompile", "fail_on_recompile"})
"""Stances in which nothing is compiled."""

Function = TypeVar("Function", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Stance:
    """`name` is one of STANCES; `backend` replaces each callable's own, by default stance only."""

    name: str = "default"
    backend: Any = None

    @property
    def redirects(self) -> bool:
        """Whether calls that an entry serves are concerned, too."""
        return self.name == "force_eager" or self.backend is not None


_DEFAULT = Stance()
_SCOPED: contextvars.ContextVar[tuple[Stance, ...]] = contextvars.ContextVar("stances", default=())
"""The stances of the blocks and decorated calls that this context is in, the innermost last."""


class _Process:
    """The stance of the process, and how many stances are in force that concern every call."""

    def __init__(self) -> None:
        self.stance = _DEFAULT
        self.redirecting = 0
        self.together: Callable[[Any], Any] | None = None
        """Who has the ranks of a process group meet at each call (`guard_collectives`)."""
        self._calls: list[tuple[weakref.ref[set_stance], Stance]] = []
        """The live set_stance calls: each may still become a block or a decorator."""
        self._lock = fork_safe_lock()

    def add(self, call: set_stance, stance: Stance) -> None:
        """Put a stance in force for the process."""
        with self._lock:
            final = [at for at, (made, _) in enumerate(self._calls) if made() is None]
            kept = self._calls[final[-1] :] if final else self._calls
            self._apply([*kept, (weakref.ref(call), stance)])

    def withdraw(self, call: set_stance) -> None:
        """Take one back, whatever others have done meanwhile."""
        with self._lock:
            self._apply([item for item in self._calls if item[0]() is not call])

    def _apply(self, calls: list[tuple[weakref.ref[set_stance], Stance]]) -> None:
        former, self.stance = self.stance, calls[-1][1] if calls else _DEFAULT
        self._calls = calls
        self._count(self.stance.redirects - former.redirects)

    def enter(self, stance: Stance) -> None:
        """Put a stance in force in this context."""
        with self._lock:
            self._count(stance.redirects)
        _SCOPED.set((*_SCOPED.get(), stance))

    def leave(self, stance: Stance) -> None:
        """End the innermost stance of this context."""
        _SCOPED.set(_SCOPED.get()[:-1])
        with self._lock:
            self._count(-stance.redirects)

    def _count(self, change: int) -> None:
        self.redirecting += change
        if core is not None:
            core.set_redirect(_redirect if self.redirecting else None)


_PROCESS = _Process()


def join_calls(together: Callable[[Any], Any] | None) -> None:
    """Have each call that no stance concerns ask `together` for what to call in its place."""
    with _PROCESS._lock:
        change = (together is not None) - (_PROCESS.together is not None)
        _PROCESS.together = together
        _PROCESS._count(change)


def current_stance() -> Stance:
    """The stance in force in this context; torch.compile's own counts where none of ours is set."""
    stance = _innermost()
    if stance != _DEFAULT:
        return stance
    # Read where torch has loaded its compiler, which is never imported here.
    dynamo = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    name = getattr(dynamo, "stance", "default")
    return Stance(name if isinstance(name, str) else "default")


def _innermost() -> Stance:
    scoped = _SCOPED.get()
    return scoped[-1] if scoped else _PROCESS.stance


def redirected(compiled: Any) -> Any:
    """The callable to call in place of a compiled one, or None: for the Python twin of the core."""
    return _redirect(compiled) if _PROCESS.redirecting else None


def _redirect(compiled: Any) -> Any:
    stance = _innermost()
    if stance.name == "force_eager":
        return compiled.__wrapped__
    if stance.backend is not None:
        return compiled.state.with_backend(stance.backend)
    together = _PROCESS.together
    return None if together is None else together(compiled)


class set_stance:
    """Put a stance in force: by the call, for the process; as a context manager, for the block; as
    a decorator, for the function.

    set_stance("force_eager")                # until the next call of set_stance
    with set_stance("force_eager"): ...      # in this block of this thread
    @set_stance("force_eager")               # while f runs
    def f(x): ...

    stance: one of
        "default"                 compile what was asked to be compiled
        "force_eager"             run compiled callables as if they had not been compiled
        "eager_on_recompile"      serve calls from what is compiled already; run all others eagerly
        "fail_on_recompile"       raise RuntimeError instead of compiling, with the failed guards
        "eager_then_compile"      run each callable's first call eagerly; compile at the second,
                                  dynamic where the two calls differ
        "aot_eager_then_compile"  the same, with the first call run by the backend "aot_eager"
    skip_guard_eval_unsafe: accepted; guards are evaluated all the same, since they are cheap and a
    wrong result is not. force_backend: with the default stance, the backend (a name or a callable)
    that compiles in place of each callable's own.

    Between the construction and the `with` the stance is the process's for a moment, as torch's is.
    Raises RuntimeError for an unknown stance, and for force_backend with another stance than
    "default".
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        if stance not in STANCES:
            raise RuntimeError(f"unknown stance {stance!r}; known: {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise RuntimeError("force_backend goes with the stance 'default' only")
        self._stance = Stance(stance, force_backend)
        _PROCESS.add(self, self._stance)

    def __enter__(self) -> None:
        _PROCESS.withdraw(self)
        _PROCESS.enter(self._stance)

    def __exit__(self, *exception: object) -> None:
        _PROCESS.leave(self._stance)

    def __call__(self, function: Function) -> Function:
        _PROCESS.withdraw(self)
        stance = self._stance

        @functools.wraps(function)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            _PROCESS.enter(stance)
            try:
                return function(*args, **kwargs)
            finally:
                _PROCESS.leave(stance)

        return under_stance  # type: ignore[return-value]
