"""Bundles of real artifacts: what is in them, and that the same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from build.bundle.verify import inspect
from build.manifest import OK
from build.manifest import read as read_artifact
from tests.bundles.support import (
    PLATFORMS,
    archive_of,
    artifact,
    bundle,
    folder_of,
)
from tests.conftest import ROOT


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_bundle_holds_what_its_manifest_says(built: Path, tmp_path: Path, platform: str) -> None:
    place = folder_of(built, platform)
    manifest = inspect(archive_of(place), tmp_path, lambda line: None, sums_required=True)
    assert [a["target"] for a in manifest["artifacts"]] == list(PLATFORMS[platform])
    for item in manifest["artifacts"]:
        own = read_artifact(artifact(built, item["target"]))
        assert own is not None
        assert {f["path"]: f["sha256"] for f in manifest["files"] if f["path"] in item["files"]} == {
            f"models/{item['target']}/fp32/{f['path']}": f["sha256"] for f in own["files"]
        }
        assert item["verification"]["problems"] == []
        assert item["metric"] == own["metric"]
        assert item["runtime"]["minimum_version"] or item["runtime"]["deployment_target"]
    assert manifest["exceptions"] == []
    contract = json.loads((tmp_path / "contract.json").read_text())
    assert contract["labels"] == (tmp_path / "labels.txt").read_text().split() == list("0123456789")
    assert contract["inputs"][0]["layout"] == "NCHW"
    readme = (tmp_path / "README.md").read_text()
    for word in ("image", "logits", "batch (1..64)", "divide by 16", "Licence", "DigitsCnn"):
        assert word in readme
    licences = (tmp_path / "licences" / "LICENCES.txt").read_text()
    texts = {p.name for p in (tmp_path / "licences").iterdir()} - {"LICENCES.txt"}
    assert texts == set(re.findall(r"[\w.-]+\.(?:txt|md)\b", licences)), "each is named, and each named is there"
    assert "model-Apache-2.0.txt" in texts
    assert platform == "apple" or len(texts) > 1, "the runtime's too"


def test_paths_and_sums_are_printed_and_written(built: Path) -> None:
    value = json.loads((built / "bundles.json").read_text())
    assert [b["platform"] for b in value["bundles"]] == list(dict.fromkeys(b["platform"] for b in value["bundles"]))
    assert {b["platform"] for b in value["bundles"]} == set(PLATFORMS)
    for row in value["bundles"]:
        assert hashlib.sha256(Path(row["path"]).read_bytes()).hexdigest() == row["sha256"]
        sums = (Path(row["path"]).parent / "SHA256SUMS").read_text()
        assert f"{row['sha256']}  {Path(row['path']).name}\n" in sums


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_bill_of_materials_and_the_provenance_keep_to_their_forms(built: Path, platform: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    place = folder_of(built, platform)
    text = (place / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert "timestamp" not in json.dumps(bill)
    refs = {c["bom-ref"] for c in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {r for d in bill["dependencies"] for r in (d["ref"], *d["dependsOn"])} <= refs
    statement = json.loads((place / "provenance.intoto.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    digests = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
    for name, digest in digests.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest
    definition = statement["predicate"]["buildDefinition"]
    assert set(definition) >= {"buildType", "externalParameters", "resolvedDependencies"}
    assert statement["predicate"]["runDetails"]["builder"]["id"]
    for material in definition["resolvedDependencies"]:
        assert set(material) & {"uri", "digest", "content"}, "in-toto's ResourceDescriptor needs one of them"
    assert any("executorch" in m["name"] or "torch" in m["name"] for m in definition["resolvedDependencies"])


def test_the_smallest_artifact_that_keeps_the_budget_is_chosen(built: Path, copy: Path) -> None:
    assert bundle(copy, "android", "--version", "1.0.0") == 0
    manifest = json.loads((folder_of(copy, "android", "1.0.0") / "manifest.json").read_text())
    (chosen,) = manifest["artifacts"]
    sizes: dict[tuple[str, str], int] = {}
    for target in ("executorch", "litert"):
        for path in (copy / "digits_cnn" / target).iterdir():
            value = read_artifact(path)
            if value is not None and value["status"] in OK:
                drop = value["metric"]["reference"] - value["metric"]["value"]
                if drop <= 0.01 and value["bytes"] <= 100_000:  # the model's own budget
                    sizes[target, path.name] = value["bytes"]
    assert (chosen["target"], chosen["precision"]) == min(sizes, key=lambda k: sizes[k])
    assert chosen["budgets"][0]["verdict"] == "PASS"


# ---- the same inputs, the same bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["android", "web", "apple"])
def test_another_place_time_and_umask_give_the_same_bytes(built: Path, copy: Path, platform: str) -> None:
    for path in copy.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    umask = os.umask(0o077)
    try:
        assert bundle(copy, platform, "--precisions", "fp32") == 0
    finally:
        os.umask(umask)
    ours, theirs = folder_of(built, platform), folder_of(copy, platform)
    names = sorted(p.name for p in ours.iterdir())
    assert names == sorted(p.name for p in theirs.iterdir())
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_no_path_or_user_of_this_machine_is_in_a_bundle(built: Path) -> None:
    for platform in PLATFORMS:
        data = archive_of(folder_of(built, platform)).read_bytes()
        for secret in (str(ROOT), str(built), str(Path.home()), sys.prefix):
            assert secret.encode() not in data or secret in ("/", ""), f"{secret} is in the {platform} bundle"
