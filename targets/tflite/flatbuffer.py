"""A ``.tflite`` flatbuffer as plain objects: read, change, write.

Objects are those of the schema that ships with ai-edge-litert (``ModelT``, ``SubGraphT``, ``TensorT``, ``OperatorT``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from targets.contract import Dim, DynamicDim, Signature, TensorSpec

#: Where the declared signature is kept: a flatbuffer's own dynamic dimension is only -1, without name or bounds.
METADATA = b"edgeport.signature"
#: Alignment of weights in the file, in bytes: what the schema (``force_align``) promises to the kernels that map it.
_ALIGNMENT = 16

#: numpy dtype name -> ``TensorType`` of the schema.
DTYPES: dict[str, int] = {
    "float32": 0,
    "float16": 1,
    "int32": 2,
    "uint8": 3,
    "int64": 4,
    "bool": 6,
    "int16": 7,
    "int8": 9,
    "float64": 10,
    "uint64": 12,
    "uint32": 15,
    "uint16": 16,
}
_DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


def dtype_name(tensor_type: int) -> str:
    """numpy's name of a schema ``TensorType``; the number itself for types numpy has not."""
    return _DTYPE_NAMES.get(tensor_type, f"type{tensor_type}")


def read(content: bytes) -> Any:
    """The flatbuffer as a ``ModelT``."""
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(bytearray(content), 0))


def write(model: Any) -> bytes:
    """Bytes of a ``ModelT``, the same for the same model: weights aligned to 16 bytes, shared ones stored once."""
    import flatbuffers

    _compact(model)
    for buffer in model.buffers:
        _align(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _align(buffer: Any) -> None:
    """Make one buffer pack its data aligned (the generated code aligns bytes to 1)."""
    from ai_edge_litert import schema_py_generated as schema

    data = buffer_bytes(buffer)

    def pack(builder: Any) -> Any:
        vector = None
        if data:
            builder.StartVector(1, len(data), _ALIGNMENT)
            builder.head -= len(data)
            builder.Bytes[builder.head : builder.head + len(data)] = data
            vector = builder.EndVector()
        schema.BufferStart(builder)
        if vector is not None:
            schema.BufferAddData(builder, vector)
        return schema.BufferEnd(builder)

    buffer.Pack = pack


def buffer_bytes(buffer: Any) -> bytes:
    """A buffer's data, empty for a tensor that is computed."""
    return b"" if buffer.data is None else bytes(buffer.data)


def _compact(model: Any) -> None:
    """Keep one copy of each distinct constant, drop what nothing refers to, one empty buffer for computed tensors."""
    from ai_edge_litert import schema_py_generated as schema

    index: dict[bytes, int] = {b"": 0}
    buffers = [schema.BufferT()]

    def place(old: int) -> int:
        data = buffer_bytes(model.buffers[old])
        if data not in index:
            index[data] = len(buffers)
            kept = schema.BufferT()
            kept.data = model.buffers[old].data
            buffers.append(kept)
        return index[data]

    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = place(tensor.buffer)
    for entry in model.metadata or []:
        entry.buffer = place(entry.buffer)
    model.buffers = buffers
    model.metadataBuffer = None


def opcode_name(model: Any, operator: Any) -> str:
    """``RESHAPE``, ``CONV_2D``, …; the custom code of a custom op."""
    code = model.operatorCodes[operator.opcodeIndex]
    builtin = max(code.builtinCode, code.deprecatedBuiltinCode)
    if code.customCode:
        return text(code.customCode)
    return _builtin_names().get(builtin, f"op{builtin}")


def _builtin_names() -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    return {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}


def text(value: Any) -> str:
    """A flatbuffer string as ``str``."""
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value or "")


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The tensor's static shape."""
    return () if tensor.shape is None else tuple(int(d) for d in tensor.shape)


def declared_shape(tensor: Any) -> tuple[int, ...]:
    """The tensor's shape with -1 for what is chosen at run time."""
    signature = tensor.shapeSignature
    return shape_of(tensor) if signature is None or len(signature) == 0 else tuple(int(d) for d in signature)


def name_signature(model: Any, names: Sequence[Sequence[str]], *, key: str) -> None:
    """Name the inputs and outputs of signature ``key``, in the program's order.

    The converter lists them in the order of the graph's arguments and results.
    """
    from ai_edge_litert import schema_py_generated as schema

    definition = next(d for d in model.signatureDefs if text(d.signatureKey) == key)
    graph = model.subgraphs[definition.subgraphIndex]
    for field, tensors, wanted in (("inputs", graph.inputs, names[0]), ("outputs", graph.outputs, names[1])):
        maps = []
        for name, tensor in zip(wanted, tensors, strict=True):
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = name.encode(), int(tensor)
            maps.append(entry)
        setattr(definition, field, maps)


def put_metadata(model: Any, name: bytes, data: bytes) -> None:
    """Set one metadata entry."""
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    model.metadata = [m for m in model.metadata or [] if m.name != name]
    entry = schema.MetadataT()
    entry.name, entry.buffer = name, len(model.buffers)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(data, np.uint8)
    model.buffers.append(buffer)
    model.metadata.append(entry)


def require_runtime(model: Any, version: str) -> None:
    """Raise the oldest runtime that the file asks for, where it asks for an older one than ``version``."""
    name = b"min_runtime_version"
    stated = (get_metadata(model, name) or b"").rstrip(b"\0").decode()

    def order(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".") if part.isdigit())

    if order(stated) < order(version):
        put_metadata(model, name, version.encode().ljust(16, b"\0"))


def get_metadata(model: Any, name: bytes) -> bytes | None:
    """One metadata entry's bytes; None when it isn't there."""
    for entry in model.metadata or []:
        if entry.name == name:
            return buffer_bytes(model.buffers[entry.buffer])
    return None


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """The signature as JSON values: a dynamic dimension is an object with its symbol and bounds."""

    def dim(d: Dim) -> Any:
        if isinstance(d, int):
            return d
        return {"symbol": d.symbol, "lo": d.lo, "hi": d.hi, "scale": d.scale, "offset": d.offset}

    def spec(s: TensorSpec) -> dict[str, Any]:
        return {"name": s.name, "dtype": s.dtype, "shape": [dim(d) for d in s.shape]}

    return {"inputs": [spec(s) for s in signature.inputs], "outputs": [spec(s) for s in signature.outputs]}


def signature_from_json(data: Mapping[str, Any]) -> Signature:
    """The inverse of :func:`signature_to_json`."""

    def dim(d: Any) -> Dim:
        return d if isinstance(d, int) else DynamicDim(**d)

    def specs(items: Any) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name=s["name"], dtype=s["dtype"], shape=tuple(dim(d) for d in s["shape"])) for s in items
        )

    return Signature(inputs=specs(data["inputs"]), outputs=specs(data["outputs"]))


def put_declaration(model: Any, declaration: Mapping[str, Any]) -> None:
    """Store what the file declares of itself (signature, entry points) as its own metadata."""
    put_metadata(model, METADATA, json.dumps(declaration, sort_keys=True).encode())


def get_declaration(model: Any) -> dict[str, Any]:
    """What :func:`put_declaration` stored; empty for a file that we didn't make."""
    data = get_metadata(model, METADATA)
    return {} if data is None else dict(json.loads(data))
