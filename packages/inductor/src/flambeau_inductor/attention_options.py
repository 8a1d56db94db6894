"""The `kernel_options` of flex_attention, as far as the kernels here have them.

    "BLOCK_M=64;bwd_num_warps=8"  ->  forward: 64 queries of a tile; backward: 8 warps

| option | here |
|---|---|
| `BLOCK_M`, `BLOCK_N` | queries and keys of a tile of the forward |
| `BLOCK_M1`, `BLOCK_N1`; `BLOCK_M2`, `BLOCK_N2` | the same of the gradients of keys and values; of queries |
| `num_warps`, `num_stages` | of each kernel |
| `PRESCALE_QK` | queries are scaled and rounded in front of the product, if functions change scores |
| `ROWS_GUARANTEED_SAFE` | rows of which nothing is visible are not looked for |
| `BLOCKS_ARE_CONTIGUOUS` | only the first index of a row of blocks is read |
| `FLOAT32_PRECISION` | how products of float32 round |
| `FORCE_USE_FLEX_ATTENTION`, `BACKEND`, `SPLIT_KV` | whether, and into how many parts, keys are cut |

A prefix `fwd_` or `bwd_` restricts an option to the forward or the backward, as in torch. Others
have no meaning here; `without_effect` says why.
"""  # noqa: E501

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from flambeau_prims.unsupported import InvalidOption

FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENTS = (
    "forward", "query_gradient", "key_value_gradients",
)  # fmt: skip
"""The forms of a kernel."""
PREFIXES = ("fwd_", "bwd_")
_BACKENDS = ("AUTO", "TRITON", "TRITON_DECODE", "FLASH")
_TILES = {FORWARD: "", KEY_VALUE_GRADIENTS: "1"}
_BLOCKS = tuple(f"BLOCK_{side}{number}" for side in "MN" for number in ("", "1", "2"))
_NUMBERS = (*_BLOCKS, "num_warps", "num_stages", "SPLIT_KV")
_FLAGS = ("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS")
_PRECISIONS = ("ieee", "tf32", "tf32x3")
_REASONS = {
    "WRITE_DQ": "the kernel of gradients of queries always writes them",
    "USE_TMA": "these kernels load tiles by asynchronous copies",
} | dict.fromkeys(("kpack", "matrix_instr_nonkdim", "waves_per_eu"), "it is about AMD's GPUs")


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What the program chose for one kernel; None: nothing."""

    queries: int | None = None
    keys: int | None = None
    warps: int | None = None
    stages: int | None = None
    prescaled: bool = False
    rows_are_safe: bool = False
    blocks_are_contiguous: bool = False
    precision: str | None = None


def options_of(text: str, form: str) -> KernelOptions:
    """The options for a kernel of a form."""
    chosen = _chosen(text, "fwd_" if form == FORWARD else "bwd_")
    number = _TILES.get(form, "2")
    precision = chosen.get("FLOAT32_PRECISION")
    return KernelOptions(
        chosen.get(f"BLOCK_M{number}"),
        chosen.get(f"BLOCK_N{number}"),
        chosen.get("num_warps"),
        chosen.get("num_stages"),
        bool(chosen.get("PRESCALE_QK", False)),
        bool(chosen.get("ROWS_GUARANTEED_SAFE", False)),
        bool(chosen.get("BLOCKS_ARE_CONTIGUOUS", False)),
        precision and precision.strip("'"),
    )


def refuses_decoding(text: str) -> bool:
    """Whether the program wants the kernel for many queries where queries are few, too."""
    chosen = _chosen(text, "fwd_")
    return bool(chosen.get("FORCE_USE_FLEX_ATTENTION")) or chosen.get("BACKEND") == "TRITON"


def parts_asked_for(text: str) -> int | None:
    """Into how many parts the keys are to be cut; None: as the compiler sees fit."""
    return 1 if refuses_decoding(text) else _chosen(text, "fwd_").get("SPLIT_KV")


def wants_decoding(text: str) -> bool:
    """Whether the program insists on the kernel for few queries."""
    return _chosen(text, "fwd_").get("BACKEND") == "TRITON_DECODE"


def check_options(text: str) -> None:
    """Raise if an option has a value that no kernel can have."""
    for name, value in _parsed(text).items():
        plain = _without_prefix(name)
        if plain in _NUMBERS:
            smallest = 16 if plain in _BLOCKS else 1
            powers = plain in _BLOCKS or plain == "num_warps"
            if type(value) is not int or value < smallest or (powers and value & (value - 1)):
                kind = "a power of two" if powers else "an int"
                raise InvalidOption(
                    f"flex_attention: kernel_options[{name!r}] must be {kind} of at least "
                    f"{smallest}, not {value!r}"
                )
        if plain == "FLOAT32_PRECISION" and str(value).strip("'") not in _PRECISIONS:
            raise InvalidOption(
                f"flex_attention: kernel_options[{name!r}] must be one of {_PRECISIONS}, "
                f"not {value!r}"
            )
        if plain == "BACKEND" and value == "FLASH":
            raise InvalidOption(
                "flex_attention: BACKEND='FLASH' asks for flash-attention's own kernels, which "
                "this compiler does not call; leave BACKEND out, or choose 'TRITON'"
            )
        if plain == "BACKEND" and value not in _BACKENDS:
            raise InvalidOption(
                f"flex_attention: BACKEND must be one of {_BACKENDS}, not {value!r}"
            )


def without_effect(text: str) -> list[tuple[str, str]]:
    """The options that no kernel here has, and why."""
    read = {*_NUMBERS, *_FLAGS, "FLOAT32_PRECISION", "FORCE_USE_FLEX_ATTENTION", "BACKEND"}
    names = [name for name in _parsed(text) if _without_prefix(name) not in read]
    return [(name, _REASONS.get(_without_prefix(name), "no such option")) for name in names]


def _without_prefix(name: str) -> str:
    return name[4:] if name.startswith(PREFIXES) else name


def _parsed(text: str) -> dict[str, Any]:
    pairs = (part.split("=", 1) for part in text.split(";") if part)
    return {name: ast.literal_eval(value) for name, value in pairs}


def _chosen(text: str, prefix: str) -> dict[str, Any]:
    """The options of the forward or of the backward; those with its prefix win."""
    options = _parsed(text)
    plain = {name: value for name, value in options.items() if not name.startswith(PREFIXES)}
    return plain | {name[4:]: value for name, value in options.items() if name.startswith(prefix)}
