"""Kotlin and Swift."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from build.bundle.snippets.facts import (
    Facts,
    described,
    fill,
    identifier,
    listed,
    names_of,
    table_of,
    template,
    type_in,
)

_KOTLIN = {
    "float32": "FloatArray", "float64": "DoubleArray", "int64": "LongArray", "int32": "IntArray", "int8": "ByteArray",
    "uint8": "ByteArray",
}  # fmt: skip
_GETTER = {
    "float32": "dataAsFloatArray", "float64": "dataAsDoubleArray", "int64": "dataAsLongArray",
    "int32": "dataAsIntArray", "int8": "dataAsByteArray", "uint8": "dataAsUnsignedByteArray",
}  # fmt: skip


def kotlin(facts: Facts, words: dict[str, str]) -> str:
    contract = facts.contract
    inputs, outputs = contract["inputs"], contract["outputs"]
    name = {t["name"]: identifier(t["name"]) for t in (*inputs, *outputs)}
    table = table_of(facts)
    dynamic = any(d[0] for _, dims in table.values() for d in dims)
    words |= {
        "INPUT_DOC_KT": described(facts, "inputs", "     * "),
        "CHECKS_KT": "\n".join(
            f'        check("{n}", {name[n]}Shape, listOf({listed([_dim_kotlin(d) for d in dims])}), sizes)'
            for n, (_, dims) in table.items()
        ),
        "CHECK_KT": template("check.kotlin"),
    }
    if facts.artifact["target"] == "executorch":
        kinds = {t["name"]: type_in(t, _KOTLIN, "Kotlin") for t in (*inputs, *outputs)}
        words |= {
            "OUTPUT_FIELDS_KT": listed([f"val {name[t['name']]}: {kinds[t['name']]}" for t in outputs]),
            "INPUT_PARAMETERS_KT": listed(
                [f"{name[t['name']]}: {kinds[t['name']]}, {name[t['name']]}Shape: LongArray" for t in inputs]
            ),
            "EVALUES_KT": "\n".join(f"            EValue.from({_from_blob(t, name[t['name']])})," for t in inputs),
            "OUTPUT_COPIES_KT": listed(
                [f"result[{i}].toTensor().{_GETTER[t['dtype']]}" for i, t in enumerate(outputs)]
            ),
        }
    else:
        words |= {
            "SIGNATURE_KT": _signature(facts),
            "FILE_DTYPES_KT": _file_dtypes(facts),
            "OUTPUT_FIELDS_LITERT_KT": listed(
                [f"val {name[t['name']]}: ByteBuffer, val {name[t['name']]}Shape: IntArray" for t in outputs]
            ),
            "INPUT_PARAMETERS_LITERT_KT": listed(
                [f"{name[t['name']]}: ByteBuffer, {name[t['name']]}Shape: LongArray" for t in inputs]
            ),
            "RESIZES_KT": "\n".join(
                f"        interpreter.resizeInput({facts.input_index.get(t['name'], i)}, "
                f"{name[t['name']]}Shape.map {{ it.toInt() }}.toIntArray())"
                for i, t in enumerate(inputs)
            )
            if dynamic and len(facts.artifact["entry_points"]) == 1
            # Several signatures: each has sizes of its own, and resizeInput reaches the first one only.
            else "        // the signature's sizes are fixed: there is nothing to resize",
            "OUTPUT_BUFFERS_KT": "\n".join(
                f'        val {x}Tensor = interpreter.getOutputTensorFromSignature("{n}", signature)\n'
                f"        val {x}Buffer = ByteBuffer.allocateDirect({x}Tensor.numBytes())\n"
                f"        {x}Buffer.order(ByteOrder.nativeOrder())"
                for n, x in ((t["name"], name[t["name"]]) for t in outputs)
            ),
            "INPUT_MAP_KT": listed([f'"{t["name"]}" to {name[t["name"]]}' for t in inputs]),
            "REWINDS_KT": "\n".join(f"        {name[t['name']]}Buffer.rewind()" for t in outputs),
            "OUTPUT_MAP_KT": listed([f'"{t["name"]}" to {name[t["name"]]}Buffer' for t in outputs]),
            "OUTPUT_VALUES_LITERT_KT": listed(
                [f"{name[t['name']]}Buffer, {name[t['name']]}Tensor.shape()" for t in outputs]
            ),
        }
    return fill(template(f"{facts.artifact['target']}.kotlin"), words)


def _signature(facts: Facts) -> str:
    """The file's signature for a call: one, or the one that was made for the call's sizes."""
    entries = facts.artifact["entry_points"]
    if len(entries) == 1:
        return json.dumps(entries[0]["name"])
    symbols = facts.contract["symbols"]
    lines = []
    for entry in entries:
        tests = [f"sizes[{json.dumps(symbols.get(s, s))}] == {n}L" for s, n in entry["sizes"].items()]
        lines.append(f"            {' && '.join(tests) or 'true'} -> {json.dumps(entry['name'])}\n")
    lines.append('            else -> throw IllegalArgumentException("no signature for $sizes")\n')
    return f"when {{\n{''.join(lines)}        }}"


def _file_dtypes(facts: Facts) -> str:
    """Where the file's numbers are narrower than the program's, the buffers hold the file's."""
    kinds = facts.artifact["notes"].get("dtypes", {})
    tensors = (*facts.contract["inputs"], *facts.contract["outputs"])
    return "".join(
        f"\n     * In the file, and so in its buffer, {t['name']} is {kinds[t['name']]}."
        for t in tensors
        if kinds.get(t["name"], t["dtype"]) != t["dtype"]
    )


def _from_blob(tensor: Mapping[str, Any], name: str) -> str:
    maker = "fromBlobUnsigned" if tensor["dtype"] == "uint8" else "fromBlob"
    return f"Tensor.{maker}({name}, {name}Shape)"


def _dim_kotlin(dim: Sequence[Any]) -> str:
    symbol, low, high, scale, offset = dim
    tail = f", {scale}, {offset}" if (scale, offset) != (1, 0) else ""
    return f"Dim({json.dumps(symbol)}, {low}, {json.dumps(high)}{tail})"


def swift(facts: Facts, words: dict[str, str]) -> str:
    contract = facts.contract
    inputs, outputs = names_of(contract["inputs"]), names_of(contract["outputs"])
    words |= {
        "OUTPUT_FIELDS_SWIFT": "\n".join(f"        let {identifier(n)}: MLMultiArray" for n in outputs),
        "INPUT_DOC_SWIFT": described(facts, "inputs", "    /// ") + _carried(facts),
        "INPUT_PARAMETERS_SWIFT": listed([f"{identifier(n)}: MLMultiArray" for n in inputs]),
        "CHECKS_SWIFT": "\n".join(
            f'        try check("{n}", {identifier(n)}, [{listed([_dim_swift(d) for d in dims])}], &sizes)'
            for n, (_, dims) in table_of(facts).items()
        ),
        "FEATURES_SWIFT": "\n".join(f'            "{n}": MLFeatureValue(multiArray: {identifier(n)}),' for n in inputs),
        "OUTPUT_GUARDS_SWIFT": "\n".join(
            f'        guard let {identifier(n)} = result.featureValue(for: "{n}")?.multiArrayValue else {{\n'
            f'            throw OutOfRange(message: "the model returned no {n}")\n        }}'
            for n in outputs
        ),
        "OUTPUT_VALUES_SWIFT": listed([f"{identifier(n)}: {identifier(n)}" for n in outputs]),
    }
    return fill(template("coreml.swift"), words)


def _carried(facts: Facts) -> str:
    """Core ML's arrays have fewer dtypes than programs: which input travels as which."""
    carried = facts.artifact["notes"].get("carried") or {}
    return "".join(f"\n    /// Core ML takes {identifier(n)} as {kind}." for n, kind in carried.items())


def _dim_swift(dim: Sequence[Any]) -> str:
    symbol, low, high, scale, offset = dim
    tail = f", scale: {scale}, offset: {offset}" if (scale, offset) != (1, 0) else ""
    name, most = "nil" if symbol is None else json.dumps(symbol), "nil" if high is None else str(high)
    return f"Dim(symbol: {name}, low: {low}, high: {most}{tail})"
