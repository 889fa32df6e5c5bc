"""An IR on OpenVINO's CPU plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError
from targets.checks import check_inputs, check_outputs, range_text, signature_from_json
from targets.contract import Coverage, Signature
from targets.openvino_ir.convert import ELEMENT_TYPES, partial_shape
from targets.openvino_ir.limits import check_width

if TYPE_CHECKING:
    from targets.contract import Array

#: where the signature is kept in the IR's ``rt_info``.
RT_INFO = ["edgeport", "signature"]


def compile_model(core: Any, model: Any) -> Any:
    # float32 arithmetic even where the CPU prefers bfloat16: the artifact is compared with float32 PyTorch.
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})


def coverage(compiled: Any) -> Coverage:
    """Nodes of the CPU plugin's execution graph; those of type Reference have no kernel of the plugin's own."""
    fallback: Counter[str] = Counter()
    own = 0
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        kind = str(info["layerType"].astype(str)) if "layerType" in info else ""
        if kind in ("Input", "Output", "Const"):
            continue
        if kind == "Reference":
            fallback[node.get_friendly_name()] += 1
        else:
            own += 1
    return Coverage(
        delegated=own,
        fallback=dict(fallback),
        method="nodes of the CPU plugin's execution graph, reference kernels apart",
    )


def _declared(model: Any) -> Signature:
    """The signature that an IR declares: its own names, dtypes and bounds, with the symbols kept in its rt_info.

    Raises:
        VerificationError: the two disagree.
    """
    if not model.has_rt_info(RT_INFO):
        raise VerificationError("the IR has no edgeport signature in its rt_info")
    kept = signature_from_json(model.get_rt_info(RT_INFO).astype(str))
    for ports, specs in ((model.inputs, kept.inputs), (model.outputs, kept.outputs)):
        names = [sorted(p.get_names()) for p in ports]
        if names != [[s.name] for s in specs]:
            raise VerificationError(f"the IR's names {names} are not {[s.name for s in specs]}")
        for port, spec in zip(ports, specs, strict=True):
            found = port.get_element_type().get_type_name()
            if found != ELEMENT_TYPES[spec.dtype]:
                raise VerificationError(f"the IR declares '{spec.name}' as {found}, not {spec.dtype}")
    for port, spec in zip(model.inputs, kept.inputs, strict=True):
        shape = port.get_partial_shape()
        if shape != partial_shape(spec):
            wanted = [range_text(d) for d in spec.shape]
            raise VerificationError(f"the IR declares '{spec.name}' with shape {shape}, not {wanted}")
    return kept


class OpenVinoRunner:
    """An IR on OpenVINO's CPU plugin, one thread, float32 arithmetic."""

    def __init__(self, model: Any, compiled: Any, runtime: str) -> None:
        self.runtime = runtime
        self._signature = _declared(model)
        self._compiled = compiled

    def signature(self) -> Signature:
        """As the IR declares it."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once, in a request of its own: a failed call can then not return an earlier call's result."""
        import numpy as np
        import openvino as ov

        sizes = check_inputs(self._signature, inputs)
        check_width(inputs)
        request = self._compiled.create_infer_request()
        for i, spec in enumerate(self._signature.inputs):
            request.set_input_tensor(
                i, ov.Tensor(np.ascontiguousarray(inputs[spec.name]).reshape(inputs[spec.name].shape))
            )
        try:
            request.infer()
        except RuntimeError as error:
            raise VerificationError(f"OpenVINO failed on these inputs: {error}") from error
        outputs = {
            spec.name: request.get_output_tensor(i).data.copy() for i, spec in enumerate(self._signature.outputs)
        }
        check_outputs(self._signature, sizes, outputs, self.runtime)
        return outputs
