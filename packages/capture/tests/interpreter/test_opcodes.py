"""Every opcode of the running Python has a handler, or is listed here with the reason why no
function's code holds it.
"""

from __future__ import annotations

import dis

import pytest

from flambeau_capture.interpreter import opcodes
from flambeau_capture.interpreter.opcodes import operators

COROUTINES = "in coroutines and async generators only, which are left to the interpreter"
MODULES = "in the code of modules and interactive statements only"
COMPILER = "the bytecode compiler's own; never in a code object"
INTERPRETER = "the interpreter's own; `co_code` shows the instruction that it stands for"
DECODED = "a prefix: decoded into the argument of the instruction after it"

WITHOUT_HANDLER = {
    "GET_AITER": COROUTINES,
    "GET_ANEXT": COROUTINES,
    "BEFORE_ASYNC_WITH": COROUTINES,
    "END_ASYNC_FOR": COROUTINES,
    "ASYNC_GEN_WRAP": COROUTINES,
    "GET_AWAITABLE": COROUTINES,
    "PRINT_EXPR": MODULES,
    "EXTENDED_ARG": DECODED,
    "INTERPRETER_EXIT": INTERPRETER,
    "RESERVED": INTERPRETER,
    "ENTER_EXECUTOR": INTERPRETER,
    "EXIT_INIT_CHECK": INTERPRETER,
    "SETUP_FINALLY": COMPILER,
    "SETUP_CLEANUP": COMPILER,
    "SETUP_WITH": COMPILER,
    "POP_BLOCK": COMPILER,
    "JUMP": COMPILER,
    "JUMP_NO_INTERRUPT": COMPILER,
    "LOAD_SUPER_METHOD": COMPILER,
    "LOAD_ZERO_SUPER_METHOD": COMPILER,
    "LOAD_ZERO_SUPER_ATTR": COMPILER,
    "STORE_FAST_MAYBE_NULL": COMPILER,
}
INTRINSICS_WITHOUT_HANDLER = {
    "INTRINSIC_1_INVALID": INTERPRETER,
    "INTRINSIC_2_INVALID": INTERPRETER,
    "INTRINSIC_PRINT": MODULES,
    "INTRINSIC_ASYNC_GEN_WRAP": COROUTINES,
}


@pytest.mark.parametrize("name", dis.opmap)
def test_every_opcode_is_handled_or_explained(name):
    handler = opcodes.HANDLERS[dis.opmap[name]]
    exempt = name in WITHOUT_HANDLER or name.startswith("INSTRUMENTED_")
    handled = any(vars(file).get(name) is handler for file in opcodes._FILES)
    assert handled is not exempt


@pytest.mark.parametrize(
    ("names", "handlers"),
    [
        (getattr(dis, "_intrinsic_1_descs", ()), operators.INTRINSICS_1),
        (getattr(dis, "_intrinsic_2_descs", ()), operators.INTRINSICS_2),
    ],
    ids=["one operand", "two operands"],
)
def test_every_intrinsic_is_handled_or_explained(names, handlers):
    for number, name in enumerate(names):
        assert (number in handlers) is not (name in INTRINSICS_WITHOUT_HANDLER), name
