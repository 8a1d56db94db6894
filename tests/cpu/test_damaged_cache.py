"""The cache directory damaged, swapped, linked and opened to others in 300 ways: what is read is
what was stored, or nothing; and `python -m flambeau cache`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import flambeau
from flambeau import cache_command
from flambeau.report import report_of
from flambeau_runtime.cache import Cache
from flambeau_runtime.cache_contents import entries_of, problem_of, trim

Damage = Callable[[random.Random, Path, Path], None]


def programs() -> list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]:
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    return [
        (lambda x, y: x @ y, (x, y)),  # without kernels of our own: compiled in no time
        (lambda x, y: torch.mm(y, x), (x, y)),
        (lambda x, y: (x.sin() * 2 + y.t()).cos(), (x, y)),
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with three graphs and a kernel."""
    root = tmp_path_factory.mktemp("pristine") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAMBEAU_CACHE_DIR", str(root))
        patch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
        patch.setenv("FLAMBEAU_CHECK", "0")
        for function, arguments in programs():
            flambeau.compile(function)(*arguments)
        yield root


def truncate(rng: random.Random, path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def flip(rng: random.Random, path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def append(rng: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 64)))


def replace(rng: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def swap(rng: random.Random, path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def link(rng: random.Random, path: Path, other: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(rng.choice((moved, other)))


def open_to_others(rng: random.Random, path: Path, other: Path) -> None:
    rng.choice((path, path.parent)).chmod(0o777)


def link_folder(rng: random.Random, path: Path, other: Path) -> None:
    moved = path.parent.with_name("moved")
    path.parent.rename(moved)
    path.parent.symlink_to(moved)


def pipe(rng: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(rng: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def nested(rng: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(b"[" * 4000)


def remove(rng: random.Random, path: Path, other: Path) -> None:
    path.unlink()


DAMAGES: list[Damage] = [
    truncate, flip, append, replace, swap, link, open_to_others, link_folder, pipe, folder, nested,
    remove,
]  # fmt: skip


def damaged(pristine: Path, root: Path, seed: int) -> str:
    """A copy of a cache, damaged in one way; which one."""
    rng = random.Random(seed)
    shutil.copytree(pristine, root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path, other = rng.sample(files, 2)
    damage = DAMAGES[seed % len(DAMAGES)]
    damage(rng, path, other)
    return f"{damage.__name__} {path.relative_to(root)} {other.relative_to(root)}"


def test_what_is_read_is_what_was_stored(pristine: Path, tmp_path: Path) -> None:
    keys = [(entry.kind, entry.key) for entry in entries_of(pristine)]
    stored = {key: Cache(pristine).read(*key) for key in keys}
    assert len(stored) >= 4
    assert None not in stored.values()
    misses = 0
    for seed in range(300):
        root = tmp_path / str(seed)
        what = damaged(pristine, root, seed)
        for key, content in stored.items():
            found = Cache(root).read(*key)
            assert found is None or found == content, what
            misses += found is None
    assert misses >= 200  # most damages are in what an entry needs


def test_damage_changes_no_result(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")
    function, arguments = programs()[0]
    for seed in range(48):
        root = tmp_path / str(seed)
        what = damaged(pristine, root, seed)
        monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(root))
        compiled = flambeau.compile(function)
        torch.testing.assert_close(compiled(*arguments), function(*arguments), msg=what)
        (graph,) = report_of(compiled).graphs
        assert graph.fallback is None, what


def test_a_damaged_kernel_is_built_again(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    shutil.copytree(pristine, root)
    (library,) = (root / "objects").glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[:-100])
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(root))
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")
    function, arguments = programs()[2]
    compiled = flambeau.compile(function)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))
    assert report_of(compiled).graphs[0].cache.misses == 1


# ---------------------------------------------------------------- the command


def test_verify_names_what_is_damaged(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    shutil.copytree(pristine, root)
    assert not any(problem_of(root, entry) for entry in entries_of(root))
    first, second, third, *_ = entries_of(root)
    assert first.object is not None
    first.object.unlink()
    second.path.write_text("{}")
    assert third.object is not None
    third.object.chmod(0o666)
    problems = {entry.path: problem_of(root, entry) for entry in entries_of(root)}
    assert "missing" in problems[first.path]
    assert "no entry" in problems[second.path]
    assert "damaged" in problems[third.path]
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "cache", "verify", "--dir", str(root)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "3 of them damaged" in done.stdout


def test_trim_removes_the_oldest_and_what_nothing_names(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    shutil.copytree(pristine, root)
    entries = entries_of(root)
    for age, entry in enumerate(reversed(entries)):
        os.utime(entry.path, (0, time.time() - 100 * age))
    orphan, recent = root / "objects" / ("0" * 64 + ".so"), root / "objects" / ("1" * 64 + ".so")
    for path in (orphan, recent):
        path.write_bytes(b"x" * 10)
    os.utime(orphan, (0, 0))
    count, size = trim(root, oldest=250)
    kept = entries_of(root)
    assert [entry.key for entry in kept] == [entry.key for entry in entries[-3:]]
    assert not orphan.exists()
    assert recent.exists()
    assert count >= 3
    assert size > 10
    assert not any(problem_of(root, entry) for entry in kept)
    largest = kept[-1].size
    trim(root, largest=largest)
    assert [entry.key for entry in entries_of(root)] == [kept[-1].key]
    trim(root, largest=0)
    assert entries_of(root) == []


def test_sizes_and_ages() -> None:
    assert cache_command.bytes_of("500M") == 500 << 20
    assert cache_command.bytes_of("1.5g") == 3 << 29
    assert cache_command.seconds_of("30d") == 30 * 86400
    for wrong in ("", "12", "x", "-3d"):
        with pytest.raises(ValueError, match="is no age"):
            cache_command.seconds_of(wrong)


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "cache", "trim", "--max-size", "0", "--dir", str(root)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "only you may write" in done.stderr
