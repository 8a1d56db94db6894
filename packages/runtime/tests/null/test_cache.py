"""The on-disk cache: what is a miss, what is refused, and concurrent writers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flambeau_runtime import Cache, CacheError
from flambeau_runtime.cache import key_of

KEY = key_of("a", "b")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_store_and_lookup(cache):
    assert cache.lookup("cpp", KEY) is None
    path = cache.store("cpp", KEY, b"content", ".so")
    assert path.read_bytes() == b"content" and path.suffix == ".so"
    assert cache.lookup("cpp", KEY) == path
    assert cache.read("cpp", KEY) == b"content"
    assert cache.lookup("program", KEY) is None
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700


def test_keys_are_delimited():
    assert (
        len({key_of("a", "b"), key_of("ab"), key_of("ab", ""), key_of("", "ab"), key_of("b", "a")})
        == 5
    )


def entry_of(cache):
    return next((cache.root / "entries").rglob("*.json"))


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"sha256": 3, "suffix": ".so"}',
        b'{"sha256": "../x", "suffix": "/../y"}',
    ],
)
def test_damaged_entry_is_a_miss(cache, damage):
    cache.store("cpp", KEY, b"content", ".so")
    entry_of(cache).write_bytes(damage)
    assert cache.lookup("cpp", KEY) is None
    assert cache.store("cpp", KEY, b"content", ".so") == cache.lookup("cpp", KEY)


@pytest.mark.parametrize("content", [b"", b"conten", b"Content", b"content+"])
def test_damaged_object_is_a_miss_and_is_mended(cache, content):
    path = cache.store("cpp", KEY, b"content", ".so")
    path.write_bytes(content)
    assert cache.lookup("cpp", KEY) is None
    cache.store("cpp", KEY, b"content", ".so")
    assert cache.read("cpp", KEY) == b"content"


def test_others_may_not_write(cache):
    path = cache.store("cpp", KEY, b"content", ".so")
    path.chmod(0o666)
    assert cache.lookup("cpp", KEY) is None
    path.chmod(0o600)
    assert cache.lookup("cpp", KEY) == path
    cache.root.chmod(0o777)
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError, match="chmod 700"):
        Cache(cache.root).store("cpp", KEY, b"content", ".so")


def test_a_link_is_not_followed(cache, tmp_path):
    path = cache.store("cpp", KEY, b"content", ".so")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"content")
    path.unlink()
    path.symlink_to(elsewhere)
    assert cache.lookup("cpp", KEY) is None


def test_files_of_another_user_are_a_miss(cache, monkeypatch):
    cache.store("cpp", KEY, b"content", ".so")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError):
        Cache(cache.root).store("cpp", KEY, b"content", ".so")


WRITER = """
import sys
from pathlib import Path
from flambeau_runtime.cache import Cache, key_of
cache = Cache(Path(sys.argv[1]))
for turn in range(150):
    for number in range(4):
        content = b"%d" % number * 200000
        key = key_of(str(number))
        found = cache.read("cpp", key)
        assert found is None or found == content, "half a file was seen"
        cache.store("cpp", key, content, ".so")
        if turn % 10 == 3:
            cache.lookup("cpp", key).unlink(missing_ok=True)
"""


def test_two_processes_never_see_half_a_file(tmp_path):
    root = tmp_path / "cache"
    code = WRITER.replace(
        'cache.lookup("cpp", key).unlink(missing_ok=True)',
        'cache.store("cpp", key, content + b"", ".so")',
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(root)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    left = [path for path in Path(root).rglob("*") if path.name.startswith(".new-")]
    assert not left
