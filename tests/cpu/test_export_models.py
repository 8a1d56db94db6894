"""Real models exported with a batch and a length that vary, saved, and run in a process that has
neither model nor transformers.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from examples.models import ResNet18, bert
from flambeau_capture import Dim, export
from flambeau_capture.exported.interop_torch import to_exported_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

transformers = pytest.importorskip("transformers")

BATCH, LENGTH = Dim("batch", max=64), Dim("length", max=64)
TOKENS = {0: BATCH, 1: LENGTH}


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, 99, (batch, length))


def resnet() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]], dict[str, Any]]:
    model = ResNet18(width=8, classes=10)
    return model, lambda batch, _: {"x": torch.randn(batch, 3, 65, 65)}, {"x": {0: BATCH}}


def small_bert() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]], dict[str, Any]]:
    def inputs(batch: int, length: int) -> dict[str, Any]:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[1, length // 2 :] = 0
        return {"input_ids": tokens(batch, length), "attention_mask": mask, "return_dict": False}

    model = bert(layers=2, hidden=32, heads=2, vocabulary=99)
    return model, inputs, {"input_ids": TOKENS, "attention_mask": TOKENS}


def llama() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]], dict[str, Any]]:
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return (
        transformers.LlamaForCausalLM(config),
        lambda batch, length: {
            "input_ids": tokens(batch, length),
            "use_cache": False,
            "return_dict": False,
        },
        {"input_ids": TOKENS},
    )


def t5() -> tuple[nn.Module, Callable[[int, int], dict[str, Any]], dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        given = {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, length - 1)}
        return given | {"use_cache": False, "return_dict": False}

    shorter = {0: BATCH, 1: Dim("shorter", max=64)}
    return transformers.T5Model(config), inputs, {"input_ids": TOKENS, "decoder_input_ids": shorter}


MODELS = {"resnet": resnet, "bert": small_bert, "llama": llama, "t5": t5}
SIZES = ((3, 11), (2, 7), (5, 16))

CHILD = """
import sys
import torch
import flambeau_capture
for name in {names!r}:
    loaded = flambeau_capture.load(f"{folder}/{{name}}.flambeau")
    for inputs, expected in torch.load(f"{folder}/{{name}}.expected"):
        with torch.no_grad():
            found = loaded(**inputs)
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
assert not {{"transformers", "examples"}} & sys.modules.keys()
print("equal")
"""


def test_in_another_process(tmp_path: Path) -> None:
    for name, make in MODELS.items():
        model, inputs, shapes = make()
        model.eval()
        with torch.no_grad():
            exported = export(model, (), inputs(*SIZES[0]), dynamic_shapes=shapes)
            exported.save(tmp_path / f"{name}.flambeau")
            cases = []
            for sizes in SIZES:
                given = inputs(*sizes)
                expected = model(**given)
                cases.append((given, expected if isinstance(expected, tuple) else (expected,)))
        torch.save(cases, tmp_path / f"{name}.expected")
    child = CHILD.format(names=list(MODELS), folder=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_names_are_those_of_the_state_dict() -> None:
    model, inputs, shapes = llama()
    exported = export(model.eval(), (), inputs(3, 8), dynamic_shapes=shapes)
    names = {item.name for item in exported.inputs if item.kind == "parameter"}
    names |= {name for item in exported.inputs for name in item.also}
    assert names == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert "input_ids: i64[batch, length]" in str(exported)


def test_a_result_of_a_class_of_the_library(tmp_path: Path) -> None:
    """A model's own result classes come back where the library is imported."""
    from flambeau_capture import load

    model, inputs, shapes = small_bert()
    given = {**inputs(3, 9), "return_dict": True}
    with torch.no_grad():
        export(model.eval(), (), given, dynamic_shapes=shapes).save(tmp_path / "graph")
        found, expected = load(tmp_path / "graph")(**given), model(**given)
    assert type(found) is type(expected)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_as_an_exported_program(name: str, tmp_path: Path) -> None:
    model, inputs, shapes = MODELS[name]()
    model.eval()
    with torch.no_grad():
        exported = export(model, (), inputs(*SIZES[0]), dynamic_shapes=shapes)
        torch.export.save(to_exported_program(exported), tmp_path / "program.pt2")
        program = torch.export.load(tmp_path / "program.pt2").module()
        for sizes in SIZES:
            given = inputs(*sizes)
            found, expected = program(**given), model(**given)
            pairs = (
                zip(found, expected, strict=True)
                if isinstance(expected, tuple)
                else [(found, expected)]
            )
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_loaded_graph_is_compiled(tmp_path: Path) -> None:
    """What a file holds is enough for a backend: one compilation serves every size."""
    from flambeau.interop_dynamo import flambeau_backend
    from flambeau_capture import load

    model, inputs, shapes = small_bert()
    with torch.no_grad():
        export(model.eval(), (), inputs(3, 8), dynamic_shapes=shapes).save(tmp_path / "graph")
        loaded = load(tmp_path / "graph")
        compiled = flambeau_backend(loaded.graph_module, loaded.flat_inputs(**inputs(3, 8)))
        for sizes in SIZES:
            given = inputs(*sizes)
            found = compiled(*loaded.flat_inputs(**given))
            for ours, theirs in zip(found, model(**given), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
