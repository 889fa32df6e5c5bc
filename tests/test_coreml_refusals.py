"""The Core ML target: what it refuses, naming the op and its line, and what of coremltools it leans on."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from build.errors import InputError, LoweringError, VerificationError
from targets import coreml
from targets.contract import DynamicDim
from targets.mlpackage import converters, keywords, package
from tests.coreml_support import Fn, build, export, refusals

R = torch.randn


@pytest.mark.parametrize(
    ("module", "x", "word"),
    [
        (Fn(lambda s, x: x + torch.randn_like(x)), R(3), "random"),
        (Fn(lambda s, x: torch.fft.rfft(x).abs()), R(8), "complex"),
        (Fn(lambda s, x: x * 2), R(3).double(), "float32"),
        (Fn(lambda s, x: x.view(1, 1, 1, 1, 1, 2, 4) + 1), R(2, 4), "dimensions"),
        (Fn(lambda s, x: x.nonzero()), R(4), "depends on the data"),
    ],
)
def test_preflight_refuses_with_source_and_remedy(module: nn.Module, x: torch.Tensor, word: str) -> None:
    found = refusals(export(module, x))
    assert any(word in f.why for f in found), found
    assert all(f.remedy and (f.kind == "dtype" or f.source) for f in found)


def test_preflight_refuses_a_dimension_without_maximum() -> None:
    found = refusals(export(nn.Linear(6, 3), R(2, 6), dynamic=({0: Dim("n", min=1)},)))
    assert [f.kind for f in found] == ["dim"]
    assert "max" in str(found[0].remedy)


@pytest.mark.parametrize("word", ["any", "state", "int32"])
def test_a_reserved_word_as_a_name_is_refused_with_a_remedy(tmp_path: Path, word: str) -> None:
    program = export(Fn(lambda s, x: {word: (x > 0).any(-1)}), R(2, 4))
    found = refusals(program)
    assert [f.subject for f in found] == [f"output '{word}'"]
    assert "another key" in str(found[0].remedy)
    with pytest.raises(LoweringError, match="reserved word") as caught:
        build(program, tmp_path)
    assert caught.value.remedy


def test_a_keyword_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    program = export(Fn(lambda s, x: x + torch.linspace(0, 9, 4, dtype=torch.int64)), R(4))
    with pytest.raises(LoweringError, match="dtype") as caught:
        build(program, tmp_path)
    assert caught.value.op == "aten.linspace.default"
    assert "coreml_support.py" in str(caught.value.source)
    assert caught.value.remedy


def test_the_keyword_table_is_what_coremltools_reads() -> None:
    """The table names no keyword that the installed converter's source does not look up."""
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY
    from coremltools.converters.mil.frontend.torch.utils import sanitize_op_kind

    for name, read in keywords.READ.items():
        kind = sanitize_op_kind(name.replace("aten.", "aten::", 1).removesuffix(".default"))
        source = inspect.getsource(_TORCH_OPS_REGISTRY.name_to_func_mapping[kind])
        assert all(f'"{keyword}"' in source for keyword in read), name


def test_a_converter_failure_names_the_op_and_its_line(tmp_path: Path) -> None:
    program = export(Fn(lambda s, x: torch.polygamma(2, x)), R(4).abs() + 1)
    with pytest.raises(LoweringError, match="polygamma") as caught:
        build(program, tmp_path)
    assert caught.value.op == "aten.polygamma.default"
    assert "coreml_support.py" in str(caught.value.source)


def test_the_registry_of_coremltools_is_restored(tmp_path: Path) -> None:
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY

    before, one = dict(_TORCH_OPS_REGISTRY.name_to_func_mapping), ops.convert_single_node
    with converters.installed(lambda name: None):
        assert _TORCH_OPS_REGISTRY.name_to_func_mapping["log"] is not before["log"]
    assert before == _TORCH_OPS_REGISTRY.name_to_func_mapping
    assert ops.convert_single_node is one


def test_a_package_that_says_something_else_is_refused(tmp_path: Path) -> None:
    program = export(nn.Linear(6, 3), R(2, 6), dynamic=({0: Dim("b", min=1, max=8)},))
    lowered, runner = build(program, tmp_path)
    assert isinstance(runner.signature().inputs[0].shape[0], DynamicDim)
    path = tmp_path / coreml.PACKAGE / package.SPEC
    spec = package.read_spec(tmp_path / coreml.PACKAGE)
    spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges[0].upperBound = 4
    path.write_bytes(spec.SerializeToString(deterministic=True))
    with pytest.raises(VerificationError, match=r"1\.\.4"):
        coreml.load(tmp_path, lowered.files, runner.signature())
    path.write_bytes(b"not a model")
    with pytest.raises(Exception, match=r"model|damaged|read") as caught:
        coreml.load(tmp_path, lowered.files, runner.signature())
    assert hasattr(caught.value, "code")


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="int4"):
        build(export(nn.Linear(6, 3), R(2, 6)), tmp_path, "int4")
