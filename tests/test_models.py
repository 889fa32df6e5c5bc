"""The models keep what their specs say, and their weights and data are what they claim to be."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build.errors import InputError, MissingToolError
from models import registry
from models.spec import Call, ModelSpec
from tests.model_support import module_of, spec_of

NAMES = [found.name for found in registry.available()]
ROOT = Path(__file__).resolve().parents[1]


def _dims(spec: ModelSpec) -> dict[tuple[str, int], tuple[str, int, int]]:
    """(input, axis) -> name, minimum and maximum of its Dim."""
    return {
        (name, axis): (dim.__name__, dim.min, dim.max)
        for name, axes in spec.dynamic_shapes().items()
        for axis, dim in axes.items()
    }


def _bytes(call: Call) -> tuple[bytes, ...]:
    return tuple(tensor.numpy().tobytes() for tensor in call.inputs.values())


# The table


def test_a_model_that_is_quantised_already_needs_no_calibration() -> None:
    assert list(spec_of("digits_qat").calibration()) == []
    assert len(spec_of("digits_qat").evaluation()) == 360


def test_an_unknown_name_gets_the_known_ones_and_a_guess() -> None:
    with pytest.raises(InputError) as caught:
        registry.facts("Digits-CN")
    assert "Did you mean 'digits_cnn'?" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(InputError) as caught:
        registry.load("zzz")
    assert "Did you mean" not in str(caught.value)


def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    monkeypatch.setattr(registry, "_TABLE", path)


def test_missing_packages_are_named_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _table(
        tmp_path, monkeypatch, '[m]\nmodule = "models.nowhere"\nsummary = "s"\npackages = ["torch", "no-such-thing"]'
    )
    with pytest.raises(MissingToolError, match="not installed: no-such-thing"):
        registry.load("m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[m]\nmodule = "models.digits_cnn"\nsummary = "s"\npackages = []', "calls itself 'digits_cnn'"),
        ('[m]\nmodule = "models.digits_cnn"\n', "must have exactly the keys"),
        ("[m\n", "not valid TOML"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    _table(tmp_path, monkeypatch, text)
    with pytest.raises(InputError, match=message):
        registry.load("m")


def test_specs_are_read_without_torch_or_any_model_package() -> None:
    code = (
        "import sys; from models import registry; [registry.load(f.name) for f in registry.available()];"
        "print([m for m in ('torch', 'numpy', 'sklearn', 'PIL', 'tokenizers', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Every spec


@pytest.mark.parametrize("name", NAMES)
def test_example_calls_and_forward_agree(name: str) -> None:
    spec, forward = spec_of(name), inspect.signature(module_of(name).forward)
    example = spec.example()
    assert list(example) == list(forward.parameters)
    assert set(spec.dynamic_shapes()) <= set(example)
    dims = _dims(spec)
    for call in [*spec.calibration(), *spec.evaluation()]:
        assert list(call.inputs) == list(example)
        sizes: dict[str, int] = {}
        for key, tensor in call.inputs.items():
            assert tensor.dtype == example[key].dtype
            assert tensor.is_contiguous()
            for axis, (size, model) in enumerate(zip(tensor.shape, example[key].shape, strict=True)):
                dim, lo, hi = dims.get((key, axis), ("", model, model))
                assert lo <= size <= hi, call.id
                assert sizes.setdefault(dim, size) == size or not dim, call.id


@pytest.mark.parametrize("name", [n for n in NAMES if n != "digits_qat"])
def test_calibration_and_evaluation_share_no_input(name: str) -> None:
    spec = spec_of(name)
    calibration, evaluation = spec.calibration(), spec.evaluation()
    assert len(calibration) >= 32
    assert len(evaluation) >= 32
    for calls in (calibration, evaluation):
        assert len({call.id for call in calls}) == len(calls)
    assert not {_bytes(call) for call in calibration} & {_bytes(call) for call in evaluation}


@pytest.mark.parametrize("name", NAMES)
def test_making_the_model_leaves_the_random_numbers_alone(name: str) -> None:
    import torch

    before = torch.get_rng_state()
    spec_of(name).factory()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_what_the_spec_says(name: str) -> None:
    import torch

    spec = spec_of(name)
    module = module_of(name)
    assert not module.training
    with torch.no_grad():
        output = module(**spec.example())
    assert list(spec.output_names) == [spec.output.output]
    assert torch.isfinite(output).all()
    if spec.output.kind == "classes":
        assert output.shape[-1] == len(spec.output.labels) == len(set(spec.output.labels))
    assert (spec.metric == "cosine_agreement") == (spec.output.kind == "embedding")


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_there_exactly_where_accuracy_is_measured(name: str) -> None:
    spec = spec_of(name)
    for call in spec.evaluation():
        assert (call.label is not None) == (spec.metric == "top1_accuracy")
        if call.label is not None:
            assert 0 <= call.label < len(spec.output.labels)
            assert all(tensor.shape[0] == 1 for tensor in call.inputs.values())


@pytest.mark.parametrize("name", NAMES)
def test_sizes_to_verify_lie_inside_declared_dimensions(name: str) -> None:
    spec = spec_of(name)
    dims = {dim: (lo, hi) for dim, lo, hi in _dims(spec).values()}
    assert set(spec.sizes) == set(dims)
    for dim, sizes in spec.sizes.items():
        lo, hi = dims[dim]
        assert sizes
        assert all(lo < size < hi for size in sizes)


#: ops that every exporter and converter knows; nothing data-dependent, random, or asserting.
PLAIN_OPS = {
    *("_to_copy", "adaptive_avg_pool2d", "add", "batch_norm", "clamp", "conv2d", "div", "embedding", "flatten", "gelu"),
    *("hardtanh", "layer_norm", "linear", "matmul", "max_pool2d", "mul", "pad", "relu", "reshape", "select", "slice"),
    *("softmax", "sqrt", "sub", "sum", "sym_size", "transpose", "unsqueeze"),
}


@pytest.mark.parametrize("name", [n if n == "digits_cnn" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_the_export_is_plain_and_keeps_its_range(name: str) -> None:
    import torch

    spec = spec_of(name)
    module, example = module_of(name), dict(spec.example())
    program = torch.export.export(module, (), example, dynamic_shapes=dict(spec.dynamic_shapes()))
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    assert {str(t).split(".")[1] for t in targets} <= PLAIN_OPS
    declared = sorted({(lo, hi) for _, lo, hi in _dims(spec).values()})
    assert sorted((int(r.lower), int(r.upper)) for r in program.range_constraints.values()) == declared
    exported, dims = program.module(), _dims(spec)
    smallest = {place: lo for place, (_, lo, _) in dims.items()}
    largest = {place: hi for place, (_, _, hi) in dims.items()}
    for ends in (smallest, largest):
        inputs = {
            key: _resized(tensor, [ends.get((key, axis), size) for axis, size in enumerate(tensor.shape)])
            for key, tensor in example.items()
        }
        with torch.no_grad():
            torch.testing.assert_close(exported(**inputs), module(**inputs), rtol=0, atol=1e-6)


def _resized(tensor: Any, shape: Sequence[int]) -> Any:
    """The tensor repeated along each axis, then cut."""
    repeats = [-(-new // old) for new, old in zip(shape, tensor.shape, strict=True)]
    return tensor.repeat(repeats)[tuple(slice(0, new) for new in shape)].contiguous()
