"""A program: its signature, its ops, its source lines. Works on a loaded ExportedProgram."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from targets.contract import Dim, DynamicDim, Signature, TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: torch's sympy upper bound for "no maximum" is int_oo or a very large integer.
_UNBOUNDED = 2**31
#: Folders of torch's package that frames of a program's trace lie in.
_TORCH_PARTS = frozenset({"nn", "ao", "autograd", "export", "fx", "utils", "_decomp", "_dynamo", "_export", "_refs"})


def torch_dtype_name(dtype: object) -> str:
    """``torch.float32`` -> ``float32`` (numpy's names for every dtype that numpy has)."""
    return str(dtype).removeprefix("torch.")


def user_inputs(program: ExportedProgram) -> list[Node]:
    """Placeholder nodes of the user's tensors, in order."""
    names = {s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"}
    return [n for n in program.graph.nodes if n.op == "placeholder" and n.name in names]


def user_outputs(program: ExportedProgram) -> list[Any]:
    """Entries of the user's outputs, in order: fx nodes for tensors, plain values for constants and None."""
    specs = program.graph_signature.output_specs
    out = next(n for n in program.graph.nodes if n.op == "output")
    return [a for a, s in zip(out.args[0], specs, strict=True) if s.kind.name == "USER_OUTPUT"]


def input_names(program: ExportedProgram) -> list[str]:
    """Names of the user's tensor inputs, as the module's ``forward`` spells them."""
    return [n.name for n in user_inputs(program)]


def output_names(program: ExportedProgram) -> list[str]:
    """Names of the tensor outputs, from the structure that ``forward`` returns.

    One tensor is ``output``; a tuple gives ``output_0``, ``output_1``; a dict gives its keys, nested ones
    joined by ``_``. Names that would collide after joining get a numeric suffix. Constants and None have none.
    """
    import torch.utils._pytree as pytree

    spec = program.call_spec.out_spec
    values = user_outputs(program)
    if spec is None:
        paths: list[tuple[Any, ...]] = [(pytree.SequenceKey(i),) for i in range(len(values))]
    else:
        tree = pytree.tree_unflatten(list(range(len(values))), spec)
        paths = [p for p, _ in pytree.tree_flatten_with_path(tree)[0]]
    names: list[str] = []
    for path, value in zip(paths, values, strict=True):
        if not hasattr(value, "meta"):
            continue
        parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
        name = re.sub(r"\W", "_", "_".join(parts)) if parts else "output"
        if not re.match(r"[A-Za-z_]", name):
            name = f"output_{name}"
        base, n = name, 1
        while name in names:
            name, n = f"{base}_{n}", n + 1
        names.append(name)
    return names


def _linear(expr: Any, root: Any) -> tuple[int, int] | None:
    """``(scale, offset)`` when ``expr`` is ``scale * root + offset`` with whole numbers and a positive scale."""
    import sympy

    if not expr.is_polynomial(root):
        return None
    coefficients = sympy.Poly(expr, root).all_coeffs()
    if len(coefficients) != 2 or not all(c.is_Integer for c in coefficients) or coefficients[0] <= 0:
        return None
    return int(coefficients[0]), int(coefficients[1])


def _root_bounds(root: Any, program: ExportedProgram) -> tuple[int, int | None]:
    """Declared bounds of a root symbol.

    A derived dimension (8·n) declares its own range; the exporter raises the root's lower bound to 2
    even where the declaration allows 1, so the derived range is the one to believe.
    """
    lo, hi = _bounds(program.range_constraints.get(root))
    for expr, constraint in program.range_constraints.items():
        if expr == root or expr.free_symbols != {root}:
            continue
        line = _linear(expr, root)
        if line is not None:
            scale, offset = line
            dlo, dhi = _bounds(constraint)
            lo = -((offset - dlo) // scale)
            hi = None if dhi is None else (dhi - offset) // scale
    return lo, hi


def _dim(size: Any, program: ExportedProgram) -> Dim:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    if expr.is_Integer:
        return int(expr)
    symbols = sorted(expr.free_symbols, key=str)
    bounds = [_root_bounds(s, program) for s in symbols]
    line = _linear(expr, symbols[0]) if len(symbols) == 1 else None
    if line is not None:
        (scale, offset), (lo, hi) = line, bounds[0]
        return DynamicDim(
            symbol=str(symbols[0]),
            lo=scale * lo + offset,
            hi=None if hi is None else scale * hi + offset,
            scale=scale,
            offset=offset,
        )
    # An output size such as b*t or t//2: no linear root; its bounds are the values at the roots' bounds.
    if any(hi is None for _, hi in bounds):
        return DynamicDim(symbol=str(expr), lo=0, hi=None)
    ends = sorted(int(expr.subs({s: pair[i] for s, pair in zip(symbols, bounds, strict=True)})) for i in (0, 1))
    return DynamicDim(symbol=str(expr), lo=ends[0], hi=ends[1])


def _bounds(constraint: Any) -> tuple[int, int | None]:
    """Inclusive bounds of a torch ``ValueRanges``; no maximum is None (torch spells it ``int_oo``)."""
    if constraint is None:
        return 0, None
    upper = constraint.upper
    hi = int(upper) if getattr(upper, "is_Integer", False) else None
    return int(constraint.lower), None if hi is None or hi >= _UNBOUNDED else hi


def _spec(name: str, node: Node, program: ExportedProgram, side: str) -> TensorSpec:
    value = node.meta["val"]
    if not hasattr(value, "dtype"):
        raise InputError(
            f"{side} '{name}' is a {type(value).__name__}, not a tensor",
            op=op_name(node) if node.op == "call_function" else None,
            source=source_of(node),
            remedy="Pass it as a tensor, or fix its value before export."
            if side == "input"
            else "Return tensors only: whoever has the tensor knows its size; torch.full((), size) makes one of it.",
        )
    return TensorSpec(
        name=name,
        dtype=torch_dtype_name(value.dtype),
        shape=tuple(_dim(s, program) for s in value.shape),
    )


def signature_of(program: ExportedProgram) -> Signature:
    """The program's tensor inputs and outputs with dtypes, shapes and declared ranges.

    Raises:
        InputError: an input or output is not a tensor.
    """
    inputs = tuple(_spec(n.name, n, program, "input") for n in user_inputs(program))
    tensors = [v for v in user_outputs(program) if hasattr(v, "meta")]
    named = zip(output_names(program), tensors, strict=True)
    outputs = tuple(_spec(name, v, program, "output") for name, v in named)
    return Signature(inputs=inputs, outputs=outputs)


def drop_unreadable_guards(program: ExportedProgram) -> None:
    """Remove the guards on sizes inside nested inputs (``L['pair'][0].size()[0]``).

    torch renames the inputs of such a program when it makes a module of it, and not the guards: running it, or giving
    it to a converter, ends in ``NameError: name 'L' is not defined``. Ranges are constraints of their own and stay.
    """
    program._guards_code = [guard for guard in program._guards_code if not re.search(r"L\['\w+'\]\[", guard)]


def plain_tensors(program: ExportedProgram) -> ExportedProgram:
    """The program with the tensors that its weights' subclasses hold (torchao's), each a parameter of its own.

    Exported as they are, such weights are opened by an op that no converter knows; torch's retracing leaves it out.
    """
    opened = any(op_name(n).startswith("export.access_subclass_inner_tensor") for n in op_nodes(program))
    return program.run_decompositions({}) if opened else program


def call(program: ExportedProgram) -> Any:
    """A function from a list of input tensors (in order) to the list of output tensors (in order), in eager PyTorch.

    The program's own guards are enforced: a size outside its range raises.

    Raises:
        InputError: torch cannot make a module of it; what is in a file need not fit together.
    """
    import torch
    import torch.utils._pytree as pytree

    drop_unreadable_guards(program)
    try:
        module = program.module()
    except Exception as error:
        raise InputError(
            f"torch cannot run this program: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            remedy="Export it again; if this file came from torch.export.save as it is, report it to PyTorch.",
        ) from error
    in_spec = program.call_spec.in_spec

    def run(tensors: list[Any]) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(tensors, in_spec)
        with torch.no_grad():
            out = module(*args, **kwargs)
        return [v for v in pytree.tree_leaves(out) if isinstance(v, torch.Tensor)]

    return run


def source_of(node: Node) -> str | None:
    """The user's line that made ``node``: ``file.py:12 in forward: x = self.a(x)``. None when it wasn't recorded.

    Where every line is torch's own (an ``nn.Sequential``), the layer: ``0.2 (ConvTranspose2d)``.
    """
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', node.meta.get("stack_trace") or "")
    mine = [f for f in frames if not is_torchs(f[0])]
    named = None if mine else _named_layer(node)
    if named is not None or not frames:
        return named
    path, line, func, code = (mine or frames)[-1]
    return f"{Path(path).name}:{line} in {func}: {code.strip()}"


def is_torchs(path: str) -> bool:
    """Whether a file is part of torch, on whichever machine: an installed one, or a source tree's torch/nn/….

    A folder of the user's that is called torch is the user's.
    """
    folders = path.replace("\\", "/").split("/")[:-1]
    return any(
        name == "torch" and (before.endswith("-packages") or after in _TORCH_PARTS)
        for before, name, after in zip(["", *folders], folders, [*folders[1:], ""], strict=False)
    )


def _named_layer(node: Node) -> str | None:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    kind = next(reversed(stack.values()))[1]
    name = kind if isinstance(kind, str) else kind.__name__
    if name.startswith("_empty_nn_module_stack"):  # torch's word for a node that no layer made, such as a size
        return None
    return f"{layer_of(node) or 'the model'} ({name.rpartition('.')[2]})"


def layer_of(node: Node) -> str | None:
    """Path of the submodule whose ``forward`` made ``node`` (``features.3``). None when it wasn't recorded."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = next(reversed(stack.values()))[0]
    parts = path.replace("L['self']", "").strip(".").split(".")
    return ".".join(p for p in parts if p != "wrapped_module") or None


def op_nodes(program: ExportedProgram) -> Iterator[Node]:
    """Nodes that compute (call_function), nested graphs of higher-order ops included."""
    import torch

    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def op_name(node: Node) -> str:
    """``aten.add.Tensor`` for an ATen overload, the function's own name otherwise."""
    target = node.target
    name = getattr(target, "_name", None)
    if isinstance(name, str):
        return name.replace("::", ".") + ("" if "." in name.split("::")[-1] else ".default")
    return str(getattr(target, "__name__", target))
