"""From a program to the bytes of a ``.tflite``: which sizes to convert at, and what to do with the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from targets.contract import DynamicDim, EntryPoint, Lowered, LowerRequest, Signature
from targets.tflite import flatbuffer
from targets.tflite.convert import is_dynamic, specialise, to_flatbuffer
from targets.tflite.expressions import Fitter, candidates
from targets.tflite.generalise import generalise
from targets.tflite.runner import count_coverage

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.tflite.convert import Sizes

KEY = "serving_default"
#: Sizes to convert at, in order of preference: odd, prime, unlike the sizes that models fix.
_PREFERRED = (5, 11, 7, 13, 17, 19, 23, 29, 31, 37, 41, 43, 3, 9, 15, 21)
#: A larger upper bound than this is not converted at: its tables would not fit a device either.
_LARGEST = 4096


def make(program: ExportedProgram, request: LowerRequest, rewrites: Sequence[str]) -> Lowered:
    """Convert and write ``model.tflite``."""
    signature = request.signature
    wide = True
    if is_dynamic(signature):
        model = _dynamic(program, signature, rewrites, wide)
    else:
        static = specialise(program, signature, {})
        model = flatbuffer.read(to_flatbuffer({KEY: static}, signature, rewrites, wide=wide))
    names = [[s.name for s in signature.inputs], [s.name for s in signature.outputs]]
    flatbuffer.name_signature(model, names, key=KEY)
    flatbuffer.put_declaration(model, {"signature": flatbuffer.signature_to_json(signature)})
    content = flatbuffer.write(model)
    (request.directory / "model.tflite").write_bytes(content)
    return Lowered(
        files=("model.tflite",),
        coverage=count_coverage(content),
        entry_points=(EntryPoint(name=KEY),),
    )


def _dynamic(program: ExportedProgram, signature: Signature, rewrites: Sequence[str], wide: bool) -> Any:
    symbols = signature.dynamic_symbols
    points = choose_points(signature)

    def at(sizes: Sizes) -> bytes:
        return to_flatbuffer({KEY: specialise(program, signature, sizes)}, signature, rewrites, wide=wide)

    contents = [at(p) for p in points]
    fitter = Fitter(points, candidates(program, list(symbols)))
    return generalise(contents, fitter, signature)


def choose_points(signature: Signature) -> list[dict[str, int]]:
    """Sizes to convert at: a base, each symbol changed alone, and all of them changed."""
    symbols = signature.dynamic_symbols
    fixed = {d for s in (*signature.inputs, *signature.outputs) for d in s.shape if isinstance(d, int)}
    used: set[int] = set()
    pairs: dict[str, list[int]] = {}
    for symbol, (lo, hi) in symbols.items():
        inside = [v for v in _PREFERRED if v > lo and (hi is None or v < hi)]
        good = [v for v in inside if v not in fixed and v not in used]
        rest = [v for v in range(lo, min(hi if hi is not None else lo + 64, lo + 64) + 1)]
        plain = sorted((v for v in rest if v not in good), key=lambda v: (v < 2, v in used, v == hi, v in fixed))
        pairs[symbol] = [*good, *plain][:2]
        used.update(pairs[symbol])
    base = {s: p[0] for s, p in pairs.items()}
    points = [base]
    changed = [s for s, p in pairs.items() if len(p) > 1]
    points += [{**base, s: pairs[s][1]} for s in changed]
    if len(changed) > 1:
        points.append({s: p[-1] for s, p in pairs.items()})
    return points
