"""The command `python -m flambeau minify`.

    python -m flambeau minify torch_compile_debug/run_.../model     # a debug folder
    python -m flambeau minify fx_graph_runnable.py --backend my_module:my_backend

Of a folder with several graphs, the first that fails is cut. The result is a script beside it,
`fx_graph_minified.py`, which fails in the same way.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau.minify.reduce import Reducer
from flambeau.minify.script import NotReadable, Script, read_script
from flambeau.minify.trials import Trials

if TYPE_CHECKING:
    import argparse

RUNNABLE = "fx_graph_runnable.py"
MINIFIED = "fx_graph_minified.py"

_HEAD = '''"""A graph that fails: {failure}.

    python {name}     # eager beside compiled

Cut from {source} by `python -m flambeau minify`, in {trials} trials.
"""

'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("path", type=Path, help=f"a debug folder, or a {RUNNABLE} of one")
    parser.add_argument("--backend", default="inductor", help="its name, or module:function")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of results beside eager's")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one trial")
    parser.add_argument("--output", type=Path, help=f"the script; by default {MINIFIED} beside it")


def minify(arguments: argparse.Namespace) -> int:
    """Run the command; its exit status: 0 if a failing graph was cut, 1 if none fails."""
    files = scripts_in(arguments.path)
    if not files:
        print(f"no {RUNNABLE} in {arguments.path}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="flambeau_minify_"))
    try:
        trials = Trials(folder, arguments.backend, arguments.tolerance, arguments.timeout)
        with trials:
            for file in files:
                output = arguments.output or file.with_name(MINIFIED)
                if _minify(file, output, trials):
                    return 0
    finally:
        shutil.rmtree(folder)
    print("no graph fails: compiled, each gives what eager gives")
    return 1


def scripts_in(path: Path) -> list[Path]:
    """The scripts of captured graphs in a folder, in the order of their graphs; or the file."""
    if path.is_file():
        return [path]
    return sorted(path.rglob(RUNNABLE), key=lambda file: (len(file.parts), str(file)))


def _minify(file: Path, output: Path, trials: Trials) -> bool:
    """Whether a script fails; then it is cut."""
    try:
        script = read_script(file.read_text())
    except NotReadable as reason:
        print(f"{file}: cannot be cut: {reason}", file=sys.stderr)
        return False
    reducer = Reducer(script, trials, lambda text: print(f"  {text}", flush=True))
    if not reducer.failure:
        print(f"{file}: does not fail")
        return False
    print(f"{file}: {reducer.failure}; {_count(script)}")
    smallest = reducer.run()
    head = _HEAD.format(
        failure=reducer.failure, name=output.name, source=file.name, trials=trials.count
    )
    output.write_text(head + trials.text(smallest))
    print(f"{output}: {_count(smallest)}, after {trials.count} trials")
    return True


def _count(script: Script) -> str:
    calls = len(script.statements)
    return f"{calls} {'call' if calls == 1 else 'calls'}"
