"""Dynamic dimensions: compare flatbuffers converted at several sizes, and make one that takes every size.

Whatever depends on the sizes shows as a difference. Tensor shapes become -1; constants that hold sizes are computed at
run time; constants whose shape is a size are filled, broadcast or sliced. Anything else that differs cannot be
generalised, and is an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from targets.contract import DynamicDim, Signature
from targets.tflite import flatbuffer, tables
from targets.tflite.expressions import Fitter
from targets.tflite.shape_ops import ShapeBuilder
from targets.tflite.structure import NeedsLargest, cannot_generalise, check_structure, options, same_structure

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: A constant with more elements than this is a table, never a list of sizes.
_MAX_SIZE_LIST = 64


@dataclass(frozen=True, kw_only=True)
class _Views:
    """The same tensor of one subgraph in every flatbuffer."""

    shapes: list[tuple[int, ...]]
    data: list[bytes]
    tensor_type: int

    @property
    def is_constant(self) -> bool:
        return bool(self.data[0])

    @property
    def differs(self) -> bool:
        return len(set(self.shapes)) > 1 or len(set(self.data)) > 1


def generalise(
    contents: Sequence[bytes],
    fitter: Fitter,
    signature: Signature,
    *,
    largest: bytes | None = None,
    weights: Sequence[Any] = (),
) -> Any:
    """One ``ModelT`` for every size, from flatbuffers converted at ``fitter.points``.

    Args:
        contents: one flatbuffer for each point.
        fitter: finds expressions for numbers seen at the points.
        signature: the program's signature, for the declared dynamic dimensions of the main graph's inputs.
        largest: the flatbuffer at the upper bound of every symbol, where known: tables are taken from it.
        weights: the program's weights as arrays.

    Raises:
        CannotGeneralise: something differs that is neither a shape nor a size.
    """
    models = [flatbuffer.read(c) for c in contents]
    top = flatbuffer.read(largest) if largest is not None else None
    if len({len(m.subgraphs) for m in models}) > 1:
        raise cannot_generalise("the number of subgraphs depends on the size")
    if top is not None and not same_structure([models[0], top]):
        top = None
    for index in range(len(models[0].subgraphs)):
        _Graph(models, index, fitter, signature, top, weights).generalise()
    return models[0]


class _Graph:
    """One subgraph, in every flatbuffer; the first one is changed."""

    def __init__(
        self,
        models: Sequence[Any],
        index: int,
        fitter: Fitter,
        signature: Signature,
        top: Any,
        weights: Sequence[Any],
    ) -> None:
        self._models = models
        self._weights = weights
        self._graphs = [m.subgraphs[index] for m in models]
        self._fitter = fitter
        self._signature = signature
        self._main = index == models[0].signatureDefs[0].subgraphIndex
        self._top = (top, top.subgraphs[index]) if top is not None else None
        check_structure(models, self._graphs)
        self._uses: dict[int, list[tuple[Any, int]]] = {}
        for operator in self._graphs[0].operators:
            for position, tensor in enumerate(operator.inputs):
                self._uses.setdefault(int(tensor), []).append((operator, position))
        self._builder = ShapeBuilder(models[0], self._graphs[0], self._sources())

    def _views(self, index: int) -> _Views:
        tensors = [g.tensors[index] for g in self._graphs]
        data = [flatbuffer.buffer_bytes(m.buffers[t.buffer]) for m, t in zip(self._models, tensors, strict=True)]
        if len({bool(d) for d in data}) > 1:
            raise cannot_generalise("a tensor is a constant at one size and computed at another")
        return _Views(shapes=[flatbuffer.shape_of(t) for t in tensors], data=data, tensor_type=int(tensors[0].type))

    def _sources(self) -> dict[str, tuple[int, int, int, int]]:
        """Where each symbol can be read off: an axis of an input that is a line in it."""
        found: dict[str, tuple[int, int, int, int]] = {}
        for position, tensor in enumerate(self._graphs[0].inputs):
            shapes = self._views(int(tensor)).shapes
            for axis in range(len(shapes[0])):
                line: tuple[str, int, int] | None
                if self._main:
                    dim = self._signature.inputs[position].shape[axis]
                    line = (dim.symbol, dim.scale, dim.offset) if isinstance(dim, DynamicDim) else None
                else:
                    line = _line_of(self._fitter.fit([s[axis] for s in shapes]))
                # An axis that is the symbol itself is preferred to one that must be divided.
                if line is not None and (line[0] not in found or found[line[0]][2:] != (1, 0)):
                    found[line[0]] = (int(tensor), axis, line[1], line[2])
        return found

    def generalise(self) -> None:
        for index in range(len(self._graphs[0].tensors)):
            views = self._views(index)
            if not views.differs:
                continue
            if not views.is_constant:
                self._open_shape(index, views)
            elif len(set(views.shapes)) == 1:
                self._compute_constant(index, views)
            else:
                self._replace(index, self._shaped_constant(index, views))
        self._check_options()
        self._builder.finish()

    def _open_shape(self, index: int, views: _Views) -> None:
        import numpy as np

        ranks = {len(s) for s in views.shapes}
        if len(ranks) > 1:
            raise cannot_generalise("the rank of a tensor depends on the size")
        tensor = self._graphs[0].tensors[index]
        open_shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*views.shapes, strict=True)]
        # The shape itself stays that of the first point: sizes at which the file can be allocated before any resize.
        tensor.shapeSignature = np.array(open_shape, np.int32)

    def _compute_constant(self, index: int, views: _Views) -> None:
        """A constant that holds sizes: reshape targets, slice bounds, paddings, divisors."""
        users = self._users(index)
        arrays = self._arrays(views, users)
        if arrays[0].size > _MAX_SIZE_LIST:
            raise cannot_generalise(f"a table of {arrays[0].size} values depends on the size", users)
        if arrays[0].dtype.kind == "f":
            self._replace(index, self._float_constant(arrays, views, users))
            return
        if arrays[0].dtype.kind not in "iu":
            raise cannot_generalise(f"a constant of {arrays[0].dtype} depends on the size", users)
        flat = [a.reshape(-1) for a in arrays]
        exprs = [self._fitter.fit([int(a[k]) for a in flat]) for k in range(flat[0].size)]
        if any(e is None for e in exprs):
            values = " / ".join(str(a.tolist()) for a in flat)
            raise cannot_generalise(f"the constant {values} is no known function of the sizes", users)
        unknown = [k for k, e in enumerate(exprs) if not isinstance(e, int)]
        if len(unknown) == 1 and self._only_reshapes(index):
            self._patch(index, flat[0], unknown[0])
            return
        self._replace(index, self._builder.vector(exprs, views.shapes[0], views.tensor_type))

    def _only_reshapes(self, index: int) -> bool:
        """Whether the constant is read as the target of reshapes and nothing else: one size may then be -1."""
        uses = self._uses.get(index, [])
        returned = any(int(t) == index for t in self._graphs[0].outputs)
        names = {(flatbuffer.opcode_name(self._models[0], o), position) for o, position in uses}
        return names == {("RESHAPE", 1)} and not returned

    def _patch(self, index: int, values: npt.NDArray[np.generic], element: int) -> None:
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        changed = values.copy()
        changed[element] = -1
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(changed.tobytes(), np.uint8)
        self._models[0].buffers.append(buffer)
        self._graphs[0].tensors[index].buffer = len(self._models[0].buffers) - 1

    def _float_constant(self, arrays: Sequence[Any], views: _Views, users: str) -> int:
        """One float, the same in every element: a size, or the reciprocal of one (a mean's divisor)."""
        import numpy as np

        values = [float(a.reshape(-1)[0]) for a in arrays]
        if any((a != a.reshape(-1)[0]).any() for a in arrays) or arrays[0].size != 1:
            raise cannot_generalise("a table of floats depends on the size", users)
        if not np.isfinite(values).all():
            raise cannot_generalise(f"the constant {values} depends on the size", users)
        whole = [round(v) for v in values]
        builder, kind = self._builder, views.tensor_type
        if all(np.float32(w) == np.float32(v) for w, v in zip(whole, values, strict=True)):
            expr = self._fitter.fit(whole)
            if expr is not None:
                return builder.vector([expr], views.shapes[0], kind)
        inverse = [round(1 / v) if v else 0 for v in values]
        if all(i and np.isclose(1 / i, v, rtol=1e-6, atol=0) for i, v in zip(inverse, values, strict=True)):
            expr = self._fitter.fit(inverse)
            if expr is not None:
                size = builder.vector([expr], views.shapes[0], kind)
                one = builder.constant(np.ones(views.shapes[0]), "float32")
                return builder.op("DIV", [one, size], builder.tensor(views.shapes[0], kind), "DivOptions")
        raise cannot_generalise(f"the constant {values} is no known function of the sizes", users)

    def _shaped_constant(self, index: int, views: _Views) -> int:
        """A constant whose shape depends on the size."""
        users = self._users(index)
        if len({len(s) for s in views.shapes}) > 1:
            raise cannot_generalise("the rank of a constant depends on the size", users)
        exprs = [self._fitter.fit(sizes) for sizes in zip(*views.shapes, strict=True)]
        if any(e is None for e in exprs):
            raise cannot_generalise(f"the shape of a constant, {views.shapes}, follows no known rule", users)
        arrays = self._arrays(views, users)
        top = None
        if self._top is not None:
            model, graph = self._top
            tensor = graph.tensors[index]
            data = flatbuffer.buffer_bytes(model.buffers[tensor.buffer])
            top = tables.array(data, flatbuffer.shape_of(tensor), views.tensor_type) if data else None
        made = tables.build(
            self._builder, self._fitter, arrays, exprs, views.tensor_type, top=top, weights=self._weights
        )
        if made is None:
            shapes = " / ".join(str(s) for s in views.shapes)
            error = cannot_generalise(f"a table of shape {shapes} depends on the size", users)
            if self._top is None:
                raise NeedsLargest(error.message, op=error.op, remedy=error.remedy)
            raise error
        return made

    def _arrays(self, views: _Views, users: str) -> list[Any]:
        if views.tensor_type not in flatbuffer.DTYPES.values():
            raise cannot_generalise(f"a constant of {flatbuffer.dtype_name(views.tensor_type)} depends on it", users)
        return [tables.array(d, s, views.tensor_type) for d, s in zip(views.data, views.shapes, strict=True)]

    def _users(self, index: int) -> str:
        names = {flatbuffer.opcode_name(self._models[0], o) for o, _ in self._uses.get(index, [])}
        return ", ".join(sorted(names)) or "the output"

    def _replace(self, old: int, new: int) -> None:
        """Let everything that read constant ``old`` read tensor ``new``."""
        for operator, position in self._uses.get(old, []):
            operator.inputs[position] = new
        graph = self._graphs[0]
        for position, tensor in enumerate(graph.outputs):
            if int(tensor) == old:
                graph.outputs[position] = new

    def _check_options(self) -> None:
        """Options of operators may not depend on the size; a reshape's target is its second input instead."""
        for operators in zip(*(g.operators for g in self._graphs), strict=True):
            name = flatbuffer.opcode_name(self._models[0], operators[0])
            if name == "RESHAPE" and len(operators[0].inputs) > 1:
                operators[0].builtinOptions, operators[0].builtinOptionsType = None, 0
                continue
            if len({options(o) for o in operators}) > 1:
                raise cannot_generalise(f"options of {name} depend on the size", name)


def _line_of(expr: Any) -> tuple[str, int, int] | None:
    """``(symbol, scale, offset)`` of an expression that is a line in one symbol."""
    if expr is None or isinstance(expr, int) or len(expr.free_symbols) != 1:
        return None
    symbol = next(iter(expr.free_symbols))
    if not expr.is_polynomial(symbol):
        return None
    coefficients = expr.as_poly(symbol).all_coeffs()
    if len(coefficients) != 2 or not all(c.is_Integer for c in coefficients) or coefficients[0] <= 0:
        return None
    return str(symbol), int(coefficients[0]), int(coefficients[1])
