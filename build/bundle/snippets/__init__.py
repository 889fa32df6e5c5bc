"""Integration snippets: real programs from the templates beside this file, with a bundle's own names and shapes.

Each refuses inputs outside the contract (most runtimes check less) and, where a program can be run from a shell, runs
the bundle's self-test vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from build.bundle import runtimes
from build.bundle.snippets import cpp, mobile, scripting
from build.bundle.snippets.facts import Facts, common, fill, identifier, template
from build.errors import InputError

__all__ = ["FOLDER", "Facts", "identifier", "languages", "write"]

FOLDER = "snippets"
_SUFFIX = {"python": ".py", "javascript": ".mjs", "cpp": ".cpp", "kotlin": ".kt", "swift": ".swift"}


def languages(target: str, platform: str) -> Sequence[str]:
    """Languages of the snippets for a target on a platform."""
    return runtimes.facts(target).snippets.get(platform, ())


def write(facts: Facts, language: str) -> dict[str, str]:
    """The files of one snippet: path in the bundle -> text.

    Raises:
        InputError: the model has a dtype or a name that the language's template cannot hold.
    """
    target = facts.artifact["target"]
    for tensor in (*facts.contract["inputs"], *facts.contract["outputs"]):
        if not tensor["name"].isprintable() or set(tensor["name"]) & set("\"'\\$`{}@"):
            raise InputError(f"no snippet can hold the name {tensor['name']!r}", remedy="Name it with plain letters.")
    for side in ("inputs", "outputs"):
        names = [identifier(t["name"]) for t in facts.contract[side]]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise InputError(f"two {side} would both be '{twice}' in a program", remedy="Name them apart.")
    stem = f"{identifier(facts.contract['model'])}_{target}"
    file = f"{stem}{_SUFFIX[language]}"
    words = common(facts) | {"FILE": file, "FILE_STEM": stem}
    make: dict[str, Callable[[Facts, dict[str, str]], str]] = {
        "python": scripting.python,
        "javascript": scripting.javascript,
        "cpp": cpp.source,
        "kotlin": mobile.kotlin,
        "swift": mobile.swift,
    }
    folder = f"{FOLDER}/{target}-cpp" if language == "cpp" else FOLDER
    found = {f"{folder}/{file}": make[language](facts, words)}
    if language == "cpp":
        found[f"{folder}/CMakeLists.txt"] = fill(template(f"{target}.cmake"), words)
    if language == "javascript":
        found[f"{folder}/selftest.mjs"] = fill(template("selftest.mjs"), words)
    return found
