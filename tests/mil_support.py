"""Small ML Programs written with coremltools' builder, saved as packages, for the tests of the MIL evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from targets import mil

Array = npt.NDArray[Any]

_NAMES = {"float32": "fp32", "float16": "fp16", "int32": "int32"}


def save_package(
    directory: Path,
    body: Callable[..., Any],
    inputs: Mapping[str, Array],
    *,
    target: str = "iOS15",
    types: list[Any] | None = None,
    half: bool = False,
) -> Path:
    """Saves the program ``body(**inputs)`` without letting any optimisation touch it; returns the package's path.

    ``inputs`` gives names, shapes and dtypes; ``types`` are ``ct.TensorType`` where shapes are flexible.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil import mil as pymil
    from coremltools.converters.mil.mil import get_new_symbol
    from coremltools.converters.mil.mil import types as mil_types

    version = getattr(ct.target, target)
    program = pymil.Program()
    placeholders = {}
    for name, array in inputs.items():
        flexible = next((t for t in types or [] if t.name == name), None)
        shape = [
            get_new_symbol() if flexible is not None and _is_open(flexible, i) else n for i, n in enumerate(array.shape)
        ]
        dtype = getattr(mil_types, _NAMES[str(array.dtype)])
        placeholders[name] = mb.placeholder(shape=shape, dtype=dtype)
    with pymil.Function(placeholders, opset_version=version) as function:
        found = body(**function.inputs)
        function.set_outputs(list(found) if isinstance(found, (list, tuple)) else [found])
        program.add_function("main", function)
    model = ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        inputs=types,
        minimum_deployment_target=version,
        compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
        pass_pipeline=None if half else ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    path = directory / "model.mlpackage"
    model.save(str(path))
    return path


def _is_open(flexible: Any, index: int) -> bool:
    """Whether dimension ``index`` of a ``ct.TensorType`` is not one fixed size."""
    shape = flexible.shape
    symbolic = getattr(shape, "symbolic_shape", None)
    return symbolic is not None and not isinstance(symbolic[index], (int, np.integer))


def run(
    directory: Path, body: Callable[..., Any], inputs: Mapping[str, Array], *, target: str = "iOS15"
) -> list[Array]:
    """Saves, loads and evaluates a program; its outputs in order."""
    program = mil.load(save_package(directory, body, inputs, target=target))
    assert program.unsupported == ()
    return list(mil.evaluate(program, inputs).values())


def folded(body: Callable[..., Any], inputs: Mapping[str, Array], *, target: str = "iOS15") -> list[Array]:
    """What coremltools itself computes for the same program on constants: an implementation that is not ours."""
    import coremltools as ct
    from coremltools.converters.mil import mil as pymil

    with pymil.Function({}, opset_version=getattr(ct.target, target)):
        found = body(**inputs)
        values = list(found) if isinstance(found, (list, tuple)) else [found]
        assert all(v.val is not None for v in values), "coremltools does not fold this operation"
        return [np.asarray(v.val) for v in values]


def specification(package: Path) -> Any:
    """The package's protobuf, to be changed and written back with ``rewrite``."""
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    spec.ParseFromString(model_path(package).read_bytes())
    return spec


def model_path(package: Path) -> Path:
    """The protobuf file of a package."""
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def weights_path(package: Path) -> Path:
    """The weight file of a package."""
    return package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def rewrite(package: Path, spec: Any) -> None:
    """Writes a changed protobuf back."""
    model_path(package).write_bytes(spec.SerializeToString())


def operations(spec: Any) -> list[Any]:
    """The operations of the main function, as protobuf messages."""
    function = spec.mlProgram.functions["main"]
    return list(function.block_specializations[function.opset].operations)
