"""How arguments, modes and the environment become Options."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
from flambeau.environment import Environment, read_environment
from flambeau.options import MODES, STAGES, Options, known_options, resolve
from flambeau_autograd import AutogradOptions
from flambeau_inductor import InductorOptions
from flambeau_runtime import RuntimeOptions


def resolved(**arguments: Any) -> Options:
    given: dict[str, Any] = {
        "fullgraph": False,
        "dynamic": None,
        "mode": None,
        "options": None,
        "environment": Environment(),
    }
    return resolve(**(given | arguments))


def test_options_are_frozen_values() -> None:
    options = resolved()
    assert options == Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.capture = None  # type: ignore[misc,assignment]
    hash(options.inductor)


def test_every_package_keeps_to_25_fields() -> None:
    for stage in STAGES:
        assert len(dataclasses.fields(getattr(Options(), stage))) <= 25


def test_arguments_reach_capture() -> None:
    options = resolved(fullgraph=True, dynamic=True)
    assert options.capture.fullgraph
    assert options.capture.dynamic


def test_a_key_reaches_the_package_that_has_the_field() -> None:
    assert not resolved(options={"fuse_horizontal": False}).inductor.fuse_horizontal
    assert resolved(options={"partition": "save_all"}).autograd.partition == "save_all"
    assert resolved(options={"recompile_limit": 3}).capture.recompile_limit == 3


def test_every_known_option_can_be_set_to_its_default() -> None:
    for key, stages in known_options().items():
        default = getattr(getattr(Options(), stages[0]), key)
        assert resolved(options={key: default}) == Options()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_mode_sets_how_programs_are_launched_on_a_gpu(mode: str | None) -> None:
    launched = {
        None: "auto",
        "default": "auto",
        "reduce-overhead": "always",
        "max-autotune": "always",
        "max-autotune-no-cudagraphs": "never",
    }
    tunes = (mode or "").startswith("max-autotune")
    runtime = RuntimeOptions(cuda_graphs=launched[mode])
    inductor = InductorOptions(max_autotune=tunes)
    autograd = AutogradOptions(max_autotune=tunes)
    options = Options(runtime=runtime, inductor=inductor, autograd=autograd)
    assert resolved(mode=mode) == options


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_mode_says_nothing(mode: str | None, recwarn: pytest.WarningsRecorder) -> None:
    flambeau.compile(torch.sin, mode=mode)
    assert not recwarn.list


def test_only_the_default_sets_nothing() -> None:
    assert {mode for mode in MODES if not MODES[mode]} == {"default"}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mode": "quick"}, ValueError, "unknown mode 'quick'; known: default"),
        ({"options": {"zzz": 1}}, ValueError, "unknown option 'zzz' known: "),
        ({"options": {"partitoin": 1}}, ValueError, "did you mean 'partition'"),
        ({"options": {"recompile_limit": "3"}}, TypeError, "takes int, not str"),
        ({"mode": "default", "options": {}}, ValueError, "not both"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        resolved(**arguments)


def test_the_environment_is_read_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", "/tmp/somewhere")
    monkeypatch.setenv("FLAMBEAU_CXX", "clang++")
    monkeypatch.setenv("FLAMBEAU_ISA", "baseline")
    monkeypatch.setenv("FLAMBEAU_SANITIZE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "1")
    monkeypatch.setenv("FLAMBEAU_DEBUG_DIR", "/tmp/debug")
    monkeypatch.setenv("FLAMBEAU_LOGS", "guards, recompiles")
    environment = read_environment()
    assert environment.debug_dir == Path("/tmp/debug")
    assert environment.logs == {"guards", "recompiles"}
    options = resolved(environment=environment)
    assert options.runtime.cache_dir == Path("/tmp/somewhere")
    assert options.runtime.cxx == "clang++"
    assert options.runtime.isa == "baseline"
    assert options.runtime.sanitize
    assert options.runtime.debug
    assert options.inductor.debug_checks
    assert options.autograd.check


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_ISA", "sse9")
    with pytest.raises(ValueError, match="known: avx512, avx2, baseline"):
        read_environment()


@pytest.mark.parametrize("name", ["FLAMBEAU_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_disabling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read_environment().disable
    monkeypatch.setenv(name, "1")
    assert read_environment().disable


def test_every_variable_is_in_the_table() -> None:
    import inspect

    from flambeau import environment

    text = inspect.getsource(environment)
    assert environment.__doc__ is not None
    for name in re.findall(r'"((?:FLAMBEAU|TORCH)_[A-Z_]+)"', text):
        assert name in environment.__doc__
    for topic in environment.LOG_TOPICS:
        assert f"`{topic}`" in environment.__doc__
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    assert environment.__doc__.partition("\n\n")[2].strip() in page


def test_no_other_module_reads_the_environment() -> None:
    import flambeau

    folder = Path(flambeau.__file__).parent
    readers = [path.name for path in folder.rglob("*.py") if "os.environ" in path.read_text()]
    assert readers == ["environment.py"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dynamic", "yes"),
        ("dynamic", 3),
        ("fullgraph", "yes"),
        ("fullgraph", None),
        ("disable", "no"),
        ("isolate_recompiles", 1),
        ("mode", 3),
        ("name", 3),
        ("options", [1]),
        ("dynamic_shapes", "x"),
        ("backend", 3),
        ("recompile_limit", "many"),
        ("recompile_limit", True),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=argument):
        flambeau.compile(torch.sin, **{argument: value})
    with pytest.raises(TypeError, match=argument):
        flambeau.compile(**{argument: value})  # as a decorator, too


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("partition", "nonsense", ValueError),
        ("executor", "nonsense", ValueError),
        ("isa", "nonsense", ValueError),
        ("isa", 3, ValueError),
        ("speculate", "no", TypeError),
        ("speculate", 1, TypeError),
        ("threads", True, TypeError),
        ("threads", -1, ValueError),
        ("threads", 1.5, TypeError),
        ("reduction_parts", "two", TypeError),
        ("recompile_limit", -1, ValueError),
        ("cxx_flags", "-O1", TypeError),
        ("cache_dir", 3, TypeError),
    ],
)
def test_option_values_that_mean_nothing_are_refused(
    option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        flambeau.compile(torch.sin, options={option: value})


def test_options_that_may_be_none() -> None:
    assert resolved(options={"reduction_parts": 4}).inductor.reduction_parts == 4
    assert resolved(options={"reduction_parts": None, "isa": "avx2"}).runtime.isa == "avx2"


@pytest.mark.parametrize("made", [None, 3, (torch.ones(2),)])
def test_a_backend_that_returns_no_callable(made: Any) -> None:
    compiled = flambeau.compile(lambda x: x + 1, backend=lambda gm, example_inputs: made)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"the backend returned .*must return a callable"):
            compiled(torch.ones(2))


@pytest.mark.parametrize(
    ("text", "chosen"), [("1", True), ("on", True), ("0", False), ("off", False)]
)
def test_the_graph_cache_is_switched_by_the_environment(
    text: str, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", text)
    assert resolved(environment=read_environment()).runtime.graph_cache is chosen
    asked = resolved(environment=read_environment(), options={"graph_cache": not chosen})
    assert asked.runtime.graph_cache is not chosen


def test_the_background_keeps_graphs_unless_the_environment_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLAMBEAU_GRAPH_CACHE", raising=False)
    options = {"background": True}
    assert resolved(environment=read_environment(), options=options).runtime.graph_cache
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "0")
    assert not resolved(environment=read_environment(), options=options).runtime.graph_cache
