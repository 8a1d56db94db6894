"""`freezing`: what depends on parameters only is computed once, and anew when they change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flambeau
from flambeau_autograd import fold_affine


class Network(nn.Module):
    """Weights that are cast, normalised and tied; a buffer; a convolution with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("shift", torch.rand(8))
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> Any:
        weight = F.normalize(self.first.weight.double(), dim=1).float() * self.scale[:, None]
        y = F.linear(x, weight, self.first.bias.exp())
        return y + self.shift.cos(), F.relu(self.norm(self.convolution(image))), weight


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 6), torch.randn(2, 3, 7, 7)


def trained() -> Network:
    model = Network()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
        model.norm.weight.normal_()
        model.norm.bias.normal_()
    return model.eval()


def compare(compiled: Any, model: Any) -> tuple[Any, ...]:
    given = inputs()
    with torch.no_grad():
        got, want = compiled(*given), model(*given)
    for mine, its in zip(got, want, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
        assert mine.stride() == its.stride()
    return got  # type: ignore[no-any-return]


def compiled(model: Any, **options: Any) -> Any:
    return flambeau.compile(model, fullgraph=True, options={"freezing": True, **options})


def test_what_depends_on_parameters_is_not_in_the_program() -> None:
    model = trained()
    frozen = flambeau.explain(model, options={"freezing": True})
    plain = flambeau.explain(model)
    with torch.no_grad():
        given = inputs()
        assert "cos" in str(plain(*given))
        assert "cos" not in str(frozen(*given))


def test_changes_are_seen() -> None:
    model = trained()
    program = compiled(model)
    for _ in range(2):
        compare(program, model)
    with torch.no_grad():
        model.scale.mul_(2)
        compare(program, model)
        model.shift.add_(1)
        compare(program, model)
    model.first.weight = nn.Parameter(torch.randn(8, 6))
    compare(program, model)
    model.load_state_dict(trained().state_dict())
    compare(program, model)


def test_other_data_is_seen() -> None:
    model = trained()
    program = compiled(model)
    compare(program, model)
    for _ in range(3):
        model.convolution.weight.data = model.convolution.weight.data * 2
        compare(program, model)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
    compare(program, model)


def test_parameters_that_change_in_every_call() -> None:
    model = trained()
    program = compiled(model)
    for _ in range(8):
        with torch.no_grad():
            model.first.weight.normal_()
            model.norm.running_mean.normal_()
        compare(program, model)
        compare(program, model)


def test_results_are_the_callers() -> None:
    model = trained()
    program = compiled(model)
    *_, weight = compare(program, model)
    weight.zero_()
    compare(program, model)


def test_a_written_buffer_is_not_frozen() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> Any:
            self.count += 1
            return x * self.count.exp(), self.count.exp()

    model, twin = Counter(), Counter()
    program = compiled(model)
    x = torch.randn(3)
    with torch.no_grad():
        for _ in range(3):
            for mine, its in zip(program(x), twin(x), strict=True):
                torch.testing.assert_close(mine, its)


def test_training_is_not_frozen() -> None:
    model = trained()
    program = compiled(model)
    x, image = inputs()
    for _ in range(2):
        gradients = []
        for call in (program, model):
            model.zero_grad()
            sum(out.square().sum() for out in call(x, image)).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for mine, its in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4, dtype=torch.float32)).eval()

    def half(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)  # type: ignore[no-any-return]

    program = flambeau.compile(half, dynamic=dynamic, options={"freezing": True})
    with torch.no_grad():
        for rows in (5, 3, 9, 9):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(program(x), half(x), rtol=2e-2, atol=2e-2)
            model[0].weight.mul_(0.9)


def test_draws_stay() -> None:
    weight = nn.Parameter(torch.rand(50))

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(weight * 2, 0.5) + x

    frozen = compiled(program)
    x = torch.randn(50)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            got = frozen(x)
            torch.manual_seed(seed)
            torch.testing.assert_close(got, program(x))


class Packed(nn.Module):
    """Weights that are large enough to be packed."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, groups=4), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, dilation=2),
        )  # fmt: skip
        self.linears = nn.Sequential(
            nn.Linear(64, 80), nn.GELU(), nn.Linear(80, 96, bias=False), nn.Linear(96, 5)
        )

    def forward(self, image: torch.Tensor) -> Any:
        features = self.convolutions(image)
        return features, self.linears(features.mean((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3])
def test_packed_weights(dtype: torch.dtype, batch: int) -> None:
    model = Packed().to(dtype).eval()
    program = compiled(model, check=True, debug_checks=True)
    for _ in range(7):
        image = torch.randn(batch, 3, 17, 19, dtype=dtype)
        with torch.no_grad():
            got, want = program(image), model(image)
            exact = copy.deepcopy(model).double()(image.double())
            model.linears[0].weight.mul_(1.5)
            model.convolutions[0].weight.mul_(0.5)
        for mine, its, reference in zip(got, want, exact, strict=True):
            assert mine.dtype == its.dtype and mine.stride() == its.stride()
            ours, theirs = ((x.double() - reference).norm() for x in (mine, its))
            assert ours <= 1.5 * theirs + 1e-6 * reference.norm()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN")
def test_weights_are_packed_once() -> None:
    model = Packed().eval()
    report = str(flambeau.explain(model, options={"freezing": True})(torch.randn(2, 3, 17, 19)))
    with torch.no_grad():
        report = str(flambeau.explain(model, options={"freezing": True})(torch.randn(2, 3, 17, 19)))
    assert "mkldnn._linear_pointwise" in report and "mkldnn._convolution_pointwise" in report
    assert "_reorder" not in report


@pytest.mark.parametrize("dynamic", [None, True])
def test_packed_weights_and_sizes_that_change(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Linear(70, 80), nn.ReLU(), nn.Linear(80, 64)).eval()
    program = flambeau.compile(model, dynamic=dynamic, options={"freezing": True})
    with torch.no_grad():
        for shape in ((5, 70), (3, 70), (2, 4, 70), (1, 70), (0, 70)):
            x = torch.randn(shape)
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def normalised(convolution: nn.Module, channels: int, **options: Any) -> nn.Sequential:
    norm = getattr(nn, f"BatchNorm{type(convolution).__name__[-2:]}")(channels, **options)
    with torch.no_grad():
        for name, tensor in [*norm.named_buffers(), *norm.named_parameters()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2) if "var" in name else tensor.normal_()
    return nn.Sequential(convolution, norm).eval()


class Arithmetic(nn.Module):
    """By channel, with numbers and tensors on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3)
        self.rows = nn.Parameter(torch.rand(4, 5, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.rows
        return ((a - self.convolution(x)) * b / c + d) * 2 - 1


class Read(nn.Module):
    """The convolution's own result is read, too; the step that follows is by column."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3)
        self.row = nn.Parameter(torch.rand(6))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.convolution(x)
        return y * 2, y.sin(), self.convolution(x * 2) * self.row, 2 / self.convolution(x + 1)


class Parts(nn.Module):
    """Numbers that are parts of tensors, or views that no stride describes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3)
        self.numbers = nn.Parameter(torch.rand(6) + 0.5)
        self.weight = nn.Parameter(torch.randn(1, 6))

    def forward(self, x: torch.Tensor) -> Any:
        n, convolution = self.numbers, self.convolution
        shuffled = n.view(2, 3).t().reshape(6, 1, 1)
        rows = x.flatten(0, 2)
        return (
            convolution(x) * n[0],
            convolution(x + 1) - n[3:4, None, None],
            convolution(x + 2) * shuffled,
            convolution(x + 3) * n.flip(0)[:, None, None],
            rows @ self.weight.expand(8, 6) * n,
            rows @ self.weight.expand(8, 6).sin() + n[1],
        )


FOLDED = {
    "parts": Parts,
    "2d": lambda: normalised(nn.Conv2d(3, 5, 3, padding=1), 5),
    "without bias": lambda: normalised(nn.Conv2d(3, 5, 3, bias=False), 5),
    "plain norm": lambda: normalised(nn.Conv2d(3, 5, 3), 5, affine=False),
    "groups": lambda: normalised(nn.Conv2d(3, 6, 3, groups=3), 6),
    "transposed": lambda: normalised(nn.ConvTranspose2d(3, 5, 3), 5),
    "arithmetic": Arithmetic,
    "read elsewhere": Read,
}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_follows_a_convolution_by_channel(name: str, dtype: torch.dtype) -> None:
    model = FOLDED[name]().to(dtype)
    program = compiled(model, check=True, debug_checks=True)
    for shape in ((2, 3, 8, 8), (1, 3, 8, 8)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad():
            got, want = program(x), model(x)
            exact = copy.deepcopy(model).double()(x.double())
        for mine, its, reference in zip(*map(_several, (got, want, exact)), strict=True):
            assert mine.stride() == its.stride()
            ours, theirs = ((y.double() - reference).norm() for y in (mine, its))
            assert ours <= 1.5 * theirs + 2e-6 * reference.norm()


class NormalisedLinear(nn.Module):
    """A batch norm of two dims behind a linear layer, and a number behind another."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 5, bias=bias), nn.Linear(8, 5, bias=bias)
        self.norm = nn.BatchNorm1d(5)
        with torch.no_grad():
            self.norm.running_mean.normal_()  # type: ignore[union-attr]
            self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.first(x)).relu(), self.second(x) * 2


LAYERS = {
    "1d": (lambda: normalised(nn.Conv1d(3, 5, 3), 5), (2, 3, 9), 1),
    "3d": (lambda: normalised(nn.Conv3d(3, 5, 3, bias=False), 5), (2, 3, 5, 5, 5), 1),
    "transposed": (lambda: normalised(nn.ConvTranspose2d(3, 5, 3, 2), 5), (2, 3, 6, 6), 1),
    "transposed 1d": (lambda: normalised(nn.ConvTranspose1d(3, 5, 3), 5), (2, 3, 6), 1),
    "groups": (lambda: normalised(nn.ConvTranspose2d(4, 6, 3, groups=2), 6), (2, 4, 6, 6), 0),
    "linear": (lambda: NormalisedLinear(True).eval(), (7, 8), 1),
    "product": (lambda: NormalisedLinear(False).eval(), (7, 8), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_take_over_a_batch_norm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, shape, folded = LAYERS[name]
    counts: list[int] = []
    fold = fold_affine._Folding.fold
    monkeypatch.setattr(fold_affine._Folding, "fold", lambda *args: counts.append(1) or fold(*args))
    model = build()
    program = compiled(model, check=True, debug_checks=True)
    for _ in range(2):
        x = torch.randn(shape)
        with torch.no_grad():
            for mine, its in zip(_several(program(x)), _several(model(x)), strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
                assert mine.stride() == its.stride()
    assert len(counts) == folded


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_a_batch_norm_is_in_the_weights() -> None:
    model = normalised(nn.Conv2d(3, 5, 3), 5)
    with torch.no_grad():
        report = str(flambeau.explain(model, options={"freezing": True})(torch.randn(2, 3, 8, 8)))
    assert "rsqrt" not in report and "mul" not in report


def test_steps_of_fused_optimizers() -> None:
    """Which move no version counter; neither do steps of others' parameters."""
    model, other = trained(), nn.Linear(3, 3)
    function = compiled(model)
    compare(function, model)
    for make in (torch.optim.SGD, torch.optim.AdamW):
        for module in (other, model):
            optimizer = make(module.parameters(), lr=0.1, fused=True)
            for parameter in module.parameters():
                parameter.grad = torch.randn_like(parameter)
            before = compare(function, model)[2]
            optimizer.step()
            assert torch.equal(compare(function, model)[2], before) is (module is other)


def test_compiled_steps_of_optimizers() -> None:
    """The hook that counts fused steps breaks no graph of a step."""
    model = trained()
    function = compiled(model)
    compare(function, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = flambeau.compile(optimizer.step)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        step()
        compare(function, model)
    assert [one.ends for one in flambeau.explain(step).graphs] == [""]


def test_statistics_of_a_batch_norm_in_training() -> None:
    model = trained()
    function = compiled(model)
    compare(function, model)
    for _ in range(2):
        model.norm.train()
        model.norm(torch.randn(3, 4, 5, 5) * 3 + 1)
        model.norm.eval()
        compare(function, model)
