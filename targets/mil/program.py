"""A loaded ML Program: the graph with its constants decoded, and what it declares to an app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build.errors import VerificationError

from .blobs import WeightFiles
from .graph import Block, DimRange, Node, Ref, ValueInfo
from .reader import INTERFACE_TYPES, GraphReader, described, model_file, read_specification
from .registry import OPERATIONS
from .weights import float_ops

#: operations that the run itself understands, because they need blocks or state.
CONTROL = frozenset({"const", "cond", "while_loop", "read_state", "write_state"})


@dataclass(frozen=True, kw_only=True)
class Program:
    """An ``.mlpackage`` read back from its files.

    Attributes:
        inputs, outputs, states: what an app sees, in the package's order. The sizes of an output are those that the
            program declares; the format gives no bounds for the open ones.
        op_counts: how often each operation stands in the file (constants excepted, bodies of loops included).
        unsupported: the operations among them that the evaluator does not know; a program with any cannot be verified.
        dtypes: the element types of its values, constants included.
        float_weights: operation -> how many of them read a weight that is stored as floats.
        specification_version: Core ML's version number of the file format (9 is iOS 18).
        opset_version: the same numbering for the meaning of the operations, which the file declares separately.
    """

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    states: tuple[ValueInfo, ...]
    op_counts: Mapping[str, int]
    unsupported: tuple[str, ...]
    dtypes: tuple[str, ...]
    float_weights: Mapping[str, int]
    specification_version: int
    opset_version: int
    main: Block


def _walk(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from _walk(inner)


def _reads(node: Node) -> set[str]:
    """Names that a node needs from outside, those of its blocks included."""
    names = {a.name for given in node.args.values() for a in given if isinstance(a, Ref)}
    for block in node.blocks:
        names |= set(block.outputs)
        for inner in block.nodes:
            names |= _reads(inner)
    return names


def _with_frees(block: Block, nodes: list[Node]) -> tuple[Node, ...]:
    """Marks, on each node, the values that nobody reads afterwards."""
    made = {slot.name for node in nodes for slot in node.outputs} | {slot.name for slot in block.inputs}
    alive = set(block.outputs)
    out: list[Node] = []
    for node in reversed(nodes):
        touched = (_reads(node) | {slot.name for slot in node.outputs}) & made
        out.append(replace(node, frees=tuple(sorted(touched - alive))))
        alive |= touched
    return tuple(reversed(out))


def _prepare(block: Block, outer: Mapping[str, Any], version: int) -> Block:
    """Decodes the block's constants, decompresses those that are compressed, and marks last uses."""
    from .run import compute

    constants: dict[str, Any] = {}
    nodes: list[Node] = []
    for node in block.nodes:
        if node.op == "const":
            constants[node.outputs[0].name] = node.args["val"][0].value  # type: ignore[union-attr]
            continue
        known = {**outer, **constants}
        if node.op.startswith("constexpr_") and node.op in OPERATIONS and _reads(node) <= known.keys():
            results = compute(node, known, version)
            constants.update(zip((s.name for s in node.outputs), results, strict=True))
            continue
        nodes.append(replace(node, blocks=tuple(_prepare(b, known, version) for b in node.blocks)))
    return replace(block, nodes=_with_frees(block, nodes), constants=constants)


def _output_infos(block: Block, declared: tuple[ValueInfo, ...]) -> tuple[ValueInfo, ...]:
    """What the program gives for each output that an app is told of: the two must agree on its element type."""
    types = {slot.name: slot.type for node in block.nodes for slot in node.outputs}
    types |= {slot.name: slot.type for slot in block.inputs}
    infos: list[ValueInfo] = []
    for told in declared:
        name = told.name
        if name not in block.outputs or name not in types:
            raise VerificationError(f"the package declares an output {name} that its program does not give")
        kind = types[name]
        if kind.shape is None:
            raise VerificationError(f"the program does not even declare the rank of its output {name}")
        if kind.dtype != told.dtype and kind.dtype in INTERFACE_TYPES:
            raise VerificationError(f"output {name} is {told.dtype} to an app but {kind} inside")
        shape = tuple(DimRange(lo=0, hi=None) if d is None else d for d in kind.shape)
        infos.append(ValueInfo(name=name, dtype=kind.dtype, shape=shape))
    return tuple(infos)


def _check_inputs(block: Block, infos: tuple[ValueInfo, ...]) -> None:
    """The two places that declare inputs must agree: what an app is told, and what the program takes."""
    types = {slot.name: slot.type for slot in block.inputs}
    for info in infos:
        kind = types.get(info.name)
        if kind is None:
            raise VerificationError(f"the package declares an input {info.name} that its program does not take")
        if kind.dtype != info.dtype or (kind.shape is not None and len(kind.shape) != len(info.shape)):
            raise VerificationError(f"input {info.name} is {info.dtype}{info.describe()} to an app but {kind} inside")
    missing = sorted(types.keys() - {i.name for i in infos})
    if missing:
        raise VerificationError(f"the program takes inputs that the package does not declare: {', '.join(missing)}")


def load(package: Path) -> Program:
    """Reads a saved package: graph, declared shapes, and weights, which are decoded (and decompressed) once, here.

    Raises:
        InputError: there is no ML Program package at ``package``.
        UntrustedInputError: the package is damaged, or names files outside itself.
        VerificationError: the package contradicts itself, or holds types that the evaluator cannot.
    """
    from . import ops as _ops  # noqa: F401  (fills the registry)

    path = model_file(package)
    specification = read_specification(path)
    description = specification.description
    name = description.defaultFunctionName or "main"
    functions = specification.mlProgram.functions
    if name not in functions:
        raise VerificationError(f"the package has no function {name}: it has {', '.join(sorted(functions))}")
    function = functions[name]
    declared = description
    if description.functions:  # a package of several functions declares each one's features apart
        declared = next(f for f in description.functions if f.name == name)
    reader = GraphReader(WeightFiles(path.parent))
    block = reader.block(function.block_specializations[function.opset])
    block = replace(block, inputs=tuple(reader.slot(i) for i in function.inputs))
    version = int(function.opset.removeprefix("CoreML")) + 1  # CoreML5, the first, belongs to specification 6
    inputs, states = described(declared.input), described(declared.state)
    _check_inputs(block, inputs + states)
    outputs = _output_infos(block, described(declared.output))
    counts = Counter(node.op for node in _walk(block) if node.op != "const")
    return Program(
        inputs=inputs,
        outputs=outputs,
        states=states,
        op_counts=dict(sorted(counts.items())),
        unsupported=tuple(sorted(op for op in counts if op not in OPERATIONS and op not in CONTROL)),
        dtypes=tuple(sorted({slot.type.dtype for node in _walk(block) for slot in node.outputs})),
        float_weights=float_ops(block),
        specification_version=int(specification.specificationVersion),
        opset_version=version,
        main=_prepare(block, {}, version),
    )
