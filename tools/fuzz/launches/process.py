"""One process of the fuzz of launches: `python -m tools.fuzz.launches.process SEED...` runs the
trials of these seeds. It prints a line of JSON for each: the trial when it begins an action, and
what came of it.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
import warnings
from dataclasses import replace
from typing import Any

import torch

from tools.fuzz.launches.side import DEVICE
from tools.fuzz.launches.trial import drawn, run, shortened
from tools.fuzz.processes import is_fatal

SHORTENING = 60.0
"""Seconds in which a trial that differs is shortened."""


def tell(**line: Any) -> None:
    """Print a line for the parent."""
    print(json.dumps(line), flush=True)


def outcome_of(seed: int) -> dict[str, Any]:
    """What came of the trial of a seed: "" if it equals eager, else what differs and a shortened
    trial.
    """
    trial = drawn(seed)

    def begin(index: int) -> None:
        tell(begins=str(replace(trial, actions=trial.actions[: index + 1])))

    outcome = run(trial, begin)
    if outcome.difference is None:
        return {"seed": seed, "differs": "", "replays": outcome.replays}
    short, difference = shortened(trial, outcome.difference, SHORTENING)
    return {"seed": seed, "differs": difference.text, "trial": str(short)}


def main() -> int:
    warnings.simplefilter("ignore")
    for seed in map(int, sys.argv[1:]):
        try:
            tell(**outcome_of(seed))
        except Exception as error:
            tell(error=traceback.format_exc()[-2000:])
            if is_fatal(error):
                return 1
            raise
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
