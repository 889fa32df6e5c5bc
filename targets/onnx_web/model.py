"""An ONNX model with the program's names and sizes, the same bytes each time, without traces of the builder."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from targets.checks import dim_text, signature_to_json
from targets.contract import Coverage, LowerRequest, Signature

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FILE = "model.onnx"
DATA_FILE = "model.onnx.data"

#: a protobuf file ends at 2 GiB; above this many bytes of weights they go to ``model.onnx.data``.
INLINE_LIMIT = 1_900_000_000

METADATA_KEY = "edgeport.signature"

#: weights with fewer elements stay float32 in an fp16 artifact: halving a bias saves nothing and costs accuracy.
HALF_MIN_ELEMENTS = 64


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notices (missing torchvision, deprecations, initializer clean-up) off the user's screen."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    levels = {n: logging.getLogger(n).level for n in names}
    for n in names:
        logging.getLogger(n).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for n, level in levels.items():
            logging.getLogger(n).setLevel(level)


def export(program: ExportedProgram, opset: int) -> Any:
    """The program as an onnx ModelProto (weights inside)."""
    import torch

    with _quiet():
        exported = torch.onnx.export(program, (), dynamo=True, opset_version=opset, verbose=False)
        return exported.model_proto


def set_interface(model: Any, signature: Signature) -> None:
    """Give inputs and outputs the program's names and symbols, checking dtypes.

    Raises:
        LoweringError: the exporter lost, added or retyped an input or output.
    """
    graph = model.graph
    counts = (len(graph.input), len(graph.output))
    if counts != (len(signature.inputs), len(signature.outputs)):
        raise LoweringError(
            f"the ONNX exporter made {counts[0]} inputs and {counts[1]} outputs, the program has "
            f"{len(signature.inputs)} and {len(signature.outputs)}",
            op="the program",
            remedy="Return each tensor once, and use each input.",
        )
    pairs = [
        *zip(graph.input, signature.inputs, strict=True),
        *zip(graph.output, signature.outputs, strict=True),
    ]
    _rename(graph, {value.name: spec.name for value, spec in pairs})
    for value, spec in pairs:
        tensor = value.type.tensor_type
        if tensor.elem_type != _element_type(spec.dtype):
            raise LoweringError(
                f"the ONNX exporter made '{spec.name}' element type {tensor.elem_type}, the program's is {spec.dtype}",
                op=f"the tensor '{spec.name}'",
                remedy="Cast it explicitly in the model.",
            )
        del tensor.shape.dim[:]
        for size in spec.shape:
            if isinstance(size, int):
                tensor.shape.dim.add().dim_value = size
            else:
                tensor.shape.dim.add().dim_param = dim_text(size)
        if not spec.shape:
            tensor.shape.SetInParent()


def _element_type(dtype: str) -> int:
    import numpy as np
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def graphs(graph: Any) -> Iterator[Any]:
    """The graph and those nested in its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(inner)


def _rename(graph: Any, wanted: Mapping[str, str]) -> None:
    """Rename values everywhere; a value that happens to have a wanted name gives way."""
    mapping = dict(wanted)
    taken = set(wanted.values())
    for inner in graphs(graph):
        values = [n for node in inner.node for n in node.output] + [t.name for t in inner.initializer]
        for name in values:
            if name in taken and name not in mapping:
                mapping[name] = f"{name}__inner"
    for inner in graphs(graph):
        for node in inner.node:
            node.input[:] = [mapping.get(n, n) for n in node.input]
            node.output[:] = [mapping.get(n, n) for n in node.output]
        for named in (*inner.initializer, *inner.value_info, *inner.input, *inner.output):
            named.name = mapping.get(named.name, named.name)


def halve_weights(model: Any) -> tuple[str, ...]:
    """Store float32 weights in half, each behind a Cast to float32. Those beyond half's range stay as they are."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    kept: list[str] = []
    outputs = {v.name for v in model.graph.output}
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.name in outputs:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < HALF_MIN_ELEMENTS:
            continue
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.array_equal(np.isfinite(half), np.isfinite(values)):
            kept.append(tensor.name)
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}__half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}__half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return tuple(f"weight '{name}' stays float32: it has values beyond float16's range" for name in kept)


def strip(model: Any, request: LowerRequest) -> None:
    """Drop what differs between machines (paths in stack traces) and name nodes by their place; add the signature."""
    model.doc_string = ""
    model.producer_name, model.producer_version = "edgeport", ""
    model.graph.name = re.sub(r"\W", "_", request.model) or "model"
    model.graph.doc_string = ""
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, signature_to_json(request.signature)
    count = 0
    for container in (model.graph, *model.functions):
        for graph in graphs(container):
            for node in graph.node:
                node.name = f"{node.op_type}__{count}"
                node.doc_string = ""
                del node.metadata_props[:]
                count += 1
            del graph.metadata_props[:]
            del graph.value_info[:]
            for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ())):
                if not isinstance(value, str):
                    value.doc_string = ""
                    del value.metadata_props[:]
            for tensor in getattr(graph, "initializer", ()):
                tensor.doc_string = ""
                del tensor.metadata_props[:]


def save(model: Any, directory: Path) -> tuple[str, ...]:
    import onnx

    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size <= INLINE_LIMIT:
        (directory / FILE).write_bytes(model.SerializeToString(deterministic=True))
        return (FILE,)
    onnx.save_model(
        model, directory / FILE, save_as_external_data=True, all_tensors_to_one_file=True, location=DATA_FILE
    )
    return FILE, DATA_FILE


def coverage(model: Any) -> Coverage:
    """All nodes: a session with the CPU provider alone refuses a node that it has no kernel for."""
    ops: Counter[str] = Counter(node.op_type for graph in graphs(model.graph) for node in graph.node)
    return Coverage(
        delegated=sum(ops.values()), method="nodes of the ONNX graph; the CPU provider has a kernel for each"
    )
