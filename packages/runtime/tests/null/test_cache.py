"""The on-disk cache: what is a miss, what is refused, and concurrent writers. Contents are bound to
their keys.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flambeau_runtime import Cache, CacheError, CacheUse, cuda, default_cache_dir, options
from flambeau_runtime.build.triton import Cubin
from flambeau_runtime.cache import binding, key_of, recording_cache_use
from flambeau_runtime.program import Kernel, Launch, Program, Source, Tensor

KEY = key_of("a", "b")
OTHER = key_of("c")
CONTENT = b"content of " + binding("cpp", KEY).encode()


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_store_and_lookup(cache):
    assert cache.lookup("cpp", KEY) is None
    path = cache.store("cpp", KEY, CONTENT, ".so")
    assert path.read_bytes() == CONTENT and path.suffix == ".so"
    assert cache.lookup("cpp", KEY) == path
    assert cache.read("cpp", KEY) == CONTENT
    assert cache.lookup("program", KEY) is None
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700


def test_a_relative_root_counts_from_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("cache"))
    monkeypatch.chdir("/")
    with cache.working_directory() as folder:
        assert folder.is_absolute()
    assert cache.store("cpp", KEY, CONTENT, ".so").is_relative_to(tmp_path)


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
        b"[" * 2000 + b"]" * 2000,
        b" " * 5000,
        json.dumps({"kind": "cpp", "key": KEY, "sha256": "a\0b", "suffix": ".so"}).encode(),
        json.dumps({"kind": "cpp", "key": KEY, "sha256": "0" * 64, "suffix": ".s\0"}).encode(),
        json.dumps({"kind": "cpp", "key": KEY, "sha256": "0" * 64, "suffix": "/../y"}).encode(),
    ],
)
def test_damaged_entry_is_a_miss(cache, damage):
    cache.store("cpp", KEY, CONTENT, ".so")
    entry_of(cache).write_bytes(damage)
    assert cache.lookup("cpp", KEY) is None
    assert cache.store("cpp", KEY, CONTENT, ".so") == cache.lookup("cpp", KEY)


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT.title(), CONTENT + b"+"])
def test_damaged_object_is_a_miss_and_is_mended(cache, content):
    path = cache.store("cpp", KEY, CONTENT, ".so")
    path.write_bytes(content)
    assert cache.lookup("cpp", KEY) is None
    cache.store("cpp", KEY, CONTENT, ".so")
    assert cache.read("cpp", KEY) == CONTENT


def test_others_may_not_write(cache):
    path = cache.store("cpp", KEY, CONTENT, ".so")
    path.chmod(0o666)
    assert cache.lookup("cpp", KEY) is None
    path.chmod(0o600)
    assert cache.lookup("cpp", KEY) == path
    cache.root.chmod(0o777)
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError, match="chmod 700"):
        Cache(cache.root).store("cpp", KEY, CONTENT, ".so")


def test_a_link_is_not_followed(cache, tmp_path):
    path = cache.store("cpp", KEY, CONTENT, ".so")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(CONTENT)
    path.unlink()
    path.symlink_to(elsewhere)
    assert cache.lookup("cpp", KEY) is None


def test_files_of_another_user_are_a_miss(cache, monkeypatch):
    cache.store("cpp", KEY, CONTENT, ".so")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError):
        Cache(cache.root).store("cpp", KEY, CONTENT, ".so")


def entry_path(cache, key, kind="cpp"):
    return cache.root / "entries" / kind / f"{key}.json"


def test_an_entry_serves_no_other_key(cache):
    other = CONTENT.replace(KEY.encode(), OTHER.encode())
    cache.store("cpp", KEY, CONTENT, ".so")
    cache.store("cpp", OTHER, other, ".so")
    shutil.copy(entry_path(cache, OTHER), entry_path(cache, KEY))
    assert cache.lookup("cpp", KEY) is None
    renamed = json.loads(entry_path(cache, KEY).read_text()) | {"key": KEY}
    entry_path(cache, KEY).write_text(json.dumps(renamed))
    assert cache.lookup("cpp", KEY) is None, "the object is of another key"
    cache.store("cpp", KEY, CONTENT, ".so")
    assert (cache.read("cpp", KEY), cache.read("cpp", OTHER)) == (CONTENT, other)
    (cache.root / "entries" / "triton").mkdir(mode=0o700)
    shutil.copy(entry_path(cache, KEY), entry_path(cache, KEY, "triton"))
    assert cache.lookup("triton", KEY) is None


def test_unbound_content_is_not_stored(cache):
    with pytest.raises(ValueError, match="not bound"):
        cache.store("cpp", OTHER, CONTENT, ".so")


@pytest.mark.parametrize("name", ["", "objects", "entries", "entries/cpp"])
@pytest.mark.parametrize("fault", ["mode", "link", "file", "owner"])
def test_a_folder_that_others_could_write_to_is_refused(cache, tmp_path, monkeypatch, name, fault):
    cache.store("cpp", KEY, CONTENT, ".so")
    folder = cache.root / name
    if fault == "mode":
        folder.chmod(0o777)
    elif fault == "owner":
        lstat, other = Path.lstat, os.stat_result((*[0] * 4, os.geteuid() + 1, *[0] * 5))
        monkeypatch.setattr(Path, "lstat", lambda p: other if p == folder else lstat(p))
    else:
        folder.rename(tmp_path / "moved")
        if fault == "link":
            folder.symlink_to(tmp_path / "moved")
        else:
            folder.write_bytes(b"")
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError, match=f"chmod 700 {folder}"):
        cache.store("cpp", KEY, CONTENT, ".so")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
@pytest.mark.parametrize("which", ["entry", "object"])
def test_no_file_where_one_should_be_is_a_miss(cache, make, which):
    path = cache.store("cpp", KEY, CONTENT, ".so")
    path = path if which == "object" else entry_of(cache)
    path.unlink()
    make(path)
    assert cache.lookup("cpp", KEY) is None
    if make is os.mkfifo:
        cache.store("cpp", KEY, CONTENT, ".so")
        assert cache.read("cpp", KEY) == CONTENT
    else:
        with pytest.raises(CacheError, match=f"Is a directory.*{path.name}"):
            cache.store("cpp", KEY, CONTENT, ".so")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("function", ["mkdir", "mkstemp", "replace"])
def test_what_the_file_system_refuses_is_a_cache_error(cache, monkeypatch, code, function):
    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code), args[0] if args else None)

    owner = {"mkdir": Path, "mkstemp": tempfile, "replace": os}[function]
    monkeypatch.setattr(owner, function, refuse)
    full = code in (errno.ENOSPC, errno.EDQUOT)
    with pytest.raises(CacheError, match=f"{os.strerror(code)}.*cache_dir") as caught:
        cache.store("cpp", KEY, CONTENT, ".so")
    assert ("free some space" in caught.value.hint) == full
    assert cache.lookup("cpp", KEY) is None


@pytest.mark.parametrize("root", ["a\0b", "x" * 5000, "/dev/null/cache", "/proc/none/cache"])
def test_a_root_that_cannot_be(root):
    cache = Cache(Path(root))
    assert cache.lookup("cpp", KEY) is None
    with pytest.raises(CacheError, match="FLAMBEAU_CACHE_DIR"):
        cache.store("cpp", KEY, CONTENT, ".so")
    with pytest.raises(CacheError), cache.working_directory():
        pass


def test_the_default_is_where_the_user_may_write(tmp_path, monkeypatch):
    def account(uid):
        return type("Account", (), {"pw_dir": str(home)})

    home = tmp_path / "home"
    monkeypatch.setattr(options.pwd, "getpwuid", account)
    home.mkdir()
    assert default_cache_dir() == home / ".cache" / "flambeau"
    (home / ".cache").write_text("no directory")
    elsewhere = Path(tempfile.gettempdir()) / f"flambeau-{os.geteuid()}"
    assert default_cache_dir() == elsewhere
    monkeypatch.setattr(options.pwd, "getpwuid", {}.__getitem__)  # a user without an account
    assert default_cache_dir() == elsewhere

    def none():
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert default_cache_dir().name == elsewhere.name


WRITER = """
import sys
import tempfile
from pathlib import Path
from flambeau_runtime.cache import Cache, binding, key_of
cache = Cache(Path(sys.argv[1]))
for turn in range(150):
    for number in range(4):
        key = key_of(str(number))
        content = binding("cpp", key).encode() + b"%d" % number * 200000
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


def test_the_use_by_threads_that_load_kernels_is_counted(cache, monkeypatch):
    def cubin(text, kernel, target, options, *, aligned, warps=None):
        Cache(options.cache_dir).read("triton", KEY)
        return Cubin(b"", kernel.name, shared=0, warps=4, registers=8, stack=0)

    monkeypatch.setattr(cuda, "cubin", cubin)
    monkeypatch.setattr(cuda, "capability", lambda device: 90)
    monkeypatch.setattr(cuda.native, "core", lambda: SimpleNamespace(GpuKernel=dict))
    names = [f"kernel_{number}" for number in range(20)]
    program = Program(
        inputs=("x",),
        tensors=(Tensor("x", (4,), (1,), "float32", "cuda:0"),),
        symbols=(),
        sources=(Source("triton", ""),),
        kernels=tuple(Kernel(name, 0) for name in names),
        steps=tuple(Launch(name, ("x",), (), (1,)) for name in names),
        outputs=("x",),
    )
    use = CacheUse()
    chosen = options.RuntimeOptions(cache_dir=cache.root)
    with recording_cache_use(use):
        assert list(cuda.begin_kernels(program, chosen)()) == names
    assert (use.hits, use.misses) == (0, 20)
    cache.store("triton", KEY, binding("triton", KEY).encode(), ".cubin")
    with recording_cache_use(use):
        cuda.begin_kernels(program, chosen)()
    assert (use.hits, use.misses) == (20, 20) and len(use.entries) == 1
