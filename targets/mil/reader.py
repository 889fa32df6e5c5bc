"""Reads an ``.mlpackage`` into the plain graph of ``graph.py``. Of the converter it uses the protobuf classes only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from build.errors import InputError, UntrustedInputError, VerificationError

from .blobs import WeightFiles
from .dtypes import PROTO_NAMES, to_torch, unpack
from .graph import Block, DimRange, Literal, Node, Ref, Slot, ValueInfo, ValueType

_MULTI_ARRAY_TYPES = {"FLOAT32": "fp32", "FLOAT16": "fp16", "INT32": "int32", "INT8": "int8"}
#: element types that cross the interface as they are; coremltools lets others cross as one of these.
INTERFACE_TYPES = frozenset(_MULTI_ARRAY_TYPES.values())


def model_file(package: Path) -> Path:
    """The ``model.mlmodel`` inside a package, as its manifest names it.

    Raises:
        InputError: there is no package there.
        UntrustedInputError: the manifest is damaged or points outside the package.
    """
    manifest = package / "Manifest.json"
    if not manifest.is_file():
        raise InputError(f"{package} is not an .mlpackage: it has no Manifest.json")
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        relative = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
    except (ValueError, KeyError, TypeError) as err:
        raise UntrustedInputError(f"{manifest} does not name the package's model: {err!r}") from err
    data = (package / "Data").resolve()
    path = (data / str(relative)).resolve()
    if not path.is_relative_to(data) or not path.is_file():
        raise UntrustedInputError(f"{manifest} names a model that is not in the package: {relative}")
    return path


def read_specification(path: Path) -> Any:
    """The ``Model`` protobuf of a ``model.mlmodel``.

    Raises:
        UntrustedInputError: the file is not one.
    """
    from coremltools.proto import Model_pb2
    from google.protobuf.message import DecodeError

    specification = Model_pb2.Model()
    try:
        specification.ParseFromString(path.read_bytes())
    except DecodeError as err:
        raise UntrustedInputError(f"{path.name} is damaged: {err}") from err
    kind = specification.WhichOneof("Type")
    if kind != "mlProgram":
        raise InputError(f"{path.name} is a Core ML {kind}, not an ML Program", remedy="Convert with mlprogram.")
    return specification


class GraphReader:
    """Turns protobuf messages into the plain graph, reading weights on the way."""

    def __init__(self, weights: WeightFiles) -> None:
        from coremltools.proto import MIL_pb2

        self._weights = weights
        self._data_types = {number: name for name, number in MIL_pb2.DataType.items()}

    def type(self, proto: Any) -> ValueType:
        """A ``ValueType`` message."""
        kind = proto.WhichOneof("type")
        if kind == "stateType":
            inner = self.type(proto.stateType.wrappedType)
            return ValueType(dtype=inner.dtype, shape=inner.shape, state=True)
        if kind != "tensorType":
            return ValueType(dtype=str(kind).removesuffix("Type"), shape=None)
        tensor = proto.tensorType
        name = self._data_types[tensor.dataType]
        dtype = PROTO_NAMES.get(name, name.lower())
        dims = [int(d.constant.size) if d.WhichOneof("dimension") == "constant" else None for d in tensor.dimensions]
        variadic = any(d.WhichOneof("dimension") == "unknown" and d.unknown.variadic for d in tensor.dimensions)
        return ValueType(dtype=dtype, shape=None if variadic or tensor.rank < 0 else tuple(dims))

    def slot(self, proto: Any) -> Slot:
        """A ``NamedValueType`` message."""
        return Slot(name=proto.name, type=self.type(proto.type))

    def literal(self, proto: Any) -> Literal:
        """A ``Value`` message, with its data."""
        kind = self.type(proto.type)
        if kind.dtype in ("list", "dictionary", "tuple"):
            return Literal(self._collection(proto.immediateValue), kind.dtype)
        shape = kind.shape or ()
        if None in shape:
            raise UntrustedInputError(f"a constant has no fixed shape: {kind}")
        sizes = [int(d) for d in shape if d is not None]
        count = math.prod(sizes)
        if proto.WhichOneof("value") == "blobFileValue":
            blob = proto.blobFileValue
            array = self._weights.read(blob.fileName, int(blob.offset), kind.dtype, count)
            return Literal(to_torch(array.reshape(sizes), kind.dtype), kind.dtype)
        return self._immediate(proto.immediateValue.tensor, kind, sizes, count)

    def _immediate(self, tensor: Any, kind: ValueType, sizes: list[int], count: int) -> Literal:
        form = tensor.WhichOneof("value")
        if form is None:
            if count:
                raise UntrustedInputError(f"a constant {kind} has no value")
            return Literal(to_torch(np.zeros(sizes, np.float32), kind.dtype), kind.dtype)
        values = getattr(tensor, form).values
        if form == "strings":
            strings = list(values)
            return Literal(strings[0] if not sizes else strings, "string")
        array = unpack(values, kind.dtype, count) if form == "bytes" else np.asarray(values)
        if array.size != count:
            raise UntrustedInputError(f"a constant {kind} has {array.size} values")
        return Literal(to_torch(array.reshape(sizes), kind.dtype), kind.dtype)

    def _collection(self, immediate: Any) -> Any:
        form = immediate.WhichOneof("value")
        if form == "dictionary":
            return [(self.literal(e.key).value, self.literal(e.value).value) for e in immediate.dictionary.values]
        return [self.literal(v).value for v in getattr(immediate, form).values]

    def block(self, proto: Any) -> Block:
        """A ``Block`` message."""
        return Block(
            inputs=tuple(self.slot(i) for i in proto.inputs),
            outputs=tuple(proto.outputs),
            nodes=tuple(self._node(o) for o in proto.operations),
        )

    def _node(self, proto: Any) -> Node:
        args: dict[str, tuple[Ref | Literal, ...]] = {}
        for name, argument in proto.inputs.items():
            args[name] = tuple(
                Ref(b.name) if b.WhichOneof("binding") == "name" else self.literal(b.value) for b in argument.arguments
            )
        for name, value in proto.attributes.items():
            if name != "name" and name not in args:
                args[name] = (self.literal(value),)
        outputs = tuple(self.slot(o) for o in proto.outputs)
        label = self.literal(proto.attributes["name"]).value if "name" in proto.attributes else ""
        return Node(
            op=proto.type,
            name=outputs[0].name if outputs else str(label),
            args=args,
            outputs=outputs,
            blocks=tuple(self.block(b) for b in proto.blocks),
        )


def _array_info(name: str, array: Any, dtypes: dict[int, str]) -> ValueInfo:
    default = tuple(int(s) for s in array.shape)
    dtype = _MULTI_ARRAY_TYPES.get(dtypes[array.dataType])
    if dtype is None:
        raise VerificationError(f"{name} is a multi-array of {dtypes[array.dataType]}, which the evaluator cannot hold")
    form = array.WhichOneof("ShapeFlexibility")
    if form == "enumeratedShapes":
        shapes = tuple(tuple(int(s) for s in e.shape) for e in array.enumeratedShapes.shapes)
        sizes = [(min(column), max(column)) for column in zip(*shapes, strict=True)]
        dims = tuple(lo if lo == hi else DimRange(lo=lo, hi=hi) for lo, hi in sizes)
        return ValueInfo(name=name, dtype=dtype, shape=dims, enumerated=shapes, default=default)
    if form == "shapeRange":
        ranges = [(int(r.lowerBound), int(r.upperBound)) for r in array.shapeRange.sizeRanges]
        # the format writes a negative upper bound where there is none
        dims = tuple(lo if lo == hi else DimRange(lo=lo, hi=None if hi < 0 else hi) for lo, hi in ranges)
        return ValueInfo(name=name, dtype=dtype, shape=dims, default=default)
    return ValueInfo(name=name, dtype=dtype, shape=default, default=default)


def described(features: Any) -> tuple[ValueInfo, ...]:
    """The multi-arrays (and states) among the package's declared features.

    Raises:
        VerificationError: a feature is of another kind (an image, a dictionary), which the evaluator does not feed.
    """
    from coremltools.proto import FeatureTypes_pb2

    dtypes = {n: name for name, n in FeatureTypes_pb2.ArrayFeatureType.ArrayDataType.items()}
    found: list[ValueInfo] = []
    for feature in features:
        kind = feature.type.WhichOneof("Type")
        if kind == "multiArrayType":
            found.append(_array_info(feature.name, feature.type.multiArrayType, dtypes))
        elif kind == "stateType":
            found.append(_array_info(feature.name, feature.type.stateType.arrayType, dtypes))
        else:
            raise VerificationError(f"{feature.name} is a {kind}; the evaluator takes and gives multi-arrays only")
    return tuple(found)
