"""Ratios to torch.compile and to eager, measured in one run.

python -m tools.bench first-call [--case bert ...] [--repeats 3]   s of a first call, empty caches
python -m tools.bench first-call --warm ...            the same, caches filled by an earlier process
python -m tools.bench calls                            us per call when the graph does nothing
python -m tools.bench steady [--case bert ...]         ms per call once compiled
python -m tools.bench host                             us per library call of a chain of tiny ones
python -m tools.bench dynamic                          first call with dynamic=True against static
... --device cuda                                      the same on a GPU
python -m tools.bench gpu [--case bert_1x8 ...]        ms per call on a GPU, both modes of each
python -m tools.bench distributed [--case fsdp ...]    ms a training step of a Llama on all GPUs
python -m tools.bench memory [--case bert_1x8 ...]     peak memory on a GPU
python -m tools.bench kernels [--case softmax ...]     single kernels on a GPU: us, and bandwidth
python -m tools.bench kernels --device cpu             the same on a CPU, with its own cases
python -m tools.bench gemm [--case 8x4096x4096 ...]    products with bias and GELU on a GPU, in us
python -m tools.bench gemm --device cpu                the same on a CPU, its own cases, four dtypes
python -m tools.bench weights [--case ...]             linear layers by int8, int4 weights on a CPU
python -m tools.bench products [--case ...]            linear layers on a CPU, with max-autotune
python -m tools.bench models [--case resnet50_1 ...] [--cold]      whole models on a CPU: ms a call
python -m tools.bench background [--case resnet18_1 ...]   eager calls while an entry is compiled
python -m tools.bench regions [--repeats 3]            first calls of 8 and 80 equal layers: CPU s
python -m tools.bench joint [--repeats 3]              trace to partition of BERT-base: CPU seconds
python -m tools.bench document [--case numpy ...]      four programs of a page, each mode: ms a call
python -m tools.bench budget [--case ...] [--picture a.svg]    saved bytes, ms a training step
python -m tools.bench curves [--case gpt2 ...] [--steps 300]   losses beside eager's, in its noise
python -m tools.bench training-calls                   us a forward and backward that do nothing
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from flambeau_runtime import native
from tools.bench.background import BACKGROUND_CASES, background_table
from tools.bench.budget import BUDGET_CASES, measure, picture
from tools.bench.budget import rows as budget_rows
from tools.bench.cases import CASES
from tools.bench.cpu_gemm import CANDIDATES as CPU_GEMM_CANDIDATES
from tools.bench.cpu_gemm import CPU_GEMM_CASES, cpu_gemm_table
from tools.bench.curves import CURVE_CASES, WINDOW, compare_curves
from tools.bench.distributed import distributed_table
from tools.bench.distributed_cases import DISTRIBUTED_CASES
from tools.bench.document_cases import DOCUMENT_CASES, document_table
from tools.bench.gemm import CANDIDATES as GEMM_CANDIDATES
from tools.bench.gemm import gemm_table
from tools.bench.gemm_cases import GEMM_CASES, OTHER_CASES
from tools.bench.gpu import memory_table, time_table
from tools.bench.gpu_cases import GPU_CASES
from tools.bench.host_cases import CALLS as HOST_CALLS
from tools.bench.host_cases import HOST_CASES
from tools.bench.joint import joint_table
from tools.bench.kernels import CASES as KERNEL_SETS
from tools.bench.kernels import kernel_table
from tools.bench.model_cases import MODEL_CASES
from tools.bench.models import model_table
from tools.bench.products import PRODUCT_CASES, product_table
from tools.bench.regions import region_table
from tools.bench.timing import cold, interleave
from tools.bench.training_calls import PARAMETERS, training_calls_row
from tools.bench.weight_only import CANDIDATES as WEIGHT_ONLY_CANDIDATES
from tools.bench.weight_only import WEIGHT_ONLY_CASES, weight_only_table

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_CALL = ("sin_cos", "bert", "bert_training")
FIRST_CALL_GPU = (
    "sin_cos", "bert_training", "gpt2_training", "vit_training", "llama_training", "unet_training",
    "resnet50_training",
)  # fmt: skip
STEADY = ("sin_plus_cos", "pointwise", "softmax", "layer_norm", "resnet", "bert", "bert_4x64")
CALLS = ("one_tensor", "linears", "llama")
OF_GPUS = ("gpu", "memory", "distributed", "kernels", "gemm")
"""What runs on a GPU unless `--device` says otherwise."""
WIDE = ("distributed", "gemm", "models", "background")
"""What needs 160 columns."""


def first_call(arguments: argparse.Namespace, table: Table) -> None:
    """Flambeau's and torch.compile's first call, each in a fresh process with empty caches, or with
    those of an earlier process (`--warm`).
    """
    columns(table, "case", "flambeau s", "torch.compile s", "ratio", "1/ratio")
    for name in arguments.case or (FIRST_CALL_GPU if arguments.device == "cuda" else FIRST_CALL):
        pairs = [
            [
                cold(name, stack, arguments.device, mode=arguments.mode, warm=arguments.warm)
                for stack in ("flambeau", "torch")
            ]
            for _ in range(arguments.repeats)
        ]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        row = f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.3f}", f"{theirs / ours:.1f}"
        print(name, *row, file=sys.stderr, flush=True)
        table.add_row(name, *row)


def dynamic(arguments: argparse.Namespace, table: Table) -> None:
    """Flambeau's first call with dynamic=True against its own static one."""
    columns(table, "case", "static s", "dynamic s", "ratio")
    for name in arguments.case or ("sin_cos", "softmax", "bert"):
        pairs = [
            (
                cold(name, "flambeau", arguments.device),
                cold(name, "flambeau", arguments.device, dynamic=True),
            )
            for _ in range(arguments.repeats)
        ]
        static, moving = (statistics.median(column) for column in zip(*pairs, strict=True))
        table.add_row(name, f"{static:.2f}", f"{moving:.2f}", f"{moving / static:.2f}")


def steady(arguments: argparse.Namespace, table: Table) -> None:
    """Eager, Flambeau and torch.compile, called in turn."""
    import flambeau

    columns(
        table, "case", "eager ms", "flambeau ms", "torch.compile ms", "to eager", "to torch.compile"
    )
    for name in arguments.case or STEADY:
        case = CASES[name](arguments.device)
        with torch.set_grad_enabled(case.training):
            ours, theirs = flambeau.compile(case.program), torch.compile(case.program)
            seconds = interleave(
                {
                    "eager": lambda case=case: case.call(case.program),
                    "flambeau": lambda case=case, f=ours: case.call(f),
                    "torch": lambda case=case, f=theirs: case.call(f),
                },
                device=arguments.device,
                rounds=arguments.rounds,
            )
        table.add_row(
            name,
            *(f"{value * 1e3:.4f}" for value in seconds.values()),
            f"{seconds['flambeau'] / seconds['eager']:.3f}",
            f"{seconds['flambeau'] / seconds['torch']:.3f}",
        )


def host(arguments: argparse.Namespace, table: Table) -> None:
    """Time per library call of a program that is limited by them, launched call by call."""
    import flambeau

    columns(table, "call", "eager us", "flambeau us", "torch.compile us", "to eager", "to torch")
    for name in arguments.case or HOST_CASES:
        case = HOST_CASES[name](arguments.device)
        with torch.no_grad():
            ours = flambeau.compile(case.program, options={"cuda_graphs": "never"})
            theirs = torch.compile(case.program)
            seconds = interleave(
                {
                    "eager": lambda case=case: case.call(case.program),
                    "flambeau": lambda case=case, f=ours: case.call(f),
                    "torch": lambda case=case, f=theirs: case.call(f),
                },
                device=arguments.device,
                rounds=arguments.rounds,
            )
        table.add_row(
            name,
            *(f"{value / HOST_CALLS * 1e6:.2f}" for value in seconds.values()),
            f"{seconds['flambeau'] / seconds['eager']:.3f}",
            f"{seconds['flambeau'] / seconds['torch']:.3f}",
        )


def calls(arguments: argparse.Namespace, table: Table) -> None:
    """Time per call when the graph does nothing (it returns constant outputs): all of it is the
    compiler's own.
    """
    import flambeau

    columns(table, "case", "flambeau us", "torch.compile us", "ratio", "1/ratio")

    def no_op(
        gm: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., tuple[Any, ...]]:
        with torch.no_grad():
            outputs = tuple(gm(*example_inputs))
        return lambda *inputs: outputs

    for name in arguments.case or CALLS:
        case = CASES[name](arguments.device)
        with torch.no_grad():
            ours = flambeau.compile(case.program, backend=no_op)
            theirs = torch.compile(case.program, backend=no_op)
            seconds = interleave(
                {
                    "flambeau": lambda case=case, f=ours: case.call(f),
                    "torch": lambda case=case, f=theirs: case.call(f),
                },
                device=arguments.device,
                rounds=arguments.rounds,
            )
        ours_us, theirs_us = seconds["flambeau"] * 1e6, seconds["torch"] * 1e6
        table.add_row(
            name,
            f"{ours_us:.3f}",
            f"{theirs_us:.3f}",
            f"{ours_us / theirs_us:.4f}",
            f"{theirs_us / ours_us:.1f}",
        )


def gpu(arguments: argparse.Namespace, table: Table) -> None:
    """Eager and both modes of both compilers on a GPU, called in turn."""
    cases = arguments.case or list(GPU_CASES)
    fill(table, *time_table(cases, arguments.rounds, arguments.jobs, arguments.limit))


def memory(arguments: argparse.Namespace, table: Table) -> None:
    """Peak memory of eager and both modes of both compilers on a GPU."""
    cases = arguments.case or list(GPU_CASES)
    fill(table, *memory_table(cases, arguments.jobs, arguments.limit))


def distributed(arguments: argparse.Namespace, table: Table) -> None:
    """Training steps in parallel, one process a GPU, beside eager and torch.compile."""
    cases = arguments.case or list(DISTRIBUTED_CASES)
    fill(table, *distributed_table(cases, arguments.rounds, arguments.jobs, arguments.limit))


def kernels(arguments: argparse.Namespace, table: Table) -> None:
    """Single kernels beside eager and torch.compile."""
    cases = arguments.case or list(KERNEL_SETS[arguments.device])
    fill(table, *kernel_table(cases, arguments.rounds, arguments.jobs, arguments.device))


def gemm(arguments: argparse.Namespace, table: Table) -> None:
    """Matrix products with their epilogues beside the libraries with eager's kernels, and
    torch.compile.
    """
    if arguments.device == "cpu":
        names = arguments.case or list(CPU_GEMM_CASES)
        candidates = arguments.candidate or list(CPU_GEMM_CANDIDATES)
        fill(table, *cpu_gemm_table(names, candidates, arguments.rounds, arguments.passive))
        return
    cases = arguments.case or [*GEMM_CASES, *OTHER_CASES]
    candidates = arguments.candidate or list(GEMM_CANDIDATES)
    rest = arguments.rounds, arguments.jobs, arguments.seconds
    fill(table, *gemm_table(cases, candidates, *rest))


def weights(arguments: argparse.Namespace, table: Table) -> None:
    """Linear layers by quantised weights on a CPU, few rows."""
    names = arguments.case or list(WEIGHT_ONLY_CASES)
    candidates = arguments.candidate or list(WEIGHT_ONLY_CANDIDATES)
    fill(table, *weight_only_table(names, candidates, arguments.rounds, arguments.passive))


def products(arguments: argparse.Namespace, table: Table) -> None:
    """Linear layers on a CPU, all modes of both compilers."""
    fill(table, *product_table(arguments.case or list(PRODUCT_CASES), arguments.rounds))


def models(arguments: argparse.Namespace, table: Table) -> None:
    """Whole models on a CPU beside eager and torch.compile; with --cold first calls and peaks."""
    cases = arguments.case or list(MODEL_CASES)
    fill(table, *model_table(cases, arguments.rounds, arguments.cold, arguments.passive))


def background(arguments: argparse.Namespace, table: Table) -> None:
    """Calls while their entry is compiled in the background, beside plain eager calls."""
    fill(table, *background_table(arguments.case or ["transformer", "resnet18_1"]))


def document(arguments: argparse.Namespace, table: Table) -> None:
    """The programs of a page on torch.compile's interface, in its modes, on a CPU."""
    fill(table, *document_table(arguments.case or list(DOCUMENT_CASES), arguments.rounds))


def budget(arguments: argparse.Namespace, table: Table) -> None:
    """Saved bytes and time of training steps under `activation_memory_budget`."""
    columns(table, "case", "budget", "saved MB", "of 1.0", "recomputed", "ms a step", "of 1.0")
    for name in arguments.case or BUDGET_CASES:
        points = measure(name, arguments.device, arguments.rounds)
        for row in budget_rows(points):
            table.add_row(name, *row)
        if arguments.picture is not None:
            arguments.picture.parent.mkdir(parents=True, exist_ok=True)
            arguments.picture.write_text(picture(name, points))


def curves(arguments: argparse.Namespace, table: Table) -> None:
    """Losses of training, compiled beside eager with the same seed and others."""
    columns(table, "case", "steps", "first", "last", "noise", "distance", "distance / noise")
    seeds = range(max(3, arguments.repeats))
    for name in arguments.case or CURVE_CASES:
        found = compare_curves(name, arguments.steps, seeds)
        at = max(range(len(found.noise)), key=lambda k: found.distances[k] / found.noise[k])
        ends = f"{found.means[0]:.4f}", f"{found.means[-1]:.4f}"
        worst = f"{found.noise[at]:.5f}", f"{found.distances[at]:.5f}", f"{found.ratio:.3f}"
        table.add_row(name, f"{at * WINDOW} of {arguments.steps}", *ends, *worst)


def training_calls(arguments: argparse.Namespace, table: Table) -> None:
    """Time per forward and backward whose kernels do nothing."""
    columns(table, "parameters", "engine us", "flambeau adds us", "torch adds us", "ratio")
    for count in PARAMETERS:
        table.add_row(*training_calls_row(count, arguments.device, arguments.rounds))


def regions(arguments: argparse.Namespace, table: Table) -> None:
    """First calls of stacks of equal layers, few and many."""
    fill(table, *region_table(arguments.repeats))


def joint(arguments: argparse.Namespace, table: Table) -> None:
    """The joint graph of BERT-base, static and dynamic."""
    fill(table, *joint_table(arguments.repeats))


def cases_of(what: str, device: str) -> list[str]:
    """The names of a benchmark's cases."""
    cases = {
        "gpu": GPU_CASES,
        "memory": GPU_CASES,
        "distributed": DISTRIBUTED_CASES,
        "kernels": KERNEL_SETS[device],
        "gemm": CPU_GEMM_CASES if device == "cpu" else {**GEMM_CASES, **OTHER_CASES},
        "weights": WEIGHT_ONLY_CASES,
        "products": PRODUCT_CASES,
        "models": MODEL_CASES,
        "background": BACKGROUND_CASES,
        "document": DOCUMENT_CASES,
        "curves": CURVE_CASES,
        "host": HOST_CASES,
        "first-call": CASES | GPU_CASES if device == "cuda" else CASES,
    }
    return list(cases.get(what, CASES))


def fill(table: Table, headings: list[str], rows: list[list[str]]) -> None:
    """Give the table its columns and rows."""
    columns(table, *headings)
    for row in rows:
        table.add_row(*row)


def columns(table: Table, *headings: str) -> None:
    """Give the table its columns: the first is text, the others numbers."""
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right")


def main() -> None:
    """Run one benchmark and print its table."""
    commands = {
        "first-call": first_call,
        "calls": calls,
        "steady": steady,
        "host": host,
        "dynamic": dynamic,
        "gpu": gpu,
        "memory": memory,
        "distributed": distributed,
        "kernels": kernels,
        "gemm": gemm,
        "products": products,
        "weights": weights,
        "models": models,
        "background": background,
        "document": document,
        "budget": budget,
        "training-calls": training_calls,
        "curves": curves,
        "regions": regions,
        "joint": joint,
    }
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=commands)
    parser.add_argument("--case", action="append", help="as tools/bench names them")
    candidates = dict.fromkeys((*GEMM_CANDIDATES, *CPU_GEMM_CANDIDATES, *WEIGHT_ONLY_CANDIDATES))
    parser.add_argument("--candidate", action="append", choices=candidates, help="of gemm")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest time of gemm")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--cold", action="store_true", help="of models: first calls and peaks, too")
    parser.add_argument("--warm", action="store_true", help="of first-call: with full caches")
    parser.add_argument("--passive", action="store_true", help="on a CPU: CPU time")
    parser.add_argument("--mode", help="of first-call: max-autotune-no-cudagraphs, for example")
    parser.add_argument("--repeats", type=int, default=1, help="fresh processes a case and stack")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once, but for the timing")
    parser.add_argument(
        "--limit", type=float, default=600, help="s: a model not compiled then is left out"
    )
    parser.add_argument("--rounds", type=int, default=30, help="turns of each candidate")
    parser.add_argument("--steps", type=int, default=300, help="of curves")
    parser.add_argument("--picture", type=Path, help="of budget: the SVG to write")
    arguments = parser.parse_args()
    arguments.device = arguments.device or ("cuda" if arguments.what in OF_GPUS else "cpu")
    known = cases_of(arguments.what, arguments.device)
    if strange := [name for name in arguments.case or () if name not in known]:
        parser.error(
            f"no case of {arguments.what}: {', '.join(strange)}; known: {', '.join(known)}"
        )
    table = Table(title=f"{arguments.what} ({arguments.device}, torch {torch.__version__})")
    if reason := native.unavailable():
        sys.exit(f"bench: {reason}")  # else eager's times would be printed as ours
    commands[arguments.what](arguments, table)
    Console(width=160 if arguments.what in WIDE else 120).print(table)


if __name__ == "__main__":
    main()
