"""The processes that compile Triton kernels, with a stand-in for Triton: what comes back, at once
and in turn, and what happens when a process is lost.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flambeau_runtime.build import assemblers, triton_compiler
from flambeau_runtime.build import triton as build
from flambeau_runtime.build.cubin_usage import Usage
from flambeau_runtime.build.triton_server import BuildFailed, Server, ServerGone

STAND_IN = {
    "triton/__init__.py": """
import os, types
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{os.getpid()} {'torch' in __import__('sys').modules}\\n")
def jit(function):
    return lambda: function.__name__
def compile(source, target, options):
    with open(os.environ["STARTS"] + ".compiled", "a") as compiled:
        compiled.write(f"{os.getpid()} {source.fn()}\\n")
    facts = types.SimpleNamespace(
        name=f"{source.fn()} {os.getpid()} {source.signature} {source.constexprs} {source.attrs}",
        global_scratch_size=int("0" + "".join(filter(str.isdigit, os.path.basename(
            os.environ.get("TRITON_PTXAS_PATH", ""))))),
        shared=target.arch, num_warps=options["num_warps"])
    return types.SimpleNamespace(metadata=facts, asm={"cubin": b"\\x7fELF\\n" * 50_000})
""",
    "triton/language.py": "constexpr = None",
    "triton/backends/__init__.py": "",
    "triton/backends/compiler.py": """
class GPUTarget:
    def __init__(self, backend, arch, lanes):
        self.arch = arch
""",
    "triton/compiler/__init__.py": """
import types
class ASTSource(types.SimpleNamespace):
    pass
""",
    "triton/compiler/compiler.py": """
import types
def make_backend(target):
    return types.SimpleNamespace(hash=str)
""",
    "triton/runtime/__init__.py": "",
    "triton/runtime/cache.py": "",
}


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which each process that imports Triton leaves a line."""
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    return tmp_path / "starts"


@pytest.fixture
def server(starts: Path) -> Iterator[Server]:
    """A server that nothing else uses."""
    server = Server(90)
    yield server
    process = server._process
    server._close()
    if process is not None:
        assert process.wait(60) is not None, "it ends with its control socket"


def job(text: str = "def f(): return 'compiled'", **more: Any) -> dict[str, Any]:
    return {
        "text": text,
        "name": "f",
        "capability": 90,
        "signature": {"a": "*fp32", "n": "i32"},
        "constants": {"BLOCK": 8},
        "divisible": ["a"],
        "options": {"num_warps": 4},
        "assemblers": {"paths": [], "stamps": [], "major": 0},
        **more,
    }


def test_facts_and_image_come_back(server: Server) -> None:
    facts, image = server.compile(job())
    word, _, rest = facts["entry"].partition(" ")
    assert word == "compiled"
    assert rest.partition(" ")[2] == (
        "{'a': '*fp32', 'n': 'i32', 'BLOCK': 'constexpr'} "
        "{(2,): 8} {(0,): [['tt.divisibility', 16]]}"
    )
    assert (facts["shared"], facts["warps"], facts["scratch"]) == (90, 4, 0)
    assert facts["assembler"] == [], "Triton's own"
    assert image == b"\x7fELF\n" * 50_000


def assembler(folder: Path, release: str) -> str:
    """A program that says of itself that it is ptxas of a release, as `ptxas_<release>`."""
    path = folder / f"ptxas_{release.replace('.', '')}"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 1.0, V{release}'\n")
    path.chmod(0o755)
    return str(path)


def test_triton_calls_the_newest_assembler_that_the_driver_can_load(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    first, newer, newest, too_new = (
        assembler(tmp_path, release) for release in ("12.8.93", "12.10.2", "13.0.8", "14.0.1")
    )
    broken = tmp_path / "ptxas_7"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)

    def called(paths: list[str], major: int) -> int:
        usable = {"paths": paths, "stamps": [], "major": major}
        return int(server.compile(job(assemblers=usable))[0]["scratch"])

    assert called([], 13) == 0
    assert called([first], 13) == 12893
    assert called([first, newest, too_new, newer], 13) == 1308
    assert called([first, newest, too_new, newer], 12) == 12102
    assert called([newer, str(broken), first, str(tmp_path / "none")], 13) == 12102
    assert called([too_new, newest], 13) == 1401, "Triton's own is for Triton to judge"


@pytest.mark.parametrize(
    ("release", "wrong"), [("12.8.93", True), ("12.9.0", False), ("13.0", False)]
)
def test_an_assembler_that_is_known_to_be_wrong_is_warned_of_once(
    starts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    release: str,
    wrong: bool,
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler(tmp_path, release))
    monkeypatch.setattr(build, "server", lambda capability: Server(capability))
    monkeypatch.setattr(build, "usage", lambda image: Usage(24, 0))
    build._warn_of_old.cache_clear()
    meta = {"signature": {"a": "*fp32"}, "constants": {}, "num_warps": 4, "num_stages": 2}
    for _ in range(2):
        build.build_cubin("def f(): return 'compiled'", "f", meta, 90)
    said = [record.getMessage() for record in caplog.records if "ptxas" in record.getMessage()]
    assert len(said) == wrong
    assert all(release in each and "pip install" in each for each in said)


def test_what_this_process_chose_is_not_taken_for_the_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels are compiled in it, for want of another process."""
    old, new = (assembler(tmp_path, release) for release in ("12.8.93", "13.0.8"))
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")
    monkeypatch.setattr(assemblers, "_installed", lambda: (old, new))
    monkeypatch.setattr(assemblers, "CALLED", called := set())
    monkeypatch.setattr(triton_compiler, "CALLED", called)
    before = assemblers.assemblers()
    assert triton_compiler._call_the_newest(before["paths"], 13) == (13, 0, 8)
    assert os.environ["TRITON_PTXAS_PATH"] == new
    assert assemblers.assemblers() == before


def test_assemblers_are_part_of_what_a_kernel_is_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = assembler(tmp_path, "13.0.8")
    monkeypatch.setenv("TRITON_PTXAS_PATH", one)
    meta = {"signature": {"a": "*fp32"}, "constants": {}, "num_warps": 4, "num_stages": 2}
    before = build.build_job("", "f", meta, 90)
    assert before["assemblers"]["paths"] == [one]
    Path(one).write_text("#!/bin/sh\necho another\n")
    assert build.build_job("", "f", meta, 90) != before
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    assert one not in build.build_job("", "f", meta, 90)["assemblers"]["paths"]


def test_one_import_serves_kernels_that_are_compiled_at_once(
    server: Server, starts: Path, tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    waiting = job(
        f"""
import os, pathlib, time
def f():
    (pathlib.Path({str(together)!r}) / str(os.getpid())).touch()
    while len(os.listdir({str(together)!r})) < 6:
        time.sleep(0.01)
    return 1
"""
    )
    with ThreadPoolExecutor(6) as pool:  # each ends only if all six run
        entries = [facts["entry"] for facts, _ in pool.map(server.compile, [waiting] * 6)]
    assert len({entry.split()[1] for entry in entries}) == 6, "a process each"
    (line,) = starts.read_text().splitlines()
    assert line.endswith("False"), "torch is not imported"


def test_a_server_that_nobody_asks_practises(server: Server, starts: Path) -> None:
    server.start()
    compiled = Path(f"{starts}.compiled")
    ends = time.monotonic() + 60
    while not compiled.exists() or "\n" not in compiled.read_text():
        assert time.monotonic() < ends, "it compiles a kernel that nobody wants"
        time.sleep(0.01)
    facts, _ = server.compile(job())
    practised, wanted = (line.split() for line in compiled.read_text().splitlines())
    assert practised[1] == "smallest"
    assert wanted == facts["entry"].split()[1::-1], "the child that was asked has compiled one"


def test_what_triton_raises_is_told(server: Server) -> None:
    with pytest.raises(BuildFailed, match="ValueError: no such tile"):
        server.compile(job("def f(): raise ValueError('no such tile')"))
    with pytest.raises(OSError, match="disk is full"):
        server.compile(job("def f(): raise OSError('disk is full')"))
    assert server.compile(job())[1]


def test_a_crash_in_one_kernel_leaves_the_others(server: Server, starts: Path) -> None:
    with pytest.raises(ServerGone):
        server.compile(job("import os\ndef f(): os.abort()"))
    assert server.compile(job())[1]
    assert len(starts.read_text().splitlines()) == 1


def test_a_server_that_was_killed_is_started_again(server: Server, starts: Path) -> None:
    server.compile(job())
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert server.compile(job())[1]
    assert len(starts.read_text().splitlines()) == 2


def test_a_kernel_is_lost_with_its_server(server: Server) -> None:
    failures: list[BaseException] = []

    def compile_slowly() -> None:
        try:
            server.compile(job("import os, time\ndef f(): os.kill(os.getppid(), 9); os.abort()"))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    thread.join(60)
    assert [type(error) for error in failures] == [ServerGone]


def test_a_forked_child_has_a_server_of_its_own(server: Server, starts: Path) -> None:
    server.compile(job())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            server.forget()
            status = 0 if server.compile(job())[1] else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert server.compile(job())[1], "the parent's goes on"
    assert len(starts.read_text().splitlines()) == 2


def test_without_a_server_kernels_are_compiled_here(
    starts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def here(one: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        facts = {"entry": one["name"], "shared": 0, "warps": 4, "scratch": 0, "assembler": ()}
        return facts, b"image"

    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(build, "server", lambda capability: Server(capability))
    monkeypatch.setattr(build, "compile_kernel", here)
    monkeypatch.setattr(build, "usage", lambda image: Usage(registers=8, stack=0))
    meta = {"signature": {"a": "*fp32"}, "constants": {}, "num_warps": 4, "num_stages": 1}
    assert build.build_cubin("", "f", meta, 90).entry == "f"
    assert "in this process" in caplog.text
    build.start_compiler(90)  # raises nothing
