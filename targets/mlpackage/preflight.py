"""What Core ML cannot take, said before conversion: ranks, dimensions without a maximum, sizes that follow the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.program import op_name, op_nodes, source_of
from targets.checks import range_text
from targets.contract import DynamicDim, Finding, Signature
from targets.diagnosis import packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

COMPLEX = "Core ML has no complex numbers"

#: ops whose result has a size that depends on the data; Core ML's ranges come from the inputs alone.
_SIZE_FROM_DATA = frozenset(
    ("aten.nonzero", "aten.masked_select", "aten.unique_dim", "aten._unique2", "aten.unique_consecutive", "aten.item")
)

#: Core ML's tensors have at most this many dimensions.
MAX_RANK = 5


def rank_findings(program: ExportedProgram) -> list[Finding]:
    """Tensors of too many dimensions, at the first op that makes one."""
    for node in program.graph.nodes:
        result = node.meta.get("val")
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            rank = len(getattr(tensor, "shape", ()))
            if rank > MAX_RANK:
                made = op_name(node) if node.op == "call_function" else f"input '{node.name}'"
                return [
                    Finding(
                        subject=made,
                        kind="op",
                        verdict="refused",
                        why=f"makes a tensor of {rank} dimensions, and Core ML has at most {MAX_RANK}",
                        source=source_of(node),
                        remedy="Merge dimensions before this op (reshape), and split them afterwards.",
                    )
                ]
    return []


def size_findings(program: ExportedProgram) -> list[Finding]:
    """Ops whose result's size is only known from the data."""
    return [
        Finding(
            subject=op_name(node),
            kind="op",
            verdict="refused",
            why="gives a result whose size depends on the data, which Core ML's fixed ranges cannot express",
            source=source_of(node),
            remedy="Use a mask of fixed size (torch.where), or compute this part outside the model.",
        )
        for node in op_nodes(program)
        if packet(op_name(node)) in _SIZE_FROM_DATA
    ]


def dim_findings(signature: Signature) -> list[Finding]:
    """Dimensions without a maximum."""
    return [
        Finding(
            subject=f"{spec.name}[{axis}]",
            kind="dim",
            verdict="refused",
            why=f"the range {range_text(size)} has no maximum, and an ML Program needs one",
            remedy="Give the dimension a maximum: torch.export.Dim(name, min=…, max=…).",
        )
        for spec in signature.inputs
        for axis, size in enumerate(spec.shape)
        if isinstance(size, DynamicDim) and size.hi is None
    ]
