"""Inputs of 8 and 16 bits: Core ML's interface has no such type, so they arrive as int32 and are cast inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def widen_inputs(program: ExportedProgram) -> None:
    """Give each such input the type int32 and cast it to its own type first, in place."""
    import torch

    users = {s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"}
    for node in list(program.graph.nodes):
        value = node.meta.get("val")
        if node.op != "placeholder" or node.name not in users:
            continue
        if getattr(value, "dtype", None) not in (torch.uint8, torch.int8, torch.int16):
            continue
        after = node.next
        while after.op == "placeholder":
            after = after.next
        with program.graph.inserting_before(after):
            cast = program.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": value.dtype})
        cast.meta = {"val": value}
        node.replace_all_uses_with(cast, delete_user_cb=lambda user, own=cast: user is not own)
        node.meta["val"] = value.to(torch.int32)
    for spec, entry in zip(program.graph_signature.output_specs, program.graph.output_node().args[0], strict=True):
        if hasattr(entry, "name"):
            spec.arg.name = entry.name
    program.graph_module.recompile()
