"""The C core's Entry and Compiled in Python: the same behaviour where the extension is not built,
with slower calls.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flambeau_capture.core import core, run_to_end
from flambeau_capture.frame_hook import call_with_handler
from flambeau_capture.stance import redirected


@dataclass(eq=False, slots=True)
class PythonEntry:
    """A guard program and the target it leads to; see Entry in csrc/compiled.c."""

    program: Any
    target: Callable[..., Any] | None
    item: int = -1
    last_resort: bool = False
    info: Any = None
    handler: Any = None
    on_error: Callable[[BaseException], Any] | None = None
    runs_to_end: bool = False

    def run(self, function: Callable[..., Any], bound: tuple[Any, ...]) -> tuple[bool, Any]:
        """(whether the guards hold, what the target gives)."""
        inputs = self.program.load(function, bound)
        if inputs is None or self.target is None:
            return False, None
        return True, self._part(self.target(*inputs))

    def serve(
        self,
        compiled: PythonCompiled,
        bound: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """(whether the guards hold, the result of the call)."""
        function = compiled.__wrapped__
        inputs = self.program.load(function, bound)
        if inputs is None:
            return False, None
        if self.target is None:
            return True, self._with_handler(function, *args, **kwargs)
        if self.on_error is None:
            return True, self._part(self._with_handler(self._run_target, *inputs))
        try:
            returned = self._with_handler(self._run_target, *inputs)
        except BaseException as raised:
            error = self.on_error(raised)
            if error is NotImplemented:
                return False, None
            if error is not None:
                raise error from error.__cause__
        else:
            return True, self._part(returned)
        # Outside of the `except`, so that what the function raises has no context of ours.
        return True, call_with_handler(None, function, *args, **kwargs)

    def _with_handler(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.handler is None:
            return function(*args, **kwargs)
        return call_with_handler(self.handler, function, *args, **kwargs)

    def _run_target(self, *inputs: Any) -> Any:
        assert self.target is not None
        returned = self.target(*inputs)
        del inputs  # a Tail holds the arguments of the next frames
        return run_to_end(returned) if self.runs_to_end else returned

    def _part(self, result: Any) -> Any:
        if self.item == -1:
            return result
        if self.item == -2:
            return tuple(result)
        if not isinstance(result, (tuple, list)) or self.item >= len(result):
            kind = type(result).__name__
            raise TypeError(
                f"the backend's callable must return a tuple of more than {self.item} "
                f"items, not {kind}"
            )
        return result[self.item]


MOST_ANSWERS = 16
"""How many entries `on_miss` is asked for, at most, for one call."""
_OWN = frozenset({"entries", "on_miss", "state", "__wrapped__"})
_OWN_METHODS = frozenset(
    {
        "__class__", "__dict__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__",
        "__get__", "__call__",
    }
)  # fmt: skip


class PythonCompiled:
    """A compiled function that binds and looks like its function; see csrc/compiled.c."""

    def __init__(
        self,
        function: types.FunctionType,
        on_miss: Callable[..., Any] | None = None,
        state: Any = None,
    ) -> None:
        own = {
            "__wrapped__": function,
            "on_miss": on_miss,
            "state": state,
            "entries": (),
            "_code": function.__code__,
            "_binder": binder(function.__code__),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __call__(*args: Any, **kwargs: Any) -> Any:
        # No named `self`: the function may have a keyword parameter of any name.
        self, args = args[0], args[1:]
        function = self.__wrapped__
        if function.__code__ is not self._code:
            return function(*args, **kwargs)
        target = redirected(self)
        if target is not None:
            return target(*args, **kwargs)
        bind = types.FunctionType(self._binder, {}, "bind", function.__defaults__)
        bind.__kwdefaults__ = function.__kwdefaults__
        try:
            bound = bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises the very error
        entries = self.entries
        for at, entry in enumerate(entries):
            taken, result = entry.serve(self, bound, args, kwargs)
            if taken:
                if at > 0 and not entry.last_resort and self.entries is entries:
                    self.entries = (entry, *entries[:at], *entries[at + 1 :])
                return result
        entry = self.on_miss(bound) if self.on_miss is not None else None
        for _ in range(MOST_ANSWERS):
            if entry is None:
                break
            taken, result = entry.serve(self, bound, args, kwargs)
            if taken:
                return result
            entry = self.on_miss(bound, entry)
        return function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, "__dict__").get(name, self)
        if found is not self:
            return found
        if name in _OWN_METHODS:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __reduce__(self) -> str:
        return self.__wrapped__.__qualname__

    def __copy__(self) -> PythonCompiled:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PythonCompiled:
        return self

    def __repr__(self) -> str:
        return f"<compiled {self.__wrapped__!r}>"


Compiled: Any = PythonCompiled if core is None else core.Compiled
"""The type of compiled callables in this process."""


def without_frame(function: Callable[..., Any]) -> Any:
    """A callable without a frame in tracebacks; the function itself without the C core."""
    return function if core is None else core.Compiled(function)


def binder(code: types.CodeType) -> types.CodeType:
    """Code with the same parameters that returns their values in the order of fast locals."""
    names = code.co_varnames
    positional, only, keyword = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    flat = [
        f"p{at}" if not names[at].isidentifier() else names[at]
        for at in range(positional + keyword)
    ]
    parameters = list(flat[:positional])
    if only:
        parameters.insert(only, "/")
    at = positional + keyword
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append(f"*{names[at]}")
        flat.append(names[at])
        at += 1
    elif keyword:
        parameters.append("*")
    parameters += flat[positional : positional + keyword]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(f"**{names[at]}")
        flat.append(names[at])
    source = f"def bind({', '.join(parameters)}): return ({''.join(f'{name}, ' for name in flat)})"
    made = compile(source, "<flambeau binder>", "exec")
    return next(item for item in made.co_consts if isinstance(item, types.CodeType))
