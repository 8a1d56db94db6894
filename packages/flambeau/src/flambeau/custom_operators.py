"""Operators that a program registers with `torch.library.custom_op`, described by their rules.

    mylib::scale   ->   "3f0c.." of its schema, fake kernel, gradient and what these call

A compiled graph depends on the rules of an operator, not on its kernels, which are called. Rules
are functions of the program: they are described by their code and, one by one, all that the code
names. There is no description where that leads to an object with a content that is not known, to
an import, to a function that finds objects by other means than names, or to a module of Python
that reads the state of the process.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import opcode
import types
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from flambeau.held_graphs import OPERATORS, operator_name
from flambeau_capture.guards.constants import is_constant
from flambeau_capture.stored.descriptions import Descriptions
from flambeau_capture.stored.reasons import NotStorable
from flambeau_capture.trusted import is_trusted
from flambeau_runtime.cache import key_of

_KEYS = frozenset({
    "ADInplaceOrView", "Autograd", "BackendSelect", "CPU", "CUDA", "CompositeExplicitAutograd",
    "Meta",
})  # fmt: skip
"""The dispatch keys that `custom_op` registers itself, or that hold kernels alone."""

_NOT_DESCRIBED = ("_autocast_dtype", "_disabled_kernel", "_torch_dispatch_fns")
"""What `custom_op` may hold besides its rules; torch 2.11 does not know the first."""

_FINDS_BY_OTHER_MEANS = frozenset({
    "__builtins__", "__dict__", "__globals__", "__import__", "eval", "exec", "getattr", "globals",
    "input", "locals", "open", "vars",
})  # fmt: skip
_PURE = frozenset({
    "_functools", "_operator", "builtins", "cmath", "collections", "dataclasses", "enum",
    "functools", "itertools", "math", "numbers", "numpy", "operator", "torch", "types", "typing",
    "warnings",
})  # fmt: skip
"""The trusted modules with functions of their arguments, and of what the key holds of torch."""
_OPERATORS_OF_TORCH = ("aten", "prim", "prims")
_IMPORT = opcode.opmap["IMPORT_NAME"]


def rules_digest(operator: str) -> str | None:
    """The hash of the rules of an operator "namespace::name"; None where they are not known."""
    rules = _Rules()
    try:
        rules.add_operator(operator)
    except (NotStorable, LookupError):
        return None
    return key_of(*rules.texts)


class _Rules:
    """What the rules of operators lead to, each described once, in the order of the first use."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._descriptions = Descriptions()

    def add_operator(self, operator: str) -> None:
        """Describe an operator's rules; LookupError for one that `custom_op` has not made."""
        made = OPDEFS[operator]
        if self._is_seen(operator, made):
            return
        namespace, _, name = operator.partition("::")
        keys = sorted(key for key in torch.library._impls if key.startswith(f"{namespace}/{name}/"))
        if made._abstract_fn is None or not {key.rpartition("/")[2] for key in keys} <= _KEYS:
            raise LookupError(operator)
        if any(getattr(made, held, None) for held in _NOT_DESCRIBED):
            raise LookupError(operator)
        self.texts.append(f"{operator} {made._schema} {made._tags} {keys}")
        rules = (made._abstract_fn, made._setup_context_fn, made._backward_fn, made._vmap_fn)
        for kind, rule in zip(("fake", "setup", "backward", "vmap"), rules, strict=True):
            self._add(kind, rule)

    def _is_seen(self, name: str, value: Any) -> bool:
        """Whether an object has been described, to which the text then refers by its number."""
        seen = id(value) in self._seen
        number, _ = self._seen.setdefault(id(value), (len(self._seen), value))
        self.texts.append(f"{name} {number}")
        return seen

    def _add(self, name: str, value: Any) -> None:
        """Describe what the code of a rule calls `name`; NotStorable for an unknown content."""
        if is_constant(value):
            self.texts.append(f"{name} {self._descriptions.of(value)}")
        elif self._is_seen(name, value):
            return
        elif isinstance(value, types.ModuleType):
            self.texts.append(f"module {_stateless(value.__name__)}")
        elif isinstance(value, type) and not is_trusted(value.__module__):
            raise NotStorable("content", value.__qualname__)
        elif isinstance(value, type):
            self.texts.append(f"class {_stateless(value.__module__)}.{value.__qualname__}")
        elif isinstance(value, OPERATORS):
            self.texts.append(str(value))
            self._add_called(operator_name(value))
        elif isinstance(value, functools._lru_cache_wrapper):
            self._add("lru_cache", value.__wrapped__)
        else:
            self.texts.append(self._descriptions.of(value))
            if isinstance(value, types.FunctionType) and not is_trusted(value.__module__):
                self._add_callees(value)
            else:
                _stateless(getattr(value, "__module__", None))

    def _add_called(self, operator: str) -> None:
        """Describe an operator that a rule calls, unless it is torch's."""
        if operator.partition("::")[0] not in _OPERATORS_OF_TORCH:
            self.add_operator(operator)

    def _add_callees(self, function: types.FunctionType) -> None:
        names = _names(function.__code__)
        known = function.__globals__
        if not _FINDS_BY_OTHER_MEANS.isdisjoint(names):
            raise NotStorable("content", function.__qualname__)
        found = [(name, known[name]) for name in names if name in known]
        for place, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # an empty one
                found.append((f"cell {place}", cell.cell_contents))
        found += [(f"default {at}", each) for at, each in enumerate(function.__defaults__ or ())]
        found += (function.__kwdefaults__ or {}).items()
        found += function.__dict__.items()
        for name, each in found:  # which grows by what modules hold
            if isinstance(each, torch._ops._OpNamespace):
                names[each.name] = None
            elif isinstance(each, types.ModuleType) and each is not torch.ops:
                found += _members(each, names, found)
            self._add(name, each)
        self.texts += sorted(
            f"builtin {name}" for name in names if name not in known and hasattr(builtins, name)
        )
        for operator in sorted({*OPDEFS, *torch._C._dispatch_get_all_op_names()}):
            namespace, _, name = operator.partition("::")
            if namespace in names and name.partition(".")[0] in names:
                self._add_called(f"{namespace}::{name.partition('.')[0]}")


def _members(
    module: types.ModuleType, names: dict[str, None], found: list[tuple[str, Any]]
) -> list[tuple[str, Any]]:
    """What a module holds under names in a rule's code, without modules that are found already.

    Of a trusted one, what a program may have assigned there.
    """
    trusted = is_trusted(module.__name__)
    known = {id(each) for _, each in found}
    members = [(name, vars(module)[name]) for name in names if name in vars(module)]
    return [
        (f"{module.__name__}.{name}", each)
        for name, each in members
        if (id(each) not in known if isinstance(each, types.ModuleType) else not trusted)
        or is_constant(each)
        or (isinstance(each, types.FunctionType) and not is_trusted(each.__module__))
    ]


def _stateless(module: str | None) -> str:
    """The name of a module; NotStorable for one that reads the state of the process."""
    if is_trusted(module) and str(module).partition(".")[0] not in _PURE:
        raise NotStorable("content", str(module))
    return str(module)


def _names(code: types.CodeType) -> dict[str, None]:
    """The names of globals and attributes in a function's code, and in the code within it;
    NotStorable if it imports a module.
    """
    if _IMPORT in code.co_code[::2]:
        raise NotStorable("content", code.co_qualname)
    names = dict.fromkeys(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            names |= _names(item)
    return names
