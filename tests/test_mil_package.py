"""Loading packages: what they declare, what is refused, and that faults planted in a saved package are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import InputError, UntrustedInputError, VerificationError
from targets import mil
from tests.mil_support import model_path, operations, rewrite, save_package, specification, weights_path

WEIGHT = np.arange(48, dtype=np.float32).reshape(6, 8) / 10
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def _linear(x: Any) -> Any:
    from coremltools.converters.mil import Builder as mb

    return mb.transpose(x=mb.relu(x=mb.linear(x=x, weight=WEIGHT)), perm=[1, 0])


def _range_types(**options: Any) -> list[Any]:
    import coremltools as ct

    return [ct.TensorType(name="x", shape=(ct.RangeDim(**options), 8))]


def test_static_package_facts(tmp_path: Path) -> None:
    program = mil.load(save_package(tmp_path, _linear, {"x": X}))
    (info,) = program.inputs
    assert (info.name, info.dtype, info.shape) == ("x", "fp32", (2, 8))
    assert [(o.dtype, o.shape) for o in program.outputs] == [("fp32", (6, 2))]
    assert program.op_counts == {"linear": 1, "relu": 1, "transpose": 1}
    assert (program.unsupported, program.specification_version, program.opset_version) == ((), 6, 6)
    (got,) = mil.evaluate(program, {"x": X}).values()
    np.testing.assert_allclose(got, np.maximum(X @ WEIGHT.T, 0).T, rtol=1e-5)


def test_range_of_a_dimension(tmp_path: Path) -> None:
    types = _range_types(lower_bound=2, upper_bound=5, default=3)
    program = mil.load(save_package(tmp_path, _linear, {"x": X}, types=types))
    (info,) = program.inputs
    assert info.shape == (mil.DimRange(lo=2, hi=5), 8)
    assert info.default == (3, 8)
    for n in (2, 4, 5):
        (got,) = mil.evaluate(program, {"x": np.ones((n, 8), np.float32)}).values()
        assert got.shape == (6, n)
    for n in (1, 6):
        with pytest.raises(InputError, match=r"outside the declared \[2\.\.5, 8\]"):
            mil.evaluate(program, {"x": np.ones((n, 8), np.float32)})


def test_enumerated_shapes_allow_nothing_between(tmp_path: Path) -> None:
    import coremltools as ct

    types = [ct.TensorType(name="x", shape=ct.EnumeratedShapes(shapes=[(2, 8), (7, 8)], default=(2, 8)))]
    program = mil.load(save_package(tmp_path, _linear, {"x": X}, types=types))
    (info,) = program.inputs
    assert sorted(info.enumerated) == [(2, 8), (7, 8)]
    assert info.shape == (mil.DimRange(lo=2, hi=7), 8)
    (got,) = mil.evaluate(program, {"x": np.ones((7, 8), np.float32)}).values()
    assert got.shape == (6, 7)
    with pytest.raises(InputError, match="outside the declared"):
        mil.evaluate(program, {"x": np.ones((3, 8), np.float32)})


def test_inputs_must_be_exactly_those_declared(tmp_path: Path) -> None:
    program = mil.load(save_package(tmp_path, _linear, {"x": X}))
    with pytest.raises(InputError, match="takes inputs"):
        mil.evaluate(program, {})
    with pytest.raises(InputError, match="float64"):
        mil.evaluate(program, {"x": X.astype(np.float64)})


def test_fp16_rounds_each_result(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([1000.0, 1.0], np.float32)
    package = save_package(
        tmp_path, lambda x: mb.sub(x=mb.add(x=x, y=np.float32(0.2)), y=np.float32(1000)), {"x": x}, half=True
    )
    (got,) = mil.evaluate(mil.load(package), {"x": x}).values()
    half = np.float16
    want = (x.astype(half) + half(0.2)).astype(half) - half(1000)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    assert got[0] != np.float32(0.2)  # it is 0, for 1000.2 is not an fp16


def test_unknown_operation_is_named(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    spec = specification(package)
    next(o for o in operations(spec) if o.type == "relu").type = "frobnicate"
    rewrite(package, spec)
    program = mil.load(package)
    assert program.unsupported == ("frobnicate",)
    assert program.op_counts["frobnicate"] == 1
    with pytest.raises(VerificationError, match="frobnicate") as caught:
        mil.evaluate(program, {"x": X})
    assert caught.value.op == "frobnicate"


def test_a_changed_weight_changes_the_result(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    (before,) = mil.evaluate(mil.load(package), {"x": X}).values()
    data = bytearray(weights_path(package).read_bytes())
    at = data.index(WEIGHT[3].tobytes())
    data[at : at + 4] = np.float32(50).tobytes()
    weights_path(package).write_bytes(data)
    (after,) = mil.evaluate(mil.load(package), {"x": X}).values()
    assert np.abs(after - before)[3].max() > 1
    np.testing.assert_array_equal(np.delete(after, 3, 0), np.delete(before, 3, 0))


def test_a_swapped_axis_contradicts_the_declared_shape(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    spec = specification(package)
    perm = next(o for o in operations(spec) if o.type == "const" and "perm" in o.outputs[0].name)
    perm.attributes["val"].immediateValue.tensor.ints.values[:] = [0, 1]
    rewrite(package, spec)
    with pytest.raises(VerificationError, match=r"declares fp32\[6, 2\] but the value is \[2, 6\]") as caught:
        mil.evaluate(mil.load(package), {"x": X})
    assert caught.value.op == "transpose"


def test_a_swapped_axis_of_equal_size_changes_the_result(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
    package = save_package(tmp_path, _linear, {"x": x})
    (before,) = mil.evaluate(mil.load(package), {"x": x}).values()
    spec = specification(package)
    perm = next(o for o in operations(spec) if o.type == "const" and "perm" in o.outputs[0].name)
    perm.attributes["val"].immediateValue.tensor.ints.values[:] = [0, 1]
    rewrite(package, spec)
    (after,) = mil.evaluate(mil.load(package), {"x": x}).values()
    np.testing.assert_array_equal(after, before.T)
    assert not np.allclose(after, before)


def test_a_wrong_element_type_is_refused(tmp_path: Path) -> None:
    from coremltools.proto import MIL_pb2

    package = save_package(tmp_path, _linear, {"x": X})
    spec = specification(package)
    relu = next(o for o in operations(spec) if o.type == "relu")
    relu.outputs[0].type.tensorType.dataType = MIL_pb2.DataType.Value("INT32")
    rewrite(package, spec)
    with pytest.raises(VerificationError, match=r"declares int32\[2, 6\] but the value is torch.float32"):
        mil.evaluate(mil.load(package), {"x": X})


def test_the_two_declarations_of_an_input_must_agree(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    spec = specification(package)
    spec.description.input[0].type.multiArrayType.dataType = 131104  # INT32
    rewrite(package, spec)
    with pytest.raises(VerificationError, match="to an app but"):
        mil.load(package)


def test_not_a_package(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no Manifest\.json"):
        mil.load(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "missing", "sentinel"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    path = weights_path(package)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            data[: len(data) - 100] if damage == "truncated" else data.replace(b"\xef\xbe\xad\xde", b"\0" * 4)
        )
    with pytest.raises(UntrustedInputError):
        mil.load(package)


def test_a_damaged_protobuf_is_refused(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    model_path(package).write_bytes(b"\xff" * 50)
    with pytest.raises(UntrustedInputError, match="damaged"):
        mil.load(package)


def test_a_weight_file_outside_the_package_is_refused(tmp_path: Path) -> None:
    package = save_package(tmp_path, _linear, {"x": X})
    spec = specification(package)
    weight = next(
        o for o in operations(spec) if o.type == "const" and o.attributes["val"].WhichOneof("value") == "blobFileValue"
    )
    weight.attributes["val"].blobFileValue.fileName = "@model_path/../../../elsewhere.bin"
    rewrite(package, spec)
    with pytest.raises(UntrustedInputError, match="outside its package"):
        mil.load(package)


BLOBS: dict[str, tuple[str, Any]] = {
    "fp16": ("fp16_data", np.array([0.5, -2.0, 3.25], np.float16)),
    "fp32": ("float_data", np.array([0.1, -2.5e30, 3.0], np.float32)),
    "int4": ("int4_data", np.array([-8, 7, 0, -1, 3], np.int8)),
    "int8": ("int8_data", np.array([-128, 127, 5], np.int8)),
    "int16": ("int16_data", np.array([-(2**15), 2**15 - 1, 5], np.int16)),
    "int32": ("int32_data", np.array([-(2**31), 2**31 - 1, 5], np.int32)),
    "uint1": ("uint1_data", np.array([1, 0, 0, 1, 1, 1, 0, 1, 1, 0], np.uint8)),
    "uint2": ("uint2_data", np.array([3, 0, 1, 2, 1], np.uint8)),
    "uint3": ("uint3_data", np.array([7, 0, 5, 2, 1, 6, 3, 4, 7], np.uint8)),
    "uint4": ("uint4_data", np.array([15, 0, 9], np.uint8)),
    "uint6": ("uint6_data", np.array([63, 0, 33, 21, 7], np.uint8)),
    "uint8": ("uint8_data", np.array([255, 0, 129], np.uint8)),
    "uint16": ("uint16_data", np.array([65535, 0, 258], np.uint16)),
    "uint32": ("uint32_data", np.array([2**32 - 1, 0, 258], np.uint32)),
}


@pytest.mark.parametrize("dtype", BLOBS)
def test_weights_of_every_type_as_coremltools_writes_them(tmp_path: Path, dtype: str) -> None:
    from coremltools.libmilstoragepython import _BlobStorageWriter as Writer

    from targets.mil.blobs import WeightFiles

    suffix, values = BLOBS[dtype]
    writer = Writer(str(tmp_path / "weight.bin"))
    offsets = []
    for array in (values, values[::-1].copy()):
        stored = np.frombuffer(array.tobytes(), np.uint16) if dtype == "fp16" else array
        offsets.append(getattr(writer, f"write_{suffix}")(stored))
    del writer
    files = WeightFiles(tmp_path)
    for offset, want in zip(offsets, (values, values[::-1]), strict=True):
        got = files.read("@model_path/weight.bin", offset, dtype, len(values))
        assert got.dtype == values.dtype
        np.testing.assert_array_equal(got, want)
    wrong = "fp32" if dtype != "fp32" else "fp16"
    with pytest.raises(UntrustedInputError, match=f"declares {wrong}"):
        files.read("weight.bin", offsets[0], wrong, 1)
