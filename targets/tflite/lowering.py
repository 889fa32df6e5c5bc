"""From a program to the bytes of a ``.tflite``: which sizes to convert at, and what to do with the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from targets.checks import four_bit_weights
from targets.contract import EntryPoint, Lowered, LowerRequest, Signature
from targets.precisions import precision
from targets.tflite import flatbuffer, half, wide
from targets.tflite.borders import float_borders, wide_constants
from targets.tflite.check import check
from targets.tflite.convert import is_dynamic, specialise, to_flatbuffer
from targets.tflite.expressions import Fitter, candidates
from targets.tflite.generalise import generalise
from targets.tflite.nan import nan_unsafe
from targets.tflite.products import part_products_from_dequantize
from targets.tflite.quantized import Recipe
from targets.tflite.runner import count_coverage
from targets.tflite.structure import CannotGeneralise, NeedsLargest
from targets.trials import largest_trial

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.tflite.convert import Sizes

KEY = "serving_default"
FILE = "model.tflite"
#: Sizes to convert at, in order of preference: odd, prime, unlike the sizes that models fix.
_PREFERRED = (5, 11, 7, 13, 17, 19, 23, 29, 31, 37, 41, 43, 3, 9, 15, 21)
#: A range of at most this many sizes becomes one signature for each, when it cannot be one signature.
MOST_SIGNATURES = 16
#: The oldest runtime with every kernel version that this target adds (``runtime_version.cc``: BROADCAST_TO 2).
_RUNTIME = "2.5.0"
#: The oldest one with per-channel scales in FULLY_CONNECTED 12 and EMBEDDING_LOOKUP 4.
_RUNTIME_OF_INTEGERS = "2.18.0"
#: The largest size that is run before the file is handed out (the verification that follows goes to the bound).
_CHECKED = 128
#: Upper bounds beyond this are not converted at: a table that long has no place on a device.
_LARGEST = 4096


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A model and how its signatures are chosen. ``wide``: 64-bit integers are kept."""

    model: Any
    entry_points: tuple[EntryPoint, ...]
    wide: bool


def make(program: ExportedProgram, request: LowerRequest, rewrites: Sequence[str]) -> Lowered:
    """Convert, check against PyTorch, and write ``model.tflite``.

    64-bit integers are kept where LiteRT's kernels take them, and become 32-bit otherwise: then the runner refuses
    values beyond 32 bits, and ``contract`` names the file's own types.

    Raises:
        LoweringError: no file computes what the program computes.
    """
    recipe = Recipe.of(program, request)
    # What PyTorch makes of quantised values drifts too where ranges were not measured: the float program judges first.
    given, program = program, recipe.program
    quantized = program if program is not given else None
    signature = request.signature
    first: LoweringError | None = None
    for keep in (True, False) if _has_int64(program) else (True,):
        try:
            made = _convert(program, signature, rewrites, keep)
            unquantized, computed = recipe.apply(made.model)
            content = _finish(made, request)
            request.converted()
            check(content, given, signature, _check_points(given, signature, made), request.precision, quantized)
        except LoweringError as error:
            # What the wide form meets is told: the narrow one is a makeshift.
            first = first or error
            continue
        (request.directory / FILE).write_bytes(content)
        return Lowered(
            files=(FILE,),
            coverage=count_coverage(content),
            entry_points=made.entry_points,
            warnings=_warnings(made, signature),
            nan_unsafe=nan_unsafe(program),
            unquantized=unquantized,
            arithmetic=computed,
            contract={
                "dtypes": _file_dtypes(made.model),
                **four_bit_weights(
                    request.precision, "linear layers have 4-bit weights; convolutions and embeddings 8-bit ones"
                ),
            },
        )
    assert first is not None
    raise first


def _has_int64(program: ExportedProgram) -> bool:
    import torch

    return any(getattr(n.meta.get("val"), "dtype", None) == torch.int64 for n in program.graph.nodes)


def _convert(program: ExportedProgram, signature: Signature, rewrites: Sequence[str], keep: bool) -> _Made:
    if not is_dynamic(signature):
        static = specialise(program, signature, {})
        content = to_flatbuffer({KEY: static}, signature, rewrites, wide=keep)
        return _Made(model=flatbuffer.read(content), entry_points=(EntryPoint(name=KEY),), wide=keep)
    try:
        return _Made(
            model=_dynamic(program, signature, rewrites, keep), entry_points=(EntryPoint(name=KEY),), wide=keep
        )
    except CannotGeneralise:
        if _count(signature) > MOST_SIGNATURES:
            raise
    return _enumerated(program, signature, rewrites, keep)


def _count(signature: Signature) -> int:
    """How many combinations of sizes the program takes (more than any limit without a maximum)."""
    spans = [MOST_SIGNATURES + 1 if hi is None else hi - lo + 1 for lo, hi in signature.dynamic_symbols.values()]
    return prod(spans)


def _dynamic(program: ExportedProgram, signature: Signature, rewrites: Sequence[str], keep: bool) -> Any:
    bounds = signature.dynamic_symbols
    points = choose_points(signature)

    def at(sizes: Sizes) -> bytes:
        return to_flatbuffer({KEY: specialise(program, signature, sizes)}, signature, rewrites, wide=keep)

    contents = [at(p) for p in points]
    highest = {s: hi for s, (_, hi) in bounds.items() if hi is not None and hi <= _LARGEST}
    largest = highest if len(highest) == len(bounds) else None
    fitter = Fitter(points, candidates(program, list(bounds)), largest)
    weights = _weights(program)
    try:
        return generalise(contents, fitter, signature, weights=weights)
    except NeedsLargest:
        if largest is None:
            raise
        return generalise(contents, fitter, signature, weights=weights, largest=at(largest))


def _weights(program: ExportedProgram) -> list[Any]:
    import torch

    tensors = [*program.state_dict.values(), *program.constants.values()]
    return [
        t.detach().contiguous().numpy()
        for t in tensors
        if type(t) in (torch.Tensor, torch.nn.Parameter) and t.dtype is not torch.bfloat16
    ]


def _enumerated(program: ExportedProgram, signature: Signature, rewrites: Sequence[str], keep: bool) -> _Made:
    """One signature for each combination of sizes; weights are stored once."""
    bounds = signature.dynamic_symbols
    ranges = [range(lo, (hi if hi is not None else lo) + 1) for lo, hi in bounds.values()]
    entries = []
    for sizes in product(*ranges):
        named = dict(zip(bounds, sizes, strict=True))
        entries.append(EntryPoint(name="_".join(f"{s}_{n}" for s, n in named.items()), sizes=named))
    programs = {e.name: specialise(program, signature, e.sizes) for e in entries}
    model = flatbuffer.read(to_flatbuffer(programs, signature, rewrites, wide=keep))
    return _Made(model=model, entry_points=tuple(entries), wide=keep)


def _finish(made: _Made, request: LowerRequest) -> bytes:
    signature = request.signature
    float_borders(made.model, signature)
    wide_constants(made.model, signature)
    names = [[s.name for s in signature.inputs], [s.name for s in signature.outputs]]
    for entry in made.entry_points:
        flatbuffer.name_signature(made.model, names, key=entry.name)
    wide.multiply_in_64_bits(made.model)
    part_products_from_dequantize(made.model)
    if request.precision == "fp16":
        half.weights_to_float16(made.model)
    declaration = {
        "signature": flatbuffer.signature_to_json(signature),
        "entry_points": [{"name": e.name, "sizes": dict(e.sizes)} for e in made.entry_points],
        "integers": 32 if wide.computes_in_32_bits(made.model) or not made.wide else 64,
    }
    integers = precision(request.precision).quantized
    flatbuffer.require_runtime(made.model, _RUNTIME_OF_INTEGERS if integers else _RUNTIME)
    flatbuffer.put_declaration(made.model, declaration)
    return flatbuffer.write(made.model)


def _file_dtypes(model: Any) -> dict[str, str]:
    """Input and output name -> the file's own dtype."""
    definition = model.signatureDefs[0]
    tensors = model.subgraphs[definition.subgraphIndex].tensors
    return {
        flatbuffer.text(e.name): flatbuffer.dtype_name(tensors[e.tensorIndex].type)
        for e in (*definition.inputs, *definition.outputs)
    }


def _warnings(made: _Made, signature: Signature) -> tuple[str, ...]:
    found = []
    own = _file_dtypes(made.model)
    changed = [
        f"{s.name}: {s.dtype} -> {own[s.name]}"
        for s in (*signature.inputs, *signature.outputs)
        if own.get(s.name, s.dtype) != s.dtype
    ]
    if changed:
        found.append(
            f"the file holds 32-bit integers where the program has 64-bit ones ({', '.join(changed)}): "
            "feed and read those, and keep values within 32 bits"
        )
    reads_wide = any(s.dtype == "int64" for s in signature.inputs)
    if made.wide and reads_wide and wide.computes_in_32_bits(made.model):
        found.append("integers are computed in 32 bits inside the file: values and results beyond 32 bits wrap around")
    if len(made.entry_points) > 1:
        found.append(f"{len(made.entry_points)} signatures, one for each size: choose by the input's size")
    return tuple(found)


def choose_points(signature: Signature) -> list[dict[str, int]]:
    """Sizes to convert at: a base, each symbol changed alone, and all of them changed."""
    fixed = {d for s in (*signature.inputs, *signature.outputs) for d in s.shape if isinstance(d, int)}
    used: set[int] = set()
    pairs: dict[str, list[int]] = {}
    for symbol, (lo, hi) in signature.dynamic_symbols.items():
        inside = [v for v in _PREFERRED if v > lo and (hi is None or v < hi)]
        good = [v for v in inside if v not in fixed and v not in used]
        span = range(lo, min(lo + 64 if hi is None else hi, lo + 64) + 1)
        plain = sorted((v for v in span if v not in good), key=lambda v: (v < 2, v in used, v == hi, v in fixed, v))
        pairs[symbol] = [*good, *plain][:2]
        used.update(pairs[symbol])
    base = {s: p[0] for s, p in pairs.items()}
    changed = [s for s, p in pairs.items() if len(p) > 1]
    points = [base, *({**base, s: pairs[s][1]} for s in changed)]
    if len(changed) > 1:
        points.append({s: p[-1] for s, p in pairs.items()})
    return points


def _check_points(program: ExportedProgram, signature: Signature, made: _Made) -> list[Mapping[str, int]]:
    """Sizes to check at: the bounds as far as a trial goes, and sizes that nothing was converted at."""
    if not is_dynamic(signature):
        return [{}]
    if len(made.entry_points) > 1:
        return [e.sizes for e in made.entry_points]
    bounds = signature.dynamic_symbols
    seen = {v for p in choose_points(signature) for v in p.values()}
    low = {s: lo for s, (lo, _) in bounds.items()}
    most = {s: min(_CHECKED if hi is None else hi, max(lo, _CHECKED)) for s, (lo, hi) in bounds.items()}
    high = largest_trial(program, low, most)
    middle = {s: next((v for v in range((low[s] + high[s]) // 2, high[s]) if v not in seen), low[s]) for s in bounds}
    points = [low, high, middle]
    if len(bounds) > 1:
        mixed = [{**low, s: high[s]} for s in bounds]
        points += mixed
    return [p for i, p in enumerate(points) if p not in points[:i]]
