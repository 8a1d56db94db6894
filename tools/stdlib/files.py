"""Which test files of the interpreter's `test` package are run, and the fixed sample for CI."""

from __future__ import annotations

import importlib.util

_NAMES = """
    abc abstract_numbers augassign baseexception binop bisect bool bytes call class cmath
    collections compare complex contains context contextlib copy copyreg dataclasses decorators
    defaultdict deque descr descrtut dict dictcomps dictviews dynamic dynamicclassattribute enum
    enumerate except_star exception_group exception_hierarchy exception_variations exceptions
    extcall float flufl format fractions fstring funcattrs functools generator_stop generators
    genericalias genericclass genexps global grammar graphlib hash heapq index int int_literal
    isinstance iter iterlen itertools keyword keywordonlyarg list listcomps long longexp math
    memoryview metaclass named_expressions numeric_tower opcodes operator ordered_dict patma
    pep646_syntax positional_only_arg pow pprint print property queue raise random range reprlib
    richcmp sched scope set setcomps shlex slice sort statistics string string_literals struct
    structseq subclassinit super textwrap tuple type_annotations typechecks types typing unary
    unpack unpack_ex userdict userlist userstring weakref weakset with yield_from
"""
FILES = tuple(_NAMES.split())
"""Names of test files, without `test_`: of builtin types, statements and modules of Python code;
none needs a network, other processes, an event loop or a trace function.
"""


SAMPLE = (
    "augassign.AugAssignTest.testBasic", "bool.BoolTest", "contains.TestContains",
    "dict.DictTest.test_update", "dictcomps.DictComprehensionTest", "enumerate.EnumerateTestCase",
    "exceptions.ExceptionTests.testAttributes", "extcall", "genexps", "index.BaseTestCase",
    "iter.TestCase.test_builtin_m", "list.ListTest.test_s", "positional_only_arg",
    "named_expressions.NamedExpressionScopeTest.test_named_expression_scope_0",
    "raise.TestRaise", "richcmp.MiscTest", "scope.ScopeTests.testN", "with.NestedWith",
)  # fmt: skip
"""Names of tests, or how they begin: those that CI runs."""


def package_missing() -> str | None:
    """Why the tests of the standard library cannot be run here; None where they can."""
    if importlib.util.find_spec("test.support") is not None:
        return None
    return (
        "this interpreter has no `test` package (some distributions ship it separately, e.g. as "
        "libpython3-testsuite); use an interpreter that was built from source"
    )


def module_of(name: str) -> str:
    """The module of a test file: `test.test_list` for list, `test.test_json.test_dump` for
    json.test_dump.
    """
    return f"test.test_{name}"


def available(names: tuple[str, ...] = FILES) -> list[str]:
    """Those of these files that the running interpreter has, in order and once each."""
    return [name for name in dict.fromkeys(names) if _has(module_of(name))]


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
