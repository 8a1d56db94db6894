"""Stores that caches share: what is read from them, and what is refused."""

from __future__ import annotations

import os
import socketserver
import threading
import warnings
from pathlib import Path

import pytest

from flambeau_runtime import RuntimeOptions
from flambeau_runtime.cache import Cache, binding
from flambeau_runtime.object_stores import (
    MAGIC,
    FileBlobs,
    RedisBlobs,
    SharedDirectory,
    SignedStore,
    cache_of,
)

SECRET = bytes(range(32))
KEY = "0" * 64


def content_of(kind: str = "cpp", key: str = KEY, more: bytes = b"code") -> bytes:
    return binding(kind, key).encode() + b" " + more


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A cache directory that an administrator has filled and opened to readers."""
    for parent in tmp_path.resolve().parents:
        status = parent.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & 0o1000
        if open_to_others or status.st_uid not in (0, os.geteuid()):
            pytest.skip(f"others could replace the temporary folder: {parent} is theirs")
    root = tmp_path / "shared"
    Cache(root).store("cpp", KEY, content_of(), ".so")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def test_a_shared_directory_is_read_and_never_written(shared: Path, tmp_path: Path) -> None:
    before = sorted(shared.rglob("*"))
    cache = Cache(tmp_path / "own", [SharedDirectory(str(shared))])
    path = cache.lookup("cpp", KEY)
    assert path is not None and path.is_relative_to(tmp_path / "own")
    assert path.read_bytes() == content_of()
    assert Cache(tmp_path / "own").read("cpp", KEY) == content_of()
    other = "1" * 64
    assert cache.read("cpp", other) is None
    cache.store("cpp", other, content_of(key=other), ".so")
    assert sorted(shared.rglob("*")) == before


@pytest.mark.parametrize("part", [".", "objects", "entries", "entries/cpp", "object", "entry"])
def test_what_others_may_write_is_not_read(shared: Path, tmp_path: Path, part: str) -> None:
    named = {"object": next(shared.glob("objects/*")), "entry": next(shared.glob("entries/*/*"))}
    path = named.get(part, shared / part)
    path.chmod(path.stat().st_mode | 0o020)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = SharedDirectory(str(shared))
    assert store.fetch("cpp", KEY) is None
    path.chmod(path.stat().st_mode & ~0o022)
    assert SharedDirectory(str(shared)).fetch("cpp", KEY) == (content_of(), ".so")


def test_a_foreign_owner_is_refused_and_root_is_not(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = shared.stat().st_uid
    if owner:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.warns(RuntimeWarning, match="it must be yours or root's"):
            assert SharedDirectory(str(shared)).fetch("cpp", KEY) is None
        return
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert SharedDirectory(str(shared)).fetch("cpp", KEY) == (content_of(), ".so")
    os.chown(next(shared.glob("objects/*")), 4343, -1)
    assert SharedDirectory(str(shared)).fetch("cpp", KEY) is None
    os.chown(shared, 4343, -1)
    with pytest.warns(RuntimeWarning, match="it must be yours or root's"):
        assert SharedDirectory(str(shared)).fetch("cpp", KEY) is None


def test_a_parent_that_others_may_write_to_is_refused(shared: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others could replace it"):
        assert SharedDirectory(str(shared)).fetch("cpp", KEY) is None
    tmp_path.chmod(0o1777)
    assert SharedDirectory(str(shared)).fetch("cpp", KEY) == (content_of(), ".so")
    tmp_path.chmod(0o700)


def test_a_link_is_no_object(shared: Path, tmp_path: Path) -> None:
    target = next(shared.glob("objects/*"))
    aside = tmp_path / "aside"
    target.rename(aside)
    target.symlink_to(aside)
    assert SharedDirectory(str(shared)).fetch("cpp", KEY) is None


def test_a_missing_directory_is_named() -> None:
    with pytest.warns(RuntimeWarning, match="it is no directory"):
        assert SharedDirectory("/nonexistent/cache").fetch("cpp", KEY) is None


def test_signed_objects_travel(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "remote")
    Cache(tmp_path / "a", [SignedStore(blobs, SECRET)]).store("cpp", KEY, content_of(), ".so")
    assert Cache(tmp_path / "b", [SignedStore(blobs, SECRET)]).read("cpp", KEY) == content_of()
    assert Cache(tmp_path / "b").read("cpp", KEY) == content_of()


def tampered(blob: bytes) -> dict[str, bytes]:
    start = len(MAGIC) + 32
    return {
        "content": blob[:-1] + b"X",
        "signature": blob[: len(MAGIC)] + bytes(32) + blob[start:],
        "cut": blob[:-3],
        "longer": blob + b"more",
        "empty": b"",
        "magic alone": MAGIC,
        "unsigned": blob[start:],
        "plain": content_of(),
        "suffix": blob.replace(b'".so"', b'".js"'),
    }


@pytest.mark.parametrize("damage", sorted(tampered(b"")))
def test_damaged_and_unsigned_blobs_are_refused(tmp_path: Path, damage: str) -> None:
    blobs = FileBlobs(tmp_path / "remote")
    SignedStore(blobs, SECRET).offer("cpp", KEY, content_of(), ".so")
    good = blobs.get(f"cpp:{KEY}")
    assert good is not None
    blobs.put(f"cpp:{KEY}", tampered(good)[damage])
    with pytest.warns(RuntimeWarning, match="not signed with this secret"):
        assert SignedStore(blobs, SECRET).fetch("cpp", KEY) is None


def test_another_secret_and_another_name_are_refused(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "remote")
    SignedStore(blobs, SECRET).offer("cpp", KEY, content_of(), ".so")
    with pytest.warns(RuntimeWarning, match="not signed with this secret"):
        assert SignedStore(blobs, SECRET[::-1]).fetch("cpp", KEY) is None
    good = blobs.get(f"cpp:{KEY}")
    assert good is not None
    blobs.put(f"cpp:{'1' * 64}", good)
    with pytest.warns(RuntimeWarning, match="not signed with this secret"):
        assert SignedStore(blobs, SECRET).fetch("cpp", "1" * 64) is None


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cpp").mkdir()
    os.mkfifo(tmp_path / "cpp" / KEY)
    assert FileBlobs(tmp_path).get(f"cpp:{KEY}") is None


def test_a_store_that_fails_is_left_alone() -> None:
    asked = []

    class Broken:
        def get(self, name: str) -> bytes | None:
            asked.append(name)
            raise ConnectionRefusedError("nobody listens")

        def put(self, name: str, blob: bytes) -> None:
            asked.append(name)
            raise ConnectionRefusedError("nobody listens")

    store = SignedStore(Broken(), SECRET)
    with pytest.warns(RuntimeWarning, match="left alone for 60 s: nobody listens"):
        assert store.fetch("cpp", KEY) is None
    assert store.fetch("cpp", KEY) is None
    store.offer("cpp", KEY, content_of(), ".so")
    assert len(asked) == 1


def secret_file(folder: Path, mode: int = 0o600, secret: bytes = SECRET) -> str:
    path = folder / "secret"
    path.write_bytes(secret)
    path.chmod(mode)
    return str(path)


def test_options_without_a_good_secret_are_refused(tmp_path: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    with pytest.raises(ValueError, match="needs remote_cache_key"):
        cache_of(RuntimeOptions(remote_cache=url))
    for mode, secret in ((0o604, SECRET), (0o620, SECRET), (0o600, b"short")):
        key = secret_file(tmp_path, mode, secret)
        with pytest.raises(ValueError, match="the secret"):
            cache_of(RuntimeOptions(remote_cache=url, remote_cache_key=key))
    with pytest.raises(ValueError, match="takes redis://"):
        cache_of(RuntimeOptions(remote_cache="ftp://x", remote_cache_key=secret_file(tmp_path)))
    options = RuntimeOptions(
        cache_dir=tmp_path / "a", remote_cache=url, remote_cache_key=secret_file(tmp_path)
    )
    cache_of(options).store("cpp", KEY, content_of(), ".so")
    (blob,) = [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert blob.read_bytes().startswith(MAGIC)


class Commands(socketserver.StreamRequestHandler):
    """GET and SET of the Redis protocol; every other command is unknown."""

    store: dict[bytes, bytes]

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = []
            for _ in range(int(line[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2])
            command = words[0].upper()
            if command == b"SET":
                self.store[words[1]] = words[2]
                self.wfile.write(b"+OK\r\n")
            elif command == b"GET" and words[1] in self.store:
                value = self.store[words[1]]
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(value), value))
            elif command == b"GET":
                self.wfile.write(b"$-1\r\n")
            else:
                self.wfile.write(b"-ERR unknown command\r\n")


def test_redis_keeps_signed_objects(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    handler = type("Handler", (Commands,), {"store": {}})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"redis://127.0.0.1:{server.server_address[1]}/0?protocol=2"
        first = Cache(tmp_path / "a", [SignedStore(RedisBlobs(url), SECRET)])
        first.store("cpp", KEY, content_of(), ".so")
        again = Cache(tmp_path / "b", [SignedStore(RedisBlobs(url), SECRET)])
        assert again.read("cpp", KEY) == content_of()
        assert again.read("cpp", "1" * 64) is None
        assert set(handler.store) == {f"flambeau:cpp:{KEY}".encode()}
        server.shutdown()
        thread.join()


def test_a_server_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    with socketserver.TCPServer(("127.0.0.1", 0), Commands) as server:
        port = server.server_address[1]
    cache = Cache(tmp_path, [SignedStore(RedisBlobs(f"redis://127.0.0.1:{port}/0"), SECRET)])
    with pytest.warns(RuntimeWarning, match="cannot be reached"):
        assert cache.read("cpp", KEY) is None


def test_without_the_package_redis_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(ValueError, match=r"pip install flambeau\[redis\]"):
        RedisBlobs("redis://localhost/0")
