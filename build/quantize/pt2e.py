"""PT2E: from a float program to the same program with quantize and dequantize ops, names and ranges kept.

The quantizer is the target's own (it knows what its backend can take); everything around it is alike.
Method: torchao's ``prepare_pt2e`` and ``convert_pt2e``, the PyTorch 2 Export quantisation flow.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.legalize import legalize
from build.program import signature_of
from build.quantize.regions import check_names, float_values, packet
from targets.contract import DynamicDim, Signature, shape_at

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from targets.contract import Array

#: Example size along a dynamic dimension for the second export: PyTorch's CPU convolution takes another path below 16.
_EXAMPLE_SIZE = 16


def quantize(
    program: ExportedProgram,
    quantizer: Any,
    calibration: Sequence[Mapping[str, Array]],
    *,
    keep_float: Sequence[str] = (),
    fold_weights: bool = True,
) -> ExportedProgram:
    """The program with quantize and dequantize ops.

    Args:
        program: a float program, freshly loaded: its batch norms are folded in place.
        quantizer: a torchao ``Quantizer``.
        calibration: input name -> array per call. Without any, made-up inputs run through the observers: weights and
            ranges taken at run time need none of them.
        keep_float: names of nodes of ``program`` that stay in float.
        fold_weights: store weights as integers; False leaves ``quantize`` ops on float weights for the converter.

    Raises:
        InputError: a name in ``keep_float`` is no node of the program.
    """
    import torch

    program, keep_float = without_batch_norms(program, keep_float)
    signature = signature_of(program)
    spec = program.call_spec.in_spec
    with quiet():
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        module = program.module(check_guards=False)
        prepared = prepare_pt2e(module, _keeping(quantizer, keep_float))
        with torch.no_grad():
            given = [[_tensor(inputs[s.name]) for s in signature.inputs] for inputs in calibration]
            for tensors in given or [example_inputs(signature)]:
                args, kwargs = _arguments(tensors, spec)
                prepared(*args, **kwargs)
        converted = convert_pt2e(prepared, fold_quantize=fold_weights)
        return export_like(converted, signature, spec, calibration[0] if calibration else None)


def without_batch_norms(program: ExportedProgram, keep: Sequence[str]) -> tuple[ExportedProgram, list[str]]:
    """The program with its batch norms folded into the layers before them, and ``keep`` in terms of what is left.

    PT2E folds by itself, but also where the layer's own value is used elsewhere, or the layer has two norms.

    Raises:
        InputError: a name in ``keep`` is no node of the program.
    """
    check_names(program, keep)
    source = {n.name: n.args[0].name for n in program.graph.nodes if n.op == "call_function" and _is_batch_norm(n)}
    program = legalize(program, ["drop_derived_ranges", "fold_batch_norm"])
    left = {n.name: n for n in program.graph.nodes}
    found: list[str] = []
    for name in keep:
        if name in left:
            found.append(name)
            continue
        layer = left[source[name]]
        # Folded into its layer, or written out as a product and a sum behind it.
        products = [n for n in layer.users if any(f"{name}_scale" in i.name for i in n.all_input_nodes)]
        found += [n.name for p in products for n in (p, *p.users)] or [layer.name]
    return program, found


def _is_batch_norm(node: Any) -> bool:
    return "batch_norm" in packet(node)


def _keeping(quantizer: Any, keep_float: Sequence[str]) -> Any:
    """The quantizer, with the annotations of kept values taken off again."""
    if not keep_float:
        return quantizer
    from torchao.quantization.pt2e.quantizer import Quantizer

    class Keeping(Quantizer):
        def transform_for_annotation(self, model: Any) -> Any:
            return quantizer.transform_for_annotation(model)

        def annotate(self, model: Any) -> Any:
            annotated = quantizer.annotate(model)
            strip_annotations(annotated.graph, float_values(annotated.graph, keep_float), keep_float)
            return annotated

        def validate(self, model: Any) -> None:
            quantizer.validate(model)

    return Keeping()


def strip_annotations(graph: torch.fx.Graph, values: set[str], kept: Sequence[str]) -> None:
    """Take off every annotation that would quantise one of ``values``, or anything that a kept node reads."""
    for node in graph.nodes:
        annotation = node.meta.get("quantization_annotation")
        if annotation is None:
            continue
        if node.name in values:
            annotation.output_qspec = None
        if node.name in kept:
            annotation.input_qspec_map = {}
        annotation.input_qspec_map = {k: v for k, v in annotation.input_qspec_map.items() if k.name not in values}


def _tensor(array: Array) -> torch.Tensor:
    import torch

    return torch.from_numpy(array.copy())


def _arguments(tensors: list[Any], spec: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch.utils._pytree as pytree

    args, kwargs = pytree.tree_unflatten(tensors, spec)
    return tuple(args), dict(kwargs)


def example_inputs(signature: Signature, like: Mapping[str, Array] | None = None) -> list[torch.Tensor]:
    """Inputs in order, every dynamic size at 16 or as near to it as its range allows.

    Args:
        like: values of one call, repeated along dynamic dimensions; zeros without.
    """
    import numpy as np
    import torch

    sizes = {s: _example_size(lo, hi) for s, (lo, hi) in signature.dynamic_symbols.items()}
    tensors = []
    for tensor in signature.inputs:
        if like is None:
            value = torch.from_numpy(np.zeros([d if isinstance(d, int) else 1 for d in tensor.shape], tensor.dtype))
        else:
            value = _tensor(like[tensor.name])
        for axis, size in enumerate(shape_at(tensor.shape, sizes)):
            if isinstance(tensor.shape[axis], DynamicDim):
                value = value.index_select(axis, torch.arange(size) % value.shape[axis])
        tensors.append(value.contiguous())
    return tensors


def export_like(
    module: Any, signature: Signature, spec: Any, like: Mapping[str, Array] | None = None
) -> ExportedProgram:
    """Export a graph module with a signature's inputs: their names, dtypes and ranges.

    Args:
        spec: the program's ``call_spec.in_spec``.
        like: values of one call; zeros without.
    """
    import torch
    from torch.export import Dim

    roots = {
        symbol: Dim(f"dim_{i}", min=lo, **({} if hi is None else {"max": hi}))
        for i, (symbol, (lo, hi)) in enumerate(signature.dynamic_symbols.items())
    }

    def declared(dim: DynamicDim) -> Any:
        # No constant added where none is needed: `Dim + 0` is another dimension to torch.export.
        derived = roots[dim.symbol] if dim.scale == 1 else dim.scale * roots[dim.symbol]
        return derived + dim.offset if dim.offset else derived

    shapes = [
        {axis: declared(d) for axis, d in enumerate(t.shape) if isinstance(d, DynamicDim)} or None
        for t in signature.inputs
    ]
    args, kwargs = _arguments(example_inputs(signature, like), spec)
    dims, named_dims = _arguments(shapes, spec)
    with torch.no_grad():
        if any(shapes):
            return torch.export.export(module, args, kwargs, dynamic_shapes=(*dims, *named_dims.values()))
        return torch.export.export(module, args, kwargs)


def _example_size(lo: int, hi: int | None) -> int:
    return max(lo, _EXAMPLE_SIZE if hi is None else min(hi, _EXAMPLE_SIZE))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torchao's remarks on its own internals off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
