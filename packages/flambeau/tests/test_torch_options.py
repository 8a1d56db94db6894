"""Every option key of torch's is ours, mapped, a fixed value, or refused with what replaces it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
from flambeau.environment import Environment, read_environment
from flambeau.options import Options, known_options, list_mode_options, list_options, resolve
from flambeau.torch_options import (
    ALWAYS,
    MAPPED,
    REFUSED,
    VARIABLES,
    option_of_variable,
    replacement_of,
    translate,
)

OF_ENVIRONMENT = {"trace.enabled", "trace.debug_dir", "disable_progress"}
LIST = """
import torch._inductor
print("\\n".join(torch._inductor.list_options()))
"""


def resolved(options: dict[str, Any] | None = None, **environment: Any) -> Options:
    return resolve(
        fullgraph=False,
        dynamic=None,
        mode=None,
        options=options,
        environment=Environment(**environment),
    )


@pytest.fixture(scope="module")
def torch_keys() -> list[str]:
    listed = subprocess.run(
        [sys.executable, "-c", LIST], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def test_every_key_of_torchs_has_an_answer(torch_keys: list[str]) -> None:
    known = known_options()
    answers = {
        key: [key in known, key in MAPPED, key in ALWAYS, replacement_of(key) is not None]
        for key in torch_keys
    }
    assert len(answers) > 600
    assert [key for key, answer in answers.items() if not any(answer)] == []
    assert [
        key for key, (ours, mapped, always, _) in answers.items() if ours + mapped + always > 1
    ] == []


def test_no_answer_is_for_a_key_that_torch_does_not_have(torch_keys: list[str]) -> None:
    import fnmatch

    assert {*MAPPED, *ALWAYS} <= set(torch_keys)
    for names in REFUSED.values():
        for pattern in names.split():
            assert fnmatch.filter(torch_keys, pattern), pattern


def test_mapped_keys_are_options_of_ours() -> None:
    assert {mapped.option for mapped in MAPPED.values()} <= {*known_options(), *OF_ENVIRONMENT}


@pytest.mark.parametrize(
    ("key", "value", "stage", "field", "ours"),
    [
        ("triton.cudagraphs", True, "runtime", "cuda_graphs", "always"),
        ("triton.cudagraphs", False, "runtime", "cuda_graphs", "never"),
        ("cpp.threads", -1, "inductor", "threads", 0),
        ("cpp.threads", 3, "inductor", "threads", 3),
        ("cpp.cxx", (None, "clang++"), "runtime", "cxx", "clang++"),
        ("cpp.simdlen", 256, "runtime", "isa", "avx2"),
        ("fx_graph_cache", True, "runtime", "graph_cache", True),
        ("combo_kernels", False, "inductor", "combine_kernels", False),
        ("allow_buffer_reuse", False, "inductor", "reuse_memory", False),
        ("layout_optimization", False, "autograd", "channels_last", False),
        ("split_reductions", False, "inductor", "reduction_parts", 1),
        ("emulate_precision_casts", True, "autograd", "numerics", "strict"),
        ("cpp_wrapper", True, "runtime", "executor", "c"),
        ("freezing", True, "autograd", "freezing", True),
        ("shape_padding", False, "autograd", "shape_padding", False),
        ("max_autotune", True, "inductor", "max_autotune", True),
    ],
)
def test_mapped_values(key: str, value: Any, stage: str, field: str, ours: Any) -> None:
    assert getattr(getattr(resolved({key: value}), stage), field) == ours


@pytest.mark.parametrize("key", ALWAYS)
def test_fixed_values(key: str) -> None:
    only, why = ALWAYS[key]
    assert resolved({key: only}) == Options()
    with pytest.raises(ValueError, match=key) as refused:
        resolved({key: "another"})
    assert why in str(refused.value)


def test_refused_keys_name_what_replaces_them() -> None:
    for key, words in {
        "cpp.min_chunk_size": "cxx_flags",
        "triton.max_tiles": "max_autotune_pointwise",
        "aot_inductor.package": "flambeau_capture.export",
        "post_grad_custom_pre_pass": "custom_backends.md",
        "compile_threads": "threads",
    }.items():
        with pytest.raises(ValueError, match=f"{key}.*torch's.*{words}"):
            flambeau.compile(torch.sin, options={key: 1})
    with pytest.raises(ValueError, match="no meaning for 'often'"):
        resolved({"triton.cudagraphs": "often"})
    with pytest.raises(KeyError):
        translate("epilog_fusion", True)
    with pytest.raises(ValueError, match="unknown option 'epilog_fusion'"):
        resolved({"epilog_fusion": True})


def test_what_torch_keeps_in_options_and_we_in_the_environment(tmp_path: Path) -> None:
    assert resolved({"disable_progress": True}).environment.progress is False
    folder = str(tmp_path / "here")
    assert resolved(
        {"trace.enabled": True, "trace.debug_dir": folder}
    ).environment.debug_dir == Path(folder)
    assert resolved({"trace.debug_dir": folder}).environment.debug_dir is None


def test_trace_enabled_writes_the_folder(tmp_path: Path) -> None:
    options = {"trace.enabled": True, "trace.debug_dir": str(tmp_path)}
    compiled = flambeau.compile(lambda x: x.sin() + 1, options=options)
    compiled(torch.randn(3))
    assert list(tmp_path.rglob("output_code.py"))


def test_variables_of_torchs() -> None:
    for name, key in VARIABLES.items():
        text = "ATEN" if name.endswith("BACKENDS") else "1"
        found = option_of_variable(name, text)
        assert found is not None and found[0] in known_options(), key
    assert resolved(torch_variables=(("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),)).inductor.max_autotune
    both = resolved({"freezing": False}, torch_variables=(("TORCHINDUCTOR_FREEZING", "1"),))
    assert not both.autograd.freezing  # the argument decides
    assert resolved(torch_variables=(("TORCHINDUCTOR_FREEZING", "0"),)) == resolved(
        {}, torch_variables=(("TORCHINDUCTOR_FREEZING", "0"),)
    )


def test_variables_without_a_counterpart_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_NAN_ASSERTS", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    assert ("TORCHINDUCTOR_NAN_ASSERTS", "1") in read_environment().torch_variables
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flambeau.compile(torch.sin)
    (warning,) = caught
    assert "TORCHINDUCTOR_NAN_ASSERTS" in str(warning.message)
    assert warning.filename == __file__


def test_the_lists() -> None:
    assert flambeau.compiler.list_options() == list_options() == sorted(known_options())
    assert list_mode_options("reduce-overhead") == {"cuda_graphs": "always"}
    assert set(flambeau.compiler.list_mode_options()) == {
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs",
    }  # fmt: skip
    with pytest.raises(ValueError, match="unknown mode"):
        list_mode_options("fast")
    with pytest.raises(ValueError, match="aot_eager"):
        flambeau.compile(torch.sin, mode="lite")


def test_the_page_lists_the_tables() -> None:
    page = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
    for key in (*MAPPED, *ALWAYS, *VARIABLES):
        assert f"`{key}`" in page, key
    for why, names in REFUSED.items():
        assert why in page
        for name in names.split():
            assert f"`{name}`" in page, name
