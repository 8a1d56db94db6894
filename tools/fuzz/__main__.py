"""`python -m tools.fuzz [tensors|python|calls|collectives|control-flow|layers|stored|launches|
kernels]`: compare random programs, print those that differ, shrunk; exit status 1 if there are any.

tensors: straight tensor programs against eager, by seed. python: Python programs with tensors in
them, made by hypothesis. calls: single calls of methods, functions and builtins, mostly with
arguments that they refuse. collectives: programs that communicate, in two processes, by seed, up to
the first that differs. control-flow: programs of torch.cond, while_loop, scan, map and
associative_scan, in function transforms too, against plain Python, by seed; not shrunk. layers:
stacks of equal layers in training, against eager, by seed. stored: programs that one process stores
and the next ones find edited, against eager, by seed. launches: what users do around compiled calls
(hold outputs, change weights, use streams), against eager, by seed; on a GPU, most calls are
replays of recorded CUDA graphs. kernels: chains of operators over inputs of odd sizes, special
numbers and layouts inside poisoned memory, against eager, by seed, in processes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys

KINDS = (
    "tensors", "python", "calls", "collectives", "control-flow", "layers", "stored", "launches",
    "kernels",
)  # fmt: skip


def main() -> int:
    """Run the programs of seeds S .. S + N - 1 (tensors), or N drawn from seed S (python)."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="tensors")
    parser.add_argument("--programs", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    parser.add_argument("--dynamic", action="store_true", help="compile for symbolic sizes")
    parser.add_argument(
        "--backend",
        help="tensors, layers: inductor, python, calls: eager, control-flow: aot_eager by default",
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="tensors: kernels under the address sanitizer"
    )
    parser.add_argument("--inference", action="store_true", help="tensors: in inference mode")
    parser.add_argument("--name-seeds", action="store_true", help="tensors: name each seed first")
    parser.add_argument(
        "--jobs", type=int, default=1, help="launches, kernels: processes at a time"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="kernels: where")
    parser.add_argument("--seconds", type=float, default=math.inf, help="kernels: begin no later")
    parser.add_argument("--trial", help="launches: run this trial, as one was printed")
    options = parser.parse_args()
    os.environ.setdefault("FLAMBEAU_CHECK", "1")
    if options.kind == "collectives":
        from tools.fuzz.collectives import report

        return report(options.programs, options.seed, True if options.dynamic else None)
    if options.kind == "control-flow":
        from tools.fuzz.control_flow import report as report_control_flow

        dynamic = True if options.dynamic else None
        backend = options.backend or "aot_eager"
        return report_control_flow(options.programs, options.seed, dynamic, backend)
    if options.kind == "layers":
        from tools.fuzz.layers.check import report as report_layers

        dynamic = True if options.dynamic else None
        backend = options.backend or "inductor"
        return report_layers(options.programs, options.seed, dynamic=dynamic, backend=backend)
    if options.kind == "calls":
        from tools.fuzz.calls import report as report_calls

        dynamic = True if options.dynamic else None
        backend = options.backend or "eager"
        return report_calls(options.programs, options.seed, backend=backend, dynamic=dynamic)
    if options.kind == "stored":
        from tools.fuzz.stored.check import report as report_stored

        return report_stored(options.programs, options.seed)
    if options.kind == "launches":
        from tools.fuzz.launches import check as launches

        if options.trial is not None:
            return launches.report_again(options.trial)
        return launches.report(options.programs, options.seed, options.jobs)
    if options.kind == "kernels":
        from tools.fuzz.kernels.check import report as report_kernels

        words = {"device": options.device, "jobs": options.jobs, "seconds": options.seconds}
        return report_kernels(options.programs, options.seed, **words)
    return _tensors(options) if options.kind == "tensors" else _python(options)


def _tensors(options: argparse.Namespace) -> int:
    from tools.fuzz.check import check

    if options.sanitize:
        from tools.fuzz.sanitized import run_programs

        dynamic = ["--dynamic"] * options.dynamic
        return run_programs([f"--programs={options.programs}", f"--seed={options.seed}", *dynamic])
    failures = 0
    for seed in range(options.seed, options.seed + options.programs):
        if options.name_seeds:
            print(f"seed {seed}", flush=True)
        text = check(
            seed,
            dynamic=options.dynamic,
            inference=options.inference,
            backend=options.backend or "inductor",
        )
        if text is not None:
            failures += 1
            print(text, flush=True)
    print(f"{options.programs} programs, {failures} differ")
    return 1 if failures else 0


def _python(options: argparse.Namespace) -> int:
    from tools.fuzz.python_check import first_difference

    ran, text = first_difference(
        options.programs,
        options.seed,
        backend=options.backend or "eager",
        dynamic=True if options.dynamic else None,
    )
    if text is not None:
        print(text)
    print(f"{ran} programs, {0 if text is None else 'one (shrunk)'} differs")
    return 0 if text is None else 1


if __name__ == "__main__":
    sys.exit(main())
