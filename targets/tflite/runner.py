"""The host runner: an artifact in the LiteRT interpreter, through its signatures, with XNNPACK as devices have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from build.errors import InputError, VerificationError
from targets.contract import Coverage, DynamicDim, Signature, TensorSpec
from targets.tflite import flatbuffer

if TYPE_CHECKING:
    from targets.contract import Array

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


class LiteRtRunner:
    """A ``.tflite`` loaded into the LiteRT interpreter, one thread.

    Args:
        content: the file's bytes.
        program_signature: what the program takes and gives.

    Raises:
        VerificationError: the interpreter refuses the file.
    """

    def __init__(self, content: bytes, program_signature: Signature) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.runtime = f"ai-edge-litert {_version()}"
        self._wanted = program_signature
        model = flatbuffer.read(content)
        self._declaration = flatbuffer.get_declaration(model)
        self._integers = int(self._declaration.get("integers", 64))
        self._signature = _read_signature(model, self._declaration)
        self._entries = entries(self._declaration, model)
        try:
            self._interpreter = Interpreter(model_content=content, num_threads=1)
            self._runners = {key: self._interpreter.get_signature_runner(key) for key in self._entries}
        except (ValueError, RuntimeError) as error:
            raise VerificationError(
                f"LiteRT refuses the file: {_one_line(error)}",
                remedy="Rebuild it; if that repeats, choose another target for this model.",
            ) from error

    def signature(self) -> Signature:
        """Names, dtypes and shapes as the file declares them."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :class:`targets.contract.Runner`."""
        import numpy as np

        sizes = check_inputs(self._wanted, inputs)
        key = self._choose(sizes)
        if self._integers == 32:
            for spec in self._wanted.inputs:
                _check_32_bits(spec.name, inputs[spec.name])
        feed = {s.name: _narrow(s, inputs[s.name]) for s in self._signature.inputs}
        try:
            raw = self._runners[key](**feed)
        except (ValueError, RuntimeError) as error:
            shapes = {k: tuple(v.shape) for k, v in feed.items()}
            raise VerificationError(f"LiteRT failed at input shapes {shapes}: {_one_line(error)}") from error
        outputs: dict[str, Array] = {}
        for spec in self._wanted.outputs:
            value = np.array(raw[spec.name])
            _check_output(spec, value, sizes)
            outputs[spec.name] = value if value.dtype.name == spec.dtype else value.astype(spec.dtype)
        return outputs

    def _choose(self, sizes: Mapping[str, int]) -> str:
        for key, fixed in self._entries.items():
            if all(sizes.get(symbol) == size for symbol, size in fixed.items()):
                return key
        raise InputError(
            f"the artifact has no signature for sizes {dict(sizes)}",
            remedy=f"It holds: {', '.join(str(dict(f)) for f in self._entries.values())}.",
        )


def entries(declaration: Mapping[str, Any], model: Any) -> dict[str, dict[str, int]]:
    """Signature key -> fixed sizes of root symbols (empty: any size in range)."""
    declared = declaration.get("entry_points")
    if declared is not None:
        return {e["name"]: dict(e["sizes"]) for e in declared}
    return {flatbuffer.text(d.signatureKey): {} for d in model.signatureDefs}


def check_inputs(signature: Signature, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Sizes of the root symbols in ``inputs``.

    Raises:
        InputError: a missing input, a wrong dtype or rank, a size outside its range, symbols that disagree.
    """
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        if spec.name not in inputs:
            raise InputError(f"input '{spec.name}' is missing")
        value = inputs[spec.name]
        if value.dtype.name != spec.dtype:
            raise InputError(f"input '{spec.name}' is {value.dtype.name}, the program takes {spec.dtype}")
        if value.ndim != len(spec.shape):
            raise InputError(f"input '{spec.name}' has shape {value.shape}, the program takes rank {len(spec.shape)}")
        for axis, (dim, size) in enumerate(zip(spec.shape, value.shape, strict=True)):
            _check_dim(spec.name, axis, dim, int(size), sizes)
    return sizes


def _check_dim(name: str, axis: int, dim: Any, size: int, sizes: dict[str, int]) -> None:
    where = f"input '{name}' dimension {axis}"
    if not isinstance(dim, DynamicDim):
        if dim != size:
            raise InputError(f"{where} is {size}, the program takes {dim}")
        return
    root, rest = divmod(size - dim.offset, dim.scale)
    if size < dim.lo or (dim.hi is not None and size > dim.hi) or rest:
        step = f" in steps of {dim.scale}" if dim.scale != 1 else ""
        raise InputError(f"{where} is {size}, outside {dim.lo}..{dim.hi or ''}{step}")
    if sizes.setdefault(dim.symbol, root) != root:
        raise InputError(f"{where} is {size}, but '{dim.symbol}' is {sizes[dim.symbol]} in another input")


def _narrow(spec: TensorSpec, value: Array) -> Array:
    """The value in the dtype that the file takes; 64-bit integers are never truncated quietly."""
    import numpy as np

    if value.dtype.name == spec.dtype:
        return np.ascontiguousarray(value)
    if value.dtype.name == "int64" and spec.dtype == "int32":
        _check_32_bits(spec.name, value)
        return np.ascontiguousarray(value.astype(np.int32))
    raise InputError(f"input '{spec.name}' is {value.dtype.name}, the artifact takes {spec.dtype}")


def _check_32_bits(name: str, value: Array) -> None:
    if value.dtype.name == "int64" and value.size and (value.min() < _INT32_MIN or value.max() > _INT32_MAX):
        raise InputError(f"input '{name}' holds values beyond 32 bits, which this artifact computes in")


def _check_output(spec: TensorSpec, value: Array, sizes: Mapping[str, int]) -> None:
    expected: list[int | None] = []
    for dim in spec.shape:
        if isinstance(dim, int):
            expected.append(dim)
        else:
            root = sizes.get(dim.symbol)
            expected.append(None if root is None else dim.scale * root + dim.offset)
    shape = tuple(int(s) for s in value.shape)
    if len(shape) != len(expected) or any(e not in (None, s) for e, s in zip(expected, shape, strict=True)):
        raise VerificationError(f"output '{spec.name}' has shape {shape}, the program gives {tuple(expected)}")


def _read_signature(model: Any, declaration: Mapping[str, Any]) -> Signature:
    """Names, dtypes, ranks from the graph; symbols and bounds of its -1 dimensions from the declaration."""
    definition = model.signatureDefs[0]
    graph = model.subgraphs[definition.subgraphIndex]
    declared = flatbuffer.signature_from_json(declaration["signature"]) if "signature" in declaration else None

    def specs(maps: Any, known: tuple[TensorSpec, ...] | None) -> tuple[TensorSpec, ...]:
        by_name = {s.name: s for s in known or ()}
        found = []
        for entry in maps or []:
            tensor = graph.tensors[entry.tensorIndex]
            name = flatbuffer.text(entry.name)
            shape = flatbuffer.declared_shape(tensor)
            told = by_name.get(name)
            dims = tuple(
                told.shape[i] if told is not None and len(told.shape) == len(shape) and _open(told.shape[i], d) else d
                for i, d in enumerate(shape)
            )
            found.append(
                TensorSpec(
                    name=name,
                    dtype=flatbuffer.dtype_name(tensor.type),
                    shape=tuple(
                        DynamicDim(symbol=f"{name}_{i}", lo=0, hi=None) if d == -1 else d for i, d in enumerate(dims)
                    ),
                )
            )
        return tuple(found)

    if declared is not None and declaration.get("entry_points", [{}])[0].get("sizes"):
        return declared
    return Signature(
        inputs=specs(definition.inputs, declared.inputs if declared else None),
        outputs=specs(definition.outputs, declared.outputs if declared else None),
    )


def _open(declared: Any, in_file: int) -> bool:
    return in_file == -1 and isinstance(declared, DynamicDim)


def count_coverage(content: bytes) -> Coverage:
    """Count delegated and fallback nodes as the interpreter plans them with its default XNNPACK delegate.

    A node is delegated when it lies between a delegate's outputs and its inputs.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    details = interpreter._get_ops_details()
    nodes = [d for d in details if d["op_name"] != "DELEGATE"]
    producer = {int(t): n["index"] for n in nodes for t in n["outputs"]}
    taken: set[int] = set()
    for delegate in (d for d in details if d["op_name"] == "DELEGATE"):
        borders = {int(t) for t in delegate["inputs"]}
        queue = [int(t) for t in delegate["outputs"]]
        by_index = {n["index"]: n for n in nodes}
        while queue:
            tensor = queue.pop()
            node = producer.get(tensor)
            if tensor in borders or node is None or node in taken:
                continue
            taken.add(node)
            queue.extend(int(t) for t in by_index[node]["inputs"])
    fallback: dict[str, int] = {}
    for node_details in nodes:
        if node_details["index"] not in taken:
            fallback[node_details["op_name"]] = fallback.get(node_details["op_name"], 0) + 1
    return Coverage(
        delegated=len(taken),
        fallback=dict(sorted(fallback.items())),
        method="nodes inside the XNNPACK partitions that the LiteRT interpreter plans on this host",
    )


def _version() -> str:
    from importlib.metadata import version

    return version("ai-edge-litert")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
