"""``verify-bundle``: check a bundle as someone who received it, from the archive alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from build import envs
from build.bundle import archive, documents, provenance, sbom, selftest, signing
from build.bundle import contract as contracts
from build.bundle import manifest as manifests
from build.bundle.contents import LABELS, labels_text
from build.bundle.options import VerifyOptions
from build.cache import ROOT, sha256_file, write_atomic
from build.errors import ConverterCrash, EdgeportError, UnverifiedError, VerificationError
from build.manifest import failure
from build.protocol import Worker, error_to_json
from targets.registry import select

SCHEMA_VERSION = 1
CONTRACT_SCHEMA = Path(__file__).with_name("contract.schema.json")
_SELFTEST_SCHEMA = Path(__file__).with_name("selftest.schema.json")
_DECISIONS_SCHEMA = Path(__file__).with_name("decisions.schema.json")
Tell = Callable[[str], None]


def verify_bundle(options: VerifyOptions) -> int:
    """Check, print a line per check, write ``--json``.

    Raises:
        EdgeportError: the first check that failed.
    """
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    error: EdgeportError | None = None
    manifest: Mapping[str, Any] | None = None
    try:
        manifest = verify(options.file, options.key, tell)
        tell(f"ok: {manifest['name']} {manifest['version']}")
    except EdgeportError as found:
        error = found
        raise
    finally:
        if options.json is not None:
            value = {
                "schema_version": SCHEMA_VERSION,
                "file": options.file.name,
                "name": None if manifest is None else manifest["name"],
                "version": None if manifest is None else manifest["version"],
                "checks": lines,
                "error": None if error is None else failure(error_to_json(error)),
            }
            write_atomic(options.json, json.dumps(value, indent=1) + "\n")
    return 0


def verify(file: Path, key: Path | None, tell: Tell) -> dict[str, Any]:
    """Check everything; returns the manifest.

    Raises:
        UntrustedInputError: the archive is damaged or hostile; nothing of it is used then.
        VerificationError: a file, the signature, the contract or a self-test is not right.
        MissingToolError: a runtime can't be installed here.
    """
    if key is not None:
        # Who made it comes before anything is read of it.
        signing.check_signature(file.parent, key)
        tell(f"signature: by {key.name}")
    with tempfile.TemporaryDirectory(prefix="edgeport-verify-") as name:
        folder = Path(name) / "bundle"
        folder.mkdir()
        manifest = inspect(file, folder, tell, sums_required=key is not None)
        for exception in manifest["exceptions"]:
            tell(f"EXCEPTED when it was made: {exception['what']} (reason: {exception['reason']})")
        for artifact in manifest["artifacts"]:
            tell(_self_test(folder, artifact, Path(name) / "worker.log"))
    return manifest


def inspect(file: Path, folder: Path, tell: Tell, *, sums_required: bool) -> dict[str, Any]:
    """Check everything short of running it; unpacks below ``folder``, which is empty.

    Returns:
        The manifest.

    Raises:
        UntrustedInputError, VerificationError: see :func:`verify`.
    """
    _check_sums(file, tell, required=sums_required)
    present = archive.extract(file, folder)
    manifest = read_manifest(folder, file.name)
    _check_top(file, manifest)
    check_files(folder, present, manifest)
    tell(f"files: {len(manifest['files'])}, each with its size and sha256")
    check_contract(folder, manifest)
    tell("contract: agrees with the manifest, the labels and the self-test")
    _check_sidecars(file, folder, manifest, tell)
    return manifest


def _check_sums(file: Path, tell: Tell, *, required: bool) -> None:
    if not (file.parent / signing.SUMS).is_file():
        if required:
            raise VerificationError(f"there is no {signing.SUMS} beside {file.name}", remedy="Get the whole bundle.")
        tell(f"checksums: no {signing.SUMS} beside it")
        return
    sums = signing.read_sums(file.parent)
    if file.name not in sums:
        raise VerificationError(f"{signing.SUMS} beside it does not list {file.name}", remedy="Do not rename a bundle.")
    signing.check_sums(file.parent, sums)
    signed = (file.parent / signing.SIGNATURE).is_file()
    tell(f"checksums: {len(sums)} files" + ("; signed, but not checked (no --key)" if signed and not required else ""))


def read_manifest(folder: Path, what: str) -> dict[str, Any]:
    """The manifest of an unpacked bundle, checked against its schema.

    Raises:
        VerificationError: it is missing or not what the schema says.
    """
    return documents.read(folder / manifests.FILE, manifests.SCHEMA, f"{what}: {manifests.FILE}")


def _check_top(file: Path, manifest: Mapping[str, Any]) -> None:
    wanted = f"{manifest['name']}-{manifest['version']}"
    first = next(iter(archive.entries(file).values())).filename.split("/")[0]
    if first != wanted:
        raise VerificationError(f"the manifest is of bundle {wanted}, the archive is {first}")


def check_files(folder: Path, present: list[str], manifest: Mapping[str, Any]) -> None:
    """Every file that the manifest lists is there, with its bytes, and nothing else is.

    Raises:
        VerificationError: one is missing, altered or too many; the message names it.
    """
    remedy = "Get the bundle again from who made it."
    listed = {f["path"]: f for f in manifest["files"]}
    if len(listed) != len(manifest["files"]):
        raise VerificationError("the manifest lists a file twice", remedy=remedy)
    for name in sorted({*listed, *present} - {manifests.FILE}):
        if name not in present:
            raise VerificationError(f"{name} is missing: the manifest lists it", remedy=remedy)
        if name not in listed:
            raise VerificationError(
                f"{name} does not belong to the bundle: the manifest does not list it", remedy=remedy
            )
        if (folder / name).stat().st_size != listed[name]["bytes"] or sha256_file(folder / name) != listed[name][
            "sha256"
        ]:
            raise VerificationError(f"{name} is not the file that the manifest lists", remedy=remedy)


def check_contract(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Contract, manifest, labels and self-test say the same.

    Returns:
        The contract.

    Raises:
        VerificationError: two of them disagree; the message says on what.
    """
    value = documents.read(folder / contracts.FILE, CONTRACT_SCHEMA, contracts.FILE)
    test = documents.read(folder / selftest.FILE, _SELFTEST_SCHEMA, selftest.FILE)
    for key, mine in manifest["contract"].items():
        if value[key] != mine:
            raise VerificationError(f"{contracts.FILE} and the manifest disagree on {key}")
    if value["model"] != manifest["model"]:
        raise VerificationError(f"{contracts.FILE} is of model '{value['model']}', not '{manifest['model']}'")
    if value["labels"]:
        path = folder / LABELS
        if not path.is_file() or path.read_bytes() != labels_text(value["labels"]).encode():
            raise VerificationError(f"{LABELS} and {contracts.FILE} disagree on the classes or their order")
    files = {f["path"]: f["sha256"] for f in manifest["files"]}
    for tensor in value["tokenizer"]:
        if files.get(tensor["path"]) != tensor["sha256"]:
            raise VerificationError(f"{tensor['path']} is not the tokenizer file that {contracts.FILE} names")
    _check_artifacts(manifest, value, files)
    _check_calls(test, value, files, manifest)
    if selftest.DECISIONS in files:
        _check_decisions(documents.read(folder / selftest.DECISIONS, _DECISIONS_SCHEMA, selftest.DECISIONS), manifest)
    return value


def _check_artifacts(manifest: Mapping[str, Any], contract: Mapping[str, Any], files: Mapping[str, str]) -> None:
    mine = [(a["target"], a["precision"], a["main"]) for a in manifest["artifacts"]]
    theirs = [(a["target"], a["precision"], a["main"]) for a in contract["artifacts"]]
    if mine != theirs:
        raise VerificationError(f"{contracts.FILE} and the manifest disagree on the artifacts")
    for artifact in manifest["artifacts"]:
        home = f"models/{artifact['target']}/{artifact['precision']}/"
        for name in artifact["files"]:
            if name not in files or not name.startswith(home):
                raise VerificationError(f"{name} of {artifact['target']} is not among the bundle's files")
        if not any(n == artifact["main"] or n.startswith(f"{artifact['main']}/") for n in artifact["files"]):
            raise VerificationError(f"{artifact['main']} is not among the files of {artifact['target']}")


def _check_calls(
    test: Mapping[str, Any], contract: Mapping[str, Any], files: Mapping[str, str], manifest: Mapping[str, Any]
) -> None:
    labels = contract["labels"]
    for call in test["calls"]:
        for side in ("inputs", "outputs"):
            if [t["name"] for t in call[side]] != [t["name"] for t in contract[side]]:
                raise VerificationError(f"{selftest.FILE} and {contracts.FILE} disagree on the {side}")
            for tensor, spec in zip(call[side], contract[side], strict=True):
                if tensor["file"] not in files:
                    raise VerificationError(f"{tensor['file']} is not among the bundle's files")
                if tensor["dtype"] != spec["dtype"] or not contracts.fits(tensor["shape"], spec["shape"]):
                    raise VerificationError(
                        f"call '{call['id']}' in {selftest.FILE}: '{tensor['name']}' is {tensor['dtype']} "
                        f"{tensor['shape']}, which {contracts.FILE} does not allow"
                    )
        if labels and call["label"] is not None:
            known = labels[call["label"]] if call["label"] < len(labels) else None
            if call["answer"] != known:
                raise VerificationError(
                    f"class {call['label']} is '{known}' in {contracts.FILE}, and '{call['answer']}' in "
                    f"{selftest.FILE}: the class order was changed"
                )
    for artifact in manifest["artifacts"]:
        if f"{artifact['target']}/{artifact['precision']}" not in test["tolerances"]:
            raise VerificationError(
                f"{selftest.FILE} has no tolerance for {artifact['target']} {artifact['precision']}"
            )


def _check_decisions(value: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    names = {f"{a['target']}/{a['precision']}" for a in manifest["artifacts"]}
    for name, calls in {"reference": value["reference"], **value["artifacts"]}.items():
        if name not in names | {"reference"}:
            raise VerificationError(f"{selftest.DECISIONS} speaks of {name}, which is not in the bundle")
        if {c: len(rows) for c, rows in calls.items()} != {
            c: len(value["reference"].get(c, ())) for c in value["inputs"]
        }:
            raise VerificationError(f"{selftest.DECISIONS} has other calls for {name} than for its inputs")


def _check_sidecars(file: Path, folder: Path, manifest: Mapping[str, Any], tell: Tell) -> None:
    """What lies beside the archive speaks of this archive."""
    checked = []
    beside = file.parent / manifests.FILE
    if beside.is_file():
        if beside.read_bytes() != (folder / manifests.FILE).read_bytes():
            raise VerificationError(
                f"the {manifests.FILE} beside the archive is not the one inside: it is of another bundle"
            )
        checked.append(manifests.FILE)
    digest = sha256_file(file)
    bill = sbom.make(manifest, digest)
    wanted = {sbom.FILE: bill, provenance.FILE: provenance.make(manifest, provenance.subjects(file.name, digest, bill))}
    for name, value in wanted.items():
        path = file.parent / name
        if path.is_file():
            if path.read_bytes() != manifests.text(value).encode():
                raise VerificationError(f"{name} beside the archive does not speak of it")
            checked.append(name)
    if checked:
        tell(f"beside it: {', '.join(checked)}")


def _self_test(folder: Path, artifact: Mapping[str, Any], log: Path) -> str:
    (facts,) = select([artifact["target"]])
    worker = Worker(
        [envs.ensure(facts.group).python, "-m", "build.bundle.selftest_worker", facts.name],
        log=log,
        env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        name=f"{facts.name} self-test",
    )
    label = f"{artifact['target']} {artifact['precision']}"
    job = {"folder": str(folder), "label": label, **{k: artifact[k] for k in ("target", "precision", "main", "files")}}
    try:
        answer = worker.submit(job, lambda stage: None)
    except ConverterCrash as crash:
        raise VerificationError(f"{label}: {crash.message}") from crash
    finally:
        worker.close()
    if "error" in answer:
        found = answer["error"]
        if found["code"] == UnverifiedError.code and artifact["status"] == "unverified":
            return f"self-test: {label}: NOT RUN, as when it was made: {found['message']}"
        raise VerificationError(f"{label}: {found['message']}", remedy="Do not ship it.")
    result = answer["result"]
    worst = f"off by {result['max_abs_diff']:.1e} at most"
    return f"self-test: {label}: {result['calls']} calls in {result['runtime']}, {worst}"
