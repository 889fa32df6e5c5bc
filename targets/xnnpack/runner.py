"""An ExecuTorch artifact loaded into the ExecuTorch runtime of this host."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError
from targets.checks import check_inputs, check_outputs
from targets.contract import Dim, DynamicDim, Signature, TensorSpec

if TYPE_CHECKING:
    from targets.contract import Array

#: ExecuTorch's ScalarType numbers (runtime/core/portable_type/scalar_type.h) -> numpy's dtype names.
SCALAR_TYPES: dict[int, str] = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
}


class ExecuTorchRunner:
    """Runs the ``forward`` method of a ``.pte`` file."""

    def __init__(self, path: Path, signature: Signature) -> None:
        """Load.

        Raises:
            VerificationError: the runtime refuses the file, or its interface is not the signature's.
        """
        from executorch.runtime import Runtime

        self.runtime = f"executorch {importlib.metadata.version('executorch')}"
        self._declared = signature
        # The bytes are read here, so that a file replaced later does not change under a memory map. The Program
        # stays referenced as long as the Method is used; the runtime crashes otherwise.
        try:
            self._program = Runtime.get().load_program(path.read_bytes())
            method = self._program.load_method("forward")
        except RuntimeError as error:
            raise VerificationError(f"ExecuTorch cannot load {path.name}: {error}") from error
        if method is None:
            raise VerificationError(f"{path.name} has no method 'forward'")
        self._method: Any = method
        self._signature = self._read_signature(signature)

    @property
    def input_sizes(self) -> list[tuple[int, ...]]:
        """The upper bound of every dimension of every input, from the method's metadata."""
        meta = self._method.metadata
        return [tuple(meta.input_tensor_meta(i).sizes()) for i in range(meta.num_inputs())]

    def signature(self) -> Signature:
        """Dtypes, ranks and upper bounds as the file holds them.

        A ``.pte`` file has no tensor names, lower bounds or symbols: those are passed through from the manifest.
        """
        return self._signature

    def _read_signature(self, declared: Signature) -> Signature:
        meta = self._method.metadata
        if meta.num_inputs() != len(declared.inputs):
            raise VerificationError(f"the file has {meta.num_inputs()} inputs, the program {len(declared.inputs)}")
        inputs = tuple(_read(meta.input_tensor_meta(i), spec) for i, spec in enumerate(declared.inputs))
        outputs = []
        tensors = [m for m in map(_output_meta(meta), range(meta.num_outputs())) if m is not None]
        if len(tensors) != len(declared.outputs):
            raise VerificationError(f"the file has {len(tensors)} outputs, the program {len(declared.outputs)}")
        for tensor, spec in zip(tensors, declared.outputs, strict=True):
            outputs.append(_read(tensor, spec))
        return Signature(inputs=inputs, outputs=tuple(outputs))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once.

        Raises:
            InputError: an input lies outside the declared range.
            VerificationError: the runtime failed, or returned something that is not a result.
        """
        import numpy as np
        import torch

        sizes = check_inputs(self._declared, inputs)
        given = [_tensor(inputs[s.name]) for s in self._declared.inputs]
        try:
            values = self._method.execute(given)
        except RuntimeError as error:
            shapes = ", ".join(f"{s.name}{list(inputs[s.name].shape)}" for s in self._declared.inputs)
            raise VerificationError(f"ExecuTorch failed to run with {shapes}: {error}") from error
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        if len(tensors) != len(self._declared.outputs):
            raise VerificationError(f"{len(tensors)} outputs came back, {len(self._declared.outputs)} were expected")
        result: dict[str, Array] = {}
        for spec, tensor in zip(self._declared.outputs, tensors, strict=True):
            # Copied: the runtime reuses its output buffers in the next call.
            result[spec.name] = np.array(tensor.contiguous().numpy(), copy=True)
        check_outputs(self._declared, sizes, result, self.runtime)
        return result


def _tensor(value: Array) -> Any:
    """A tensor of its own with the strides of its shape: numpy gives empty arrays others, and the runtime aborts."""
    import numpy as np
    import torch

    tensor = torch.from_numpy(np.array(value, order="C", copy=True))
    return tensor if tensor.numel() else torch.empty(tuple(value.shape), dtype=tensor.dtype)


def _output_meta(meta: Any) -> Any:
    def read(index: int) -> Any:
        try:
            return meta.output_tensor_meta(index)
        except RuntimeError:  # not a tensor: a constant or None among the outputs
            return None

    return read


def _read(meta: Any, declared: TensorSpec) -> TensorSpec:
    """What the file holds of one tensor, with the name, symbols and lower bounds of its declaration."""
    sizes = tuple(meta.sizes())
    shape: list[Dim] = []
    for axis, size in enumerate(sizes):
        dim = declared.shape[axis] if axis < len(declared.shape) else size
        if isinstance(dim, DynamicDim):
            dim = DynamicDim(symbol=dim.symbol, lo=dim.lo, hi=size, scale=dim.scale, offset=dim.offset)
        else:
            dim = size
        shape.append(dim)
    dtype = SCALAR_TYPES.get(meta.dtype(), f"scalar type {meta.dtype()}")
    return TensorSpec(name=declared.name, dtype=dtype, shape=tuple(shape))
