"""A program without in-place ops, in which every change of an input or buffer is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.legalize.core import graph_pass
from build.program import op_nodes

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@graph_pass(
    fault="A change of an input in place shows in the signature only after functionalisation: one output too many"
)
def functional_form(program: ExportedProgram) -> ExportedProgram:
    """Replace in-place ops by functional ones (torch's own pass); a program without any is left as it is."""
    if not any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in op_nodes(program)):
        return program
    return program.run_decompositions({})
