"""`kernel_options` of flex_attention: what each form of kernel reads of them, and refusals."""

from __future__ import annotations

import pytest

from flambeau_inductor.attention_options import (
    FORWARD,
    KEY_VALUE_GRADIENTS,
    QUERY_GRADIENT,
    KernelOptions,
    check_options,
    options_of,
    parts_asked_for,
    wants_decoding,
    without_effect,
)
from flambeau_prims.unsupported import InvalidOption


def test_each_form_reads_its_own_options() -> None:
    text = "BLOCK_M=32;BLOCK_N=64;BLOCK_M1=16;BLOCK_N1=128;bwd_BLOCK_M2=64;num_warps=8"
    assert options_of(text, FORWARD) == KernelOptions(32, 64, 8)
    assert options_of(text, KEY_VALUE_GRADIENTS) == KernelOptions(16, 128, 8)
    assert options_of(text, QUERY_GRADIENT) == KernelOptions(64, None, 8)


def test_a_prefix_restricts_an_option_and_wins() -> None:
    text = "num_stages=2;fwd_num_stages=3;bwd_PRESCALE_QK=True;FLOAT32_PRECISION=\"'ieee'\""
    assert options_of(text, FORWARD) == KernelOptions(stages=3, precision="ieee")
    backward = KernelOptions(stages=2, prescaled=True, precision="ieee")
    assert options_of(text, QUERY_GRADIENT) == backward


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", None), ("FORCE_USE_FLEX_ATTENTION=True", 1), ("BACKEND='TRITON'", 1), ("SPLIT_KV=5", 5)],
)
def test_parts_of_keys(text: str, parts: int | None) -> None:
    assert parts_asked_for(text) == parts
    assert not wants_decoding(text) and wants_decoding("BACKEND='TRITON_DECODE'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BLOCK_M=48", "power of two"),
        ("fwd_BLOCK_N=8", "fwd_BLOCK_N"),
        ("num_warps=3", "num_warps"),
        ("num_stages='2'", "an int"),
        ("BACKEND='FLASH'", "FLASH"),
        ("BACKEND='CUTLASS'", "one of"),
        ("FLOAT32_PRECISION='bf16'", "tf32"),
    ],
)
def test_impossible_values_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_options(text)


def test_options_without_a_meaning_have_a_reason() -> None:
    found = dict(without_effect("USE_TMA=True;bwd_kpack=2;WRITE_DQ=False;other=1;BLOCK_M=32"))
    assert set(found) == {"USE_TMA", "bwd_kpack", "WRITE_DQ", "other"} and all(found.values())
