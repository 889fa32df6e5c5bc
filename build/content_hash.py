"""What a program computes, as one hash: the identity that captures, artifacts and bundles go by."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from build.program import op_name, output_names

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def content_hash(program: ExportedProgram) -> str:
    """sha256 of what the program computes: graph, signature, ranges and every tensor's bytes.

    Independent of archive names, serialization ids, node names and stack traces.
    """
    digest = hashlib.sha256()

    def put(*parts: object) -> None:
        for part in parts:
            text = str(part).encode()
            digest.update(len(text).to_bytes(8, "little") + text)

    _hash_graph(program.graph_module, put)
    sig = program.graph_signature
    order = {n.name: i for i, n in enumerate(program.graph.nodes)}
    for spec in sig.input_specs:
        put("in", spec.kind.name, spec.target if spec.kind.name != "USER_INPUT" else spec.arg.name)
    for spec in sig.output_specs:
        put("out", spec.kind.name, spec.target, order.get(getattr(spec.arg, "name", ""), "const"))
    put("names", output_names(program))
    for key, constraint in sorted(program.range_constraints.items(), key=lambda kv: str(kv[0])):
        put("range", key, constraint)
    for name, tensor in sorted({**dict(program.state_dict), **dict(program.constants)}.items()):
        put("tensor", name)
        _hash_tensor(tensor, put, digest)
    return digest.hexdigest()


def _hash_tensor(tensor: Any, put: Any, digest: Any) -> None:
    import torch

    if not isinstance(tensor, torch.Tensor):
        put("object", type(tensor).__name__, repr(tensor))
        return
    put(tensor.dtype, tuple(tensor.shape))
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None and type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        names, context = inner()
        put(type(tensor).__name__, context)
        for name in names:
            _hash_tensor(getattr(tensor, name), put, digest)
        return
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    digest.update(flat.numpy().tobytes())


def _hash_graph(module: Any, put: Any) -> None:
    import torch

    index: dict[Any, int] = {}

    def name(arg: Any) -> object:
        if isinstance(arg, torch.fx.Node):
            return f"%{index[arg]}"
        if isinstance(arg, (list, tuple)):
            return [name(a) for a in arg]
        if isinstance(arg, dict):
            return sorted((str(k), name(v)) for k, v in arg.items())
        return repr(arg)

    for i, node in enumerate(module.graph.nodes):
        index[node] = i
        target = node.target if node.op in ("placeholder", "get_attr", "output") else op_name(node)
        put(node.op, target if node.op != "placeholder" else i, name(node.args), name(node.kwargs))
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            put(val.dtype, tuple(str(s) for s in val.shape))
    for child_name, child in module.named_children():
        if isinstance(child, torch.fx.GraphModule):
            put("child", child_name)
            _hash_graph(child, put)
