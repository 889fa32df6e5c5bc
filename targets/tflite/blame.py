"""Which op of the program a fault of the file belongs to: an error names what its reader finds in their own source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from build.errors import LoweringError
from build.program import op_name, op_nodes, source_of, user_outputs
from targets.contract import Signature
from targets.tflite import flatbuffer
from targets.tflite.weights import names_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

REMEDY = "Rewrite the part of the model that it names, or choose another target."


def maker_of(program: ExportedProgram, signature: Signature, output: str) -> Node | None:
    """The op that makes an output, or the tuple that the output is a part of; None for an input."""
    tensors = [value for value in user_outputs(program) if hasattr(value, "meta")]
    made: Any = dict(zip((s.name for s in signature.outputs), tensors, strict=False)).get(output)
    while made is not None and made.op == "call_function":
        if getattr(made.target, "__module__", "") != "_operator":
            return cast("Node", made)
        made = made.args[0]
    return None


def node_behind(program: ExportedProgram, content: bytes, message: str) -> Node | None:
    """The op behind the file's op that LiteRT names (``opcode 'SORT'``, ``Node number 3 (SORT)``), where it is one."""
    named = re.search(r"opcode '(\w+)'", message) or re.search(r"Node number \d+ \((\w+)\)", message)
    if named is None:
        return None
    model = flatbuffer.read(content)
    found = {
        name
        for graph in model.subgraphs
        for operator in graph.operators
        if flatbuffer.opcode_name(model, operator) == named.group(1)
        for name in names_of(graph, operator)
    }
    return node_named(program, found)


def node_named(program: ExportedProgram, names: Iterable[str]) -> Node | None:
    """The op whose node has one of the names; None where they are several, or none."""
    wanted = set(names)
    nodes = [n for n in op_nodes(program) if n.name in wanted]
    return nodes[0] if len(nodes) == 1 else None


def runtime_error(message: str, program: ExportedProgram, signature: Signature, content: bytes) -> LoweringError:
    """What LiteRT says of a file, as an error that names the program's op where that can be told."""
    output = re.search(r"output '([^']+)'", message)
    node = maker_of(program, signature, output.group(1)) if output else node_behind(program, content, message)
    if node is not None:
        made = f" (made by {op_name(node)})" if output else f" (for {op_name(node)})"
        return LoweringError(message.rstrip(".") + made, op=op_name(node), source=source_of(node), remedy=REMEDY)
    named = re.search(r"Node number \d+ \((\w+)\)", message)
    return LoweringError(message, op=named.group(1) if named else "LiteRT interpreter", remedy=REMEDY)
