"""Each way to compute a part of a schedule, as the Program that would be measured: its kernels, run
in Triton's interpreter, beside eager. No GPU needed.

The interpreter is chosen when Triton is imported, so the ways run in a process of their own: this
file, run as a program.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

F16 = torch.float16


def run_program(program: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The first result, on CPU tensors; None if the Program calls a library."""
    values = run_steps(program, tensors)
    return None if values is None else values[program.outputs[0]]


def run_steps(
    program: Any, tensors: dict[str, torch.Tensor], *, products: bool = False
) -> dict[str, torch.Tensor] | None:
    """All tensors of a Program, on a CPU; None if it calls a library (but with `products`)."""
    import interpreter

    from flambeau_runtime.program import Allocate, Extern, Launch, View

    declared = {tensor.name: tensor for tensor in program.tensors}
    values = {name: tensors[name] for name in program.inputs}
    for step in program.steps:
        if isinstance(step, Extern):
            if not products:
                return None
            assert step.op == "aten.mm.out"
            left, right = (values[factor.name] for factor in step.args)
            ((_, out),) = step.out
            torch.mm(left, right, out=values[out])
        if isinstance(step, View):
            view, base = declared[step.name], values[step.base]
            values[step.name] = base.as_strided(view.shape, view.stride)
        if isinstance(step, Allocate):
            tensor = declared[step.name]
            dtype = getattr(torch, tensor.dtype)
            values[step.name] = torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype)
        elif isinstance(step, Launch):
            kernel = next(kernel for kernel in program.kernels if kernel.name == step.kernel)
            names = step.buffers[:-1] if "scratch" in kernel.meta else step.buffers
            source = program.sources[kernel.source].text
            buffers = [values[name] for name in names]
            interpreter.run(source, kernel.name, buffers, step.ints, step.grid, kernel.meta)
    return values


def graphs() -> Any:
    """(name, graph on a GPU, its result, the expected one)."""
    from on_gpu import OnGpu, aten

    torch.manual_seed(0)
    x, w, r = torch.randn(37, 77).half(), torch.randn(77, 41).half(), torch.randn(37, 41)
    on = OnGpu(x, w, r)
    a, c, d = on.graph.inputs
    b = on.builder
    padded = on.call(aten.mm.default, b.pad(a, (0, 0), (0, 3), 0), b.pad(c, (0, 0), (3, 7), 0))
    part = b.cast(b.slice(padded, 1, 0, 41, 1), torch.float32)
    yield "padded", on, b.add(b.tanh(part), d), (x.float() @ w.float()).tanh() + r

    q, s = torch.randint(-9, 9, (48, 64), dtype=torch.int8), torch.rand(48, 1)
    x = torch.randn(20, 64).half()
    on = OnGpu(x, q, s)
    a, c, d = on.graph.inputs
    b = on.builder
    factor = b.cast(b.mul(b.cast(c, torch.float32), b.expand(d, (48, 64))), F16)
    product = b.cast(on.call(aten.mm.default, a, b.permute(factor, (1, 0))), torch.float32)
    expected = (x.float() @ (q.float() * s).half().float().t()).clamp(min=0)
    zero = b.full((20, 48), 0.0, torch.float32, torch.device("cuda:0"))
    yield "dequantised", on, b.maximum(product, zero), expected

    x, w, bias = torch.randn(16, 1024).half() / 8, torch.randn(1024, 32).half() / 8, torch.rand(32)
    on = OnGpu(x, w, bias)
    a, c, d = on.graph.inputs
    b = on.builder
    product = b.cast(on.call(aten.mm.default, a, c), torch.float32)
    yield "long", on, b.add(product, on.spread(d, product)), x.float() @ w.float() + bias

    x, w = torch.randn(40, 128).half() / 8, torch.randn(128, 48).half()
    on = OnGpu(x, w)
    product = on.call(aten.mm.default, *on.graph.inputs)
    yield "wide", on, on.builder.cast(product, torch.float32), x.float() @ w.float()

    x, w = torch.randn(5, 33, 24).half(), torch.randn(5, 24, 18).half()
    on = OnGpu(x, w)
    product = on.call(aten.bmm.default, *on.graph.inputs)
    b = on.builder
    yield "batches", on, b.exp(b.cast(product, torch.float32)), (x.float() @ w.float()).exp()

    x, w = torch.randn(1, 300).half(), torch.randn(70, 300).half() / 16
    on = OnGpu(x, w)
    b = on.builder
    a, c = on.graph.inputs
    product = on.call(aten.mm.default, a, b.permute(c, (1, 0)))
    yield "one row", on, b.tanh(b.cast(product, torch.float32)), (x.float() @ w.float().t()).tanh()


def narrow_and_grouped() -> Any:
    """The same for weights that share bytes, rows that are looked up or grouped, and float8."""
    from on_gpu import OnGpu, aten

    from flambeau_prims.spec import Spec

    for rows in (20, 1):
        p, s = torch.randint(0, 256, (48, 64), dtype=torch.uint8), torch.rand(48, 2, 1)
        x = torch.randn(rows, 128).half()
        on = OnGpu(x, p, s)
        a, c, d = on.graph.inputs
        b = on.builder
        mask, four = (b.full((48, 64), n, torch.uint8, torch.device("cuda:0")) for n in (15, 4))
        digits = [b.bitwise_and(c, mask), b.shift_right(c, four)]
        whole = b.cat([b.unsqueeze(each, 2) for each in digits], 2)
        wide = b.cast(b.reshape(whole, (48, 2, 64)), torch.float32)
        factor = b.reshape(b.cast(b.mul(wide, b.expand(d, (48, 2, 64))), F16), (48, 128))
        product = on.call(aten.mm.default, a, b.permute(factor, (1, 0)))
        q = torch.stack([p & 15, p >> 4], -1).view(48, 2, 64)
        expected = x.float() @ (q * s).half().float().view(48, 128).t()
        name = "two in a byte" if rows > 1 else "row by two in a byte"
        yield name, on, b.tanh(b.cast(product, torch.float32)), expected.tanh()

    x, index, w = torch.randn(9, 40).half(), torch.randint(0, 9, (33,)), torch.randn(40, 50).half()
    on = OnGpu(x, index, w)
    a, c, d = on.graph.inputs
    b = on.builder
    rows = b.index(a, [c])
    product = on.call(aten.mm.default, rows, d)
    yield (
        "gathered",
        on,
        b.exp(b.cast(product, torch.float32)),
        (x.float()[index] @ w.float()).exp(),
    )

    x, w = torch.randn(40, 72).bfloat16(), torch.randn(5, 56, 72).bfloat16()
    ends = [5, 5, 18, 18, 40]
    expected = torch.cat([
        x[first:end].float() @ w[number].float().t()
        for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False))
    ])  # fmt: skip
    bounds, scale = torch.tensor(ends, dtype=torch.int32), torch.rand(40, 1)
    on = OnGpu(x, w, bounds, scale)
    a, c, d, e = on.graph.inputs
    b = on.builder
    like = Spec.of((40, 56), dtype=torch.bfloat16, device=torch.device("cuda:0"))
    product = on.call_like(like, aten._grouped_mm.default, a, b.permute(c, (0, 2, 1)), d)
    wide = b.mul(b.cast(product, torch.float32), b.expand(e, (40, 56)))
    yield "experts", on, b.tanh(wide), (expected * scale).tanh()

    x, w = (each.to(torch.float8_e4m3fn) for each in (torch.randn(40, 64), torch.randn(5, 48, 64)))
    s, t = torch.rand(40), torch.rand(5, 48)
    on = OnGpu(x, w, s, t, bounds)
    a, c, d, e, f = on.graph.inputs
    like = Spec.of((40, 48), dtype=torch.bfloat16, device=torch.device("cuda:0"))
    turned = on.builder.permute(c, (0, 2, 1))
    arguments = [a, turned, d, e, f, None, None, torch.bfloat16, True]
    product = on.call_like(like, aten._scaled_grouped_mm.default, *arguments)
    expected = torch.cat([
        x[first:end].float() @ w[number].float().t() * s[first:end, None] * t[number]
        for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False))
    ])  # fmt: skip
    wide = on.builder.cast(product, torch.float32)
    yield "scaled experts", on, on.builder.tanh(wide), expected.tanh()

    x, w = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((33, 96), (48, 96)))
    expected = x.float() @ w.float().t()
    for name, *scales in (("scaled rows", torch.rand(33, 1), torch.rand(1, 48)),
                          ("scaled", torch.rand(()), torch.rand(1))):  # fmt: skip
        on = OnGpu(x, w, *scales, torch.rand(48).bfloat16())
        a, c, *scale, d = on.graph.inputs
        turned = on.builder.permute(c, (1, 0))
        like = Spec.of((33, 48), dtype=torch.bfloat16, device=torch.device("cuda:0"))
        arguments = [a, turned, *scale, d, None, torch.bfloat16, name == "scaled"]
        product = on.call_like(like, aten._scaled_mm.default, *arguments)
        wide = on.builder.cast(product, torch.float32)
        exact = expected * scales[0] * scales[1] + on.tensors[-1].float()
        yield name, on, on.builder.mul(wide, on.builder.tanh(wide)), exact * exact.tanh()


def reduced_rows() -> Any:
    """Rows that are reduced in the tiles of a product with infinities and NaN."""
    from test_row_statistics import CHAINS, product

    for name, (chain, eager) in CHAINS.items():
        on, value, exact = product(37, 300, 24, dtype=F16, special=True)
        yield f"rows, {name}", on, chain(on, value), eager(exact)
    on, value, exact = product(3, 20, 150, 32, dtype=torch.bfloat16)
    yield "rows of batches", on, CHAINS["logsumexp"][0](on, value), exact.logsumexp(-1)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append(str(Path(__file__).parent.parent))
    from on_gpu import OPTIONS, StandIn

    from flambeau_inductor import compile_graph
    from flambeau_runtime.tuning.tuner import relative_error

    report: dict[str, float] = {}
    for name, on, result, expected in (*graphs(), *narrow_and_grouped(), *reduced_rows()):
        tuner = StandIn("none of them")
        on.graph.outputs = [result]
        compile_graph(on.graph, OPTIONS, tuner=tuner)
        tensors = {f"arg{number}": tensor for number, tensor in enumerate(on.tensors)}
        for contest in tuner.contests:
            for candidate in contest.candidates:
                ours = run_program(candidate.make(), tensors)
                if ours is not None:
                    report[f"{name}: {candidate.name}"] = relative_error(ours, expected)
    print(json.dumps(report))


def test_every_way_computes_the_same() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    names = ("padded", "dequantised", "long", "wide", "batches", "one row", "two in a byte",
             "gathered", "rows, argmin: reduced", "rows, logsumexp: reduced", "scaled",
             "scaled rows", "experts", "scaled experts")  # fmt: skip
    for name in names:
        assert sum(way.startswith(name) for way in report) >= 3, report.keys()
    for words in (": 2 parts", "dequantised: factors", "padded: factors", "one row: sums",
                  "row by two in a byte: sums", "gathered: factors",
                  "two in a byte: 16x", "rows of batches: reduced rows"):  # fmt: skip
        assert any(words in way for way in report), words
    wrong = {way: error for way, error in report.items() if not error < 4e-3}
    assert not wrong, wrong
