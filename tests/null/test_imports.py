"""What importing Flambeau imports: modules are counted in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("sympy", "mpmath", "networkx", "triton", "hatchling", "torch._dynamo", "torch._inductor")


def _new_modules(program: str) -> list[str]:
    """The modules that a program imports beside those of torch."""
    script = f"""
import json, sys, torch
before = set(sys.modules)
{program}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def _starting_with(modules: list[str], *prefixes: str) -> list[str]:
    return [
        module
        for module in modules
        if any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)
    ]


def test_importing_flambeau_imports_next_to_nothing() -> None:
    modules = _new_modules("import flambeau")
    assert len(modules) < 10, modules


def test_importing_each_package_imports_next_to_nothing() -> None:
    for package in ("prims", "capture", "autograd", "inductor"):
        modules = _new_modules(f"import flambeau_{package}")
        assert len(modules) < 10, modules


def test_compile_imports_no_stage_before_the_first_call() -> None:
    modules = _new_modules("import flambeau; flambeau.compile(lambda x: x.sin())")
    stages = (
        "flambeau_capture.interpreter", "flambeau_capture.exported", "flambeau_capture.numpy",
        "flambeau_autograd.pipeline", "flambeau_inductor.compile", "flambeau_prims.tracer",
        "flambeau_prims.decompositions",
    )  # fmt: skip
    assert not _starting_with(modules, *HEAVY, *stages)


def test_a_first_call_imports_no_export() -> None:
    modules = _new_modules("import flambeau; flambeau.compile(lambda x: x.sin())(torch.ones(2))")
    assert _starting_with(modules, "flambeau_capture.interpreter")
    assert not _starting_with(modules, "flambeau_capture.exported", "flambeau.explain")


def test_functions_named_as_their_modules_stay_functions() -> None:
    program = """
import flambeau, flambeau_prims
import flambeau.explain, flambeau.reset, flambeau_prims.decompose
assert callable(flambeau.explain) and callable(flambeau.reset)
assert callable(flambeau_prims.decompose)
assert flambeau.compiler.__name__ == "flambeau.compiler"
assert {"compile", "explain", "compiler"} <= set(dir(flambeau))
"""
    _new_modules(program)


def test_the_stages_are_imported_outside_of_the_programs_modes() -> None:
    program = """
import flambeau
def fn(x):
    return torch.sin(x) + torch.ones(3)
x = torch.randn(3)
with torch.device("meta"), torch.inference_mode():
    made = flambeau.compile(lambda x: x.sin())(x)
torch.testing.assert_close(made, x.sin())
torch.testing.assert_close(flambeau.compile(fn, fullgraph=True)(x), fn(x))
from flambeau_capture.interpreter.values import subclasses
with torch._C.DisableTorchFunctionSubclass():
    assert all(probe.is_cpu and not probe.is_inference() for probe in subclasses._PROBES)
"""
    _new_modules(program)


def test_a_first_call_near_the_recursion_limit_imports_whole_modules() -> None:
    program = """
import flambeau
compiled = flambeau.compile(lambda x: x.sin())
x = torch.randn(3)
def deep(n):
    return deep(n - 1) if n else compiled(x)
sys.setrecursionlimit(400)
torch.testing.assert_close(deep(300), x.sin())
sys.setrecursionlimit(1000)
torch.testing.assert_close(compiled(x + 1), (x + 1).sin())
"""
    _new_modules(program)


def test_threads_import_the_stages_once() -> None:
    program = """
import flambeau
from concurrent.futures import ThreadPoolExecutor
x = torch.randn(5)
functions = [flambeau.compile(lambda x, k=k: x.sin() * k) for k in range(8)]
with ThreadPoolExecutor(8) as pool:
    results = list(pool.map(lambda fn: fn(x), functions))
for k, result in enumerate(results):
    assert torch.allclose(result, x.sin() * k)
"""
    _new_modules(program)
