"""Buffers that a program changes: carried through inputs and outputs, because Core ML's own state holds fp16 only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.program import torch_dtype_name
from targets.contract import TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array

#: the initial values, beside the package.
FILE = "state.safetensors"


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """One changed buffer: its name in the model, the package's input and output that carry it."""

    buffer: str
    input: TensorSpec
    output: TensorSpec


def expose(program: ExportedProgram, taken: set[str]) -> tuple[StateTensor, ...]:
    """Turn changed buffers into inputs and their new values into outputs, in place; initial values stay readable.

    The inputs come before the program's own inputs and the outputs before its outputs, in the graph's order.

    Args:
        taken: names of the program's inputs and outputs.
    """
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    written = {s.target: s for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION}
    states: list[StateTensor] = []
    for spec in signature.input_specs:
        if spec.kind is not InputKind.BUFFER or spec.target not in written:
            continue
        base = "state_" + re.sub(r"\W", "_", str(spec.target))
        while base in taken or f"{base}_next" in taken:
            base += "_"
        tensor = initial(program, str(spec.target))
        shape, dtype = tuple(tensor.shape), torch_dtype_name(tensor.dtype)
        states.append(
            StateTensor(
                buffer=str(spec.target),
                input=TensorSpec(name=base, dtype=dtype, shape=shape),
                output=TensorSpec(name=f"{base}_next", dtype=dtype, shape=shape),
            )
        )
        spec.kind = InputKind.USER_INPUT
        written[spec.target].kind = OutputKind.USER_OUTPUT
    order = [t for t, s in written.items() if s.kind is OutputKind.USER_OUTPUT]
    for spec in signature.output_specs:
        if spec.target in order:
            spec.target = None
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            spec.target = None
    return tuple(states)


def output_order(program: ExportedProgram) -> list[str]:
    """Buffers in the order in which the graph returns their new values."""
    return [str(s.target) for s in program.graph_signature.output_specs if s.kind.name == "BUFFER_MUTATION"]


def initial(program: ExportedProgram, buffer: str) -> Any:
    """The buffer's value in the program (a tensor)."""
    tensor = program.state_dict.get(buffer)
    return program.constants[buffer] if tensor is None else tensor


def save_initial(values: Mapping[str, Any], directory: Path) -> None:
    """Write the initial values, by the names of the package's state inputs."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().clone().contiguous() for name, tensor in values.items()}, directory / FILE)


def load_initial(directory: Path) -> dict[str, Array]:
    """The initial values that ``save_initial`` wrote."""
    from safetensors.numpy import load_file

    return dict(load_file(directory / FILE))
