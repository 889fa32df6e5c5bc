"""Real shape computation inside a flatbuffer: sizes of the inputs, arithmetic on them, shape vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from build.errors import LoweringError
from targets.tflite.flatbuffer import DTYPES

_INT32 = DTYPES["int32"]
#: Version of the kernels to ask for, where it isn't 1 (``op_version.cc`` of LiteRT).
_VERSIONS = {"BROADCAST_TO": 2, "DEQUANTIZE": 3}


class ShapeBuilder:
    """Adds operators at the head of one subgraph that compute sizes from the shapes of its inputs.

    Args:
        model: the ``ModelT`` to extend.
        graph: the subgraph of it.
        sources: symbol -> (input tensor, axis, scale, offset): the axis's size is ``scale * symbol + offset``.
    """

    def __init__(self, model: Any, graph: Any, sources: Mapping[str, tuple[int, int, int, int]]) -> None:
        self._model = model
        self._graph = graph
        self._sources = sources
        self._scalars: dict[str, int] = {}
        self._shapes: dict[int, int] = {}
        self._vectors: dict[tuple[tuple[str, ...], tuple[int, ...], int], int] = {}
        self.operators: list[Any] = []

    def finish(self) -> None:
        """Put the operators before all others: they depend on the subgraph's inputs only."""
        self._graph.operators = [*self.operators, *self._graph.operators]
        self.operators = []

    def constant(self, values: Any, dtype: str = "int32") -> int:
        """A constant tensor of the given values."""
        import numpy as np

        array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
        return self.raw_constant(array.tobytes(), array.shape, DTYPES[dtype])

    def raw_constant(self, data: bytes, shape: Sequence[int], tensor_type: int) -> int:
        """A constant tensor from bytes."""
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        self._model.buffers.append(buffer)
        return self.tensor(shape, tensor_type, buffer=len(self._model.buffers) - 1)

    def tensor(
        self, shape: Sequence[int], tensor_type: int, *, buffer: int = 0, signature: Sequence[int] | None = None
    ) -> int:
        """A new tensor of the subgraph."""
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        tensor = schema.TensorT()
        tensor.name = f"edgeport/size_{len(self._graph.tensors)}".encode()
        tensor.shape = np.array(shape, np.int32)
        tensor.type, tensor.buffer, tensor.hasRank = tensor_type, buffer, True
        if signature is not None:
            tensor.shapeSignature = np.array(signature, np.int32)
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def op(
        self, name: str, inputs: Sequence[int], output: int, options: str = "", *, version: int = 0, **fields: Any
    ) -> int:
        """Append one operator; returns its output tensor. ``version``: of its kernel, where it is not the usual one."""
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        operator = schema.OperatorT()
        operator.opcodeIndex = self.opcode(name, version)
        operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array([output], np.int32)
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for field, value in fields.items():
                setattr(operator.builtinOptions, field, value)
        self.operators.append(operator)
        return output

    def opcode(self, name: str, version: int = 0) -> int:
        """Index of the model's entry for a builtin op with at least that kernel version."""
        from ai_edge_litert import schema_py_generated as schema

        code, version = getattr(schema.BuiltinOperator, name), version or _VERSIONS.get(name, 1)
        for i, known in enumerate(self._model.operatorCodes):
            if max(known.builtinCode, known.deprecatedBuiltinCode) == code:
                known.version = max(known.version, version)
                return i
        entry = schema.OperatorCodeT()
        # Codes over 127 live in builtinCode alone; readers take the larger of the two.
        entry.builtinCode, entry.deprecatedBuiltinCode = code, min(code, 127)
        entry.version = version
        self._model.operatorCodes.append(entry)
        return len(self._model.operatorCodes) - 1

    def scalar(self, expr: Any) -> int:
        """An int32 tensor of shape [1] that holds the expression's value at run time."""
        key = str(expr)
        if key not in self._scalars:
            self._scalars[key] = self._compute(expr)
        return self._scalars[key]

    def _compute(self, expr: Any) -> int:
        if isinstance(expr, int) or expr.is_Integer:
            return self.constant([int(expr)])
        if expr.is_Symbol:
            return self._symbol(str(expr))
        if expr.is_Add or expr.is_Mul:
            name, options = ("ADD", "AddOptions") if expr.is_Add else ("MUL", "MulOptions")
            rational = [a for a in expr.args if a.is_Rational and not a.is_Integer]
            if rational:
                raise _unknown(expr)
            parts = sorted(expr.args, key=str)
            total = self.scalar(parts[0])
            for part in parts[1:]:
                total = self._binary(name, options, total, self.scalar(part))
            return total
        if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
            return self._power(expr)
        kind = type(expr).__name__
        if kind in ("FloorDiv", "CleanDiv"):
            return self._binary("FLOOR_DIV", "FloorDivOptions", self.scalar(expr.args[0]), self.scalar(expr.args[1]))
        if kind in ("Mod", "PythonMod"):
            return self._binary("FLOOR_MOD", "FloorModOptions", self.scalar(expr.args[0]), self.scalar(expr.args[1]))
        if kind == "Max" or kind == "Min":
            name = "MAXIMUM" if kind == "Max" else "MINIMUM"
            total = self.scalar(expr.args[0])
            for part in expr.args[1:]:
                total = self._binary(name, "MaximumMinimumOptions", total, self.scalar(part))
            return total
        raise _unknown(expr)

    def _power(self, expr: Any) -> int:
        base = self.scalar(expr.base)
        total = base
        for _ in range(int(expr.exp) - 1):
            total = self._binary("MUL", "MulOptions", total, base)
        return total

    def _binary(self, name: str, options: str, a: int, b: int) -> int:
        return self.op(name, [a, b], self.tensor([1], _INT32), options)

    def _symbol(self, symbol: str) -> int:
        if symbol not in self._sources:
            raise _unknown(symbol)
        tensor, axis, scale, offset = self._sources[symbol]
        size = self.axis_size(tensor, axis)
        if offset:
            size = self._binary("SUB", "SubOptions", size, self.constant([offset]))
        if scale != 1:
            size = self._binary("FLOOR_DIV", "FloorDivOptions", size, self.constant([scale]))
        return size

    def axis_size(self, tensor: int, axis: int) -> int:
        """The size of one axis of an input of the subgraph, int32 of shape [1]."""
        if tensor not in self._shapes:
            rank = len(self._graph.tensors[tensor].shape)
            self._shapes[tensor] = self.op(
                "SHAPE", [tensor], self.tensor([rank], _INT32), "ShapeOptions", outType=_INT32
            )
        inputs = [self._shapes[tensor], self.constant([axis]), self.constant([axis + 1]), self.constant([1])]
        return self.op("STRIDED_SLICE", inputs, self.tensor([1], _INT32), "StridedSliceOptions")

    def vector(self, exprs: Sequence[Any], shape: Sequence[int], tensor_type: int = _INT32) -> int:
        """A tensor of the given shape and type whose elements are the expressions' values."""
        key = (tuple(str(e) for e in exprs), tuple(shape), tensor_type)
        if key not in self._vectors:
            self._vectors[key] = self._vector(exprs, shape, tensor_type)
        return self._vectors[key]

    def _vector(self, exprs: Sequence[Any], shape: Sequence[int], tensor_type: int) -> int:
        parts: list[int] = []
        pending: list[int] = []
        for expr in exprs:
            if isinstance(expr, int) or expr.is_Integer:
                pending.append(int(expr))
                continue
            if pending:
                parts.append(self.constant(pending))
                pending = []
            parts.append(self.scalar(expr))
        if pending:
            parts.append(self.constant(pending))
        result = parts[0]
        if len(parts) > 1:
            result = self.op("CONCATENATION", parts, self.tensor([len(exprs)], _INT32), "ConcatenationOptions", axis=0)
        if tuple(shape) != (len(exprs),):
            result = self.op("RESHAPE", [result, self.constant(list(shape))], self.tensor(shape, _INT32))
        if tensor_type != _INT32:
            result = self.op(
                "CAST",
                [result],
                self.tensor(shape, tensor_type),
                "CastOptions",
                inDataType=_INT32,
                outDataType=tensor_type,
            )
        return result


def _unknown(expr: Any) -> LoweringError:
    return LoweringError(
        f"LiteRT cannot compute the size {expr} at run time",
        op="shape computation",
        remedy="Make that dimension static, or compute the size with +, -, *, // of input sizes.",
    )
