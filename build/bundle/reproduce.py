"""``reproduce``: build a bundle again in a clean place, from its own manifest, and compare byte by byte."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import shell
from build.bundle import manifest as manifests
from build.bundle.difference import explain
from build.bundle.options import ReproduceOptions
from build.bundle.verify import inspect
from build.cache import ROOT, list_files, sha256_file, write_atomic
from build.errors import InputError, MissingToolError, VerificationError
from build.log import say

SCHEMA_VERSION = 1
#: what decides an environment's packages
_PINS = ("pyproject.toml", "constraints.txt")


@dataclass(frozen=True, kw_only=True)
class Differing:
    """One file that came out otherwise."""

    path: str
    part: str


def reproduce(options: ReproduceOptions) -> int:
    """Rebuild, compare, say what differs and why.

    Raises:
        VerificationError: it is not reproduced; the message names the first file, its part, and the likely cause.
        InputError: the bundle can't be rebuilt from here.
    """
    with tempfile.TemporaryDirectory(prefix="edgeport-reproduce-") as name:
        place = Path(name)
        folder = place / "bundle"
        folder.mkdir()
        manifest = inspect(options.bundle, folder, lambda line: None, sums_required=False)
        if manifest["recipe"]["kind"] != "model" and not options.source:
            raise InputError(
                f"{options.bundle.name} was made from a {manifest['recipe']['kind']} that it does not hold",
                remedy="Give it: --program FILE.pt2 (with --data, --calibration as it was built), or --module.",
            )
        checkout = _checkout(manifest, place)
        again = _rebuild(options, manifest, folder, checkout, place)
        digests = sha256_file(options.bundle), sha256_file(again)
        differing = [] if digests[0] == digests[1] else _compare(folder, again, place)
        causes = _causes(manifest, json.loads((place / "again" / manifests.FILE).read_text())) if differing else []
    return _report(options, digests, differing, causes)


def _report(options: ReproduceOptions, digests: tuple[str, str], differing: list[Differing], causes: list[str]) -> int:
    same = digests[0] == digests[1]
    if options.json is not None:
        value = {
            "schema_version": SCHEMA_VERSION,
            "bundle": options.bundle.name,
            "sha256": digests[0],
            "rebuilt": digests[1],
            "identical": same,
            "differing": [{"path": d.path, "part": d.part} for d in differing],
            "causes": causes,
        }
        write_atomic(options.json, json.dumps(value, indent=1) + "\n")
    if same:
        print(f"reproduced: {options.bundle.name}, sha256 {digests[0]}", flush=True)
        return 0
    for d in differing:
        print(f"{d.path}: {d.part}")
    for cause in causes:
        print(f"why: {cause}", flush=True)
    first = f"{differing[0].path}: {differing[0].part}" if differing else "the order or form of its entries"
    why = causes[0] if causes else "the files are the same"
    raise VerificationError(f"{options.bundle.name} is not reproduced: {first}. Why: {why}")


def _checkout(manifest: Mapping[str, Any], place: Path) -> Path:
    """The code to build with: a fresh clone at the bundle's revision, where there is one."""
    source = manifest["source"]
    if source["revision"] is None or source["modified"]:
        say("the bundle was made from a checkout that no revision describes: building with this one as it is")
        return ROOT
    clone = place / "checkout"
    git = ["git", "-c", "safe.directory=*"]
    try:
        shell.run([*git, "clone", "--quiet", "--no-checkout", str(ROOT), str(clone)])
        shell.run([*git, "-C", str(clone), "checkout", "--quiet", source["revision"]])
    except MissingToolError as error:
        raise InputError(
            f"this checkout does not hold the bundle's revision {source['revision'][:12]}: {error.message}",
            remedy="Fetch it first.",
        ) from error
    if all((clone / f).read_bytes() == (ROOT / f).read_bytes() for f in _PINS if (ROOT / f).exists()):
        # The same pins: environments that are there already serve the clone too.
        (ROOT / ".nox").mkdir(exist_ok=True)
        (clone / ".nox").symlink_to(ROOT / ".nox")
    return clone


def _rebuild(options: ReproduceOptions, manifest: Mapping[str, Any], folder: Path, checkout: Path, place: Path) -> Path:
    """Build the artifacts and bundle them as the manifest says; returns the new archive."""
    out = place / "out"
    source = list(options.source) or ["--model", manifest["model"]]
    common = [*source, "--out", str(out)]
    targets: dict[str, list[Mapping[str, Any]]] = {}
    for artifact in manifest["artifacts"]:
        targets.setdefault(artifact["target"], []).append(artifact)
    for target, artifacts in targets.items():
        plain = [a["precision"] for a in artifacts if not a["kept_float"]]
        runs = [[",".join(plain)]] if plain else []
        runs += [[a["precision"], "--keep-float", *a["kept_float"]] for a in artifacts if a["kept_float"]]
        for run in runs:
            say(f"building {manifest['model']} for {target}: {run[0]}")
            how = ["--jobs", str(options.jobs), "--targets", target, "--precisions", *run]
            _python(checkout, "build", "build", *common, *how)
    session = f"bundle-{manifest['platform']}"
    like = ["--like", str(folder / manifests.FILE), "--version", manifest["version"]]
    _python(checkout, "build.bundle", session, *common, *like)
    name = f"{manifest['name']}-{manifest['version']}"
    shutil.copytree(out / "bundles" / name, place / "again")
    return place / "again" / f"{name}.zip"


def _python(checkout: Path, module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = shell.run(command, cwd=checkout, env={"PYTHONPATH": str(checkout)}, check=False)
    if done.returncode != 0:
        said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("error:") or ": failed" in line] or said
        raise VerificationError(f"it cannot be rebuilt: {errors[0].strip() if errors else 'nothing was said'}")


def _compare(folder: Path, again: Path, place: Path) -> list[Differing]:
    from build.bundle.archive import extract

    rebuilt = place / "rebuilt"
    rebuilt.mkdir()
    extract(again, rebuilt)
    names = {str(p) for p in list_files(folder)}, {str(p) for p in list_files(rebuilt)}
    found = [Differing(path=n, part="only in the bundle") for n in sorted(names[0] - names[1])]
    found += [Differing(path=n, part="only in the rebuilt one") for n in sorted(names[1] - names[0])]
    for name in sorted(names[0] & names[1]):
        if sha256_file(folder / name) != sha256_file(rebuilt / name):
            found.append(Differing(path=name, part=explain(folder / name, rebuilt / name)))
    # The manifest and the README repeat what differs elsewhere: last.
    return sorted(found, key=lambda d: (d.path in (manifests.FILE, "README.md"), d.path))


def _causes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Inputs that were not the same, most telling first."""
    found = []
    if ours["source"] != theirs["source"] or ours["source"]["modified"]:
        found.append(f"the source revision is {_revision(ours)}, here it is {_revision(theirs)}")
    if ours["program"] != theirs["program"]:
        hashes = f"{ours['program'][:12]}, here it is {theirs['program'][:12]}"
        found.append(f"the program's hash is {hashes}: other weights or other model code")
    pairs = {(a["target"], a["precision"]): a for a in theirs["artifacts"]}
    for mine in ours["artifacts"]:
        other = pairs.get((mine["target"], mine["precision"]))
        found += [] if other is None else _artifact_causes(mine, other)
    return list(dict.fromkeys(found)) or [
        "the same inputs gave other bytes: something in the build is not deterministic"
    ]


def _revision(manifest: Mapping[str, Any]) -> str:
    source = manifest["source"]
    return f"{(source['revision'] or 'unknown')[:12]}{' (modified)' if source['modified'] else ''}"


def _artifact_causes(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    found, here = [], other["toolchain"]
    tools = [f"{k} {v}, here {here.get(k)}" for k, v in mine["toolchain"].items() if here.get(k) != v]
    if tools:
        found.append(f"{mine['target']}'s toolchain: {', '.join(tools)}")
    if mine["calibration"] != other["calibration"]:
        found.append(f"{mine['target']} {mine['precision']}: other calibration data")
    judged = mine["judged_by"] or {}, other["judged_by"] or {}
    if judged[0].get("reference") != judged[1].get("reference"):
        found.append("PyTorch's answers to the reference calls are not the same here: another processor or torch build")
    if judged[0].get("code") != judged[1].get("code"):
        found.append(f"{mine['target']} was built by other code")
    return found
