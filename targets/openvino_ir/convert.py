"""From a program to an ``ov.Model`` with the program's names, dtypes and bounds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from targets.contract import Dim, Signature, TensorSpec
from targets.openvino_ir.marks import marking

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: dtype names of numpy -> OpenVINO's.
ELEMENT_TYPES = {
    "bool": "boolean",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    **{f"{u}int{n}": f"{u[:1] or 'i'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}


def partial_shape(spec: TensorSpec) -> Any:
    import openvino as ov

    def dimension(size: Dim) -> Any:
        if isinstance(size, int):
            return ov.Dimension(size)
        return ov.Dimension(size.lo, -1 if size.hi is None else size.hi)

    return ov.PartialShape([dimension(s) for s in spec.shape])


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Down to the ops that OpenVINO's frontend knows: PyTorch's default decompositions but for those that it keeps."""
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose
    from torch.export.decomp_utils import CustomDecompTable

    table = CustomDecompTable()
    for op in ops_to_not_decompose():
        if op in table:
            table.pop(op)
    return program.run_decompositions(table)


def convert(program: ExportedProgram) -> Any:
    """A decomposed program as an ``ov.Model``: ``ov.convert_model`` without its telemetry, and with known sizes kept.

    ``convert_model`` sends a usage report over the network on each call, and makes every dimension dynamic.
    """
    from openvino._offline_transformations import apply_moc_transformations, compress_quantize_weights_transformation
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    # the decoder must outlive the conversion: the frontend keeps no reference of its own
    decoder = TorchFXPythonDecoder(program.module(), dynamic_shapes=False, mark_node_callback=marking())
    model = frontend.convert(frontend.load(decoder))
    apply_moc_transformations(model, cf=False, smart_reshape=True)
    compress_quantize_weights_transformation(model)
    return model


def set_interface(model: Any, signature: Signature) -> None:
    """Names, dtypes and bounds of the program on the converted model.

    Raises:
        LoweringError: the converter lost, added or retyped an input or output.
    """
    counts = (len(model.inputs), len(model.outputs))
    if counts != (len(signature.inputs), len(signature.outputs)):
        raise LoweringError(
            f"OpenVINO made {counts[0]} inputs and {counts[1]} outputs, the program has "
            f"{len(signature.inputs)} and {len(signature.outputs)}",
            op="the program",
            remedy="Return each tensor once, and use each input.",
        )
    for port, spec in (
        *zip(model.inputs, signature.inputs, strict=True),
        *zip(model.outputs, signature.outputs, strict=True),
    ):
        port.get_tensor().set_names({spec.name})
        port.get_node().set_friendly_name(spec.name)
        if port.get_element_type().get_type_name() != ELEMENT_TYPES[spec.dtype]:
            raise LoweringError(
                f"OpenVINO made '{spec.name}' {port.get_element_type()}, the program's is {spec.dtype}",
                op=f"the tensor '{spec.name}'",
                remedy="Cast it explicitly in the model.",
            )
    model.reshape({i: partial_shape(spec) for i, spec in enumerate(signature.inputs)})


def stable_names(model: Any, signature: Signature) -> None:
    """Name nodes by their place in the graph: the converter's own names count up through the whole process."""
    io = {spec.name for spec in (*signature.inputs, *signature.outputs)}
    for i, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        if kind in ("Parameter", "Result") and node.get_friendly_name() in io:
            continue
        base = re.sub(r"(_+\d+)+$", "", node.get_friendly_name().rsplit("/", 1)[-1])
        node.set_friendly_name(f"{base or kind}__{i}")
        for port in node.outputs():
            if not port.get_names() & io:
                port.get_tensor().set_names(set())
        for body in ("get_function", "get_then_body", "get_else_body"):
            inner = getattr(node, body, None)
            if inner is not None:
                stable_names(inner(), Signature(inputs=(), outputs=()))
