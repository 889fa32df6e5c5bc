"""C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from build.bundle.snippets.facts import (
    Facts,
    described,
    fill,
    first_call,
    identifier,
    listed,
    sections,
    table_of,
    template,
    type_in,
)

_CPP = {
    "float32": "float", "float64": "double", "int64": "std::int64_t", "int32": "std::int32_t", "int16": "std::int16_t",
    "int8": "std::int8_t", "uint8": "std::uint8_t", "bool": "std::uint8_t",
}  # fmt: skip
_ET = {
    "float32": "Float", "float64": "Double", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char",
    "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_OV = {
    "float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "bool": "boolean",
}  # fmt: skip


def source(facts: Facts, words: dict[str, str]) -> str:
    contract, call = facts.contract, first_call(facts)
    inputs, outputs = contract["inputs"], contract["outputs"]
    kinds = {t["name"]: type_in(t, _CPP, "C++") for t in (*inputs, *outputs)}
    name = {t["name"]: identifier(t["name"]) for t in (*inputs, *outputs)}
    parts = sections(template(f"{facts.artifact['target']}.cpp"))
    table = table_of(facts)
    limits = facts.selftest["tolerances"][f"{facts.artifact['target']}/{facts.artifact['precision']}"]

    def read(tensor: Mapping[str, Any]) -> str:
        shape = listed([str(n) for n in tensor["shape"]])
        return f'read<{kinds[tensor["name"]]}>(bundle + "/{tensor["file"]}", {{{shape}}})'

    decided = contract["decision_output"]
    words |= {
        "INCLUDES": parts["INCLUDES"],
        "MEMBERS": parts["MEMBERS"].rstrip("\n"),
        "DEFINITIONS": parts["DEFINITIONS"],
        "OUTPUT_FIELDS_CPP": "\n".join(f"    Tensor<{kinds[t['name']]}> {name[t['name']]};" for t in outputs),
        "INPUT_DOC_CPP": described(facts, "inputs", "   * "),
        "INPUT_PARAMETERS_CPP": listed([f"const Tensor<{kinds[t['name']]}>& {name[t['name']]}" for t in inputs]),
        "CHECKS_CPP": "\n".join(
            f'  check("{n}", {name[n]}, {{{listed([_dim_cpp(d) for d in dims])}}}, sizes);'
            for n, (_, dims) in table.items()
        ),
        "VIEWS_ET": "\n".join(
            f"  const auto {name[t['name']]}_view = view({name[t['name']]}, executorch::aten::ScalarType::"
            f"{type_in(t, _ET, 'C++')});"
            for t in inputs
        ),
        "VIEW_VALUES_ET": listed([f"executorch::runtime::EValue(*{name[t['name']]}_view)" for t in inputs]),
        "OUTPUT_COPIES_ET": listed([f"copy<{kinds[t['name']]}>(result->at({i}))" for i, t in enumerate(outputs)]),
        "SETS_OV": "\n".join(
            f'  request.set_tensor("{t["name"]}", view({name[t["name"]]}, ov::element::{type_in(t, _OV, "C++")}));'
            for t in inputs
        ),
        "OUTPUT_COPIES_OV": listed([f'copy<{kinds[t["name"]]}>(request.get_tensor("{t["name"]}"))' for t in outputs]),
        "CLASSES_CPP": template("classes.cpp") if decided else "",
        "SELFTEST_READS_CPP": ",\n".join(f"      {read(t)}" for t in call["inputs"]),
        "SELFTEST_COMPARES_CPP": "\n".join(
            f'  compare("{t["name"]}", got.{name[t["name"]]}, {read(t)}, '
            f"{listed([repr(limits[t['name']][k]) for k in ('atol', 'rtol', 'scale')])});"
            for t in call["outputs"]
        ),
        "SELFTEST_DECIDE_CPP": "" if not decided else _decide_cpp(name[decided], bool(contract["labels"])),
    }
    return fill(template("cpp.body"), words)


def _dim_cpp(dim: Sequence[Any]) -> str:
    symbol, low, high, scale, offset = dim
    most = "std::nullopt" if high is None else str(high)
    tail = f", {scale}, {offset}" if (scale, offset) != (1, 0) else ""
    return f'Dim{{"{symbol or ""}", {low}, {most}{tail}}}'


def _decide_cpp(output: str, labels: bool) -> str:
    head = '  const auto labels = lines(bundle + "/labels.txt");\n' if labels else ""
    shown = "labels.at(best).c_str()" if labels else "std::to_string(best).c_str()"
    return f'{head}  for (const auto best : classes(got.{output})) std::printf("-> %s\\n", {shown});'
