"""The ORT Web target: names, bounds, dtypes, bytes, refusals and ONNX Runtime's quiet faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import InputError, LoweringError, VerificationError
from targets import ort_web
from targets.checks import signature_from_json
from targets.onnx_web import model as onnx_model
from tests.lowering_support import Made, check, lowered, program_of, refused

pytestmark = pytest.mark.slow


@pytest.fixture
def batch() -> Any:
    import torch

    return torch.export.Dim("batch", min=1, max=8)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Made]:
    """One linear layer, dynamic batch: its program, its artifact's folder, its artifact."""
    import torch

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("linear")
    batch = torch.export.Dim("batch", min=1, max=8)
    program = program_of(torch.nn.Linear(6, 3), (torch.randn(2, 6),), folder, ({0: batch},))
    return program, folder / "a", lowered(ort_web, program, folder / "a")


def test_a_cnn_keeps_names_bounds_and_values(tmp_path: Path, batch: Any) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    program = program_of(model, (torch.randn(2, 1, 8, 8),), tmp_path, ({0: batch},))
    made = lowered(ort_web, program, tmp_path / "a")
    check(made, [[torch.randn(n, 1, 8, 8)] for n in (1, 2, 8)], 1e-5)
    assert made.runner.signature() == made.signature
    assert made.lowered.files == ("model.onnx",)
    assert made.lowered.coverage.delegated > 0
    assert not made.lowered.narrowed
    for size in (0, 9, 40):
        with pytest.raises(InputError, match=r"outside the program's range 1\.\.8"):
            made.runner.run({"input": np.zeros((size, 1, 8, 8), np.float32)})


def test_bounds_and_dtypes_are_in_the_metadata(tmp_path: Path, batch: Any) -> None:
    import onnx
    import torch

    dtypes = (torch.float32, torch.int64, torch.int32, torch.bool)
    example = tuple(torch.ones(2, 3, dtype=d) for d in dtypes)
    program = program_of(lambda a, b, c, d: (a + 1, b + 1, c + 1, ~d), example, tmp_path, ({0: batch},) * 4)
    made = lowered(ort_web, program, tmp_path / "a")
    check(made, [list(example), [t[:1] for t in example]], 0)
    model = onnx.load(tmp_path / "a" / "model.onnx")
    (kept,) = [p.value for p in model.metadata_props if p.key == onnx_model.METADATA_KEY]
    assert signature_from_json(kept) == made.signature
    assert [t.dtype for t in made.signature.outputs] == ["float32", "int64", "int32", "bool"]
    first = json.loads(kept)["inputs"][0]["shape"][0]
    assert (first["lo"], first["hi"]) == (1, 8)
    assert [v.name for v in model.graph.input] == [s.name for s in made.signature.inputs]
    assert [v.name for v in model.graph.output] == ["output_0", "output_1", "output_2", "output_3"]


def test_two_lowerings_give_the_same_bytes(tmp_path: Path, linear: tuple[Path, Path, Made]) -> None:
    program, folder, a = linear
    b = lowered(ort_web, program, tmp_path / "b")
    assert a.lowered.files == b.lowered.files
    for name in a.lowered.files:
        assert (folder / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_nothing_of_the_builder_is_in_the_file(linear: tuple[Path, Path, Made]) -> None:
    import onnx
    import torch

    program, folder, _ = linear
    content = (folder / "model.onnx").read_bytes()
    here = Path(__file__).resolve()
    for trace in (here.name, str(here.parent.parent), str(Path(torch.__file__).parent), str(program.parent), ".py"):
        assert trace.encode() not in content
    model = onnx.load_from_string(content)
    assert not any(n.doc_string or n.metadata_props for n in model.graph.node)


def test_fp16_halves_the_size_but_keeps_weights_beyond_its_range(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Linear(128, 8, bias=False))
    with torch.no_grad():
        model[1].weight[0, 0] = 1e6
    program = program_of(model, (torch.randn(2, 256),), tmp_path)
    full, half = lowered(ort_web, program, tmp_path / "a"), lowered(ort_web, program, tmp_path / "b", "fp16")
    check(half, [[torch.randn(2, 256)]], 5e-3)
    assert len(half.lowered.warnings) == 1
    assert "beyond float16's range" in half.lowered.warnings[0]
    sizes = [(tmp_path / d / "model.onnx").stat().st_size for d in "ab"]
    assert sizes[1] < 0.6 * sizes[0]
    assert half.runner.signature() == full.runner.signature()


def test_an_unknown_precision_is_refused(tmp_path: Path, linear: tuple[Path, Path, Made]) -> None:
    with pytest.raises(InputError, match="int3"):
        lowered(ort_web, linear[0], tmp_path / "a", "int3")


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
    made = lowered(ort_web, program, tmp_path / "a")
    check(made, [list(example), [torch.randn(5, 3), *example[1:]]], 0)
    assert [s.name for s in made.signature.inputs] == ["x", "unused", "flag"]


def test_an_output_named_like_an_input_is_refused(tmp_path: Path) -> None:
    import torch

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"x": x * 2}

    program = program_of(Model(), (torch.randn(3),), tmp_path)
    assert "an input has the same name" in refused(ort_web, program)
    assert "output 'x'" in refused(ort_web, program, "subject")
    with pytest.raises(LoweringError, match="an input has the same name") as error:
        lowered(ort_web, program, tmp_path / "a")
    assert error.value.remedy


def test_names_of_the_program_win_over_the_converters(tmp_path: Path) -> None:
    """The exporter names values after ops; an output named ``add`` must still be the program's ``add``."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, mul: Any) -> Any:
            first = mul + 1
            return {"mul_1": first, "add": first * mul, "val_0": first - 3}

    x = torch.randn(3)
    made = lowered(ort_web, program_of(Model(), (x,), tmp_path), tmp_path / "a")
    check(made, [[x]], 1e-6)


def test_integer_arithmetic_on_negatives_and_beyond_32_bits(tmp_path: Path) -> None:
    import torch

    def arithmetic(x: Any) -> Any:
        return x // 3, x % 3, (x << 3) + (x & 6), x.float().mean(1), x.cumprod(1), x * 2**33

    x = torch.tensor([[-7, -6, -1, 0, 1, 7]])
    check(lowered(ort_web, program_of(arithmetic, (x,), tmp_path), tmp_path / "a"), [[x]], 1e-6)


def test_quiet_faults_of_the_bare_converter_are_mended(tmp_path: Path) -> None:
    """Floor division near a boundary, and average pooling with a divisor of its own."""
    import torch
    import torch.nn.functional as F

    def both(a: Any, b: Any, image: Any) -> Any:
        return torch.div(a, b, rounding_mode="floor"), F.avg_pool2d(image, 3, 2, 1, divisor_override=5)

    x, y = torch.tensor([1.0, 0.3, -1.0, 6.0]), torch.tensor([0.1, 0.1, 0.1, 0.2])
    args = (x, y, torch.randn(1, 2, 7, 7))
    check(lowered(ort_web, program_of(both, args, tmp_path), tmp_path / "a"), [list(args)], 1e-5)


def test_nan_is_kept_or_the_op_is_named(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F

    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0], [nan, 2.0, nan], [3.0, 1.0, 2.0]])

    def reduce(v: Any, row: Any) -> Any:
        return *v.max(1), v.amin(0), v.argmin(1), v.argmax(), torch.relu(v), F.max_pool1d(row, 2)

    row = torch.randn(1, 4)
    made = lowered(ort_web, program_of(reduce, (x, row), tmp_path), tmp_path / "a")
    check(made, [[x, row]], 0)
    assert len(made.lowered.nan_unsafe) == 1
    assert made.lowered.nan_unsafe[0].startswith("aten.max_pool1d")


def test_infinity_passes_one_sided_bounds_and_nan_the_largest_magnitude(tmp_path: Path) -> None:
    """ONNX Runtime takes the largest finite number for the bound that a Clip leaves out."""
    import torch
    import torch.nn.functional as F

    x = torch.tensor([[float("inf"), -float("inf"), float("nan")], [1.0, -2.0, float("nan")], [1.0, 0.0, 3.0]])

    def bounds(v: Any) -> Any:
        norm = torch.linalg.vector_norm(v, float("inf"), 1)
        largest = tuple(torch.aminmax(v, dim=1))
        similar = F.cosine_similarity(v, v + 1, 1)
        return v.clamp(min=0.5), v.clamp(max=0.5), v.clamp_min(-1.0), norm, *largest, similar

    made = lowered(ort_web, program_of(bounds, (x,), tmp_path), tmp_path / "a")
    check(made, [[x]], 1e-6)
    assert made.lowered.nan_unsafe == ()


def test_state_random_numbers_and_custom_ops_are_refused(tmp_path: Path) -> None:
    import torch

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.n.add_(1)
            return x + self.n

    x = (torch.randn(3),)
    assert "changes it at each call" in refused(ort_web, program_of(Counter(), x, tmp_path))
    assert "random" in refused(ort_web, program_of(lambda v: v + torch.rand_like(v), x, tmp_path))
    half = (x[0].to(torch.bfloat16),)
    assert "bfloat16" in refused(ort_web, program_of(lambda v: v * 2, half, tmp_path), "subject")


def test_a_converter_error_names_the_op_and_its_line(tmp_path: Path) -> None:
    import torch

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cummax(x, 0)[0]

    program = program_of(Model(), (torch.randn(4),), tmp_path)
    with pytest.raises(LoweringError) as error:
        lowered(ort_web, program, tmp_path / "a")
    assert error.value.op == "aten.cummax.default"
    assert error.value.source is not None
    assert error.value.source.startswith("test_ort_web.py:")
    assert error.value.remedy


def test_large_weights_lie_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(onnx_model, "INLINE_LIMIT", 8)
    program = program_of(torch.nn.Linear(64, 32), (torch.randn(2, 64),), tmp_path)
    made = lowered(ort_web, program, tmp_path / "a")
    assert made.lowered.files == ("model.onnx", "model.onnx.data")
    assert {p.name for p in (tmp_path / "a").iterdir()} == set(made.lowered.files)
    assert (tmp_path / "a" / "model.onnx.data").stat().st_size >= 64 * 32 * 4
    check(made, [[torch.randn(2, 64)]], 1e-5)


def test_a_changed_model_is_refused(tmp_path: Path, linear: tuple[Path, Path, Made]) -> None:
    import onnx

    _, folder, made = linear
    path = tmp_path / "model.onnx"
    whole = (folder / "model.onnx").read_bytes()
    changes: list[Callable[[Any], Any]] = [
        lambda m: m.metadata_props[0].CopyFrom(onnx.StringStringEntryProto(key="other")),
        lambda m: setattr(m.metadata_props[0], "value", m.metadata_props[0].value.replace('"hi":8', '"hi":9')),
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 5),
    ]
    for change in changes:
        model = onnx.load_from_string(whole)
        change(model)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(VerificationError):
            ort_web.load(tmp_path, made.lowered.files, made.signature)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(VerificationError):
        ort_web.load(tmp_path, made.lowered.files, made.signature)


def test_a_multiple_of_eight(tmp_path: Path) -> None:
    import torch

    eights = 8 * torch.export.Dim("n", min=2, max=4)
    program = program_of(lambda v: v.reshape(-1, 8).sum(1), (torch.randn(16),), tmp_path, ({0: eights},))
    made = lowered(ort_web, program, tmp_path / "a")
    check(made, [[torch.randn(24)], [torch.randn(32)]], 1e-5)
    for size in (8, 20, 40):
        with pytest.raises(InputError, match=r"16\.\.32 in steps of 8"):
            made.runner.run({made.signature.inputs[0].name: np.zeros(size, np.float32)})


def test_logarithms_and_pools_at_the_extremes(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F

    def model(x: Any, y: Any) -> Any:
        loss = F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="none")
        sums = (torch.logaddexp(x, x.flip(0)), torch.logaddexp2(x, x.flip(0)), x.logcumsumexp(0))
        pooled = F.max_pool1d(y.masked_fill(y < 9, float("-inf")), 3, 2, 1)
        return F.logsigmoid(x), loss, torch.log1p(x.abs()), torch.expm1(x / 1e4), *sums, pooled

    x = torch.tensor([-1e4, -200.0, -20.0, -1e-6, 0.0, 1e-6, 2.0, 200.0, 1e4])
    inputs = (x, torch.randn(1, 2, 6))
    made = lowered(ort_web, program_of(model, inputs, tmp_path), tmp_path / "a")
    got = made.runner.run({s.name: t.numpy() for s, t in zip(made.signature.inputs, inputs, strict=True)})
    for spec, want in zip(made.signature.outputs, made.reference([t.clone() for t in inputs]), strict=True):
        np.testing.assert_allclose(got[spec.name], want, rtol=1e-4, atol=0, err_msg=spec.name)


def test_sizes_that_only_the_data_decide_may_be_known_to_the_model(tmp_path: Path, batch: Any) -> None:
    import torch

    class Repeated(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.repeat_interleave(torch.tensor([1, 0, 2]), dim=1)

    program = program_of(Repeated(), (torch.randn(2, 3),), tmp_path, ({0: batch},))
    check(lowered(ort_web, program, tmp_path / "a"), [[torch.randn(n, 3)] for n in (1, 5, 8)], 0.0)
