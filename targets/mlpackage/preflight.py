"""What Core ML cannot take, said before conversion: ranks, dimensions without a maximum, sizes that follow the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.errors import LoweringError
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

#: words of the language that ML Programs are written in: coremltools gives a tensor of that name another.
#: Source: coremltools 9.0, converters/mil/mil/passes/defs/preprocess.py (``NameSanitizer``).
_RESERVED = frozenset(
    """
    any bool program func tensor list dict tuple true false string bf16 fp16 fp32 fp64 int8 int16 int32 int64 uint8
    uint16 uint32 uint64 state
    """.split()  # noqa: SIM905
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


def reserved_findings(signature: Signature) -> list[Finding]:
    """Inputs and outputs that are called like a word of the ML Program's own language."""
    return [
        Finding(
            subject=f"{kind} '{spec.name}'",
            kind="program",
            verdict="refused",
            why=f"'{spec.name}' is a reserved word of ML Programs, and no tensor can have that name",
            remedy=f"{way}.",
        )
        for kind, way, specs in (
            ("input", "Rename the argument of forward", signature.inputs),
            ("output", "Return it under another key", signature.outputs),
        )
        for spec in specs
        if spec.name in _RESERVED
    ]


def refuse_reserved(signature: Signature) -> None:
    """What ``reserved_findings`` says before a conversion, as an error of the conversion.

    Raises:
        LoweringError: an input or output is called like a reserved word.
    """
    for finding in reserved_findings(signature):
        raise LoweringError(
            f"Core ML cannot name {finding.subject}: {finding.why}", op=finding.subject, remedy=finding.remedy
        )
