"""What programs of the stored fuzz consist of: definitions, an expression of `x`, and places where
an edit can change them. The texts beside this file hold them:

    === closure                     a name
    def make$(n):                   definitions in the main module
        return lambda x: x * n
    scaled$ = make$(«2|3»)
    --- helper                      definitions in the helper module, {helper} elsewhere
    --- context                     a context manager around eager and compiled calls
    --- x                           what becomes of x
    scaled$(x)

`features_of_data.txt` holds those whose sizes or numbers depend on data, or that train with sizes
that change: what they give has six columns, as `x` has.

A place is «one|another|...»: each process has one of the alternatives. `$` is the number of the
feature in its program, which keeps names apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Feature:
    """Definitions in the main module, an expression of `x`, definitions in the helper module, and
    an expression of a context manager.
    """

    main: str
    expression: str
    helper: str = ""
    context: str = ""


def _read(*files: str) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    for file in files:
        path = Path(__file__).with_name(f"features_of_{file}.txt")
        for text in re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)[1:]:
            name, _, rest = text.partition("\n")
            main, *others = re.split(r"^--- (\w+)\n", rest, flags=re.MULTILINE)
            parts = dict(zip(others[::2], map(str.strip, others[1::2]), strict=True))
            if name in found:
                raise ValueError(f"{path.name}: two features are named {name}")
            found[name] = Feature(
                main.strip("\n"), parts["x"], parts.get("helper", ""), parts.get("context", "")
            )
    return found


FEATURES = _read("python", "torch")
"""Features by name."""
FEATURES_OF_DATA = _read("data")
