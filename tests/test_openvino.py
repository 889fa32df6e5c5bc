"""The OpenVINO target: names, bounds, dtypes, bytes, refusals and the CPU plugin's quiet faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import InputError, LoweringError, VerificationError
from targets import openvino
from tests.lowering_support import check, lowered, program_of, refused

pytestmark = pytest.mark.slow


@pytest.fixture
def batch() -> Any:
    import torch

    return torch.export.Dim("batch", min=1, max=8)


def test_a_cnn_keeps_names_bounds_and_values(tmp_path: Path, batch: Any) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    program = program_of(model, (torch.randn(2, 1, 8, 8),), tmp_path, ({0: batch},))
    made = lowered(openvino, program, tmp_path / "a")
    check(made, [[torch.randn(n, 1, 8, 8)] for n in (1, 2, 8)], 1e-5)
    assert made.runner.signature() == made.signature
    assert made.lowered.files == ("model.xml", "model.bin")
    assert made.lowered.coverage.delegated > 0
    assert not made.lowered.narrowed
    for size in (0, 9):
        with pytest.raises(InputError, match=r"outside the program's range 1\.\.8"):
            made.runner.run({"input": np.zeros((size, 1, 8, 8), np.float32)})


def test_two_lowerings_give_the_same_bytes(tmp_path: Path, batch: Any) -> None:
    import torch

    program = program_of(torch.nn.Linear(6, 3), (torch.randn(2, 6),), tmp_path, ({0: batch},))
    a, b = lowered(openvino, program, tmp_path / "a"), lowered(openvino, program, tmp_path / "b")
    assert a.lowered.files == b.lowered.files
    for name in a.lowered.files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_fp16_halves_the_weights(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    program = program_of(torch.nn.Linear(256, 128), (torch.randn(2, 256),), tmp_path)
    full, half = lowered(openvino, program, tmp_path / "a"), lowered(openvino, program, tmp_path / "b", "fp16")
    check(half, [[torch.randn(2, 256)]], 5e-3)
    sizes = [(tmp_path / d / "model.bin").stat().st_size for d in "ab"]
    assert sizes[1] < 0.55 * sizes[0]
    assert half.runner.signature() == full.runner.signature()


def test_every_kind_of_output(tmp_path: Path, batch: Any) -> None:
    """Containers, None, one tensor twice, an input, a weight, a constant, and an input that nothing reads."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(3.0))

        def forward(self, x: Any, unused: Any, flag: Any) -> Any:
            y = x + 1
            return {"y": y, "more": (y, x, None)}, self.table, flag, torch.ones(2, dtype=torch.int64)

    example = (torch.randn(2, 3), torch.randn(2), torch.tensor([True, False]))
    program = program_of(Model(), example, tmp_path, ({0: batch}, None, None))
    made = lowered(openvino, program, tmp_path / "a")
    check(made, [list(example), [torch.randn(5, 3), *example[1:]]], 0)


def test_an_output_named_like_an_input_is_refused(tmp_path: Path) -> None:
    import torch

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"x": x * 2}

    program = program_of(Model(), (torch.randn(3),), tmp_path)
    assert "an input has the same name" in refused(openvino, program)
    assert "output 'x'" in refused(openvino, program, "subject")
    with pytest.raises(LoweringError, match="an input has the same name") as error:
        lowered(openvino, program, tmp_path / "a")
    assert error.value.remedy


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda x: x // 3, [[-7, -6, -1, 0, 1, 7]]),
        (lambda x: x % 3, [[-7, -6, -1, 0, 1, 7]]),
        (lambda x: (x << 3) + (x >> 1), [[-7, -6, -1, 0, 1, 7]]),
        (lambda x: (x & 6) | (x ^ 3), [[-7, -6, -1, 0, 1, 7]]),
    ],
    ids=["floor_divide", "remainder", "shifts", "bitwise"],
)
def test_integer_arithmetic_on_negatives(
    tmp_path: Path, function: Callable[[Any], Any], values: list[list[int]]
) -> None:
    import torch

    program = program_of(function, (torch.tensor(values),), tmp_path)
    check(lowered(openvino, program, tmp_path / "a"), [[torch.tensor(values)]], 0)


def test_floor_division_near_a_boundary(tmp_path: Path) -> None:
    import torch

    x, y = torch.tensor([1.0, 0.3, -1.0, 6.0]), torch.tensor([0.1, 0.1, 0.1, 0.2])
    program = program_of(lambda a, b: torch.div(a, b, rounding_mode="floor"), (x, y), tmp_path)
    check(lowered(openvino, program, tmp_path / "a"), [[x, y]], 0)


def test_average_pooling_in_ceil_mode(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F

    x = torch.randn(1, 2, 7, 7)
    program = program_of(lambda v: F.avg_pool2d(v, 3, 2, 1, ceil_mode=True), (x,), tmp_path)
    check(lowered(openvino, program, tmp_path / "a"), [[x]], 1e-5)


def test_nan_is_kept_or_the_op_is_named(tmp_path: Path) -> None:
    import torch

    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0], [nan, 2.0, nan], [3.0, 1.0, 2.0]])
    kept = lowered(openvino, program_of(lambda v: (*v.max(1), v.amin(0), v.argmin(1)), (x,), tmp_path), tmp_path / "a")
    check(kept, [[x]], 0)
    relu = lowered(openvino, program_of(torch.relu, (x,), tmp_path), tmp_path / "b")
    assert any(name.startswith("aten.relu.default") for name in relu.lowered.nan_unsafe)


def test_integers_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    import torch

    x = torch.arange(4)
    assert "beyond 32 bits" in refused(openvino, program_of(lambda v: v * 2654435761, (x,), tmp_path))
    made = lowered(openvino, program_of(lambda v: v * 3, (x,), tmp_path), tmp_path / "a")
    assert any("32-bit" in line for line in made.lowered.warnings)
    with pytest.raises(InputError, match="32 bits"):
        made.runner.run({made.signature.inputs[0].name: np.array([0, 1, 2, 2**31])})


def test_state_random_numbers_and_complex_are_refused(tmp_path: Path) -> None:
    import torch

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.n.add_(1)
            return x + self.n

    x = (torch.randn(3),)
    assert "changes it at each call" in refused(openvino, program_of(Counter(), x, tmp_path))
    assert "random" in refused(openvino, program_of(lambda v: v + torch.rand_like(v), x, tmp_path))
    assert "random" in refused(openvino, program_of(torch.nn.Dropout(0.5).train(), x, tmp_path))
    assert "complex" in refused(openvino, program_of(lambda v: torch.fft.rfft(v).abs(), x, tmp_path))
    assert "float64" in refused(openvino, program_of(lambda v: v * 2, (x[0].double(),), tmp_path), "subject")


def test_a_converter_error_names_the_op(tmp_path: Path) -> None:
    import torch

    program = program_of(lambda v: torch.mode(v, 0)[0], (torch.randn(4),), tmp_path)
    with pytest.raises(LoweringError) as error:
        lowered(openvino, program, tmp_path / "a")
    assert error.value.op == "aten.mode.default"
    assert error.value.remedy


def test_a_changed_ir_is_refused(tmp_path: Path, batch: Any) -> None:
    import torch

    program = program_of(torch.nn.Linear(6, 3), (torch.randn(2, 6),), tmp_path, ({0: batch},))
    made = lowered(openvino, program, tmp_path / "a")
    xml = tmp_path / "a" / "model.xml"
    xml.write_text(xml.read_text().replace("1..8", "1..7"))
    with pytest.raises(VerificationError):
        openvino.load(tmp_path / "a", made.lowered.files, made.signature)


def test_a_dimension_without_a_maximum_stays_open(tmp_path: Path) -> None:
    import torch

    length = torch.export.Dim("length", min=2)
    program = program_of(torch.nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path, ({0: length},))
    made = lowered(openvino, program, tmp_path / "a")
    assert made.signature.inputs[0].shape[0].hi is None  # type: ignore[union-attr]
    check(made, [[torch.randn(5000, 4)]], 1e-5)


def test_a_multiple_of_eight(tmp_path: Path) -> None:
    import torch

    eights = 8 * torch.export.Dim("n", min=2, max=4)
    program = program_of(lambda v: v.reshape(-1, 8).sum(1), (torch.randn(16),), tmp_path, ({0: eights},))
    made = lowered(openvino, program, tmp_path / "a")
    check(made, [[torch.randn(24)], [torch.randn(32)]], 1e-5)
    for size in (8, 20, 40):
        with pytest.raises(InputError, match=r"16\.\.32 in steps of 8"):
            made.runner.run({made.signature.inputs[0].name: np.zeros(size, np.float32)})


def test_integers_beyond_24_bits_keep_their_digits(tmp_path: Path, batch: Any) -> None:
    """The CPU plugin reduces, compares, selects and divides integers in float32."""
    import torch

    def model(t: Any, u: Any) -> Any:
        return (
            *(t.amax(1), t.amax(1) - t.amin(1), t.sum(1), t.max(), *t.min(1), t.argmax(1), *t.aminmax(dim=1)),
            *(t == t.amax(1, keepdim=True), t < u, t >= u, t != 16777217, torch.where(t - u > 0, t, u)),
            *(t.masked_fill(u > 7, 16777219), t.clamp(-16777217, 16777219), t.relu(), t // 3, t % 7, t % 16777213),
            torch.nn.functional.pad(t, (1, 1), value=16777219),
        )

    t = torch.tensor([[16777217, 16777216, 5, 5, 5, 5], [-16777217, 16777219, -16777219, 7, 33554435, 33554433]])
    u = t.roll(1, 1) + torch.tensor([1, 0, -1, 0, 1, 0])
    wide = torch.randint(-(2**28), 2**28, (5, 6))
    program = program_of(model, (t, u), tmp_path, ({0: batch}, {0: batch}))
    made = lowered(openvino, program, tmp_path / "a")
    for calls in ([t, u], [wide, wide.roll(1, 1)], [t[:1], t[:1] + 1]):
        want = made.reference([c.clone() for c in calls])
        got = made.runner.run({s.name: c.numpy() for s, c in zip(made.signature.inputs, calls, strict=True)})
        for spec, expected in zip(made.signature.outputs, want, strict=True):
            np.testing.assert_array_equal(got[spec.name], expected.numpy(), err_msg=spec.name)


def test_integer_warnings_name_the_limit_and_spare_small_numbers(tmp_path: Path) -> None:
    import torch

    x = torch.arange(6).reshape(2, 3)
    made = lowered(openvino, program_of(lambda v: (v @ v.T, v.sum(1)), (x,), tmp_path), tmp_path / "a")
    assert any("aten.matmul" in w and "2**24" in w for w in made.lowered.warnings)
    assert any("aten.sum" in w and "2**31" in w for w in made.lowered.warnings)
    small = program_of(lambda v: (v > 0).sum(1) * 2, (x,), tmp_path)
    assert not lowered(openvino, small, tmp_path / "b").lowered.warnings


def test_rows_and_windows_of_nothing_but_infinity(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F

    inf = float("inf")

    def model(x: Any, m: Any) -> Any:
        masked = x.masked_fill(~m, -inf)
        low = x.masked_fill(~m, inf)
        pooled = (F.max_pool2d(masked[None], 2), F.max_pool1d(masked, 3, 2, 1))
        return (*masked.max(1), masked.amax(), low.amin(1), low.min(), *low.aminmax(dim=1), *pooled)

    x = torch.randn(4, 6)
    for i, mask in enumerate((torch.zeros(4, 6, dtype=torch.bool), torch.rand(4, 6) < 0.3)):
        made = lowered(openvino, program_of(model, (x, mask), tmp_path), tmp_path / str(i))
        check(made, [[x, mask], [x, torch.ones_like(mask)]], 0)


def test_logarithms_neither_underflow_nor_change_sign(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F

    x = torch.tensor([-1e30, -200.0, -120.0, -20.0, -1e-9, 0.0, 1e-9, 2.0, 20.0, 200.0, float("nan")])

    def model(v: Any) -> Any:
        loss = F.binary_cross_entropy_with_logits(v, torch.zeros_like(v), reduction="none")
        return F.logsigmoid(v), torch.log(F.softplus(v.clamp(-60.0))), torch.log1p(v.abs()), torch.expm1(v / 1e3), loss

    made = lowered(openvino, program_of(model, (x,), tmp_path), tmp_path / "a")
    finite = x[:-1]
    outputs = made.runner.run({made.signature.inputs[0].name: x.numpy()})
    for spec, want in zip(made.signature.outputs, made.reference([x.clone()]), strict=True):
        np.testing.assert_allclose(outputs[spec.name][: len(finite)], want[: len(finite)], rtol=1e-4, atol=0)
    assert np.isnan(outputs[made.signature.outputs[0].name][-1])
