"""`python -m tools.sweep models`: build, run and compare every architecture of the table; print and
write what came of it.

Each architecture runs in a process of its own (forked, so that the imports are paid once), with a
limit. Results are kept line by line in `--results`; what stands there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

COMPILERS = ("flambeau", "torch")
MODES = ("eval", "inference", "train")
"""Without gradients, the same in inference mode, and a training step."""
STATUSES = ("whole", "breaks", "differs", "error", "not run")


def main(arguments: list[str]) -> int:
    """Run what is missing, print the table; exit status 1 when a result differs or fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.sweep models", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--sample", action="store_true", help="the fixed sample that CI runs")
    parser.add_argument("--results", type=Path, help="a JSON-lines file to go on with and add to")
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=["flambeau"])
    parser.add_argument("--backend", default="inductor", help="flambeau's backend")
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["eval", "train"], help="of the models"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--autocast", action="store_true", help="to bfloat16")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=180, help="seconds an architecture may take")
    parser.add_argument(
        "--cache", type=Path, help="store entries here, and read those of an earlier run"
    )
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if options.cache is None:
        os.environ.setdefault("FLAMBEAU_CHECK", "1")
    else:
        os.environ["FLAMBEAU_GRAPH_CACHE"] = "1"
        os.environ["FLAMBEAU_CACHE_DIR"] = str(options.cache)
        options.cache.mkdir(mode=0o700, exist_ok=True)
    from tools.sweep.models.table import SAMPLE, TABLE

    names = options.names or (list(SAMPLE) if options.sample else list(TABLE))
    unknown = [name for name in names if name not in TABLE]
    if unknown:
        parser.error(f"no such architecture: {', '.join(unknown)}")
    wanted = [(name, compiler) for name in names for compiler in options.compilers]
    results = _read(options.results)
    pending = [item for item in wanted if item not in results]
    for item, found in _run_all(pending, options):
        results[item] = found
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps({"name": item[0], "compiler": item[1], **found}) + "\n")
        print(_line(item, found), flush=True)
    chosen = {item: results[item] for item in wanted if item in results}
    text = _table(chosen, options.compilers)
    print(text)
    if options.table is not None:
        options.table.write_text(text + "\n")
    failed = ("differs", "error")
    return int(
        any(
            mode.get("status") in failed
            for (_, compiler), found in chosen.items()
            if compiler == "flambeau"
            for mode in found.values()
        )
    )


Item = tuple[str, str]


def _read(path: Path | None) -> dict[Item, dict[str, Any]]:
    results: dict[Item, dict[str, Any]] = {}
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            found = json.loads(line)
            results[found.pop("name"), found.pop("compiler")] = found
    return results


# ---------------------------------------------------------------- processes


def _run_all(pending: list[Item], options: argparse.Namespace) -> Any:
    """(item, result) of each, as they end."""
    if not pending:
        return
    import torch

    torch.set_num_threads(1)
    from tools.sweep.models import run  # imports everything that the children share

    running: dict[int, tuple[Item, float, Path]] = {}
    queue = list(pending)
    with tempfile.TemporaryDirectory() as directory:
        while queue or running:
            while queue and len(running) < options.jobs:
                item = queue.pop(0)
                path = Path(directory, "-".join(item))
                process = os.fork()
                if process == 0:
                    rest = options.backend, options.modes, options.device, options.autocast
                    _child(run.run, item, rest, path)
                running[process] = (item, time.monotonic(), path)
            time.sleep(0.05)
            for process, (item, started, path) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() - started < options.limit:
                    continue
                if not ended:
                    os.killpg(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                del running[process]
                yield (
                    item,
                    _result(
                        path,
                        f"took more than {options.limit} s"
                        if not ended
                        else f"ended with {status}",
                    ),
                )


def _child(run: Any, item: Item, rest: tuple[Any, ...], path: Path) -> None:
    """Runs in the forked process, and never returns."""
    os.setpgid(0, 0)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        found = run(*item, *rest)
    except BaseException:
        cause = traceback.format_exc().strip().splitlines()[-1][:300]
        found = {"eval": {"status": "error", "causes": [cause]}}
    path.write_text(json.dumps(found))
    os._exit(0)


def _result(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        found = {"eval": {"status": "error", "causes": [otherwise]}}
    return found


# ---------------------------------------------------------------- text


def _line(item: Item, found: dict[str, Any]) -> str:
    parts = [f"{item[0]} ({item[1]})"]
    for mode, result in found.items():
        cause = " ".join(result["causes"][0].split())[:160] if result["causes"] else ""
        parts.append(f"{mode}: {result['status']}{' ' + cause if cause else ''}{_assumed(result)}")
    return "; ".join(parts)


def _assumed(result: dict[str, Any]) -> str:
    """What the graphs assume of data, in short."""
    if not result.get("assumes"):
        return ""
    lines = sorted({item.partition(": ")[0].rpartition("/")[2] for item in result["assumes"]})
    violated = f", {result['violated']} violated" if result["violated"] else ""
    more = ", ..." if len(lines) > 3 else ""
    return f" (assumes {len(result['assumes'])} of data at {', '.join(lines[:3])}{more}{violated})"


def _stored_lines(results: dict[Item, dict[str, Any]]) -> list[str]:
    """How many architectures took all their entries from the cache, or stored all, by mode; and
    how often each reason kept an entry out.
    """
    lines = []
    for mode in _modes(results):
        stored = {
            name: found[mode]["stored"]
            for (name, _), found in results.items()
            if found.get(mode, {}).get("stored")
        }
        read = sum(set(each) == {"read"} for each in stored.values())
        kept = sum(set(each) <= {"read", "written"} for each in stored.values())
        lines.append(
            f"- entries, {mode}: of {len(stored)} architectures {read} read all of theirs, "
            f"{kept} have all of theirs stored"
        )
        reasons = Counter(
            (reason, name)
            for name, each in stored.items()
            for reason in each
            if reason not in ("read", "written")
        )
        lines += [f"  - {name}: {reason} ({n})" for (reason, name), n in sorted(reasons.items())]
    return lines


def _modes(results: dict[Item, dict[str, Any]]) -> list[str]:
    """The modes that were run."""
    return [mode for mode in MODES if any(mode in found for found in results.values())]


def _table(results: dict[Item, dict[str, Any]], compilers: list[str]) -> str:
    """How many architectures end how, per compiler and mode; then those that are not whole, or of
    which there is more to say.
    """
    lines = [
        "| compiler | mode | " + " | ".join(STATUSES) + " | whole | assuming data |",
        "|---" * (len(STATUSES) + 4) + "|",
    ]
    for compiler in compilers:
        for mode in _modes(results):
            counts = Counter(
                found[mode]["status"]
                for (_, by), found in results.items()
                if by == compiler and mode in found
            )
            ran = sum(counts.values()) - counts["not run"]
            assuming = sum(
                found[mode]["status"] == "whole" and bool(found[mode].get("assumes"))
                for (_, by), found in results.items()
                if by == compiler and mode in found
            )
            share = f"{counts['whole'] / ran:.1%}" if ran else "-"
            lines.append(
                f"| {compiler} | {mode} | "
                + " | ".join(str(counts[s]) for s in STATUSES)
                + f" | {share} | {assuming} |"
            )
    if any(mode.get("stored") for found in results.values() for mode in found.values()):
        lines += ["", *_stored_lines(results)]
    rest = [
        _line(item, found)
        for item, found in results.items()
        if any(
            mode["status"] != "whole" or mode["causes"] or mode.get("assumes")
            for mode in found.values()
        )
    ]
    return "\n".join([*lines, "", *[f"- {line}" for line in rest]])
