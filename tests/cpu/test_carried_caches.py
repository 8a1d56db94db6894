"""Kernels, graphs and entries that another process is given: by an archive, or by a store."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flambeau import artifacts, stored_entries, surroundings
from flambeau_runtime.cache import Cache, binding
from flambeau_runtime.object_stores import MAGIC
from tests.ranks import run_module

STORED = {"pointwise": ["stored", 0], "product": ["stored", 0]}


def run(phase: str, file: Path | str, cache: Path, **variables: str) -> dict[str, Any]:
    """The outcomes of a process with this cache directory. (That keys are equal in processes whose
    hashes differ is for test_stored_entries.py.)
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FLAMBEAU_")}
    given = {"FLAMBEAU_CACHE_DIR": str(cache), "FLAMBEAU_GRAPH_CACHE": "1"}
    words = ("tests.programs.carried_caches", phase, str(file))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        status = run_module(words, output, kept | given | variables)
        text = output.read_text()
    assert status == 0, text
    outcomes: dict[str, Any] = json.loads(text.splitlines()[-1])
    return outcomes


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cache that a process has filled, and its archive."""
    folder = tmp_path_factory.mktemp("saved")
    cache, file = folder / "cache", folder / "archive.zip"
    outcomes = run("save", file, cache)
    assert outcomes["pointwise"] == ["capture", 1] and outcomes["product"][0] == "capture"
    assert outcomes["kinds"] == ["cpp", "entry", "graph"]
    return cache, file


def test_an_archive_spares_capture_and_compiler(saved: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "cache"
    assert run("load", saved[1], other) == STORED
    assert run("run", "-", other) == STORED
    assert run("run", "-", tmp_path / "empty")["pointwise"] == ["capture", 1]


def test_a_damaged_archive_is_refused_whole(saved: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(saved[1]) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    graphs = [name for name in contents if name.startswith("graph/")]
    manifest = json.loads(contents[artifacts.MANIFEST])

    def packed(changes: dict[str, bytes], *left_out: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in (contents | changes).items():
                if name not in left_out:
                    archive.writestr(name, content)
        return buffer.getvalue()

    first, second = graphs
    swapped = {first: contents[second], second: contents[first]}
    hashes = manifest["objects"]
    consistent = hashes | {first: hashes[second], second: hashes[first]}
    other_manifest = json.dumps(manifest | {"objects": consistent}).encode()
    bad = {
        "changed": packed({first: contents[first] + b" "}),
        "swapped": packed(swapped),
        "swapped with its manifest": packed(swapped | {artifacts.MANIFEST: other_manifest}),
        "less": packed({}, first),
        "more": packed({"graph/" + "0" * 64 + ".json": b"{}"}),
        "no manifest": packed({}, artifacts.MANIFEST),
        "old format": packed({artifacts.MANIFEST: json.dumps(manifest | {"format": 1}).encode()}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
        for what, content in bad.items():
            with pytest.raises(ValueError, match="no cache artifacts of Flambeau"):
                artifacts.load_cache_artifacts(content)
            assert not (tmp_path / "cache").exists(), what
        assert len(artifacts.load_cache_artifacts(packed({}))) == len(hashes)


def test_entries_join_those_that_are_there() -> None:
    key = "1" * 64
    mark = {"binding": binding(stored_entries.KIND, key)}
    mine = json.dumps(mark | {"entries": ["a", "b"]}).encode()
    more = json.dumps(mark | {"entries": ["b", "c"]}).encode()
    joined = json.loads(stored_entries.joined(key, mine, more))
    assert joined == mark | {"entries": ["b", "c", "a"]}
    assert json.loads(stored_entries.joined(key, None, more))["entries"] == ["b", "c"]


def test_equal_compilers_in_other_folders_are_equal(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x = 1\n" if name != "c" else "x = 2\n")
    digests = [surroundings.content_digest([("x.py", str(tmp_path / name))]) for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def open_to_readers(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_shared_directory_spares_capture_and_compiler(
    saved: tuple[Path, Path], tmp_path: Path
) -> None:
    for parent in saved[0].resolve().parents:
        status = parent.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & 0o1000
        if open_to_others or status.st_uid not in (0, os.geteuid()):
            pytest.skip(f"others could replace the temporary folder: {parent} is theirs")
    open_to_readers(saved[0])
    before = sorted(saved[0].rglob("*"))
    variables = {"FLAMBEAU_SHARED_CACHE_DIR": str(saved[0])}
    assert run("run", "-", tmp_path / "cache", **variables) == STORED
    assert run("run", "-", tmp_path / "cache") == STORED, "it was copied"
    assert sorted(saved[0].rglob("*")) == before
    (saved[0] / "objects").chmod(0o777)
    try:
        assert run("run", "-", tmp_path / "other", **variables)["pointwise"] == ["capture", 1]
    finally:
        (saved[0] / "objects").chmod(0o755)


def test_a_remote_store_spares_capture_and_compiler(tmp_path: Path) -> None:
    remote, secret = tmp_path / "remote", tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    variables = {
        "FLAMBEAU_REMOTE_CACHE": remote.as_uri(),
        "FLAMBEAU_REMOTE_CACHE_KEY": str(secret),
    }
    assert run("run", "-", tmp_path / "a", **variables)["pointwise"] == ["capture", 1]
    blobs = [path for path in remote.rglob("*") if path.is_file()]
    assert blobs and all(path.read_bytes().startswith(MAGIC) for path in blobs)
    assert run("run", "-", tmp_path / "b", **variables) == STORED
    for path in blobs:  # which is what somebody without the secret could do
        path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert run("run", "-", tmp_path / "c", **variables)["pointwise"] == ["capture", 1]
    assert Cache(tmp_path / "c").root.is_dir()
