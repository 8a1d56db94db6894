"""`torch.tensor` of lists that hold tensors: captured whole, of eager's dtype, shape, device and
history; what eager may refuse is left to it.
"""

from __future__ import annotations

import pytest
import torch

import flambeau

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")


def as_eager(program, *arguments, fullgraph=True):
    expected = program(*arguments)
    compiled = flambeau.compile(program, fullgraph=fullgraph)
    for _ in range(2):
        found = compiled(*arguments)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert found.requires_grad == expected.requires_grad
        assert found.stride() == expected.stride()
    return found


PROGRAMS = {
    "tensors": lambda x: torch.tensor([x.sum(), x.max()]),
    "a tuple": lambda x: torch.tensor((x.sum(), x.argmax())),
    "with numbers": lambda x: torch.tensor([[x.sum(), 1], [2.5, x.max()]]),
    "with a size": lambda x: torch.tensor([x.sum(), x.shape[0]]),
    "with a number in the data": lambda x: torch.tensor([x.sum(), x.argmax().item()]),
    "as_tensor": lambda x: torch.as_tensor([x.sum(), x.max()]),
    "dtype": lambda x: torch.tensor([x.sum(), 2], dtype=torch.float64),
    "to bool": lambda x: torch.tensor([x.argmax(), 0], dtype=torch.bool),
    "to complex": lambda x: torch.tensor([x.sum(), 1j]),
    "device": lambda x: torch.tensor([x.sum(), x.max()], device="cpu"),
    "by its type": lambda x: torch.FloatTensor([x.sum(), 2.0]),
    "new_tensor": lambda x: x.new_tensor([x.sum(), 3]),
    "used on": lambda x: x * torch.tensor([x.sum(), x.max(), x.min()]),
    "no list": lambda x: torch.tensor(x.sum()),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_lists_with_tensors_are_captured(program):
    x = torch.tensor([1.5, -2.0, 3.25], requires_grad=True)
    found = as_eager(program, x)
    if found.requires_grad:
        (expected,) = torch.autograd.grad(program(x).sum(), x)
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(gradient, expected)


ELEMENTS = {
    "bool": torch.tensor(True),
    "uint8": torch.tensor(7, dtype=torch.uint8),
    "int8": torch.tensor(-7, dtype=torch.int8),
    "int64": torch.tensor(2**40),
    "float16": torch.tensor(1.5, dtype=torch.float16),
    "bfloat16": torch.tensor(1.5, dtype=torch.bfloat16),
    "float64": torch.tensor(0.1, dtype=torch.float64),
    "complex64": torch.tensor(1.5 - 2j),
}
OTHERS = (True, 3, 2.5, 1.5j, *ELEMENTS.values())


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_dtype_is_eagers(name):
    for other in OTHERS:
        for swapped in (False, True):
            as_eager(
                lambda x, s=swapped, o=other: torch.tensor([o, x] if s else [x, o]), ELEMENTS[name]
            )


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.bool,
        torch.complex64,
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ELEMENTS)
def test_what_eager_refuses_raises(name, dtype):
    """Values that a dtype does not hold."""

    def program(x):
        return torch.tensor([x, x], dtype=dtype)

    try:
        expected = program(ELEMENTS[name])
    except (TypeError, RuntimeError) as error:
        with pytest.raises(type(error)) as caught:
            flambeau.compile(program)(ELEMENTS[name])
        assert str(caught.value) == str(error)
    else:
        assert torch.equal(flambeau.compile(program)(ELEMENTS[name]), expected)


@pytest.mark.parametrize(
    "program",
    [lambda x: torch.tensor([x.sum(), [x.max()]]), lambda x: torch.tensor([x, x])],
    ids=["ragged", "vectors"],
)
def test_lists_that_make_no_tensor_raise(program):
    x = torch.randn(3)
    with pytest.raises((TypeError, ValueError)) as expected:
        program(x)
    with pytest.raises(expected.type):
        flambeau.compile(program)(x)


def test_the_default_device_holds():
    def program(x):
        with torch.device("meta"):
            return torch.tensor([x.sum(), 1.0])

    x = torch.randn(3)
    found, expected = flambeau.compile(program)(x), program(x)
    assert (found.device, found.shape, found.dtype) == (
        expected.device,
        expected.shape,
        expected.dtype,
    )
