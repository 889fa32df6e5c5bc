"""The README of a bundle, for the person who integrates it, and the snippets that it speaks of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import envs, shell
from build.bundle import manifest as manifests
from build.bundle import runtimes, selftest, snippets
from build.bundle.choose import Chosen
from build.bundle.contents import LABELS, LICENCES, put
from build.bundle.contract import shape_text
from build.bundle.options import BundleOptions
from build.bundle.refusals import Item
from build.errors import InputError
from build.log import say
from build.summary import size_text

FILE = "README.md"
_FENCE = {"python": "python", "javascript": "js", "cpp": "cpp", "kotlin": "kotlin", "swift": "swift"}
#: how far a snippet is checked where bundles are made
_CHECKED = {
    "python": "It runs the self-test vectors of this bundle: `python {file}`.",
    "javascript": "It runs the self-test vectors of this bundle: `node {folder}/selftest.mjs`.",
    "cpp": "It runs a self-test vector of this bundle; CMakeLists.txt beside it says how to build it.",
    "kotlin": "Edgeport's tests compile such snippets with Kotlin's compiler, against the declarations of the Android "
    "library, and run them with a stand-in for the runtime. This one was not compiled, nor run on a device.",
    "swift": "Of such snippets the syntax is checked, by a grammar. This one was not compiled, nor run on a device.",
}
_PAGE = (
    "In a browser: serve this folder from any static host (`python -m http.server`) and open `harness/web/`. The page "
    "runs the self-test vectors, measures the model in that browser and takes pictures, where the model does; it asks "
    "for nothing outside of this folder. Threads and a fine clock need a host that sends "
    "`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`; without them it runs "
    "on one thread, and says so. `?artifact=PRECISION` and `?threads=N` choose.",
    "",
)
#: the places of inputs in a .tflite, which may not be the contract's order
_ORDER = """
import json, sys
from ai_edge_litert.interpreter import Interpreter
i = Interpreter(model_path=sys.argv[1])
place = {d["index"]: n for n, d in enumerate(i.get_input_details())}
runner = i.get_signature_runner(sys.argv[2])
print(json.dumps({n: place[d["index"]] for n, d in runner.get_input_details().items()}))
"""


def write(options: BundleOptions, chosen: Chosen, contract: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Write snippets and README; path in the bundle -> file."""
    test = json.loads((folder / selftest.FILE).read_text())
    files: dict[str, Path] = {}
    parts = []
    seen: set[str] = set()
    for item, row in zip(chosen.items, contract["artifacts"], strict=True):
        if item.target.name in seen:
            continue  # one snippet per target: another precision differs in the path only
        seen.add(item.target.name)
        facts = snippets.Facts(
            contract=contract,
            artifact=row,
            files=[f"{manifests.place_of(item)}/{f['path']}" for f in item.manifest["files"]],
            version=runtimes.facts(item.target.name).version(chosen.platform, item.manifest["toolchain"]) or "",
            selftest=test,
            input_index=_order(item, contract),
        )
        for language in snippets.languages(item.target.name, chosen.platform):
            try:
                made = snippets.write(facts, language)
            except InputError as error:
                say(f"{item.label}: {error.message}")
                parts.append(f"No {language} snippet for {item.target.name}: {error.message}.\n")
                continue
            for name, text in made.items():
                files |= put(folder, name, text)
            parts.append(_shown(item, language, made))
    return files | put(folder, FILE, _text(options, chosen, contract, parts))


def _order(item: Item, contract: Mapping[str, Any]) -> dict[str, int]:
    if item.target.name != "litert" or len(contract["inputs"]) < 2:
        return {}
    python = envs.ensure(item.target.group).python
    entry = item.manifest["entry_points"][0]["name"]
    done = shell.run([python, "-c", _ORDER, item.folder / item.manifest["main"], entry])
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _shown(item: Item, language: str, made: Mapping[str, str]) -> str:
    name, text = next(iter(made.items()))
    facts = runtimes.facts(item.target.name)
    how = _CHECKED[language].format(file=name, folder=str(Path(name).parent))
    return f"### {facts.name}, {name}\n\n{how}\n\n```{_FENCE[language]}\n{text.rstrip()}\n```\n"


def _text(options: BundleOptions, chosen: Chosen, contract: Mapping[str, Any], parts: Sequence[str]) -> str:
    record, symbols = chosen.record, contract["symbols"]
    lines = [
        f"# {record.name} {options.version} for {chosen.platform}",
        "",
        f"Check it first: `nox -s verify-bundle -- {record.name}-{chosen.platform}-{options.version}.zip` compares "
        "every file with its hash and runs the self-test vectors in each runtime.",
        "",
        *(_PAGE if options.harness and chosen.platform == "web" else ()),
        "## Artifacts",
        "",
        "| target | precision | file | size | runtime, at least | verified in | metric (PyTorch) | largest error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(i, chosen.platform) for i in chosen.items),
        "",
        "The runtime's version is the one that the artifact was verified with; older ones were not tried. Names of "
        "libraries on Maven are their makers': they were not fetched here.",
        *_coreml(chosen),
        "",
        "## Contract",
        "",
        "The same, for machines: `contract.json`.",
        "",
        "| | name | dtype | shape | layout |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| input {i} | `{t['name']}` | {t['dtype']} | {shape_text(t['shape'], symbols)} | {t['layout'] or ''} |"
            for i, t in enumerate(contract["inputs"])
        ),
        *(
            f"| output {i} | `{t['name']}` | {t['dtype']} | {shape_text(t['shape'], symbols)} | |"
            for i, t in enumerate(contract["outputs"])
        ),
        "",
        *_notes(contract),
        *_preprocessing(contract),
        "## Use it",
        "",
        *(parts or ["There is no snippet for this platform."]),
        "## Self-test",
        "",
        f"`{selftest.FILE}` lists a few calls: inputs and PyTorch's answers as raw little-endian bytes in C order, and "
        "for each artifact how far its answers may be from these.",
        "",
        "## Licences",
        "",
        f"Model: {record.licence}. Runtimes: see `{LICENCES}/`.",
        "",
    ]
    return "\n".join(lines)


def _row(item: Item, platform: str) -> str:
    value = item.manifest
    facts = runtimes.facts(item.target.name)
    version = facts.version(platform, value["toolchain"])
    needs = value.get("contract", {}).get("minimum_deployment_target") if version is None else f"{facts.name} {version}"
    metric = value["metric"]
    figures = "" if metric is None else f"{metric['name']} {metric['value']:.4f} ({metric['reference']:.4f})"
    check = value.get("verification") or {}
    worst = f"{check['max_abs_diff']:.1e}" if check else "not verified"
    main = f"`{manifests.place_of(item)}/{value.get('main', '')}`"
    cells = (
        item.target.name,
        item.precision,
        main,
        size_text(value["bytes"]),
        needs,
        check.get("runtime"),
        figures,
        worst,
    )
    return f"| {' | '.join(str(c or '') for c in cells)} |"


def _coreml(chosen: Chosen) -> list[str]:
    runtimes_ = {str((i.manifest.get("verification") or {}).get("runtime")) for i in chosen.items}
    if not any(r.startswith("mil-evaluator") for r in runtimes_):
        return []
    return [
        "",
        "The Core ML package was evaluated op by op on Linux, not by Apple's runtime: run the self-test on a Mac.",
    ]


def _notes(contract: Mapping[str, Any]) -> list[str]:
    lines = []
    for artifact in contract["artifacts"]:
        if artifact["notes"].get("names"):
            lines.append(f"{artifact['target']}: {artifact['notes']['names']}. {artifact['notes'].get('ranges', '')}.")
        lines += [f"{artifact['target']}: narrower than the program: {n}." for n in artifact["narrowed"]]
    if contract["labels"]:
        lines.append(f"`{contract['decision_output']}` holds a score per class, in the order of `{LABELS}`.")
    return [x for line in dict.fromkeys(lines) for x in (line, "")]


def _preprocessing(contract: Mapping[str, Any]) -> list[str]:
    found = contract["preprocessing"]
    if found is None:
        return ["## Preprocessing", "", "The model's spec says nothing of it.", ""]
    lines = ["## Preprocessing", "", *(f"{n}. {step}" for n, step in enumerate(found["steps"], start=1)), ""]
    if found["mean"]:
        lines += [f"The input is (raw - mean) / std, per channel: mean {found['mean']}, std {found['std']}.", ""]
    if contract["tokenizer"]:
        lines += [f"Tokenizer: {', '.join('`' + t['path'] + '`' for t in contract['tokenizer'])}.", ""]
    return lines
