"""What every runner checks around a runtime call, and the signature as JSON for formats that can carry metadata.

No runtime can be trusted with this: most check only the rank or the total size of an input, and some return
a stale or empty buffer after a failure. So the inputs are compared with the declared ranges before the call, and
the outputs with the shapes that those inputs imply after it.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from build.errors import InputError, LoweringError, UnsupportedError, VerificationError
from targets.contract import Dim, DynamicDim, Finding, Lowered, Signature, TensorSpec

if TYPE_CHECKING:
    from targets.contract import Array

#: version of the JSON below; a reader refuses a version that it doesn't know.
SIGNATURE_VERSION = 1


def signature_to_json(signature: Signature) -> str:
    """One line of JSON with sorted keys: the same signature always gives the same text."""

    def dim(size: Dim) -> object:
        if isinstance(size, int):
            return size
        return {"symbol": size.symbol, "lo": size.lo, "hi": size.hi, "scale": size.scale, "offset": size.offset}

    def specs(tensors: tuple[TensorSpec, ...]) -> list[dict[str, object]]:
        return [{"name": t.name, "dtype": t.dtype, "shape": [dim(s) for s in t.shape]} for t in tensors]

    data = {
        "version": SIGNATURE_VERSION,
        "inputs": specs(signature.inputs),
        "outputs": specs(signature.outputs),
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def signature_from_json(text: str) -> Signature:
    """The signature that ``signature_to_json`` wrote.

    Raises:
        VerificationError: not JSON, another version, or fields are missing.
    """

    def dim(size: Any) -> Dim:
        return size if isinstance(size, int) else DynamicDim(**size)

    def specs(tensors: Any) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name=t["name"], dtype=t["dtype"], shape=tuple(dim(s) for s in t["shape"])) for t in tensors
        )

    try:
        data = json.loads(text)
        if data["version"] != SIGNATURE_VERSION:
            raise VerificationError(f"the artifact's signature has version {data['version']}, not {SIGNATURE_VERSION}")
        return Signature(inputs=specs(data["inputs"]), outputs=specs(data["outputs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"the artifact's signature cannot be read: {error}") from error


def dim_text(size: Dim) -> str:
    """``4``, ``n``, ``8*n``, ``2*n + 1``: the size as a formula of its root symbol."""
    if isinstance(size, int):
        return str(size)
    text = size.symbol if size.scale == 1 else f"{size.scale}*{size.symbol}"
    return text if size.offset == 0 else f"{text} {'+' if size.offset > 0 else '-'} {abs(size.offset)}"


def range_text(size: Dim) -> str:
    """``4``, ``1..64``, ``1 or more``, ``8..64 in steps of 8``."""
    if isinstance(size, int):
        return str(size)
    bounds = f"{size.lo} or more" if size.hi is None else f"{size.lo}..{size.hi}"
    return bounds if size.scale == 1 else f"{bounds} in steps of {size.scale}"


def _in_range(size: int, dim: DynamicDim) -> bool:
    too_big = dim.hi is not None and size > dim.hi
    return size >= dim.lo and not too_big and (size - dim.offset) % dim.scale == 0


def check_inputs(signature: Signature, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Compare a call's inputs with the signature.

    Returns:
        Root symbol -> size, as this call fixes them.

    Raises:
        InputError: a missing or unknown name, another dtype or rank, a size outside its range, or two sizes that
            share a symbol but differ.
    """
    names = [t.name for t in signature.inputs]
    if set(names) != set(inputs):
        raise InputError(f"inputs {sorted(inputs)} were given, the program takes {names}")
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        array = inputs[spec.name]
        if str(array.dtype) != spec.dtype:
            raise InputError(f"input '{spec.name}' is {array.dtype}, the program takes {spec.dtype}")
        if array.ndim != len(spec.shape):
            raise InputError(
                f"input '{spec.name}' has shape {list(array.shape)}, the program takes {len(spec.shape)} dimensions"
            )
        for axis, (size, dim) in enumerate(zip(array.shape, spec.shape, strict=True)):
            where = f"dimension {axis} of input '{spec.name}'"
            if isinstance(dim, int) and size != dim:
                raise InputError(f"{where} is {size}, the program takes {dim}")
            if isinstance(dim, int):
                continue
            if not _in_range(size, dim):
                raise InputError(f"{where} is {size}, outside the program's range {range_text(dim)}")
            root = (size - dim.offset) // dim.scale
            if sizes.setdefault(dim.symbol, root) != root:
                known = sizes[dim.symbol] * dim.scale + dim.offset
                raise InputError(f"{where} is {size}, but it must equal {dim_text(dim)} = {known}")
    return sizes


_BINARY: dict[type[ast.operator], Callable[[int, int], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., int]] = {
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Max": max,
    "Min": min,
}


def evaluate(formula: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a size formula (``b*(t//2) + 1``); None when it holds an unknown symbol or function."""

    def value(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes.get(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                positive = value(inner)
                return None if positive is None else -positive
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                a, b = value(left), value(right)
                if a is None or b is None or (isinstance(op, ast.FloorDiv | ast.Mod) and b == 0):
                    return None
                result = _BINARY[type(op)](a, b)
                return result if isinstance(result, int) else None
            case ast.Call(func=ast.Name(id=name), args=args) if name in _CALLS:
                values = [value(a) for a in args]
                return None if None in values else _CALLS[name](*values)
        return None

    try:
        return value(ast.parse(formula, mode="eval").body)
    except SyntaxError:
        return None


def check_outputs(signature: Signature, sizes: Mapping[str, int], outputs: Mapping[str, Array], runtime: str) -> None:
    """Compare a call's outputs with the shapes and dtypes that its inputs imply.

    A size that depends on the data (``nonzero``) is compared with its bounds only.

    Raises:
        VerificationError: an output is missing, or has another dtype or shape.
    """
    for spec in signature.outputs:
        array = outputs.get(spec.name)
        if array is None:
            raise VerificationError(f"{runtime} returned no output '{spec.name}'")
        if str(array.dtype) != spec.dtype:
            raise VerificationError(f"{runtime} returned '{spec.name}' as {array.dtype}, the program's is {spec.dtype}")
        wanted = [_expected(dim, sizes) for dim in spec.shape]
        if array.ndim != len(wanted) or not all(w is None or w == s for w, s in zip(wanted, array.shape, strict=True)):
            shown = ["?" if w is None else w for w in wanted]
            raise VerificationError(
                f"{runtime} returned '{spec.name}' with shape {list(array.shape)}, these inputs imply {shown}"
            )
        for size, dim in zip(array.shape, spec.shape, strict=True):
            if isinstance(dim, DynamicDim) and not (dim.lo <= size and (dim.hi is None or size <= dim.hi)):
                raise VerificationError(
                    f"{runtime} returned '{spec.name}' with size {size}, outside the program's {range_text(dim)}"
                )


def _expected(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    if isinstance(dim, int):
        return dim
    root = sizes.get(dim.symbol)
    if root is None:
        root = evaluate(dim.symbol, sizes)
    return None if root is None else root * dim.scale + dim.offset


def name_findings(signature: Signature, runtime: str) -> list[Finding]:
    """Outputs that are named like an input: a format whose tensors share one name space cannot hold both."""
    inputs = {spec.name for spec in signature.inputs}
    return [
        Finding(
            subject=f"output '{spec.name}'",
            kind="program",
            verdict="refused",
            why=f"an input has the same name, and {runtime} names a tensor once",
            remedy="Return it under another key, or rename the argument of forward.",
        )
        for spec in signature.outputs
        if spec.name in inputs
    ]


def require_distinct_names(signature: Signature, runtime: str) -> None:
    """What ``name_findings`` says before a conversion, as an error of the conversion.

    Raises:
        LoweringError: an output is named like an input.
    """
    for finding in name_findings(signature, runtime):
        raise LoweringError(f"{finding.subject}: {finding.why}", op=finding.subject, remedy=finding.remedy)


def require_integers(lowered: Lowered, precision: str) -> None:
    """Stop where a precision promises arithmetic in integers and the artifact has none.

    Raises:
        UnsupportedError: names the ops that compute in floating point, and the precision that says what they are.
    """
    made = lowered.arithmetic
    if made is None or made.integers:
        return
    floats = {**lowered.unquantized, **made.floats}
    named = f": {counted(floats)} compute in floating point" if floats else ""
    raise UnsupportedError(
        f"{precision} promises arithmetic in 8-bit integers, and this target has none for this program{named}",
        op=next(iter(floats), None),
        remedy="Build it at int8-weight (8-bit weights, float arithmetic), or at fp32.",
    )


def counted(ops: Mapping[str, int]) -> str:
    """``Conv (3), LSTM (1)``."""
    return ", ".join(f"{op} ({n})" for op, n in ops.items())


def four_bit_weights(precision: str, found: str | Mapping[int, Mapping[str, int]]) -> dict[str, str]:
    """Which weights have 4 bits and which have 8, for the contract of an artifact at ``int4-weight``; empty at others.

    Args:
        found: bits -> op name -> count of the ops whose weights have so many; or a sentence, where they go by kind.
    """
    if precision != "int4-weight":
        return {}
    if not isinstance(found, str):
        found = "; ".join(f"{bits}-bit weights: {counted(found.get(bits, {})) or 'none'}" for bits in (4, 8))
    return {"weights": found}
