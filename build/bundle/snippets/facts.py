"""What every snippet is filled in from, and how a template is filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.bundle import runtimes
from build.bundle.contract import dim_of, shape_text
from build.errors import InputError
from targets.contract import DynamicDim

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
#: words that are taken in one of the languages, and names that the templates use themselves
_TAKEN = frozenset((TEMPLATES / "taken.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a snippet is filled in from.

    Attributes:
        contract: the bundle's.
        artifact: one row of the contract's ``artifacts``.
        files: paths of the artifact's files in the bundle.
        version: of the runtime it was verified with.
        selftest: ``selftest.json``.
        input_index: input -> its place in the file, where the runtime counts them otherwise than the contract.
    """

    contract: Mapping[str, Any]
    artifact: Mapping[str, Any]
    files: Sequence[str]
    version: str
    selftest: Mapping[str, Any]
    input_index: Mapping[str, int]


def identifier(name: str) -> str:
    """A name that every language takes: ``a.b`` becomes ``a_b``."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    found = f"x{found}" if not found[:1].isalpha() else found
    return f"{found}_" if found in _TAKEN else found


def template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The parts of a template, by the ``@@NAME@@`` lines before them; what stands before the first is HEAD."""
    parts = re.split(r"^@@(\w+)@@\n", text, flags=re.MULTILINE)
    return {"HEAD": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def fill(text: str, words: Mapping[str, str]) -> str:
    """Put the words in.

    Raises:
        InputError: the template asks for a word that is not there.
    """

    def word(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise InputError(f"a snippet's template asks for '{match[1]}'", remedy="This is a fault of the template.")
        return words[match[1]]

    for _ in range(2):  # a part that is put in has words of its own
        text = re.sub(r"@([A-Z][A-Z_]*[A-Z])@", word, text)
    return text


def common(facts: Facts) -> dict[str, str]:
    contract, artifact = facts.contract, facts.artifact
    call = first_call(facts)
    fitting = [e for e in artifact["entry_points"] if all(call["symbols"].get(s) == n for s, n in e["sizes"].items())]
    if not fitting:
        raise InputError(f"{artifact['main']} has no entry point for the sizes of the first self-test call")
    return {
        "MODEL_NAME": contract["model"],
        "CLASS": "".join(p[:1].upper() + p[1:] for p in identifier(contract["model"]).split("_") if p) or "Model",
        "PACKAGE": identifier(contract["model"]).lower(),
        "MODEL": artifact["main"],
        "TARGET": artifact["target"],
        "PRECISION": artifact["precision"],
        "RUNTIME": runtimes.facts(artifact["target"]).name,
        "VERSION": facts.version,
        "ENTRY": fitting[0]["name"],
        "SUMMARY": f"{contract['model']}, {artifact['precision']}: {listed(names_of(contract['inputs']))} in, "
        f"{listed(names_of(contract['outputs']))} out.",
        "DEPLOYMENT": str(artifact["notes"].get("minimum_deployment_target", "the system it was built for")),
    }


def first_call(facts: Facts) -> dict[str, Any]:
    """The first self-test call, with the size of each symbol in it."""
    call = facts.selftest["calls"][0]
    symbols: dict[str, int] = {}
    for tensor, given in zip(facts.contract["inputs"], call["inputs"], strict=True):
        for value, size in zip(tensor["shape"], given["shape"], strict=True):
            dim = dim_of(value)
            if isinstance(dim, DynamicDim):
                symbols[dim.symbol] = (size - dim.offset) // dim.scale
    return {**call, "symbols": symbols}


def names_of(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    return [t["name"] for t in tensors]


def listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def described(facts: Facts, side: str, prefix: str) -> str:
    symbols = facts.contract["symbols"]
    return "\n".join(
        f"{prefix}{identifier(t['name'])}: {t['dtype']} {shape_text(t['shape'], symbols)}" for t in facts.contract[side]
    )


def dims_of(tensor: Mapping[str, Any], symbols: Mapping[str, str]) -> list[list[Any]]:
    """``[symbol, smallest, largest, step, offset]`` of each dimension."""
    found: list[list[Any]] = []
    for value in tensor["shape"]:
        dim = dim_of(value)
        if isinstance(dim, int):
            found.append([None, dim, dim, 1, 0])
        else:
            found.append([symbols.get(dim.symbol, dim.symbol), dim.lo, dim.hi, dim.scale, dim.offset])
    return found


def table_of(facts: Facts) -> dict[str, list[Any]]:
    symbols = facts.contract["symbols"]
    return {t["name"]: [t["dtype"], dims_of(t, symbols)] for t in facts.contract["inputs"]}


def type_in(tensor: Mapping[str, Any], table: Mapping[str, str], language: str) -> str:
    if tensor["dtype"] not in table:
        raise InputError(f"no {language} snippet: '{tensor['name']}' is {tensor['dtype']}")
    return table[tensor["dtype"]]
