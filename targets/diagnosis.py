"""Which parts of a program a target cannot take, said before conversion (findings) and after it failed (an error)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.legalize import REGISTRY, legalize
from build.program import op_name, op_nodes, source_of, torch_dtype_name
from targets.contract import Finding, Signature

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: dtypes that cross a numpy boundary; a program's inputs and outputs must be of these.
NUMPY_DTYPES = frozenset(
    ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)

#: a fresh draw at each call: no two runtimes agree on it, so its output cannot be verified.
RANDOM_OPS = frozenset(
    """
    rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ multinomial normal normal_
    normal_functional poisson uniform uniform_ exponential_ geometric_ rrelu_with_noise
    """.split()  # noqa: SIM905
)

#: op -> position of its "training" argument; in training they draw at each call.
_TRAINING = {
    "dropout": 2,
    "dropout_": 2,
    "native_dropout": 2,
    "feature_dropout": 2,
    "feature_dropout_": 2,
    "alpha_dropout": 2,
    "feature_alpha_dropout": 2,
    "rrelu": 3,
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why an op is refused, and the way out."""

    why: str
    remedy: str


_RANDOM = Refusal(
    why="draws random numbers, so its output cannot equal PyTorch's",
    remedy="Export the model in eval mode, or pass the noise as an input.",
)
_CUSTOM = Refusal(
    why="is a custom op, which has no meaning outside its own library",
    remedy="Replace it by PyTorch ops, or register a decomposition for it before export.",
)
_NORM_STATE = Refusal(
    why="is a batch norm in train mode: it updates its running statistics at each call, and the artifact keeps nothing",
    remedy="Call .eval() on the model before export.",
)
#: namespaces whose ops PyTorch itself defines.
_KNOWN = (None, "aten", "prims", "higher_order", "profiler", "inductor", "quantized_decomposed", "torchao")


def _refusal(node: Node) -> Refusal | None:
    name = op_name(node).split(".")
    if getattr(node.target, "namespace", None) not in _KNOWN:
        return _CUSTOM
    if name[0] != "aten" or len(name) < 2:
        return None
    op = name[1]
    if op in RANDOM_OPS:
        return _RANDOM
    at = _TRAINING.get(op)
    if at is not None and len(node.args) > at and node.args[at] is True and node.args[at - 1] != 0:
        return _RANDOM
    if op == "scaled_dot_product_attention" and len(node.args) > 4 and node.args[4]:
        return _RANDOM
    if op == "batch_norm" and node.args[5] is True and node.args[3] is not None:
        return _NORM_STATE
    return None


def packet(name: str) -> str:
    """``aten.add.Tensor`` -> ``aten.add``."""
    return ".".join(name.split(".")[:2])


def _op_finding(node: Node, rewrites: Mapping[str, str]) -> Finding:
    name, source, refusal = op_name(node), source_of(node), _refusal(node)
    if refusal is not None:
        return Finding(
            subject=name, kind="op", verdict="refused", why=refusal.why, source=source, remedy=refusal.remedy
        )
    if name in rewrites:
        return Finding(subject=name, kind="op", verdict="rewritten", why=rewrites[name], source=source)
    return Finding(subject=name, kind="op", verdict="fine", source=source)


def op_findings(program: ExportedProgram, rewrites: Sequence[str]) -> list[Finding]:
    """One finding for each op of the program, its worst verdict; refused ones first."""
    faults = {op: REGISTRY[name].fault for name in rewrites if name in REGISTRY for op in REGISTRY[name].ops}
    rank = {"refused": 0, "rewritten": 1, "fine": 2}
    worst: dict[str, Finding] = {}
    for node in op_nodes(program):
        if getattr(node.target, "__module__", "") == "_operator":
            continue
        finding = _op_finding(node, faults)
        old = worst.get(finding.subject)
        if old is None or rank[finding.verdict] < rank[old.verdict]:
            worst[finding.subject] = finding
    return sorted(worst.values(), key=lambda f: (rank[f.verdict], f.subject))


def dtype_findings(program: ExportedProgram, signature: Signature, refused: Mapping[str, str]) -> list[Finding]:
    """Inputs and outputs that numpy cannot hold, and dtypes inside the program that the target lacks.

    Args:
        refused: torch dtype name -> why, for dtypes anywhere in the program.
    """
    remedy = "Cast it to float32 (or another dtype of numpy) inside the model."
    found = [
        Finding(
            subject=t.dtype, kind="dtype", verdict="refused", why=f"'{t.name}' cannot leave the program", remedy=remedy
        )
        for t in (*signature.inputs, *signature.outputs)
        if t.dtype not in NUMPY_DTYPES
    ]
    seen: set[str] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, list | tuple) else [value]:
            name = torch_dtype_name(getattr(tensor, "dtype", ""))
            if name in refused and name not in seen:
                seen.add(name)
                made = op_name(node) if node.op == "call_function" else f"'{node.name}'"
                found.append(
                    Finding(
                        subject=name,
                        kind="dtype",
                        verdict="refused",
                        why=f"{refused[name]} ({made} makes it)",
                        source=source_of(node),
                        remedy="Write that part of the model with float32 tensors.",
                    )
                )
    return found


def mutation_findings(program: ExportedProgram, runtime: str) -> list[Finding]:
    """Buffers that the program writes: state that must survive from call to call.

    Export leaves in-place ops in the graph; which of them write a buffer shows in the functional form.
    """
    functional = legalize(program, ("drop_derived_ranges", "functional_form"))
    return [
        Finding(
            subject=f"buffer '{spec.target}'",
            kind="program",
            verdict="refused",
            why=f"the program changes it at each call, and {runtime} keeps nothing between calls",
            remedy="Make the state an input and an output of the model, and pass it on from call to call.",
        )
        for spec in functional.graph_signature.output_specs
        if spec.kind.name == "BUFFER_MUTATION"
    ]


def _shape_text(node: Node) -> str:
    value = node.meta.get("val")
    if value is None:
        value = node.meta.get("tensor_meta")
    shape = getattr(value, "shape", None)
    return "" if shape is None else f" of shape [{', '.join(str(s) for s in shape)}]"


def blame(
    program: ExportedProgram, error: BaseException, *, model: str, runtime: str, text: str | None = None
) -> LoweringError:
    """The converter's exception as one clear error: which op, of which shape, at which line, and the way out.

    The op is searched in the converter's own words (``aten.median.dim``, ``aten::median``, ``%median``), in the
    exception and in its causes; ``text`` overrides them.
    """
    if _is_ours(error):
        raise error
    words = text if text is not None else _all_words(error)
    node = _named_node(program, words)
    reason = first_reason(words)
    remedy = "Replace the op in the model by others with the same result, or leave this target out (--targets)."
    if node is None:
        # an op that the converter made of one of the program's: its name is all there is to go by
        made = re.search(r"OpOverload\(op='(\w+\.\w+)'", words) or re.search(r"\b(aten\.\w+\.\w+)", words)
        what = made[1] if made else None
        named = f"{what} in '{model}'" if what else f"'{model}'"
        return LoweringError(f"{runtime} cannot convert {named}: {reason}", op=what or "the program", remedy=remedy)
    name = op_name(node)
    return LoweringError(
        f"{runtime} cannot convert {name}{_shape_text(node)} in '{model}': {reason}",
        op=name,
        source=source_of(node),
        remedy=remedy,
    )


def _is_ours(error: BaseException) -> bool:
    """A slip in Edgeport's own code: it must come out as that, not as the converter's fault."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    here = Path(__file__).resolve().parent.parent
    mine = trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(here / "targets")
    return mine and isinstance(error, NameError | AttributeError | ImportError | UnboundLocalError)


def _all_words(error: BaseException | None) -> str:
    parts: list[str] = []
    while error is not None and len(parts) < 8:
        parts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(reversed(parts))


def _named_node(program: ExportedProgram, words: str) -> Any:
    patterns = (
        r"OpOverload\(op='(\w+\.\w+)'(?:, overload='(\w+)')?",
        r"\b(aten\.\w+\.\w+)",
        r"\baten(?:::|\.)(\w+)",
    )
    nodes = list(op_nodes(program))
    for pattern in patterns:
        for match in re.finditer(pattern, words):
            wanted = ".".join(g for g in match.groups() if g)
            wanted = wanted if wanted.startswith("aten.") else f"aten.{wanted}"
            found = next((n for n in nodes if wanted in (op_name(n), packet(op_name(n)))), None)
            if found is not None:
                return found
    for match in re.finditer(r"%(\w+) : ", words):
        found = next((n for n in nodes if n.name == match.group(1)), None)
        if found is not None:
            return found
    # The converter decomposes further: prims.prod stands for aten.cumprod, aten.bitwise_xor for aten.__xor__.
    for match in re.finditer(r"\b(?:aten|prims)(?:::|\.)(\w+)", words):
        part = match.group(1).removeprefix("bitwise_")
        found = next((n for n in nodes if part in packet(op_name(n))), None)
        if found is not None:
            return found
    return None


def first_reason(words: str) -> str:
    """The one line of a converter's message that says most, without colours, paths or tracebacks; 240 characters."""
    clean = re.sub(r"\x1b\[[0-9;]*m|\[0m", "", words)
    clean = re.sub(r"(?<!\w)/[\w./+-]+/", "", clean)
    clean = re.sub(r" at 0x[0-9a-f]+", "", clean)  # another at each run
    lines = [" ".join(line.split()) for line in clean.splitlines()]
    strong = re.compile(
        r"no conversion rule|no onnx function|not supported|unsupported|failed to|cannot|not implemented|error", re.I
    )
    noise = re.compile(r"^(Check '|FrontEnd API|Summary:|\W*$|File \"|This is step)")
    useful = [line for line in lines if line and not noise.match(line)]
    best = next((line for line in useful if strong.search(line)), useful[0] if useful else "no reason was given")
    return best[:240]


def nan_unsafe(program: ExportedProgram, packets: frozenset[str]) -> tuple[str, ...]:
    """``aten.relu.default at file.py:12 …`` for each op of ``packets`` that the program holds on float tensors."""
    found: dict[str, None] = {}
    for node in op_nodes(program):
        name = op_name(node)
        if packet(name) in packets and _reads_floats(node):
            source = source_of(node)
            found[f"{name} at {source}" if source else name] = None
    return tuple(found)


def _reads_floats(node: Node) -> bool:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return any(getattr(getattr(v, "dtype", None), "is_floating_point", False) for v in values)
