"""Programs as JSON, as `FLAMBEAU_DUMP` writes them.  Data only: reading one can run no code.

    load(program_json.loads(path.read_text()))     # runs a dumped Program

Each dataclass becomes {"is": its name, field: value, ...}; tuples become {"tuple": [...]}, so that
a Program read back equals the one written. `FORMAT` is part of the text; a Program of another
format is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from flambeau_runtime import program as program_types
from flambeau_runtime.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 7

_TYPES = {
    name: cls
    for name, cls in vars(program_types).items()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
}
_FIELDS = {cls: tuple(field.name for field in dataclasses.fields(cls)) for cls in _TYPES.values()}
_PLAIN = frozenset({str, int, bool, type(None)})
"""What JSON holds as it is: most of a Program."""
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class FormatError(ValueError):
    """The text is not a Program of this format."""


def dumps(program: Program) -> str:
    """The program as JSON text."""
    return json.dumps(encode(program), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Program:
    """The program that `dumps` wrote; FormatError if the text is anything else."""
    try:
        return decode(json.loads(text))
    except ValueError as error:
        raise FormatError(f"not a Program: {error}") from error


def encode(program: Program) -> dict[str, Any]:
    """The program as data of JSON."""
    return {"format": FORMAT, "program": _encode(program)}


def decode(data: Any) -> Program:
    """The program that `encode` gave; FormatError if the data is anything else."""
    try:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FormatError(f"not a program of format {FORMAT}")
        program = _decode(data["program"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not a Program: {error}") from error
    if not isinstance(program, Program):
        raise FormatError("not a Program")
    return program


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool) or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": [_encode(value.real), _encode(value.imag)]}
    if kind is tuple:
        return {"tuple": _encoded(value)}
    if kind is list:
        return _encoded(value)
    if kind is dict:
        return {"dict": [[key, _encode(item)] for key, item in value.items()]}
    fields = _FIELDS.get(kind)
    if fields is None:
        raise TypeError(f"a program cannot hold a {kind.__name__}: {value!r}")
    contents = _encoded([getattr(value, name) for name in fields])
    return {"is": kind.__name__, **dict(zip(fields, contents, strict=True))}


def _encoded(items: Sequence[Any]) -> list[Any]:
    return [item if type(item) in _PLAIN else _encode(item) for item in items]


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return _decoded(value)
    if not isinstance(value, dict):
        return value
    if "is" in value:
        cls = _TYPES[value["is"]]
        return cls(*_decoded([value[name] for name in _FIELDS[cls]]))
    ((tag, content),) = value.items()
    if tag == "tuple":
        return tuple(_decoded(content))
    if tag == "dict":
        return {key: _decode(item) for key, item in content}
    if tag == "float":
        return _SPECIAL_FLOATS[content]
    if tag == "complex":
        return complex(_decode(content[0]), _decode(content[1]))
    raise FormatError(f"unknown tag {tag!r}")


def _decoded(items: list[Any]) -> list[Any]:
    return [item if type(item) in _PLAIN else _decode(item) for item in items]
