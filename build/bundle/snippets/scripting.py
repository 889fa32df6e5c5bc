"""Python and JavaScript."""

from __future__ import annotations

import json
from pathlib import Path

from build.bundle.snippets.facts import (
    Facts,
    described,
    fill,
    identifier,
    listed,
    names_of,
    sections,
    table_of,
    template,
)


def python(facts: Facts, words: dict[str, str]) -> str:
    contract, notes = facts.contract, facts.artifact["notes"]
    parts = sections(template(f"{facts.artifact['target']}.python"))
    decided, labels = contract["decision_output"], contract["labels"]
    entries = {e["name"]: {contract["symbols"].get(s, s): n for s, n in e["sizes"].items()}
               for e in facts.artifact["entry_points"]}  # fmt: skip
    file_dtypes = notes.get("dtypes", {})
    words |= {
        "LABELS_PY": 'LABELS = (BUNDLE / "labels.txt").read_text(encoding="utf-8").splitlines()\n' if labels else "",
        "INPUT_DOC": described(facts, "inputs", " " * 8),
        "OUTPUT_DOC": described(facts, "outputs", " " * 8),
        "ARGUMENTS": listed([f"{identifier(n)}: np.ndarray" for n in names_of(contract["inputs"])]),
        "INPUT_DICT": listed([f"{n!r}: {identifier(n)}" for n in names_of(contract["inputs"])]),
        "OUTPUT_NAMES": listed([repr(n) for n in names_of(contract["outputs"])]),
        "INPUT_TABLE_PY": "\n".join(
            f"    {n!r}: ({d!r}, {[tuple(x) for x in dims]!r})," for n, (d, dims) in table_of(facts).items()
        ),
        "DECIDE_PY": _decide_py(decided, bool(labels)),
        "ENTRY_POINTS_PY": repr(entries),
        "FILE_DTYPES_PY": repr(
            {
                t["name"]: file_dtypes[t["name"]]
                for t in contract["inputs"]
                if file_dtypes.get(t["name"], t["dtype"]) != t["dtype"]
            }
        ),
        "OUTPUT_DTYPES_PY": repr({t["name"]: t["dtype"] for t in contract["outputs"]}),
        "LOAD": parts["LOAD"].rstrip("\n") + "\n",
        "RUN": parts["RUN"].rstrip("\n") + "\n" + (f"\n\n{parts['TAIL'].rstrip()}\n" if "TAIL" in parts else ""),
    }
    return fill(parts["HEAD"] + template("python.body"), words)


def _decide_py(decided: str | None, labels: bool) -> str:
    if decided is None:
        return ""
    best = f"got[{decided!r}].argmax(-1).ravel()"
    return f" -> {{[LABELS[i] for i in {best}]}}" if labels else f" -> {{{best}.tolist()}}"


def javascript(facts: Facts, words: dict[str, str]) -> str:
    contract = facts.contract
    decided, labels = contract["decision_output"], bool(contract["labels"])
    names = names_of(contract["inputs"])
    extra = [f for f in facts.files if f != facts.artifact["main"]]
    words |= {
        "INPUT_TABLE_JSON": json.dumps(table_of(facts)),
        "OUTPUT_NAMES_JSON": json.dumps(names_of(contract["outputs"])),
        "INPUT_DOC_JS": described(facts, "inputs", " *   "),
        "OUTPUT_DOC_JS": described(facts, "outputs", " *   "),
        "INPUT_NAMES_JS": listed([n if n == identifier(n) else f"{json.dumps(n)}: {identifier(n)}" for n in names]),
        "LABELS_JS": fill(template("classes.javascript"), {}) if decided else "",
        "LABELS_READ_JS": "const labels = new TextDecoder().decode(await read('labels.txt')).trimEnd().split('\\n');"
        if decided and labels
        else "",
        "DECIDE_JS": ""
        if not decided
        else f" -> ${{classes(got[{json.dumps(decided)}]){'.map((i) => labels[i])' if labels else ''}}}",
        "EXTERNAL_JSON": json.dumps([[Path(f).name, f] for f in extra]),
    }
    return fill(template("ort_web.javascript"), words)
