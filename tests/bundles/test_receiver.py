"""What a receiver finds with nothing but the bundle: ours verify, spoilt ones are refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from build.bundle.__main__ import session
from tests.bundles.support import (
    PLATFORMS,
    archive_of,
    bundle,
    flip,
    folder_of,
    key_pair,
    refused,
    relist,
    repack,
)

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


def test_a_quantised_artifact_is_tested_on_real_calls(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On made-up values it may be anywhere: they lie outside what it was calibrated for."""
    assert bundle(copy, "web", "--precisions", "int8-static") == 0
    assert session(["verify-bundle", str(folder_of(copy, "web"))]) == 0
    assert "self-test: ort_web int8-static: 4 calls" in capsys.readouterr().out


@pytest.fixture
def received(built: Path, tmp_path: Path) -> Path:
    """The web bundle's folder, to spoil."""
    return Path(shutil.copytree(folder_of(built, "web"), tmp_path / "received"))


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
