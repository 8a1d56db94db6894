"""What one process compiles and another one is given: by an archive, or by a store that both use.

`python -m tests.programs.carried_caches save FILE` compiles and writes the archive; `... load FILE`
loads it first; `... run -` loads none. Each prints, as JSON, for each program whether its entry was
read ("stored") or captured ("capture"), and how many kernels it had to build.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import flambeau
from flambeau_capture.compiled import state_of


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 1.25 + x).exp()


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.t(), -1)


def main(phase: str, file: str) -> None:
    if phase == "load":
        flambeau.compiler.load_cache_artifacts(Path(file).read_bytes())
    outcomes: dict[str, list[Any]] = {}
    for program in (pointwise, product):
        x = torch.randn(5, 3)
        compiled = flambeau.compile(program)
        torch.testing.assert_close(compiled(x), program(x))
        (event,) = state_of(compiled).events
        (graph,) = flambeau.explain(compiled).graphs
        outcomes[program.__name__] = [event.kind, graph.cache_misses]
    if phase == "save":
        saved = flambeau.compiler.save_cache_artifacts()
        assert saved is not None
        Path(file).write_bytes(saved[0])
        outcomes["kinds"] = sorted(saved[1].artifacts)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
