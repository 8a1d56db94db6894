"""The programs that turn PTX into machine code, of which Triton is to call the newest.

    Triton 3.6 beside torch 2.11 for CUDA 13.0
    ->  triton/backends/nvidia/bin/ptxas (12.8), torch/bin/ptxas (13.0)

Triton carries one, and so do CUDA builds of torch, NVIDIA's packages and its toolkits. That it is a
new one matters: 12.8 loses a move into uniform registers in front of chained matrix products, so
that attention reads other values than were stored; it reads registers before they are written
where two numbers become float8; and divides 64-bit numbers by constants wrongly. 12.9 and 13.0 do
none of this. All three are wrong for some kernels whose values they move to the stack, which
`cuda._in_registers` avoids.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from flambeau_runtime.build.triton_compiler import CALLED

CHOSEN_BY_USERS = "TRITON_PTXAS_PATH"
"""Triton's own variable. Where it is set, no other program is called."""

TOOLKIT = Path("/usr/local/cuda/bin/ptxas")


def assemblers() -> dict[str, Any]:
    """What a build depends on: `paths` of the programs, Triton's first, `stamps` of their files
    (bytes, nanoseconds since 1970), and `major`, the greatest CUDA version whose machine code
    torch's driver is known to load.
    """
    chosen = os.environ.get(CHOSEN_BY_USERS)
    paths = (chosen,) if chosen and chosen not in CALLED else _installed()
    major = int((torch.version.cuda or "0").partition(".")[0])
    return {"paths": list(paths), "stamps": [_stamp(path) for path in paths], "major": major}


@functools.cache
def _installed() -> tuple[str, ...]:
    """Triton's, and beside a CUDA build of torch all others that are found."""
    places: list[Path | str | None] = [_beside("triton", "backends/nvidia/bin/ptxas")]
    if torch.version.cuda is not None:
        places += [
            Path(torch.__file__).parent / "bin" / "ptxas",
            _beside("nvidia", "cuda_nvcc/bin/ptxas"),
            _beside("nvidia", f"cu{torch.version.cuda.partition('.')[0]}/bin/ptxas"),
            shutil.which("ptxas"),
            TOOLKIT,
        ]
    found = [os.path.realpath(place) for place in places if place and os.access(place, os.X_OK)]
    return tuple(dict.fromkeys(found))


def _beside(package: str, path: str) -> Path | None:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((Path(folder) / path for folder in folders or ()), None)


def _stamp(path: str) -> list[int]:
    try:
        facts = os.stat(path)
    except OSError:
        return []
    return [facts.st_size, facts.st_mtime_ns]
