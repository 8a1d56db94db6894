"""A process that runs cases: reads what to run from stdin, a JSON object a line, and writes a row a
line.

    {"op": "mul", "variant": "views", "skip": ["0"]}
 -> {"begin": "3"}, {"case": "3", "status": "same", ...}, {"end": 2}

`begin` comes before each case, so that the reader knows which one a crash or a hang belongs to.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.sweep.ops.variants import Case


def main() -> None:
    """Serve requests until stdin ends.  Arguments: device, backend, samples per variant, seed."""
    device, backend, samples, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull, "w") as nowhere:  # operators may print
        os.dup2(nowhere.fileno(), 1)
    import torch

    torch.set_num_threads(1)
    from torch.testing._internal.common_methods_invocations import op_db

    from tools.sweep.ops.variants import cases

    ops = {op.full_name: op for op in op_db}
    with open(os.devnull, "w") as nowhere:  # and warn
        os.dup2(nowhere.fileno(), 2)
    reply(replies, {"ready": len(ops)})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] not in ops:
            reply(replies, {"case": "?", "status": "crash", "differences": ["not in op_db"]})
            reply(replies, {"end": 0})
            continue
        try:
            made = cases(ops[request["op"]], request["variant"], device, samples, seed)
        except Exception as error:  # torch's own samples cannot be made here
            text = f"{type(error).__name__}: {error}"[:200]
            reply(replies, {"end": 0, "samples": text})
            continue
        serve(request, made, backend, replies)


def serve(request: dict[str, Any], made: list[Case], backend: str, replies: Any) -> None:
    """Run the cases of one operator and variant that the request does not skip."""
    from tools.sweep.ops.run import run

    for case in made:
        if case.name in request["skip"]:
            continue
        reply(replies, {"begin": case.name})
        try:
            row = run(case, request["variant"], backend)
        except Exception as error:
            row = {"status": "differs", "differences": [f"{type(error).__name__}: {error}"[:400]]}
        reply(replies, {"case": case.name, **row})
    reply(replies, {"end": len(made)})


def reply(replies: Any, message: dict[str, Any]) -> None:
    """Write one line."""
    replies.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
