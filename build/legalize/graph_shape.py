"""Whole-graph rewrites: arguments, names, outputs, symbolic sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Strings that ATen ops take as arguments; a node of the same name is taken for the argument.
_ARGUMENT_STRINGS = frozenset(
    (
        *("bilinear", "circular", "constant", "nearest", "reflect", "replicate", "same", "valid"),
        *("floor", "trunc", "none", "tanh", "fro", "nuc", "ij", "xy", "left", "right"),
        *("mean", "sum", "prod", "amax", "amin", "add", "multiply"),
    )
)


@graph_pass(fault="A derived dimension (8*n) of a reloaded .pt2 stops every decomposition: 'expected sympy.Symbol'")
def drop_derived_ranges(program: ExportedProgram) -> ExportedProgram:
    """Delete ranges that the reloaded shape environment keeps for expressions; the symbols keep theirs."""
    import sympy

    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        environment = getattr(mode, "shape_env", None)
        if environment is not None:
            ranges = environment.var_to_range
            for key in [k for k in ranges if not isinstance(k, sympy.Symbol)]:
                del ranges[key]
            break
    return program


@graph_pass(fault="coremltools counts positional arguments, and export omits those that equal the default")
def fill_defaults(program: ExportedProgram) -> ExportedProgram:
    """Write out every positional argument of ATen calls, defaults included."""
    import torch

    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        args, kwargs = list(node.args), dict(node.kwargs)
        for i, argument in enumerate(node.target._schema.arguments):
            if argument.kwarg_only:
                break
            if i < len(args):
                continue
            if argument.name in kwargs:
                args.append(kwargs.pop(argument.name))
            elif argument.has_default_value():
                args.append(argument.default_value)
            else:
                break
        node.args, node.kwargs = tuple(args), kwargs
    return program


@graph_pass(fault="coremltools takes a node named 'floor' for the string argument 'floor' of another node")
def rename_clashes(program: ExportedProgram) -> ExportedProgram:
    """Rename computing nodes that are called like a string argument. Inputs and outputs keep their public names."""
    renamed: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.name in _ARGUMENT_STRINGS:
            old = node.name
            node._rename(f"{old}_value")
            renamed[old] = node.name
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name in renamed:
            spec.arg.name = renamed[name]
    return program


def _symbolic(size: Any) -> bool:
    return not isinstance(size, int)


@graph_pass(
    fault="coremltools cannot hold several symbolic sizes in a reshape, and builds them from scalar arithmetic",
    ops=("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
)
def infer_reshape_size(program: ExportedProgram) -> ExportedProgram:
    """Write -1 for the one size of a reshape that is not fixed, when the others are."""
    import torch

    aten = torch.ops.aten
    targets = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target not in targets:
            continue
        sizes = list(node.args[1])
        unknown = [i for i, size in enumerate(sizes) if _symbolic(size)]
        shape = node.meta["val"].shape
        zero = any(isinstance(size, int) and size == 0 for size in shape)
        if len(unknown) == 1 and -1 not in sizes and not zero:
            sizes[unknown[0]] = -1
            node.args = (node.args[0], sizes)
    program.graph.eliminate_dead_code()
    return program


@graph_pass(
    fault="a view that was legal for one op's memory order fails when a rewrite of that op returns another order",
    ops=("aten.view.default",),
)
def views_as_reshapes(program: ExportedProgram) -> ExportedProgram:
    """Reshapes in place of views: the same values, whatever the strides of what they read.

    PyTorch's attention kernels return a transposed memory order, and export drops the ``contiguous`` behind them; the
    same attention written out as matrix products returns the plain order.
    """
    import torch

    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    return program
