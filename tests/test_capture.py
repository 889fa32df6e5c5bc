"""From a module or a ``.pt2`` to a program and its reference data."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from build import sources
from build.archive import load_program, save_program
from build.cache import ROOT
from build.capture.checks import odd_weights, refuse_training_mode
from build.capture.export import export_module
from build.capture.run import capture
from build.capture.sizes import example_sizes, size_points
from build.content_hash import content_hash
from build.errors import InputError
from build.program import call, op_name, op_nodes, signature_of
from build.record import read_record
from build.verify.check import reference_calls
from targets.contract import DynamicDim, Signature, TensorSpec
from tests.capture_support import BATCH, Net, labelled, program_source, save


def test_example_batch_of_one_stays_dynamic() -> None:
    program, example, symbols = export_module(Net(), {"x": torch.randn(1, 4)}, {"x": {0: BATCH}})
    (dim, _) = signature_of(program).inputs[0].shape
    assert isinstance(dim, DynamicDim)
    assert (dim.lo, dim.hi) == (1, 64)
    assert example["x"].shape[0] == 2
    assert list(symbols.values()) == ["batch"]


def test_two_inputs_that_share_a_batch_of_one() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cat([a, b], 1)

    program, _, _ = export_module(
        Two(), {"a": torch.randn(1, 2), "b": torch.randn(1, 3)}, {"a": {0: BATCH}, "b": {0: BATCH}}
    )
    a, b = (s.shape[0] for s in signature_of(program).inputs)
    assert isinstance(a, DynamicDim)
    assert a == b


def test_eval_mode_is_enforced() -> None:
    module = Net().train()
    program, _, _ = export_module(module, {"x": torch.randn(2, 4)}, {"x": {0: BATCH}})
    refuse_training_mode(program)
    assert not module.training


def test_a_dimension_that_the_code_fixes_is_named() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(5, 4) * 2

    with pytest.raises(InputError, match=r"dimension 0 of input 'x' \(batch\).*fixes it at 5") as caught:
        export_module(Fixed(), {"x": torch.randn(5, 4)}, {"x": {0: BATCH}})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("module", "shape", "says"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (2, 4), "drops values at random"),
        (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (4, 2, 6, 6), "batch's own statistics"),
        (nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)), (2, 4), "drops values at random"),
    ],
)
def test_a_program_captured_in_training_mode_is_refused(
    tmp_path: Path, module: nn.Module, shape: tuple[int, ...], says: str
) -> None:
    path = save(torch.export.export(module.train(), (torch.randn(*shape),)), tmp_path / "p.pt2")
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(InputError, match=says) as caught:
        capture(program_source(path), folder, lambda stage: None)
    assert "model.eval()" in (caught.value.remedy or "")
    assert list(folder.iterdir()) == []


def test_batch_norm_without_running_statistics_is_not_training_mode() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False)).eval()
    refuse_training_mode(torch.export.export(module, (torch.randn(4, 4),)))


def test_reference_data_covers_bounds_and_unseen_sizes(tmp_path: Path) -> None:
    program, _, _ = export_module(Net(), {"x": torch.randn(3, 4)}, {"x": {0: BATCH}})
    path = tmp_path / "net.pt2"
    save_program(program, path)
    folder = tmp_path / "out"
    folder.mkdir()
    record = capture(program_source(path), folder, lambda stage: None)
    sizes = {next(iter(c.sizes.values())) for c in record.calls}
    assert {1, 3, 7, 64} <= sizes
    assert read_record(folder) == record
    run = call(program)
    for _, inputs, outputs in reference_calls(folder, record):
        (want,) = run([torch.from_numpy(inputs["x"])])
        assert torch.equal(torch.from_numpy(outputs["output"]), want)
    assert any("made-up inputs" in w for w in record.warnings)


def test_size_points_of_two_symbols() -> None:
    shape = (DynamicDim(symbol="b", lo=1, hi=16), DynamicDim(symbol="t", lo=2, hi=24))
    signature = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=shape),), outputs=())
    points = [tuple(p.sizes[s] for s in "bt") for p in size_points(signature, {"b": 2, "t": 5}, {"t": [9]})]
    assert {(1, 2), (16, 24), (16, 2), (1, 24), (7, 7), (7, 9)} == set(points)
    assert example_sizes(signature, {"x": (3, 8)}) == {"b": 3, "t": 8}


def test_a_range_the_program_cannot_take_is_an_input_error(tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.randn(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.index_select(self.p, 0, torch.arange(x.shape[0]))

    program = torch.export.export(Table(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: Dim("n", min=1, max=32)}})
    path = tmp_path / "table.pt2"
    save_program(program, path)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(InputError, match=r"the program itself fails on call 'upper-"):
        capture(program_source(path), folder, lambda stage: None)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, k: Any = None) -> torch.Tensor:
        return x if k is None else x * k


@pytest.mark.parametrize("value", [3, 0.5, True, "k", [torch.ones(1)]])
def test_an_example_that_is_no_tensor_is_refused_by_name(value: Any) -> None:
    with pytest.raises(
        InputError, match=rf"example input 'k' is of type {type(value).__name__}.*not a tensor"
    ) as found:
        export_module(Scaled(), {"x": torch.randn(1, 4), "k": value}, None)
    assert found.value.remedy


def test_none_for_an_input_that_may_be_left_out_is_left_out() -> None:
    program, example, _ = export_module(Scaled(), {"x": torch.randn(1, 4), "k": None}, None)
    assert [s.name for s in signature_of(program).inputs] == list(example) == ["x"]


def test_nan_in_weights_and_data_is_a_warning_and_a_mask_of_infinities_is_not(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, float("nan")]))
            self.scale = nn.Parameter(torch.tensor([1.0, float("inf")]))
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight * self.scale + self.mask

    assert odd_weights(torch.export.export(Masked(), (torch.randn(2),))) == [
        "weight 'weight' holds NaN",
        "weight 'scale' holds infinity",
    ]
    source = labelled(tmp_path, [None, None], fill=float("nan"))
    record = capture(source, tmp_path / "out", lambda stage: None)
    assert any(w.startswith("2 of 2 evaluation calls hold NaN (call '0', input 'input')") for w in record.warnings)


def test_a_size_that_only_a_guard_leaves_out_says_how_to_go_on(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[:, ::2] + y

    half = Dim("half", min=1, max=9)
    shapes = {"x": {1: 2 * half}, "y": {1: half}}
    program = torch.export.export(Halves(), (torch.randn(2, 6), torch.randn(2, 3)), dynamic_shapes=shapes)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"the program itself fails on call 'lower-0'.*Guard failed") as caught:
        capture(program_source(save(program, tmp_path / "p.pt2")), tmp_path / "out", lambda stage: None)
    assert "lower bound of that dimension to 2" in (caught.value.remedy or "")


_TORCHAO = """
import torch
import torchao.quantization as q


def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    q.quantize_(model, q.Int8WeightOnlyConfig())
    return model, (torch.randn(3, 8),)
"""


def test_weights_in_tensor_subclasses_are_captured_as_plain_tensors(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_TORCHAO)
    (tmp_path / "out").mkdir()
    job = {"kind": "module", "name": "net", "key": "k", "path": str(tmp_path / "net.py"), "factory": "make"}
    record = capture(job, tmp_path / "out", lambda stage: None)
    program = load_program(tmp_path / "out" / "program.pt2")  # nothing in it has to be unpickled
    assert content_hash(program) == record.sha256
    assert not any("subclass" in op_name(n) for n in op_nodes(program))
    assert torch.int8 in {t.dtype for t in program.state_dict.values()}


@pytest.mark.parametrize("equal", [True, False])
def test_what_export_says_of_a_dimension_is_cut_to_what_helps(equal: bool) -> None:
    class Add(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y if equal else (x * 2 if x.shape[0] % 4 == 0 else x) + y.sum()

    shapes = {"x": {0: BATCH}, "y": {0: Dim("other", min=1, max=64)}}
    with pytest.raises(InputError) as found:
        export_module(Add(), {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}, shapes)
    said = str(found.value)
    assert ("batch and other" in said or "other and batch" in said) if equal else "dimension batch" in said
    assert "draft_export" not in said
    assert "TORCH_LOGS" not in said
    assert len(said) < 400


#: Imported by capture, and of no influence on what it writes: errors, processes and their messages, hashes of files,
#: and the table of our own models (the key of a model hashes all of ``models``).
_NO_INFLUENCE = frozenset(
    f"{name}.py" for name in ("build/cache", "build/errors", "build/log", "build/protocol", "build/shell")
) | {"models/registry.py"}


def _imports(path: Path) -> set[Path]:
    """The files of ours that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    places = [ROOT / name.replace(".", "/") for name in names if name.split(".")[0] in ("build", "models", "targets")]
    return {p for place in places for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()}


def test_the_key_of_a_captured_program_covers_all_the_code_that_makes_it() -> None:
    found, waiting = set(), set((ROOT / "build/capture").glob("*.py"))
    while waiting:
        path = waiting.pop()
        name = str(path.relative_to(ROOT))
        if name in _NO_INFLUENCE or path in found:
            continue
        found.add(path)
        waiting |= _imports(path)
    listed = [ROOT / name for name in sources._CAPTURE_CODE]
    assert all(path.exists() for path in listed)
    missing = {
        str(p.relative_to(ROOT))
        for p in found
        if p.read_text().count("\n") > 1 and not any(p == at or at in p.parents for at in listed)
    }
    assert missing == set()
