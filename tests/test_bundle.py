"""Bundles of real artifacts: their contents, that they are reproducible, what is refused, what a receiver finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.bundle.__main__ import session
from build.bundle.verify import inspect
from build.manifest import OK
from build.manifest import read as read_artifact
from tests.bundle_support import archive_of, flip, key_pair, relist, repack
from tests.conftest import ROOT, Run, environment

Spoil = Callable[[dict[str, bytes]], None]
PLATFORMS = {
    "android": ("executorch", "litert"),
    "linux-arm64": ("executorch", "litert"),
    "apple": ("coreml",),
    "pc": ("openvino",),
    "web": ("ort_web",),
}


@pytest.fixture(autouse=True)
def one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPORT_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def built(digits: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with the digits model built, and a bundle of it for every platform."""
    for targets in PLATFORMS.values():
        assert {digits.row(t)["status"] for t in targets} == {"ok"}, digits.stdout + digits.stderr
    out = tmp_path_factory.mktemp("bundled") / "out"
    shutil.copytree(digits.out / "digits_cnn", out / "digits_cnn")
    done = subprocess.run(
        [sys.executable, "-m", "build.bundle", "bundle", "--out", str(out), "--precisions", "fp32", "--json",
         str(out / "bundles.json")], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """The same artifacts, to spoil."""
    shutil.copytree(built / "digits_cnn", tmp_path / "out" / "digits_cnn")
    return tmp_path / "out"


def folder_of(out: Path, platform: str, version: str = "0.1.0") -> Path:
    return out / "bundles" / f"digits_cnn-{platform}-{version}"


def bundle(out: Path, platform: str, *arguments: str) -> int:
    return session([f"bundle-{platform}", "--out", str(out), *arguments])


def artifact(out: Path, target: str) -> Path:
    return out / "digits_cnn" / target / "fp32"


def change_manifest(out: Path, target: str, **changes: Any) -> None:
    path = artifact(out, target) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- contents --------------------------------------------------------------------------------------------------------


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
    assert (tmp_path / "licences" / "LICENCES.txt").is_file()


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


# ---- refusals --------------------------------------------------------------------------------------------------------


def _flip(out: Path) -> None:
    file = artifact(out, "ort_web") / "model.onnx"
    file.write_bytes(flip(file.read_bytes()))


def _reference(out: Path) -> None:
    file = out / "digits_cnn" / "program" / "reference.safetensors"
    file.write_bytes(flip(file.read_bytes()))


def _judged(out: Path, **changes: str) -> None:
    value = read_artifact(artifact(out, "ort_web"))
    assert value is not None
    change_manifest(out, "ort_web", judged_by={**value["judged_by"], **changes})


_FAILED = {"code": "verification-failed", "message": "it is wrong", "op": None, "source": None, "remedy": None}
FIRM: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (_flip, "was altered after it was verified"),
    "missing": (lambda o: (artifact(o, "ort_web") / "model.onnx").unlink(), "'model.onnx' is missing"),
    "too many": (lambda o: (artifact(o, "ort_web") / "x.bin").write_bytes(b""), "'x.bin' does not belong to it"),
    "not built": (lambda o: shutil.rmtree(artifact(o, "ort_web")), "is not built"),
    "failed": (lambda o: change_manifest(o, "ort_web", status="failed:verify", error=_FAILED), "is not verified"),
    "another program": (lambda o: change_manifest(o, "ort_web", program="f" * 64), "made from another program"),
    "reference data altered": (_reference, "reference.safetensors was altered"),
}
SOFT: dict[str, tuple[Callable[[Path], object], str]] = {
    "unverified": (lambda o: change_manifest(o, "ort_web", status="unverified", error=_FAILED), "is not verified"),
    "old reference data": (lambda o: _judged(o, reference="e" * 64), "other reference data"),
    "old code": (lambda o: _judged(o, code="e" * 64), "other code than this checkout's"),
}


@pytest.mark.parametrize("name", [*FIRM, *SOFT])
def test_a_bundle_is_refused_with_the_reason(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    spoil, reason = {**FIRM, **SOFT}[name]
    spoil(copy)
    assert bundle(copy, "web", "--precisions", "fp32") == 6
    said = capsys.readouterr()
    assert reason in said.err
    assert len([line for line in said.err.splitlines() if line.startswith("error:")]) == 1
    assert not (copy / "bundles").exists(), "nothing is written"
    assert not list((copy / ".staging").glob("*"))


@pytest.mark.parametrize("name", FIRM)
def test_no_reason_excepts_what_is_not_the_artifact(copy: Path, name: str) -> None:
    FIRM[name][0](copy)
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "we must") == 6
    assert not (copy / "bundles").exists()


@pytest.mark.parametrize("name", SOFT)
def test_an_exception_is_recorded(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    spoil, reason = SOFT[name]
    spoil(copy)
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "agreed with QA") == 0
    place = folder_of(copy, "web")
    (exception,) = json.loads((place / "manifest.json").read_text())["exceptions"]
    assert reason in exception["what"]
    assert exception["reason"] == "agreed with QA"
    if name == "unverified":
        capsys.readouterr()
        assert session(["verify-bundle", str(place)]) == 0
        assert "EXCEPTED" in capsys.readouterr().out


def test_an_artifact_that_nothing_here_can_run_may_be_excepted(copy: Path, tmp_path: Path) -> None:
    value = read_artifact(artifact(copy, "ort_web"))
    assert value is not None
    never_run = {k: v for k, v in value.items() if k not in ("verification", "accuracy")}
    path = artifact(copy, "ort_web") / "manifest.json"
    path.write_text(json.dumps({**never_run, "metric": None, "status": "unverified", "error": _FAILED}))
    assert bundle(copy, "web", "--precisions", "fp32") == 6
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "a device will tell") == 0
    manifest = inspect(archive_of(folder_of(copy, "web")), tmp_path / "x", lambda line: None, sums_required=True)
    assert manifest["artifacts"][0]["verification"] is None
    assert "not verified" in (tmp_path / "x" / "README.md").read_text()


@pytest.mark.parametrize("chosen", [["--precisions", "fp32"], []])
def test_a_budget_that_fails_refuses(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: list[str]
) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[[budget]]\nplatform = "web"\nmax_bytes = 10\n')
    assert bundle(copy, "web", "--budgets", str(budgets), *chosen) == 6
    assert "max_bytes FAIL" in capsys.readouterr().err
    assert bundle(copy, "web", "--budgets", str(budgets), "--allow", "a pilot", *chosen) == 0
    manifest = json.loads((folder_of(copy, "web") / "manifest.json").read_text())
    assert manifest["artifacts"][0]["budgets"][0]["verdict"] == "FAIL"
    assert manifest["exceptions"][0]["reason"] == "a pilot"


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_exception_needs_a_reason(copy: Path, reason: str) -> None:
    assert bundle(copy, "web", "--allow", reason) == 2


def test_one_refusal_does_not_stop_the_other_bundles(copy: Path) -> None:
    _flip(copy)
    assert session(["bundle", "--out", str(copy), "--precisions", "fp32", "--json", str(copy / "b.json")]) == 6
    value = json.loads((copy / "b.json").read_text())
    assert {b["platform"] for b in value["bundles"]} == set(PLATFORMS) - {"web"}
    assert value["error"]["code"] == "gate-failed"


# ---- what a receiver finds -------------------------------------------------------------------------------------------


SLOW = [pytest.param(p, marks=pytest.mark.slow) for p in ("apple", "pc")]


@pytest.mark.parametrize("platform", ["android", "web", *SLOW])
def test_ours_verify(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], platform: str) -> None:
    """As a receiver has it: the archive alone, in a folder of its own."""
    file = shutil.copy(archive_of(folder_of(built, platform)), tmp_path)
    assert session(["verify-bundle", str(file), "--json", str(tmp_path / "r.json")]) == 0
    said = capsys.readouterr().out
    for target in PLATFORMS[platform]:
        assert f"self-test: {target} fp32: 8 calls" in said
    assert json.loads((tmp_path / "r.json").read_text())["error"] is None


@pytest.fixture
def received(built: Path, tmp_path: Path) -> Path:
    """The web bundle's folder, to spoil."""
    return Path(shutil.copytree(folder_of(built, "web"), tmp_path / "received"))


def refused(place: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line that says why."""
    capsys.readouterr()
    assert session(["verify-bundle", str(archive_of(place)), *options]) in (2, 4)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    return lines[0]


def _kinds(built: Path) -> list[str]:
    with zipfile.ZipFile(archive_of(folder_of(built, "web"))) as z:
        return [n.split("/", 1)[1] for n in z.namelist()]


def test_a_flipped_byte_in_any_file_is_found(
    built: Path, received: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the archive's own checksums made to fit: only the manifest can tell."""
    whole = archive_of(received).read_bytes()
    shutil.copytree(received, tmp_path / "alone")
    file = archive_of(tmp_path / "alone")
    for other in set((tmp_path / "alone").iterdir()) - {file}:
        other.unlink()
    for index, name in enumerate(_kinds(built)):
        file.write_bytes(whole)

        def spoil(content: dict[str, bytes], name: str = name) -> None:
            content[name] = flip(content[name]) if content[name] else b"x"

        repack(file, spoil, tmp_path / "work" / str(index))
        line = refused(file.parent, capsys)
        assert name in line or name == "manifest.json", line


def test_a_flipped_byte_of_the_archive_or_beside_it_is_found(
    received: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted(received.iterdir()):
        good = path.read_bytes()
        path.write_bytes(flip(good))
        line = refused(received, capsys)
        assert path.name in line or "SHA256SUMS" in line, line
        path.write_bytes(good)
    assert session(["verify-bundle", str(received)]) == 0


def _swap(content: dict[str, bytes]) -> None:
    lines = content["labels.txt"].splitlines()
    content["labels.txt"] = b"\n".join([lines[1], lines[0], *lines[2:]]) + b"\n"


def _swap_everywhere(content: dict[str, bytes]) -> None:
    _swap(content)
    value = json.loads(content["contract.json"])
    value["labels"][:2] = value["labels"][1::-1]
    value["labels"][3], value["labels"][5] = value["labels"][5], value["labels"][3]
    content["labels.txt"] = "".join(f"{x}\n" for x in value["labels"]).encode()
    content["contract.json"] = json.dumps(value).encode()


def _contract_only(content: dict[str, bytes]) -> None:
    value = json.loads(content["contract.json"])
    value["inputs"][0]["dtype"] = "float16"
    content["contract.json"] = json.dumps(value).encode()


def _answers(content: dict[str, bytes]) -> None:
    content["selftest/000/out0.bin"] = bytes(len(content["selftest/000/out0.bin"]))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda c: c.pop("models/ort_web/fp32/model.onnx"), "model.onnx is missing"),
        (lambda c: c.update({"extra.bin": b"x"}), "extra.bin does not belong"),
        (_swap, "labels.txt is not the file"),
    ],
)
def test_a_file_that_is_missing_swapped_or_too_many_is_named(
    received: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[dict[str, bytes]], None],
    reason: str,
) -> None:
    (received / "SHA256SUMS").unlink()
    repack(archive_of(received), spoil, tmp_path / "work")
    assert reason in refused(received, capsys)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_swap, "disagree on the classes or their order"),
        (_swap_everywhere, "the class order was changed"),
        (_contract_only, "disagree on inputs"),
        (_answers, "self-test call"),
    ],
)
def test_a_forger_who_fits_every_hash_is_found_by_what_the_parts_say(
    received: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[dict[str, bytes]], None],
    reason: str,
) -> None:
    def forge(content: dict[str, bytes]) -> None:
        spoil(content)
        relist(content)

    repack(archive_of(received), forge, tmp_path / "work")
    for path in received.iterdir():
        if path.suffix != ".zip":
            path.unlink()
    assert reason in refused(received, capsys)


def test_a_manifest_of_another_bundle(
    built: Path, received: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (folder_of(built, "pc") / "manifest.json").read_bytes()
    (received / "SHA256SUMS").unlink()
    (received / "manifest.json").write_bytes(other)
    assert "is of another bundle" in refused(received, capsys)
    (received / "manifest.json").unlink()
    repack(archive_of(received), lambda c: c.update({"manifest.json": other}), tmp_path / "work")
    assert "the manifest is of bundle digits_cnn-pc-0.1.0, the archive is digits_cnn-web-0.1.0" in refused(
        received, capsys
    )


def test_signatures(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = key_pair(tmp_path / "ours")
    _, stranger = key_pair(tmp_path / "theirs")
    assert bundle(copy, "web", "--precisions", "fp32", "--sign", str(private)) == 0
    place = folder_of(copy, "web")
    assert session(["verify-bundle", str(place), "--key", str(public)]) == 0
    assert "not by key.pub" in refused(place, capsys, "--key", str(stranger))
    signature = (place / "SHA256SUMS.sig").read_bytes()
    (place / "SHA256SUMS.sig").unlink()
    assert "is not signed" in refused(place, capsys, "--key", str(public))
    (place / "SHA256SUMS.sig").write_bytes(signature)
    sums = (place / "SHA256SUMS").read_bytes()
    (place / "SHA256SUMS").write_bytes(sums.replace(b"0", b"1", 1))
    assert "signature" in refused(place, capsys, "--key", str(public))
    (place / "SHA256SUMS").write_bytes(sums)
    repack(archive_of(place), lambda c: c.update({"README.md": b"buy now"}), tmp_path / "work")
    assert "is not the file that SHA256SUMS lists" in refused(place, capsys, "--key", str(public))
    first = (place / "SHA256SUMS").read_bytes()
    assert bundle(copy, "web", "--precisions", "fp32", "--sign", str(private)) == 0
    assert ((place / "SHA256SUMS").read_bytes(), (place / "SHA256SUMS.sig").read_bytes()) == (first, signature)


@pytest.mark.parametrize("what", ["public", "no key"])
def test_what_is_no_private_key_is_refused(copy: Path, tmp_path: Path, what: str) -> None:
    _, public = key_pair(tmp_path / "ours")
    if what == "no key":
        public.write_text("hello")
    assert bundle(copy, "web", "--precisions", "fp32", "--sign", str(public)) == 2
    assert not (copy / "bundles").exists()


# ---- slow ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kills_leave_a_whole_bundle_or_none(built: Path, copy: Path, tmp_path: Path) -> None:
    import random
    import time

    chance, command = random.Random(2), [sys.executable, "-m", "build.bundle", "bundle-web", "--out", str(copy)]
    command += ["--precisions", "fp32"]
    started = time.monotonic()
    assert subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0
    span = time.monotonic() - started
    wanted = archive_of(folder_of(copy, "web")).read_bytes()
    killed = 0
    for n in range(300):
        if n % 5 == 0:
            shutil.rmtree(copy / "bundles", ignore_errors=True)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0, span))
        killed += process.poll() is None
        process.kill()
        process.wait()
        place = folder_of(copy, "web")
        if place.exists():
            out = tmp_path / f"x{n}"
            out.mkdir()
            inspect(archive_of(place), out, lambda line: None, sums_required=True)
            shutil.rmtree(out)
            assert archive_of(place).read_bytes() == wanted
        if killed == 50:
            break
    assert killed == 50
    assert bundle(copy, "web", "--precisions", "fp32") == 0
    assert not (copy / ".staging").exists(), "what the killed ones left is swept up"
