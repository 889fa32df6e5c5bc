"""What a bundle holds: gathers every file of it below a staging folder, and names the place of each."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import envs, shell
from build.bundle import contract as contracts
from build.bundle import manifest as manifests
from build.bundle import runtimes, selftest, webpage
from build.bundle.choose import Chosen
from build.bundle.refusals import Item
from build.cache import ROOT, sha256_file
from build.errors import InputError

LABELS = "labels.txt"
LICENCES = "licences"
HARNESS = "harness"
#: licences of models whose text is at hand, by SPDX identifier
_TEXTS = {"Apache-2.0": ROOT / "LICENSE"}
#: platforms whose artifacts the native harness cannot run, and what measures them: Python beside the runtime's package.
_FROM_CHECKOUT = {"pc": "nox -s bench-pc", "apple": "nox -s bench-apple, on a Mac"}
_FIND = "import importlib.util as u, sys; print(u.find_spec(sys.argv[1]).submodule_search_locations[0])"


def gather(chosen: Chosen, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Every file that does not speak of the bundle as a whole.

    Returns:
        Path in the bundle -> file; and the contract.

    Raises:
        InputError: reference data, a tokenizer's file or a licence is not there.
        MissingToolError: a target's environment cannot be made.
    """
    files: dict[str, Path] = {}
    for item in chosen.items:
        place = manifests.place_of(item)
        files |= {f"{place}/{f['path']}": item.folder / f["path"] for f in item.manifest["files"]}
    reference = selftest.Reference(chosen.program, chosen.record)
    files |= selftest.write(reference, folder, [i.manifest for i in chosen.items])
    decided = selftest.decisions(reference, [i.manifest for i in chosen.items if "verification" in i.manifest])
    if decided is not None:
        files |= put(folder, selftest.DECISIONS, json.dumps(decided, indent=None, sort_keys=True) + "\n")
    tokenizer = _tokenizer(chosen)
    files |= tokenizer
    value = contracts.make(
        chosen.record,
        [_artifact(item) for item in chosen.items],
        [{"path": name, "sha256": sha256_file(path)} for name, path in sorted(tokenizer.items())],
    )
    files |= put(folder, contracts.FILE, manifests.text(value))
    if chosen.record.labels:
        files |= put(folder, LABELS, labels_text(chosen.record.labels))
    files |= _licences(chosen, folder)
    return files, value


def labels_text(labels: Sequence[str]) -> str:
    """``labels.txt``: a line per class, in the order of the scores.

    Raises:
        InputError: a label is empty or holds a line break, so that a line would not be a class.
    """
    for label in labels:
        if label.splitlines() != [label]:
            raise InputError(
                f"the class label {label!r} cannot be one line of {LABELS}",
                remedy="Name the class in one line of text.",
            )
    return "".join(f"{label}\n" for label in labels)


def put(folder: Path, name: str, text: str) -> dict[str, Path]:
    """Write a text file of the bundle."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return {name: path}


def _artifact(item: Item) -> dict[str, Any]:
    value = item.manifest
    return {
        "target": item.target.name,
        "precision": item.precision,
        "main": f"{manifests.place_of(item)}/{value['main']}",
        "entry_points": value["entry_points"],
        "narrowed": value["narrowed"],
        # What the format can't hold itself: a .pte has no names, so its tensors go by position.
        "notes": value["contract"],
    }


def _tokenizer(chosen: Chosen) -> dict[str, Path]:
    """The files that ``preprocessing.tokenizer`` names: ``PACKAGE/PATH`` of an installed package, and its siblings."""
    text = (chosen.record.preprocessing or {}).get("tokenizer")
    if not text:
        return {}
    words = re.findall(r"[\w./-]*\w\.(?:json|txt|model|vocab|bpe)\b", text)
    if not words:
        raise InputError(
            f"'{chosen.record.name}' needs a tokenizer, and its spec names no file of it: '{text}'",
            remedy="Begin `tokenizer` in the model's preprocessing with PACKAGE/PATH of the file.",
        )
    home = _package_folder(words[0].split("/")[0], chosen.record.name)
    first = home / Path(*words[0].split("/")[1:])
    found = {f"tokenizer/{first.name}": first}
    found |= {f"tokenizer/{Path(w).name}": first.parent / Path(w).name for w in words[1:]}
    for path in found.values():
        if not path.is_file():
            raise InputError(f"the tokenizer of '{chosen.record.name}' lacks '{path.name}'")
    return found


def _package_folder(package: str, model: str) -> Path:
    """Where a package of the models' environment lies."""
    if importlib.util.find_spec(package) is not None:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        return Path(next(iter(spec.submodule_search_locations or [])))
    python = envs.ensure("models").python
    done = shell.run([python, "-c", _FIND, package], check=False)
    if done.returncode != 0:
        raise InputError(f"the tokenizer of '{model}' lies in package '{package}', which is not installed")
    return Path(done.stdout.strip().splitlines()[-1])


def _licences(chosen: Chosen, folder: Path) -> dict[str, Path]:
    record = chosen.record
    files: dict[str, Path] = {}
    known = record.licence.split()[0] if record.licence.strip() else ""
    own = " (its text is not enclosed: only its name is known here)"
    if known in _TEXTS:
        files |= put(folder, f"{LICENCES}/model-{known}.txt", _TEXTS[known].read_text(encoding="utf-8"))
        own = f" (text: model-{known}.txt)"
    lines = [f"Model: {record.name}", f"Licence: {record.licence}{own}", ""]
    for target in {i.target.name: i.target for i in chosen.items}.values():
        facts = runtimes.facts(target.name)
        texts = runtimes.licences(target)
        for name, text in sorted(texts.items()):
            files |= put(folder, f"{LICENCES}/{name}", text)
        what = facts.licence or "part of the operating system; its licence applies"
        enclosed = f" (text: {', '.join(sorted(texts))})" if texts else ""
        lines.append(f"Runtime: {facts.name}: {what}{enclosed}")
    return files | put(folder, f"{LICENCES}/LICENCES.txt", "\n".join(lines) + "\n")


def harness(chosen: Chosen, contract: Mapping[str, Any], folder: Path) -> tuple[dict[str, Path], frozenset[str]]:
    """The measuring harness of a platform: path in the bundle -> file, and which are programs.

    Raises:
        InputError: there is none for this platform that could be enclosed.
        MissingToolError: it cannot be built here.
        GateError: the page for browsers has grown beyond its budget.
    """
    from device_bench.harness.build import BUNDLE, ensure

    if chosen.platform == "web":
        return {
            f"{HARNESS}/web/{name}": path for name, path in webpage.make(chosen, contract, folder).items()
        }, frozenset()
    arch = {"android": "aarch64", "linux-arm64": "aarch64"}.get(chosen.platform)
    if arch is None:
        how = _FROM_CHECKOUT.get(chosen.platform)
        raise InputError(
            f"there is no harness for {chosen.platform} that could be enclosed",
            remedy="Leave --harness out" + (f", and measure from a checkout: {how}" if how else "."),
        )
    built = ensure(arch)
    files = {f"{HARNESS}/{arch}/{name}": built.folder / name for name in [*built.files, BUNDLE]}
    programs = {f"{HARNESS}/{arch}/{engine['program']}" for engine in built.engines.values()}
    return files, frozenset(programs | ({f"{HARNESS}/{arch}/{built.loader}"} if built.loader else set()))


def summary(manifest: Mapping[str, Any]) -> str:
    """``executorch fp32, litert fp32``."""
    return ", ".join(f"{a['target']} {a['precision']}" for a in manifest["artifacts"])
