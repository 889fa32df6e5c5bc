"""Bundles that someone spoilt or forged: each is refused, for its reason, by one line and never by a traceback."""

from __future__ import annotations

import copy
import json
import random
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from build.bundle.manifest import text
from build.bundle.verify import inspect
from build.errors import EdgeportError
from tests.bundles.support import (
    PLATFORMS,
    archive_of,
    flip,
    folder_of,
    refused,
    relist,
    repack,
    toy_bundle,
)


@pytest.fixture
def alone(built: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The archive of a platform's bundle in a folder of its own: nothing beside it tells what it should be."""

    def place(platform: str) -> Path:
        folder = tmp_path / "alone" / platform
        folder.mkdir(parents=True)
        shutil.copy(archive_of(folder_of(built, platform)), folder)
        return folder

    return place


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_flipped_byte_in_any_file_is_found(
    alone: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], platform: str
) -> None:
    """With the archive's own checksums made to fit: only the manifest can tell (``SHA256SUMS`` vouches for that)."""
    place = alone(platform)
    file = archive_of(place)
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as z:
        names = sorted({n.split("/", 1)[1] for n in z.namelist()} - {"manifest.json"})
    kinds = {Path(n).suffix for n in names}
    assert (
        kinds
        >= {".md", ".json", ".txt", ".bin"}
        | {
            "android": {".pte", ".tflite", ".kt"},
            "linux-arm64": {".pte", ".tflite", ".cpp", ".py"},
            "apple": {".mlmodel", ".swift"},
            "pc": {".xml", ".cpp", ".py"},
            "web": {".onnx", ".mjs"},
        }[platform]
    )
    for index, name in enumerate(names):
        file.write_bytes(whole)

        def spoil(content: dict[str, bytes], name: str = name) -> None:
            content[name] = flip(content[name]) if content[name] else b"x"

        repack(file, spoil, tmp_path / "work" / str(index))
        line = refused(place, capsys)
        assert name in line


@pytest.mark.parametrize(
    ("platform", "external"),
    [("pc", "models/openvino/fp32/model.bin"), ("apple", "weights/weight.bin")],
)
def test_a_missing_file_of_external_data_is_named(
    alone: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    platform: str,
    external: str,
) -> None:
    place = alone(platform)

    def drop(content: dict[str, bytes]) -> None:
        (name,) = (n for n in content if n.endswith(external))
        del content[name]

    repack(archive_of(place), drop, tmp_path / "work")
    line = refused(place, capsys)
    assert external in line
    assert "is missing: the manifest lists it" in line


def test_a_forger_who_drops_the_external_data_from_the_manifest_too(
    alone: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runtime itself refuses what is left."""
    place, name = alone("pc"), "models/openvino/fp32/model.bin"

    def drop(content: dict[str, bytes]) -> None:
        del content[name]
        value = json.loads(content["manifest.json"])
        value["files"] = [f for f in value["files"] if f["path"] != name]
        value["artifacts"][0]["files"].remove(name)
        content["manifest.json"] = text(value).encode()

    repack(archive_of(place), drop, tmp_path / "work")
    line = refused(place, capsys)
    assert "openvino fp32: OpenVINO refuses model.xml" in line


def test_a_bomb_is_refused_by_the_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = zipfile.ZipInfo("toy/x")
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    with zipfile.ZipFile(tmp_path / "toy.zip", "w") as z:
        z.writestr(info, bytes(64 << 20), compress_type=zipfile.ZIP_DEFLATED)
    assert "is compressed (67108864 bytes unpacked)" in refused(tmp_path, capsys)


# ---- a forger's JSON: every hash fits, what it says is nonsense ------------------------------------------------------

_NONSENSE: list[Any] = [None, True, -1, 0, 10**30, 1.5, 1e308, "", "..", "a/b", "é", "x\0", [], {}, [None], {"a": 1}]
_MUTATED = ("manifest.json", "contract.json", "selftest/selftest.json", "evaluation/decisions.json")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from _places(below, (*path, key))


def mutated(value: Any, chance: random.Random) -> Any:
    """The same JSON but for one place that is gone, there twice, or something else."""
    value = copy.deepcopy(value)
    *way, last = chance.choice(list(_places(value)))
    at = value
    for key in way:
        at = at[key]
    how = chance.random()
    if how < 0.25:
        del at[last]
    elif how < 0.4 and isinstance(at, list):
        at.append(copy.deepcopy(at[last]))
    else:
        at[last] = copy.deepcopy(chance.choice(_NONSENSE))
    return value


def test_nonsense_that_fits_its_hashes_ends_in_an_error_of_ours(tmp_path: Path) -> None:
    """Anything else would be a traceback."""
    file = archive_of(toy_bundle(tmp_path / "bundles", "1.0.0"))
    for other in set(file.parent.iterdir()) - {file}:
        other.unlink()
    whole, chance, refusals = file.read_bytes(), random.Random(7), 0
    for number in range(120):
        name = chance.choice([*_MUTATED, "labels.txt"])

        def forge(content: dict[str, bytes], name: str = name) -> None:
            if name == "labels.txt":
                content[name] = content[name][:2] + bytes([chance.randrange(128, 256)]) + content[name][2:]
            else:
                content[name] = text(mutated(json.loads(content[name]), chance)).encode()
            if name != "manifest.json":
                relist(content)

        file.write_bytes(whole)
        repack(file, forge, tmp_path / "work")
        out = tmp_path / "out" / str(number)
        out.mkdir(parents=True)
        try:
            inspect(file, out, lambda line: None, sums_required=False)
        except EdgeportError:
            refusals += 1
    assert refusals > 100, "few changes are harmless"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("selftest/selftest.json", lambda v: v["calls"][0].update(label=3), "class 3 is 'None' in contract.json"),
        ("selftest/selftest.json", lambda v: v["calls"][0]["inputs"][0].update(dtype="int32"), "does not allow"),
        ("selftest/selftest.json", lambda v: v["calls"][0]["inputs"][0].update(shape=[9, 2]), "does not allow"),
        ("evaluation/decisions.json", lambda v: v["artifacts"].update({"a/b": {}}), "speaks of a/b"),
        ("evaluation/decisions.json", lambda v: v["inputs"].popitem(), "has other calls for reference"),
        ("evaluation/decisions.json", lambda v: v["artifacts"]["ort_web/fp32"].popitem(), "other calls for ort_web"),
    ],
)
def test_what_contradicts_the_contract_is_named(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    file = archive_of(toy_bundle(tmp_path / "bundles", "1.0.0"))

    def forge(content: dict[str, bytes]) -> None:
        value = json.loads(content[name])
        change(value)
        content[name] = text(value).encode()
        relist(content)

    repack(file, forge, tmp_path / "work")
    for other in set(file.parent.iterdir()) - {file}:
        other.unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises(EdgeportError, match=reason):
        inspect(file, tmp_path / "out", lambda line: None, sums_required=False)
