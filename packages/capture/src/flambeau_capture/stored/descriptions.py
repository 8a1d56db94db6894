"""What defines an object that an entry relies on, as text: two objects of one description are
interchangeable for the entry.

    def f(x, scale=2): ...   ->  "function <hash of the code> module.f (2,) ..."

Guards compare such objects by identity, and rely on their content: on the code of a function, the
methods of a class. Another process has its own objects, found by name or by source, whose
content is compared by these texts. What guards compare on their own (cells, attributes of objects)
is only described as far as that is cheap.

No code of the program runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import hashlib
import marshal
import re
import sys
import types
import typing
from typing import Any

import torch
from torch.backends import PropModule

from flambeau_capture.bytecode.resume_code import ResumedFrom
from flambeau_capture.guards.constants import is_constant
from flambeau_capture.sources import ABSENT, HEAP_TYPE, lookup_in_type
from flambeau_capture.stored.reasons import NotStorable
from flambeau_capture.trusted import is_trusted

C_MEMBERS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodWrapperType)
_FIELD_OF_TUPLE: type = type(typing.NamedTuple("_", [("field", int)]).__dict__["field"])
_VOLATILE = frozenset({
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__", "__weakref__",
})  # fmt: skip
"""Members of classes that Python makes when it likes."""
_WITHOUT_REFERENCES = 2
"""The format of marshal in which equal code has equal bytes in each process: which of its objects
are one, or interned, is not written.
"""

_mro_of = type.__dict__["__mro__"].__get__
_dict_of = type.__dict__["__dict__"].__get__


class Descriptions:
    """The descriptions that one entry needs, each made once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """The description of an object; NotStorable where its content is not known."""
        text = self._remembered(value, self._exact)
        if text is None:
            raise NotStorable("content", type_text(type(value)))
        return text

    def of_definition(self, holder: Any, name: str | type) -> str:
        """The description of what a class, or a module's globals, define under a name; of an
        abstract class, whether a type is one of its subclasses.
        """
        if isinstance(name, type):
            return f"subclass {issubclass(name, holder)}"
        if isinstance(holder, type):
            return self._part(lookup_in_type(holder, name))
        value = holder.get(name, ABSENT)
        module = str(holder.get("__name__"))
        if value is ABSENT and module.partition(".")[0] in ("flambeau", "torch"):
            if module == "flambeau" or module.startswith("torch.ops."):
                value = getattr(module_named(module), name, ABSENT)  # made when it is needed
        return self._part(value)

    def _remembered(self, value: Any, describe: Any) -> str | None:
        found = self._known.get(id(value))
        if found is None:
            text = describe(value)
            if text is None:
                return None
            found = self._known[id(value)] = value, text
        return found[1]

    def _exact(self, value: Any) -> str | None:
        """The text, or None for a kind of object that has none."""
        if value is ABSENT:
            return "absent"
        if is_constant(value):
            return f"{type_text(type(value))} {_constant(value)}"
        if isinstance(value, types.ModuleType):
            return f"module {vars(value).get('__name__')}"
        if isinstance(value, types.CodeType):
            return self._digest_of_code(value)
        if type(value) is types.FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, typing._SpecialForm):
            return f"special form {value}"
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return f"operator {value}"
        if isinstance(value, _C_FUNCTIONS):
            receiver = value.__self__
            if receiver is None or isinstance(receiver, (types.ModuleType, type)):
                of = getattr(receiver, "__name__", "")
                return f"builtin {value.__module__} {of} {value.__qualname__}"
            return None
        if isinstance(value, C_MEMBERS):
            return f"member {type_text(value.__objclass__)} {value.__name__}"
        kind = type(value)
        if kind.__name__ == "cython_function_or_method":
            return f"function of Cython {value.__module__} {value.__qualname__}"
        if kind is contextvars.ContextVar:
            return f"context variable {value.name}"  # guards compare what it holds
        if value is contextvars.Token.MISSING:
            return "no token"
        if kind is property:
            parts = (value.fget, value.fset, value.fdel)
            return f"property {' '.join(map(self._part, parts))}"
        if kind in (staticmethod, classmethod):
            return f"{kind.__name__} {self._part(value.__func__)}"
        if kind is functools._lru_cache_wrapper:
            return f"lru_cache {self._part(value.__wrapped__)}"
        if kind is functools.cached_property:
            return f"cached_property {value.attrname} {self._part(value.func)}"
        if kind is dict and "__builtins__" in value:
            return f"globals {value.get('__name__')!r}"  # guards compare what is read of them
        if kind is re.Pattern:
            return f"pattern {value.pattern!r} {value.flags}"
        if kind is _FIELD_OF_TUPLE:
            return f"field {value.__reduce__()[1]!r}"
        if isinstance(value, enum.Enum):
            return f"enum {type_text(kind)} {value._name_} {self._part(value._value_)}"
        return None

    def _part(self, value: Any) -> str:
        """The description of a part of an object, by its type alone where it has none."""
        text = self._remembered(value, self._exact)
        return f"of {type_text(type(value))}" if text is None else text

    def _code(self, code: types.CodeType) -> str:
        text = self._remembered(code, self._digest_of_code)
        assert text is not None
        return text

    def _digest_of_code(self, code: types.CodeType) -> str:
        try:
            described = marshal.dumps(code, _WITHOUT_REFERENCES)
        except ValueError:  # it holds what is no constant of Python's
            described = repr(self._parts_of_code(code)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(described).hexdigest()[:32]

    def _parts_of_code(self, code: types.CodeType) -> tuple[Any, ...]:
        constants = [
            self._code(item) if isinstance(item, types.CodeType) else self._rest(item)
            for item in code.co_consts
        ]
        return (
            code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
            code.co_exceptiontable, code.co_qualname, code.co_filename, code.co_firstlineno,
            code.co_linetable, constants,
        )  # fmt: skip

    def _rest(self, value: Any) -> str:
        """A constant of code; of the rest of a function behind a graph break, that function."""
        if type(value) is not ResumedFrom:
            return _constant(value)
        return f"rest of {self._code(value.frame_code.code)} {value.first} {value.start}"

    def _function(self, function: types.FunctionType) -> str:
        """Its code, defaults and cells; of torch's and the standard library's, which run as they
        are, the code of the functions that they call, too.
        """
        module = function.__globals__.get("__name__")
        by_name = function.__kwdefaults__ or {}
        parts = [
            "function", str(module), function.__qualname__, self._code(function.__code__),
            *(self._shallow(item) for item in function.__defaults__ or ()),
            *(f"{key}={self._shallow(item)}" for key, item in by_name.items()),
            *(self._cell(cell) for cell in function.__closure__ or ()),
            self._shallow(function.__dict__.get("__wrapped__")),
        ]  # fmt: skip
        if is_trusted(module):
            names = function.__code__.co_names
            callees = (function.__globals__.get(name) for name in names)
            parts += [self._shallow(item) for item in callees if callable(item)]
        return " ".join(parts)

    def _cell(self, cell: types.CellType) -> str:
        try:
            return self._shallow(cell.cell_contents)
        except ValueError:
            return "empty"

    def _shallow(self, value: Any) -> str:
        """As `_part`, but a function by its code and constants that it holds, a class by name."""
        if isinstance(value, types.FunctionType):
            held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty one
                    held.append(cell.cell_contents)
            texts = [_constant(item) if is_constant(item) else "-" for item in held]
            return f"{value.__qualname__} {self._code(value.__code__)} {' '.join(texts)}"
        if isinstance(value, type):
            return type_text(value)
        if is_constant(value):
            return _constant(value)
        if isinstance(value, (*_C_FUNCTIONS, *C_MEMBERS)):
            return f"{type_text(type(value))} {value.__qualname__}"
        return type_text(type(value))

    def _class(self, cls: type) -> str:
        """The classes it inherits from, and what those of the program define.

        Plain values of classes are left out but for their names: guards compare them where they
        are read.
        """
        parts = [type_text(type(cls))]
        for base in _mro_of(cls):
            parts.append(type_text(base))
            if base.__flags__ & HEAP_TYPE and not is_trusted(base.__module__):
                parts.append(self._members(base))
        digest = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"class {type_text(cls)} {digest}"

    def _annotation(self, value: Any) -> str:
        return value if type(value) is str else self._shallow(value)

    def _members(self, cls: type) -> str:
        members = []
        is_enum = issubclass(cls, enum.Enum)
        for name, value in sorted(_dict_of(cls).items()):
            if name in _VOLATILE:
                continue
            if isinstance(value, types.FunctionType):
                text = self._shallow(value)
            elif isinstance(value, (property, staticmethod, classmethod, *C_MEMBERS)):
                parts = (
                    (value.fget, value.fset, value.fdel)
                    if isinstance(value, property)
                    else (getattr(value, "__func__", None),)
                )
                text = f"{type_text(type(value))} {' '.join(map(self._shallow, parts))}"
            elif is_enum and isinstance(value, cls):
                text = self._shallow(getattr(value, "_value_", None))
            elif name == "__slots__" and is_constant(value):
                text = _constant(value)
            elif name == "__annotations__" and type(value) is dict:
                text = " ".join(f"{key}: {self._annotation(value[key])}" for key in value)
            elif hasattr(type(value), "__get__"):
                text = type_text(type(value))
            else:
                text = ""
            members.append(f"{name} {text}")
        return "\n".join(members)


def type_text(cls: type) -> str:
    """A type by its name and module."""
    return f"{type.__dict__['__module__'].__get__(cls)}.{cls.__qualname__}"


def _constant(value: Any) -> str:
    """A constant, the same in each process: sets in an order of their own."""
    if type(value) in (frozenset, set):
        return f"{type(value).__name__} {sorted(map(_constant, value))}"
    if type(value) is tuple:
        return f"({', '.join(map(_constant, value))})"
    if type(value) is float:
        return value.hex()
    if type(value) is int and value.bit_length() > 1024:
        return hex(value)
    if isinstance(value, types.CodeType):
        return "code"
    return repr(value)


def is_module_globals(mapping: dict[Any, Any]) -> str:
    """The name of the module whose globals a dict is, or ""."""
    name = mapping.get("__name__")
    module = module_named(name) if isinstance(name, str) else ABSENT
    return str(name) if module is not ABSENT and vars(module) is mapping else ""


def is_held_globals(mapping: dict[Any, Any]) -> str:
    """The name of the module that one of torch's holds and stands for, if a dict is its globals."""
    name = mapping.get("__name__")
    module = module_named(name) if isinstance(name, str) else ABSENT
    return str(name) if globals_held_by(module) is mapping else ""


def globals_held_by(module: Any) -> dict[str, Any] | None:
    """The globals of the module that one of torch's holds (`torch.backends`), or None."""
    return vars(vars(module)["m"]) if isinstance(module, PropModule) else None


def module_named(name: str) -> Any:
    """The module of a name that is imported, or of a namespace of operators; or ABSENT."""
    found = sys.modules.get(name, ABSENT)
    if found is ABSENT and name == "torch.ops":
        return torch.ops
    if found is ABSENT and name.startswith("torch.ops."):
        return getattr(torch.ops, name.removeprefix("torch.ops."), ABSENT)
    return found
