"""Notebooks (Python files with `# %%` cells, read by jupytext), executed; the tour and its output.

They run in the interpreter that FLAMBEAU_PYTHON names, which has torch, Flambeau and ipykernel. A
cell that raises ends the build.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jupytext
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from mkdocs.exceptions import PluginError
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools.site.pages import NOTEBOOKS, REPOSITORY, ROOT

if TYPE_CHECKING:
    from pathlib import Path

SECONDS_PER_CELL = 120


def pages() -> dict[str, str]:
    """The text of each notebook's page, and of the tour's, by its name."""
    python = os.environ.get("FLAMBEAU_PYTHON")
    if not python:
        raise PluginError("FLAMBEAU_PYTHON names no interpreter; `hatch run docs` sets it")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = {
            page: pool.submit(_notebook, ROOT / source, python)
            for source, page in NOTEBOOKS.items()
        }
        texts["tour.md"] = pool.submit(_tour, ROOT / "docs" / "tour.py", python)
        return {page: text.result() for page, text in texts.items()}


class OneKernel(KernelSpecManager):
    """The kernels to choose from: ipykernel in the given interpreter."""

    python = ""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """How to start it."""
        command = [self.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def _notebook(source: Path, python: str) -> str:
    """Execute a notebook and write its cells and their outputs as Markdown."""
    notebook = jupytext.read(source)
    kernels = OneKernel()
    kernels.python = python
    with tempfile.TemporaryDirectory() as folder:
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=kernels,
            transport="ipc",
            ip=f"{folder}/kernel",
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=SECONDS_PER_CELL,
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=_environment())
        except CellExecutionError as error:
            raise PluginError(f"{source.relative_to(ROOT)}: {error}") from error
        finally:
            run_sync(manager.shutdown_kernel)(now=True)
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts.append(_fenced("python", cell.source))
            parts += [_fenced("text", text) for text in _printed(cell.outputs)]
    return "\n\n".join([*parts, _origin(source)]) + "\n"


def _environment() -> dict[str, str]:
    """The environment of what runs here: the checkout's packages, whatever is installed."""
    sources = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
    path = {"PYTHONPATH": os.pathsep.join(sources)}
    return {**os.environ, **path, "FLAMBEAU_PROGRESS": "0"}  # whose lines differ each time


def _printed(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell printed, to both streams in order, and the text of its value."""
    texts: list[str] = []
    streamed = False
    for output in outputs:
        if output["output_type"] == "stream":
            if streamed:
                texts[-1] += output["text"]
            else:
                texts.append(output["text"])
        elif "text/plain" in output.get("data", {}):
            texts.append(output["data"]["text/plain"])
        streamed = output["output_type"] == "stream"
    return [text for text in texts if text.strip()]


def _tour(source: Path, python: str) -> str:
    """The tour's page: its source, then what it prints."""
    ran = subprocess.run(
        [python, source], env=_environment(), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise PluginError(f"{source.relative_to(ROOT)}: {ran.stderr}")
    parts = [
        "# A tour of the stages",
        "One small function goes through all packages. First the program, then its output.",
        _fenced("python", source.read_text()),
        "## Output",
        _fenced("text", ran.stdout),
        _origin(source),
    ]
    return "\n\n".join(parts) + "\n"


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.strip(chr(10)).rstrip()}\n```"


def _origin(source: Path) -> str:
    name = source.relative_to(ROOT)
    return f"Source: [{name}]({REPOSITORY}/{name}). The site's build executes it."
