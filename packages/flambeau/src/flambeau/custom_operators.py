"""Operators that a program registers with `torch.library.custom_op`, described by their rules.

    mylib::scale   ->   "3f0c.." of its schema, fake kernel, gradient and what these call

A compiled graph depends on the rules of an operator, not on its kernels, which are called. Rules
are functions of the program: they are described by their code and, one by one, all that the code
names. Where that leads to an object with a content that is not known, there is no description.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

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
        self._seen: dict[int, Any] = {}
        self._descriptions = Descriptions()

    def add_operator(self, operator: str) -> None:
        """Describe an operator's rules; LookupError for one that `custom_op` has not made."""
        made = OPDEFS[operator]
        if id(made) in self._seen:
            return
        self._seen[id(made)] = made
        namespace, _, name = operator.partition("::")
        keys = sorted(key for key in torch.library._impls if key.startswith(f"{namespace}/{name}/"))
        if made._abstract_fn is None or not {key.rpartition("/")[2] for key in keys} <= _KEYS:
            raise LookupError(operator)
        held = made._autocast_dtype, made._disabled_kernel, made._torch_dispatch_fns
        if any(held):
            raise LookupError(operator)
        self.texts.append(f"{operator} {made._schema} {made._tags} {keys}")
        for rule in (made._abstract_fn, made._setup_context_fn, made._backward_fn, made._vmap_fn):
            self._add(rule)

    def _add(self, value: Any) -> None:
        """Describe an object that the code of a rule holds; NotStorable for an unknown content."""
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if is_constant(value):
            self.texts.append(self._descriptions.of(value))
        elif isinstance(value, types.ModuleType):
            self.texts.append(f"module {value.__name__}")
        elif isinstance(value, type) and not is_trusted(value.__module__):
            raise NotStorable("content", value.__qualname__)
        elif isinstance(value, type):
            self.texts.append(f"class {value.__module__}.{value.__qualname__}")
        else:
            self.texts.append(self._descriptions.of(value))
            if isinstance(value, types.FunctionType) and not is_trusted(value.__module__):
                self._add_callees(value)

    def _add_callees(self, function: types.FunctionType) -> None:
        names = _names(function.__code__)
        known = function.__globals__
        found = [known[name] for name in names if name in known]
        modules = [each for each in found if isinstance(each, types.ModuleType)]
        for module in modules:
            if not is_trusted(module.__name__):
                found += [vars(module)[name] for name in names if name in vars(module)]
        found += [cell.cell_contents for cell in function.__closure__ or ()]
        found += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for each in found:
            self._add(each)
        self.texts += sorted(
            f"builtin {name}" for name in names if name not in known and hasattr(builtins, name)
        )
        for operator in sorted(OPDEFS):
            if set(operator.split("::")) <= names.keys():
                self.add_operator(operator)


def _names(code: types.CodeType) -> dict[str, None]:
    """The names of globals and attributes in a function's code, and in the code within it."""
    names = dict.fromkeys(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            names |= _names(item)
    return names
