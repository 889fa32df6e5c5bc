"""The five converters called by hand, as short as their own documentation has it: import, convert, save, no checks.

``python -m tests.bare_converters TARGET PROGRAM.pt2 OUT``: what ``nox -s bench-build`` measures a build against.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def executorch(program: torch.export.ExportedProgram, out: Path) -> None:
    """ExecuTorch with the XNNPACK partitioner."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (out / "model.pte").write_bytes(lowered.buffer)


def litert(program: torch.export.ExportedProgram, out: Path) -> None:
    """LiteRT, at the example's fixed sizes (the bare converter rarely takes a dynamic program)."""
    import litert_torch
    from torch.utils import _pytree as pytree

    example = tuple(x for x in pytree.tree_leaves(program.example_inputs))
    litert_torch.convert(program.module(), sample_kwargs=_by_name(program, example)).export(str(out / "m.tflite"))


def _by_name(program: torch.export.ExportedProgram, example: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(program.graph_signature.user_inputs, example, strict=True))


def coreml(program: torch.export.ExportedProgram, out: Path) -> None:
    """Core ML as an ML Program."""
    import coremltools as ct

    program = program.run_decompositions({})
    ct.convert(program, minimum_deployment_target=ct.target.iOS17, skip_model_load=True).save(str(out / "m.mlpackage"))


def openvino(program: torch.export.ExportedProgram, out: Path) -> None:
    """OpenVINO IR."""
    import openvino as ov

    ov.save_model(ov.convert_model(program), out / "model.xml", compress_to_fp16=False)


def ort_web(program: torch.export.ExportedProgram, out: Path) -> None:
    """ONNX."""
    torch.onnx.export(program, (), kwargs=None, f=str(out / "model.onnx"), dynamo=True, verbose=False)


CONVERTERS = {f.__name__: f for f in (executorch, litert, coreml, openvino, ort_web)}

if __name__ == "__main__":
    _target, _program, _out = sys.argv[1:]
    CONVERTERS[_target](torch.export.load(_program), Path(_out))
