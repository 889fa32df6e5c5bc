"""A saved package, run on this host: by Core ML on macOS, by the op-by-op evaluator elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import MissingToolError, UnverifiedError, VerificationError
from targets.checks import check_inputs, check_outputs, range_text, signature_from_json
from targets.contract import DynamicDim, Signature, TensorSpec
from targets.mlpackage import deployment
from targets.mlpackage.features import CARRIER, from_carrier, listed_shapes, to_carrier
from targets.mlpackage.package import check_weights, read_spec
from targets.mlpackage.state import load_initial

if TYPE_CHECKING:
    from targets.contract import Array
    from targets.mil import Program

    Predict = Callable[[dict[str, Array]], Mapping[str, Array]]

#: where the program's signature and the state tensors are kept in the package's own metadata.
SIGNATURE_KEY = "edgeport.signature"
STATE_KEY = "edgeport.state"
#: and the deployment target that it was made for.
TARGET_KEY = "edgeport.deployment_target"

_MIL_NAMES = {"float32": "fp32", "float16": "fp16", "int32": "int32"}


def version() -> str:
    """coremltools's version, without importing the toolchain."""
    from importlib.metadata import version as installed

    return installed("coremltools")


class PackageRunner:
    """Runs a package; state tensors start at their initial values and go from call to call."""

    def __init__(self, package: Path, expected: Signature) -> None:
        from targets.mil import load

        self._program: Program = load(package)
        metadata = read_spec(package).description.metadata.userDefined
        if SIGNATURE_KEY not in metadata:
            raise VerificationError(f"{package.name} does not hold the program's signature")
        check_weights(package, metadata)
        if TARGET_KEY not in metadata:
            raise VerificationError(f"{package.name} does not say which deployment target it is for")
        deployment.check(self._program, metadata[TARGET_KEY], package.name)
        self._signature = signature_from_json(metadata[SIGNATURE_KEY])
        self._states: list[dict[str, Any]] = json.loads(metadata.get(STATE_KEY, "[]"))
        self._declared(package.name)
        self._expected = expected
        self._state = load_initial(package.parent) if self._states else {}
        self.runtime = f"mil-evaluator (coremltools {version()})"
        self._predict: Predict = self._evaluate
        if sys.platform == "darwin":
            self._predict = _core_ml(package)
            self.runtime = f"Core ML (coremltools {version()})"

    def _evaluate(self, inputs: dict[str, Array]) -> Mapping[str, Array]:
        from targets.mil import evaluate

        if self._program.unsupported:
            raise UnverifiedError(
                f"the evaluator does not know the operations {', '.join(self._program.unsupported)}",
                op=self._program.unsupported[0],
                remedy="Verify the package on a Mac.",
            )
        return evaluate(self._program, inputs)

    def _declared(self, name: str) -> None:
        """Compare what the package declares with the signature it carries.

        Raises:
            VerificationError: a name, element type or range differs.
        """
        hidden_in = {s["input"] for s in self._states}
        hidden_out = {s["output"] for s in self._states}
        inputs = [i for i in self._program.inputs if i.name not in hidden_in]
        outputs = [o for o in self._program.outputs if o.name not in hidden_out]
        for kind, found, wanted in (
            ("inputs", [i.name for i in inputs], [t.name for t in self._signature.inputs]),
            ("outputs", [o.name for o in outputs], [t.name for t in self._signature.outputs]),
        ):
            if found != wanted:
                raise VerificationError(f"{name} declares {kind} {found}, the program's are {wanted}")
        for info, spec in zip((*inputs, *outputs), (*self._signature.inputs, *self._signature.outputs), strict=True):
            if info.dtype != _MIL_NAMES[CARRIER[spec.dtype]]:
                raise VerificationError(f"{name} declares '{info.name}' as {info.dtype}, not {CARRIER[spec.dtype]}")
        for info, spec in zip(inputs, self._signature.inputs, strict=True):
            self._same_range(name, info, spec)
        for info, spec in zip(outputs, self._signature.outputs, strict=True):
            _fits_output(name, info, spec)

    def _same_range(self, name: str, info: Any, spec: TensorSpec) -> None:
        wanted = spec.shape or (1,)
        if len(info.shape) != len(wanted):
            raise VerificationError(f"{name} declares '{info.name}' with {len(info.shape)} dimensions")
        for axis, (found, size) in enumerate(zip(info.shape, wanted, strict=True)):
            lo, hi = (size.lo, size.hi) if isinstance(size, DynamicDim) else (size, size)
            bounds = (found, found) if isinstance(found, int) else (found.lo, found.hi)
            if bounds != (lo, hi):
                raise VerificationError(
                    f"{name} declares {bounds[0]}..{bounds[1]} for dimension {axis} of '{info.name}', "
                    f"the program's range is {lo}..{hi}"
                )
        listed = listed_shapes(self._signature, spec)
        if info.enumerated and {tuple(s) for s in listed or []} != set(info.enumerated):
            raise VerificationError(f"{name} allows {len(info.enumerated)} shapes of '{info.name}': {info.describe()}")
        if info.default and not info.allows(info.default):
            raise VerificationError(
                f"{name} has a default shape of '{info.name}' that it does not allow: {info.default}"
            )

    def signature(self) -> Signature:
        """The signature that the package holds; its names, types and ranges were compared with what it declares."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once.

        Raises:
            InputError: an input lies outside the declared range, or holds an integer beyond 32 bits.
            VerificationError: the runtime returned something that is not a result.
        """
        sizes = check_inputs(self._signature, inputs)
        feeds = {t.name: to_carrier(t, inputs[t.name]) for t in self._signature.inputs}
        for state in self._states:
            spec = TensorSpec(name=state["input"], dtype=state["dtype"], shape=tuple(state["shape"]))
            feeds[state["input"]] = to_carrier(spec, self._state[state["input"]])
        results = self._predict(feeds)
        for state in self._states:
            spec = TensorSpec(name=state["output"], dtype=state["dtype"], shape=tuple(state["shape"]))
            self._state[state["input"]] = from_carrier(spec, results[state["output"]])
        found = {t.name: from_carrier(t, results[t.name]) for t in self._signature.outputs if t.name in results}
        check_outputs(self._expected, sizes, found, self.runtime)
        return found


def _fits_output(name: str, info: Any, spec: TensorSpec) -> None:
    """An output's rank and fixed sizes, where the program has them.

    Raises:
        VerificationError: they differ.
    """
    fixed = [d if isinstance(d, int) else None for d in info.shape]
    wanted = spec.shape or tuple(1 for _ in fixed[:1])  # a scalar has no dimension, or one of size 1
    if len(fixed) != len(wanted):
        raise VerificationError(f"{name} declares output '{info.name}' with {len(fixed)} dimensions, not {len(wanted)}")
    for axis, (found, size) in enumerate(zip(fixed, wanted, strict=True)):
        open_ended = isinstance(size, DynamicDim) and size.lo != size.hi
        if found is not None and (open_ended or (isinstance(size, int) and found != size)):
            shown = size if isinstance(size, int) else range_text(size)
            raise VerificationError(
                f"{name} declares {found} for dimension {axis} of output '{info.name}', the program's size is {shown}"
            )


def _core_ml(package: Path) -> Predict:
    """Core ML's own prediction, on the CPU, where results do not depend on the machine's accelerators."""
    try:
        import coremltools as ct
    except ImportError as error:
        raise MissingToolError("coremltools is not installed", remedy="pip install coremltools") from error
    model = ct.models.MLModel(str(package), compute_units=ct.ComputeUnit.CPU_ONLY)
    return lambda inputs: dict(model.predict(inputs))
