"""A model on ONNX Runtime's CPU provider."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError
from targets.checks import check_inputs, check_outputs, dim_text, signature_from_json
from targets.contract import Signature
from targets.onnx_web.model import METADATA_KEY

if TYPE_CHECKING:
    from targets.contract import Array

#: name, dtype, sizes as text
_Port = tuple[str, str, list[str]]


def session(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _declared(session: Any) -> Signature:
    """The signature that a model declares: its own names, dtypes and sizes, with the bounds kept in its metadata.

    Raises:
        VerificationError: the two disagree.
    """
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise VerificationError("the model has no edgeport signature in its metadata")
    kept = signature_from_json(text)
    for ports, specs in ((session.get_inputs(), kept.inputs), (session.get_outputs(), kept.outputs)):
        found = [(p.name, _numpy_name(p.type), [str(s) for s in p.shape]) for p in ports]
        wanted = [(s.name, s.dtype, [dim_text(d) for d in s.shape]) for s in specs]
        if len(found) != len(wanted) or not all(map(_agree, found, wanted)):
            raise VerificationError(f"the model declares {found}, its metadata {wanted}")
    return kept


def _agree(found: _Port, wanted: _Port) -> bool:
    """Whether two declarations are one. A size that torch leaves to the data (``u0``) may be known to the model."""
    sizes = [w if re.fullmatch(r"u\d+", w) is None else f for f, w in zip(found[2], wanted[2], strict=False)]
    return found[:2] == wanted[:2] and len(found[2]) == len(wanted[2]) and found[2] == sizes


def _numpy_name(onnx_type: str) -> str:
    """``tensor(float)`` -> ``float32``."""
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


class OrtRunner:
    """A model on ONNX Runtime's CPU provider: the same kernels as the wasm build runs in the page."""

    def __init__(self, session: Any, runtime: str) -> None:
        self.runtime = runtime
        self._session = session
        self._signature = _declared(session)

    def signature(self) -> Signature:
        """As the model declares it."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once."""
        sizes = check_inputs(self._signature, inputs)
        names = [spec.name for spec in self._signature.outputs]
        try:
            values = self._session.run(names, dict(inputs))
        except Exception as error:
            raise VerificationError(f"ONNX Runtime failed on these inputs: {error}") from error
        outputs = dict(zip(names, values, strict=True))
        check_outputs(self._signature, sizes, outputs, self.runtime)
        return outputs
