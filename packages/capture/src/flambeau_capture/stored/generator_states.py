"""The state of a generator that a frame has seeded (`graphs.host_random.KnownState`) <-> JSON.

numpy.random.RandomState, seeded   <->   ["RandomState", {"bit_generator": "MT19937", ...}]
"""

from __future__ import annotations

import random
import sys
from typing import Any

from flambeau_capture.graphs.host_random import KnownState, restore_generator, state_of_generator
from flambeau_capture.stored.reasons import NotStorable

Json = Any

_BIT_GENERATORS = frozenset({"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"})


def encode_known_state(known: KnownState) -> Json:
    """The generator's class and state; NotStorable for a class of the program."""
    generator = known.generator
    kind = type(generator)
    if kind is not random.Random and kind.__module__.partition(".")[0] != "numpy":
        raise NotStorable("content", kind.__qualname__)
    return [kind.__name__, _encode(state_of_generator(generator))]


def decode_known_state(data: Json) -> KnownState:
    """What `encode_known_state` wrote; ValueError for anything else."""
    kind, encoded = data
    state = _decode(encoded)
    generator = _made(kind, state)
    restore_generator(generator, state)
    return KnownState(generator)


def _made(kind: str, state: Any) -> Any:
    if kind == "Random":
        return random.Random()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is None or kind not in ("RandomState", "Generator"):
        raise ValueError(f"{kind} is no generator of this process")
    bits = state["bit_generator"]
    if bits not in _BIT_GENERATORS:
        raise ValueError(f"{bits} is no bit generator")
    return getattr(numpy, kind)(getattr(numpy, bits)())


def _encode(value: Any) -> Json:
    """A state, of dicts, tuples, arrays and numbers."""
    if isinstance(value, dict):
        return {"dict": [[name, _encode(item)] for name, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if hasattr(value, "tolist"):
        return {"array": [value.dtype.str, value.tolist()]}
    if isinstance(value, int):
        return {"int": hex(value)}
    return {"float": value.hex()} if isinstance(value, float) else value


def _decode(data: Json) -> Any:
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    match tag:
        case "dict":
            return {name: _decode(item) for name, item in content}
        case "tuple":
            return tuple(map(_decode, content))
        case "array":
            dtype, items = content
            if dtype not in ("<u4", "<u8", "<i8"):
                raise ValueError(f"{dtype} is no dtype of a state")
            return sys.modules["numpy"].array(items, dtype=dtype)
        case "int":
            return int(content, 16)
        case "float":
            return float.fromhex(content)
    raise ValueError(f"{tag} is no part of a state")
