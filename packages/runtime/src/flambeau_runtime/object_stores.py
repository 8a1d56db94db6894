"""Stores that several caches share: a directory that is only read, and a remote one.

    cache_of(options) = Cache(options.cache_dir, [SharedDirectory, SignedStore])

What a cache lacks is copied from the first store that has it. A store proves what it returns:

- `SharedDirectory`: the user named the directory. Root or the user owns it, its parents, its
  folders and the object's files, and nobody else may write to any of them (to a parent with the
  sticky bit others may). Hash and key are right, as in a cache.
- `SignedStore`: the object carries the HMAC-SHA256, by the user's secret, of its kind, key, suffix
  and content.

A remote store needs a secret: without one it is refused. The secret is a file of at least 32 bytes
that root or the user owns and others can neither read nor write. A store that fails is left alone
for a minute, with a warning; no compile fails for it.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib
import json
import os
import stat
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from flambeau_runtime.cache import Cache, is_private, owned_content, read_entry, write_atomically

if TYPE_CHECKING:
    from flambeau_runtime.cache import ObjectStore
    from flambeau_runtime.options import RuntimeOptions

MAGIC = b"flambeau-object-1\n"
SHORTEST_SECRET = 32
LARGEST_OBJECT = 1 << 28
"""Bytes of the largest object that is fetched or offered."""
PAUSE = 60.0
"""Seconds for which a store that failed is not asked."""
TIMEOUT = 2.0
"""Seconds for one question to a Redis server."""


class Blobs(Protocol):
    """What a remote store is built on: bytes by name. OSError where it cannot be reached."""

    def get(self, name: str) -> bytes | None:
        """The bytes of this name, or None."""

    def put(self, name: str, blob: bytes) -> None:
        """Keep bytes under a name."""


class SharedDirectory:
    """A cache directory that is read, of root's or the user's."""

    def __init__(self, path: str) -> None:
        self.root = Path(os.path.realpath(os.path.expanduser(path)))
        self._owners = frozenset({0, os.geteuid()})
        problem = self._problem()
        self._trusted = not problem
        if problem:
            warnings.warn(f"the shared cache {path} is not read: {problem}", RuntimeWarning, 2)

    def fetch(self, kind: str, key: str) -> tuple[bytes, str] | None:
        if not self._trusted:
            return None
        found = read_entry(self.root, kind, key, self._owners)
        return None if found is None else (found[1], found[0].suffix)

    def offer(self, kind: str, key: str, content: bytes, suffix: str) -> None:
        """Nothing is written here."""

    def _problem(self) -> str:
        """Why another user could put something there, or ""."""
        if not self.root.is_dir():
            return "it is no directory"
        if not is_private(self.root, self._owners):
            return "others could write to it: it must be yours or root's, `chmod go-w` it"
        for parent in self.root.parents:
            status = parent.lstat()
            writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if status.st_uid not in self._owners or (
                writable and not status.st_mode & stat.S_ISVTX
            ):
                return f"others could replace it, as they may write to {parent}"
        return ""


class SignedStore:
    """Objects in a store that others may write to, each signed with the user's secret."""

    def __init__(self, blobs: Blobs, secret: bytes) -> None:
        self._blobs = blobs
        self._secret = secret
        self._resume = 0.0
        self._refused = False

    def fetch(self, kind: str, key: str) -> tuple[bytes, str] | None:
        if time.monotonic() < self._resume:
            return None
        try:
            blob = self._blobs.get(_name(kind, key))
        except OSError as error:
            self._pause(error)
            return None
        if blob is None:
            return None
        opened = self._opened(kind, key, blob)
        if opened is None and not self._refused:
            self._refused = True
            text = "an object of the remote cache is refused: it is not signed with this secret"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return opened

    def offer(self, kind: str, key: str, content: bytes, suffix: str) -> None:
        if time.monotonic() < self._resume or len(content) > LARGEST_OBJECT:
            return
        header = json.dumps([kind, key, suffix]).encode()
        signed = header + b"\n" + content
        try:
            self._blobs.put(_name(kind, key), MAGIC + self._signature(signed) + signed)
        except OSError as error:
            self._pause(error)

    def _opened(self, kind: str, key: str, blob: bytes) -> tuple[bytes, str] | None:
        start = len(MAGIC) + hashlib.sha256().digest_size
        signature, signed = blob[len(MAGIC) : start], blob[start:]
        if not blob.startswith(MAGIC) or len(blob) > LARGEST_OBJECT + (1 << 16):
            return None
        if not hmac.compare_digest(signature, self._signature(signed)):
            return None
        header, _, content = signed.partition(b"\n")
        its_kind, its_key, suffix = json.loads(header)  # signed, so written by `offer`
        return (content, suffix) if (its_kind, its_key) == (kind, key) else None

    def _signature(self, signed: bytes) -> bytes:
        return hmac.new(self._secret, MAGIC + signed, hashlib.sha256).digest()

    def _pause(self, error: OSError) -> None:
        self._resume = time.monotonic() + PAUSE
        text = f"the remote cache cannot be reached, and is left alone for {PAUSE:.0f} s: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


class FileBlobs:
    """A folder that several machines mount: one file for each name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, name: str) -> bytes | None:
        try:  # whoever can write there could put a FIFO, which is not waited for
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(LARGEST_OBJECT + (1 << 16) + 1)

    def put(self, name: str, blob: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, blob)

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*name.split(":"))


class RedisBlobs:
    """A Redis server, through the package `redis`."""

    def __init__(self, url: str) -> None:
        try:
            self._redis = importlib.import_module("redis")
        except ImportError:
            raise ValueError(
                "the option remote_cache names a Redis server, which needs the package redis: "
                "`pip install flambeau[redis]`"
            ) from None
        self._client: Any = self._redis.Redis.from_url(
            url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT
        )

    def get(self, name: str) -> bytes | None:
        try:
            blob: bytes | None = self._client.get(f"flambeau:{name}")
        except self._redis.RedisError as error:
            raise OSError(str(error)) from error
        return blob

    def put(self, name: str, blob: bytes) -> None:
        try:
            self._client.set(f"flambeau:{name}", blob)
        except self._redis.RedisError as error:
            raise OSError(str(error)) from error


def cache_of(options: RuntimeOptions) -> Cache:
    """The cache that these options ask for; ValueError for a remote store that is refused."""
    stores: list[ObjectStore] = []
    if options.use_cache and options.shared_cache:
        stores.append(_shared(options.shared_cache))
    if options.use_cache and options.remote_cache:
        stores.append(_remote(options.remote_cache, options.remote_cache_key))
    return Cache(options.cache_dir, stores)


@functools.lru_cache(maxsize=64)
def _shared(path: str) -> SharedDirectory:
    return SharedDirectory(path)


@functools.lru_cache(maxsize=64)
def _remote(url: str, secret_file: str | None) -> SignedStore:
    if secret_file is None:
        raise ValueError(
            "the option remote_cache needs remote_cache_key, the file of a secret (such as "
            "`head -c 32 /dev/urandom > FILE; chmod 600 FILE`): unsigned objects are refused"
        )
    secret = _secret(Path(os.path.expanduser(secret_file)))
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return SignedStore(FileBlobs(Path(unquote(parts.path))), secret)
    if parts.scheme in ("redis", "rediss", "unix"):
        return SignedStore(RedisBlobs(url), secret)
    raise ValueError(
        f"the option remote_cache takes redis://, rediss://, unix:// or file:///, not {url!r}"
    )


def _secret(path: Path) -> bytes:
    secret = owned_content(path, 1 << 16, {0, os.geteuid()})
    if secret is None or path.stat().st_mode & stat.S_IROTH:
        raise ValueError(
            f"the secret {path} (remote_cache_key) must be a file that you or root own, and that "
            "others can neither read nor write: `chmod 600` it"
        )
    if len(secret) < SHORTEST_SECRET:
        raise ValueError(f"the secret {path} has fewer than {SHORTEST_SECRET} bytes")
    return secret


def _name(kind: str, key: str) -> str:
    return f"{kind}:{key}"
