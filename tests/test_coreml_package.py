"""Faults planted in a saved package end in failed verification: the build's own steps, load and compare, see them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.archive import load_program
from build.errors import EdgeportError, VerificationError
from build.program import call
from build.record import PROGRAM, REFERENCE, CallRecord, ProgramRecord
from build.verify.check import limits_for, raise_losses, raise_problems, verify
from targets import coreml
from targets.contract import Signature
from targets.mlpackage.package import WEIGHTS_KEY
from tests.mil_support import operations, rewrite, specification, weights_path
from tests.quantized_support import Quantized, images, quantized, save

PRECISIONS = ("fp32", "fp16", "int8-weight", "int8-static", "int4-weight")


def network() -> Any:
    """A convolution, a swap of two axes of equal size, and a linear layer; ``[n, 3, 8, 8]`` -> ``[n, 5]``."""
    import torch
    from torch import nn

    torch.manual_seed(5)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 32, 3, padding=1)
            self.head = nn.Linear(32 * 64, 5)

        def forward(self, input: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.head(self.conv(input).relu().transpose(2, 3).flatten(1))}

    return Net().eval()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    batch = torch.export.Dim("batch", min=1, max=16)
    return save(network(), (images(4),), tmp_path_factory.mktemp("program"), ({0: batch},))


@pytest.fixture(scope="module")
def built(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Quantized]:
    """Precision -> the artifact, made when first asked for."""
    made: dict[str, Quantized] = {}
    home = tmp_path_factory.mktemp("built")

    def get(precision: str) -> Quantized:
        if precision not in made:
            made[precision] = quantized(coreml, program, home / precision, precision)
        return made[precision]

    return get


def record_in(folder: Path, program: Path, signature: Signature) -> ProgramRecord:
    """What capture leaves behind: a few calls with PyTorch's outputs."""
    from safetensors.numpy import save_file

    reference = call(load_program(program))
    tensors, calls = {}, []
    symbol = next(iter(signature.dynamic_symbols))
    for number, count in enumerate((4, 1, 16, 7)):
        x, name = images(count, seed=number), f"random/{number}"
        tensors[f"{name}/in/input"] = x.numpy()
        tensors[f"{name}/out/scores"] = reference([x])[0].detach().numpy()
        calls.append(CallRecord(id=name, kind="random", sizes={symbol: count}))
    folder.mkdir()
    save_file(tensors, folder / REFERENCE)
    return ProgramRecord(
        name="model",
        key="test",
        sha256="0" * 64,
        signature=signature,
        calls=tuple(calls),
        files={PROGRAM: "0" * 64},
        source={"kind": "model"},
        symbols={symbol: "batch"},
    )


def judge(made: Quantized, folder: Path, precision: str, tmp_path: Path) -> None:
    """What the build does with an artifact after lowering it.

    Raises:
        EdgeportError: as the build would fail.
    """
    record = record_in(tmp_path / "record", made.program, made.signature)
    runner = coreml.load(folder, made.lowered.files, made.signature)
    report = verify(runner, made.lowered, tmp_path / "record", record, limits_for(record, precision, None))
    raise_problems(report)
    raise_losses(report, "coreml", precision)


def copied(made: Quantized, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of an artifact to be damaged: its folder, and its package."""
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made.folder, folder)
    return folder, folder / coreml.PACKAGE


def blobs(data: bytes) -> list[tuple[int, int]]:
    """Offset and size of the data of each weight in a ``weight.bin`` (the records are 64-byte aligned)."""
    found = []
    for at in range(64, len(data) - 24, 64):
        sentinel, _, size, start = struct.unpack_from("<IIQQ", data, at)
        if sentinel == 0xDEADBEEF:
            found.append((start, size))
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_was_built_passes(built: Callable[[str], Quantized], tmp_path: Path, precision: str) -> None:
    made = built(precision)
    judge(made, made.folder, precision, tmp_path)


def change_weights(package: Path, change: Callable[[bytearray], None], *, sealed: bool) -> None:
    """Change the data of the file's largest weight.

    Args:
        sealed: let the package's own hash of its weights follow: what is left is to compare the results.
    """
    data = bytearray(weights_path(package).read_bytes())
    start, size = max(blobs(bytes(data)), key=lambda b: b[1])
    part = data[start : start + size]
    change(part)
    data[start : start + size] = part
    weights_path(package).write_bytes(data)
    if sealed:
        spec = specification(package)
        spec.description.metadata.userDefined[WEIGHTS_KEY] = hashlib.sha256(data).hexdigest()
        rewrite(package, spec)


def _first_bit(part: bytearray) -> None:
    part[0] ^= 1


def _halves_swapped(part: bytearray) -> None:
    middle = len(part) // 2
    part[:] = part[middle:] + part[:middle]


def _one_weight(part: bytearray) -> None:
    struct.pack_into("<f", part, 0, struct.unpack_from("<f", part)[0] + 0.5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_changed_bit_of_a_weight_is_caught(built: Callable[[str], Quantized], tmp_path: Path, precision: str) -> None:
    folder, package = copied(built(precision), tmp_path)
    change_weights(package, _first_bit, sealed=False)
    with pytest.raises(VerificationError, match="the weights are not those that were saved"):
        judge(built(precision), folder, precision, tmp_path)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_weights_are_caught_by_their_results(
    built: Callable[[str], Quantized], tmp_path: Path, precision: str
) -> None:
    folder, package = copied(built(precision), tmp_path)
    change_weights(package, _halves_swapped, sealed=True)
    with pytest.raises(VerificationError, match=r"beyond tolerance|SNR|noise"):
        judge(built(precision), folder, precision, tmp_path)


def test_one_other_weight_is_caught_by_its_result(built: Callable[[str], Quantized], tmp_path: Path) -> None:
    folder, package = copied(built("fp32"), tmp_path)
    change_weights(package, _one_weight, sealed=True)
    with pytest.raises(VerificationError, match=r"output 'scores' has \d+ elements beyond tolerance"):
        judge(built("fp32"), folder, "fp32", tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "int8-static", "int4-weight"])
def test_a_swapped_axis_is_caught(built: Callable[[str], Quantized], tmp_path: Path, precision: str) -> None:
    """The two axes are equally long: no shape gives it away."""
    folder, package = copied(built(precision), tmp_path)
    spec = specification(package)
    (perm,) = [o for o in operations(spec) if o.type == "const" and "perm" in o.outputs[0].name]
    before = list(perm.attributes["val"].immediateValue.tensor.ints.values)
    perm.attributes["val"].immediateValue.tensor.ints.values[:] = range(len(before))
    assert before != list(range(len(before)))
    rewrite(package, spec)
    with pytest.raises(VerificationError, match=r"beyond tolerance|SNR|noise"):
        judge(built(precision), folder, precision, tmp_path)


def _specification_version(spec: Any) -> None:
    spec.specificationVersion = 9


def _later_operations(spec: Any) -> None:
    function = spec.mlProgram.functions["main"]
    function.block_specializations["CoreML8"].CopyFrom(function.block_specializations[function.opset])
    del function.block_specializations[function.opset]
    function.opset = "CoreML8"


def _range(spec: Any) -> None:
    spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges[0].upperBound = 32


def _no_range(spec: Any) -> None:
    spec.description.input[0].type.multiArrayType.ClearField("ShapeFlexibility")


def _default_shape(spec: Any) -> None:
    spec.description.input[0].type.multiArrayType.shape[0] = 99


def _renamed_output(spec: Any) -> None:
    spec.description.output[0].name = "result"


def _renamed_everywhere(spec: Any) -> None:
    spec.description.output[0].name = "result"
    function = spec.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    block.outputs[0] = "result"
    for operation in block.operations:
        for output in operation.outputs:
            if output.name == "scores":
                output.name = "result"


def _element_type(spec: Any) -> None:
    spec.description.output[0].type.multiArrayType.dataType = 131104  # INT32


def _no_target(spec: Any) -> None:
    del spec.description.metadata.userDefined["edgeport.deployment_target"]


def _odd_target(spec: Any) -> None:
    spec.description.metadata.userDefined["edgeport.deployment_target"] = "iOS99"


def _fixed_output(spec: Any) -> None:
    function = spec.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    (output,) = [o for op in block.operations for o in op.outputs if o.name == "scores"]
    output.type.tensorType.dimensions[0].constant.size = 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_specification_version, r"specification version 9, its deployment target iOS17 reads at most 8"),
        (_later_operations, r"operations of CoreML8, which need specification version 9; it has 8"),
        (_range, r"declares 1\.\.32 for dimension 0 of 'input', the program's range is 1\.\.16"),
        (_no_range, r"declares 4\.\.4 for dimension 0 of 'input', the program's range is 1\.\.16"),
        (_default_shape, r"default shape of 'input' that it does not allow"),
        (_renamed_output, r"output result that its program does not give"),
        (_renamed_everywhere, r"declares outputs \['result'\], the program's are \['scores'\]"),
        (_element_type, r"output scores is int32 to an app but fp32"),
        (_no_target, r"does not say which deployment target"),
        (_odd_target, r"'iOS99', which is no deployment target"),
        (_fixed_output, r"declares 4 for dimension 0 of output 'scores', the program's size is 1\.\.16"),
    ],
)
def test_a_package_that_declares_something_else_is_caught(
    built: Callable[[str], Quantized], tmp_path: Path, damage: Callable[[Any], None], message: str
) -> None:
    folder, package = copied(built("fp32"), tmp_path)
    spec = specification(package)
    damage(spec)
    rewrite(package, spec)
    with pytest.raises(EdgeportError, match=message) as caught:
        judge(built("fp32"), folder, "fp32", tmp_path)
    assert isinstance(caught.value, VerificationError)


def test_a_shape_missing_from_a_list_is_caught(tmp_path: Path) -> None:
    import torch

    steps = 8 * torch.export.Dim("n", min=1, max=4)
    program = save(torch.nn.AvgPool1d(4), (torch.randn(2, 3, 16),), tmp_path, ({2: steps},))
    made = quantized(coreml, program, tmp_path / "a", "fp32")
    spec = specification(made.folder / coreml.PACKAGE)
    shapes = spec.description.input[0].type.multiArrayType.enumeratedShapes.shapes
    kept = [list(s.shape) for s in shapes if s.shape[2] != 24]
    del shapes[:]
    for shape in kept:
        shapes.add().shape.extend(shape)
    rewrite(made.folder / coreml.PACKAGE, spec)
    with pytest.raises(VerificationError, match="allows 3 shapes"):
        coreml.load(made.folder, made.lowered.files, made.signature)


def test_what_a_package_needs(built: Callable[[str], Quantized]) -> None:
    found = {p: built(p).lowered.contract["deployment"] for p in PRECISIONS}
    assert {p: d["target"] for p, d in found.items()} == dict.fromkeys(PRECISIONS, "iOS17") | {"int4-weight": "iOS18"}
    assert {p: d["lowest_target_of_its_operations"] for p, d in found.items()} == {
        "fp32": "iOS15",
        "fp16": "iOS15",
        "int8-weight": "iOS16",
        "int8-static": "iOS17",
        "int4-weight": "iOS18",
    }
    assert found["int8-static"]["newer_than_ios15"]["quantize"] == "iOS17"
    assert (found["fp32"]["specification_version"], found["fp32"]["opset"], found["fp32"]["macos"]) == (
        8,
        "CoreML7",
        "14",
    )
