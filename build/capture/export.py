"""From a module to an ExportedProgram whose dynamic dimensions are the declared ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.program import source_of, user_inputs
from targets.contract import shape_at

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def export_module(
    module: torch.nn.Module, example: Mapping[str, torch.Tensor], dynamic_shapes: Mapping[str, Any] | None
) -> tuple[ExportedProgram, dict[str, torch.Tensor], dict[str, str]]:
    """Export in eval mode.

    An example size of 0 or 1 along a dynamic dimension is repeated to 2 first: torch.export reads 0 and 1 as
    constants, whatever was declared.

    Args:
        example: input name -> tensor, in the order of ``forward``.
        dynamic_shapes: input name -> ``{axis: Dim}``, as ``torch.export.export`` takes it.

    Returns:
        The program, the inputs it was exported with, and root symbol -> the Dim's own name.

    Raises:
        InputError: export failed, or made a declared dimension constant (the message names it).
    """
    import torch

    module.eval()
    shapes = {name: dict(_axes(spec)) for name, spec in (dynamic_shapes or {}).items()}
    _check_names(module, example, shapes)
    example = _tensors(module, example)
    example = {name: _widen(t, shapes.get(name, {})) for name, t in example.items()}
    wanted = {name: shapes.get(name) or None for name in example}
    try:
        with torch.no_grad():
            program = torch.export.export(module, (), dict(example), dynamic_shapes=wanted if shapes else None)
    except SystemExit as error:  # the module's own code runs here
        raise InputError(f"{type(module).__name__}.forward called sys.exit while torch.export ran it") from error
    except Exception as error:
        raise _explained(error, shapes) from error
    return program, example, _symbols(program, shapes)


def _axes(spec: Any) -> list[tuple[int, Any]]:
    if spec is None:
        return []
    items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    return [(axis, dim) for axis, dim in items if dim is not None and not isinstance(dim, int)]


def _check_names(module: torch.nn.Module, example: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in (*example, *shapes):
        if name not in parameters:
            raise InputError(
                f"'{name}' is not an input of {type(module).__name__}.forward",
                remedy=f"Its inputs are: {', '.join(parameters)}.",
            )


def _tensors(module: torch.nn.Module, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The example without what says nothing: None where ``forward`` has None anyway. Inputs are tensors, or refused."""
    import torch

    parameters = inspect.signature(module.forward).parameters
    found = {}
    for name, value in example.items():
        if value is None and name in parameters and parameters[name].default is None:
            continue
        if not isinstance(value, torch.Tensor):
            shown = f" ({value!r})" if isinstance(value, (bool, int, float, str)) else ""
            raise InputError(
                f"example input '{name}' is of type {type(value).__name__}{shown}, not a tensor",
                remedy="An artifact takes tensors only: pass it as a tensor, or wrap the module in one whose forward "
                "fixes the value (or takes each part as a tensor of its own).",
            )
        found[name] = value
    return found


def _widen(tensor: torch.Tensor, axes: Mapping[int, Any]) -> torch.Tensor:
    """Repeat along every dynamic axis of size 1 (size 0 can't be repeated: left to fail by name).

    A derived dimension (8·n) at n = 1 is widened to n = 2.
    """
    for axis, dim in axes.items():
        derived = hasattr(dim, "root")
        hi = None if derived else getattr(dim, "max", None)
        if tensor.shape[axis] == (dim.fn(1) if derived else 1) and (hi is None or hi > 1):
            tensor = tensor.repeat_interleave(2, dim=axis)
    return tensor.contiguous()


def _symbols(program: ExportedProgram, shapes: Mapping[str, Mapping[int, Any]]) -> dict[str, str]:
    """Root symbol -> the declared Dim's name; every declared dimension must still be dynamic.

    Raises:
        InputError: naming the input, axis and Dim that export made constant.
    """
    names: dict[str, str] = {}
    for node in user_inputs(program):
        for axis, dim in shapes.get(node.name, {}).items():
            size = node.meta["val"].shape[axis]
            label = getattr(dim, "__name__", str(dim).rsplit(".", 1)[-1])
            if isinstance(size, int):
                raise InputError(
                    f"dimension {axis} of input '{node.name}' was declared dynamic ({label}), but the program fixes "
                    f"it at {size}",
                    source=_first_source(program),
                    remedy="Remove it from dynamic_shapes, or change the code that reads this size as a constant.",
                )
            symbols = list(size.node.expr.free_symbols)
            root = getattr(dim, "root", None)
            if len(symbols) == 1:
                names[str(symbols[0])] = getattr(root, "__name__", label)
    return names


def _first_source(program: ExportedProgram) -> str | None:
    return next((s for n in program.graph.nodes if (s := source_of(n))), None)


#: what torch.export (2.13) says where the code allows less than was declared -> what we say of its parts
_NARROWER = (
    (
        re.compile(r"Not all values of (\S+) = .*? in the specified range (.*?) (?:are valid|satisfy)", re.S),
        "the program does not allow every value of the declared dimension {} ({})",
    ),
    (
        re.compile(r"The values of (\S+) = .*? and (\S+) = .*? must always be equal"),
        "the program needs the declared dimensions {} and {} to be equal",
    ),
    (
        re.compile(r"Constraints violated \((.*?)\)!.*?\n\s*-\s*(.*)"),
        "the program does not allow what dynamic_shapes declares of {}: {}",
    ),
)


def _explained(error: Exception, shapes: Mapping[str, Mapping[int, Any]]) -> InputError:
    """One line for what torch.export says in thirty."""
    text = str(error).partition("The error above occurred when calling torch.export")[0]
    specialised = re.search(r"marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)", text)
    user_line = re.search(r'File "([^"]+)", line (\d+), in (forward\w*)', text)
    source = f"{user_line[1].rsplit('/', 1)[-1]}:{user_line[2]} in {user_line[3]}" if user_line else None
    if specialised:
        where = [
            f"dimension {axis} of input '{name}'"
            for name, axes in shapes.items()
            for axis, dim in axes.items()
            if getattr(dim, "__name__", None) == specialised[1]
        ]
        return InputError(
            f"{' and '.join(where) or specialised[1]} ({specialised[1]}) was declared dynamic, but the program fixes "
            f"it at {specialised[2]}",
            source=source,
            remedy="Remove it from dynamic_shapes, or change the code that reads this size as a constant.",
        )
    for pattern, message in _NARROWER:
        found = pattern.search(text)
        if found:
            parts = (part.strip()[:300] for part in found.groups())
            return InputError(message.format(*parts), source=source, remedy=_fixes(text))
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return InputError(
        f"torch.export failed: {first.strip()[:300]}",
        source=source,
        remedy="The module must export by itself first: torch.export.export(module, ...).",
    )


def _fixes(text: str) -> str:
    """torch's suggestion, where it makes one."""
    fixes = [" ".join(line.split()) for line in text.partition("Suggested fixes:")[2].splitlines() if line.strip()]
    return f"Declare what the code allows: {'; '.join(fixes)}" if fixes else "Declare what the code allows."


def example_shapes(program: ExportedProgram) -> dict[str, tuple[int, ...]]:
    """Concrete shapes of a program's inputs where it has no example calls: each dynamic size at a value in range."""
    from build.program import signature_of

    signature = signature_of(program)
    roots = {s: max(lo, 2) if hi is None or hi >= 2 else lo for s, (lo, hi) in signature.dynamic_symbols.items()}
    return {spec.name: shape_at(spec.shape, roots) for spec in signature.inputs}
