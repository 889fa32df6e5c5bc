"""Whether the dtypes and sizes that a program's file records for its values are those that its ops give.

torch's loader believes the file, and converters believe torch. The ops are run on tensors without data, at the
example's sizes. Needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.program import op_name, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_REMEDY = "Export the program again."


class _Unknown(Exception):
    """A size that depends on data: nothing to compare with."""


def check_metadata(program: ExportedProgram, sizes: dict[str, int], label: str) -> None:
    """Compare every recorded value with what its op gives.

    Args:
        program: freshly loaded; it is not changed.
        sizes: root symbol -> size in the example.
        label: how messages name the program.

    Raises:
        InputError: names the op, its source line, and both sides.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensors = {**dict(program.state_dict), **dict(program.constants)}
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.target is not None}
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors.values()):
        # Trusted programs only: subclasses (torchao's) bring their own rules.
        return
    values: dict[Any, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            for node in program.graph.nodes:
                if node.op == "placeholder":
                    actual = tensors.get(targets.get(node.name, ""))
                    values[node] = _recorded(node, sizes) if actual is None else mode.from_tensor(actual)
                elif node.op == "get_attr":
                    values[node] = getattr(program.graph_module, str(node.target), None)
                elif node.op == "call_function":
                    values[node] = _run(node, values, sizes, label)
        except _Unknown:
            return


def _run(node: Node, values: dict[Any, Any], sizes: dict[str, int], label: str) -> Any:
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.node import map_arg

    if isinstance(node.target, torch._ops.HigherOrderOperator) or not callable(node.target):
        return _recorded(node, sizes)
    try:
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        found = node.target(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError):
        return _recorded(node, sizes)
    except Exception as error:
        raise InputError(
            f"{label}: op {op_name(node)} cannot run on its inputs: {' '.join(str(error).split())[:150].rstrip('. ')}",
            op=op_name(node),
            source=source_of(node),
            remedy=_REMEDY,
        ) from error
    expected, given = _outline(_recorded(node, sizes)), _outline(found)
    if expected is not None and expected != given:
        raise InputError(
            f"{label}: op {op_name(node)} gives {given}, but the file says {expected}",
            op=op_name(node),
            source=source_of(node),
            remedy=_REMEDY,
        )
    return found


def _recorded(node: Node, sizes: dict[str, int]) -> Any:
    """The recorded value of a node with plain sizes; call inside a fake tensor mode."""
    import torch
    from torch.utils._pytree import tree_map

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape = [_plain_size(s, sizes) for s in value.shape]
            strides = [_plain_size(s, sizes) for s in value.stride()]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        if isinstance(value, torch.SymInt):
            return _plain_size(value, sizes)
        if isinstance(value, (torch.SymBool, torch.SymFloat)):
            raise _Unknown
        return value

    return tree_map(plain, node.meta.get("val"))


def _plain_size(size: Any, sizes: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    known = expr.xreplace({s: sizes[str(s)] for s in expr.free_symbols if str(s) in sizes})
    if not getattr(known, "is_number", False) or not known.is_integer:
        raise _Unknown
    return int(known)


def _outline(value: Any) -> Any:
    """Dtype and sizes of tensors, nested as the value is; numbers as they are; None where there is nothing to say."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return [_outline(v) for v in value]
    return value if type(value) is int else None
