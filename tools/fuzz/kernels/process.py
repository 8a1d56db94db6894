"""One process of the fuzz of kernels: `python -m tools.fuzz.kernels.process DEVICE TIME SEED...`
compares the programs of these seeds until the Unix time TIME.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
import warnings
from typing import Any

import torch

from tools.fuzz.kernels.check import check
from tools.fuzz.kernels.programs import generate
from tools.fuzz.kernels.unwritten import fill_new_memory
from tools.fuzz.processes import is_fatal


def tell(**line: Any) -> None:
    """Print a line for the parent."""
    print(json.dumps(line), flush=True)


def run(seed: int, device: str) -> None:
    """Tell how the program of this seed differs."""
    program = generate(seed, device)
    tell(begins=program.text())
    tell(seed=seed, differs=check(program, lambda text: tell(begins=text)) or "")
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> int:
    warnings.simplefilter("ignore")
    os.environ.setdefault("FLAMBEAU_CHECK", "1")
    fill_new_memory()
    device, end, *seeds = sys.argv[1:]
    for seed in map(int, seeds):
        if time.time() > float(end):
            tell(seed=seed, differs="", skipped=True)
            continue
        try:
            run(seed, device)
        except Exception as error:
            tell(error=traceback.format_exc()[-2000:])
            if is_fatal(error):
                return 1
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
