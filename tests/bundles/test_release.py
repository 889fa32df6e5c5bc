"""Channels: versions never change, pointers always point to a whole one, apps are not broken by surprise."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from build.bundle import channels
from build.bundle.__main__ import session
from build.bundle.store import Store, open_store
from tests.bundles.support import NAME, archive_of, flip, key_pair, toy_bundle
from tests.conftest import ROOT, environment


@pytest.fixture(params=["folder", "url"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A release directory: a plain folder, or a store behind fsspec."""
    return str(tmp_path / "release") if request.param == "folder" else f"memory://{tmp_path}/release"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder with three versions of one bundle."""
    for version, weights in (("1.0.0", b"first"), ("1.1.0", b"second!"), ("1.2.0", b"third")):
        toy_bundle(tmp_path / "out" / "bundles", version, weights=weights)
    return tmp_path / "out"


def run(release: str, out: Path, *arguments: str) -> int:
    return session([*arguments, "--release", release, "--out", str(out)])


def pointer(store: Store, channel: str = "stable") -> dict[str, Any]:
    found = channels.read_channel(store, NAME, channel)
    assert found is not None
    return found


def assert_whole(store: Store) -> None:
    """Every channel points to a version whose every file is there."""
    for name in store.names(f"{NAME}/channels"):
        found = pointer(store, name.removesuffix(".json"))
        record = channels.read_version(store, NAME, found["current"])
        assert record is not None
        channels.require_whole(store, record)
        assert found["sha256"] == record["sha256"]


def test_promote_rollback_history(release: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        assert run(release, out, "promote", NAME, version, "stable") == 0
    assert run(release, out, "promote", NAME, "1.1.0", "canary") == 0
    text = capsys.readouterr().out
    assert "1.0.0 -> 1.1.0" in text
    assert "size 5 B -> 7 B" in text
    assert "0 of 3 decisions changed" in text
    store = open_store(release)
    assert pointer(store)["current"] == "1.2.0"
    assert run(release, out, "rollback", NAME, "stable") == 0
    assert pointer(store)["current"] == "1.1.0"
    assert run(release, out, "rollback", NAME, "stable") == 0
    assert pointer(store)["current"] == "1.0.0"
    assert run(release, out, "rollback", NAME, "stable") == 2, "there is none before it"
    assert run(release, out, "rollback", NAME, "stable", "--to", "1.2.0") == 0
    assert pointer(store, "canary")["current"] == "1.1.0"
    capsys.readouterr()
    assert run(release, out, "history", NAME) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["canary"] + ["stable"] * 6
    assert [line.split()[3] for line in lines[1:]] == ["1.0.0", "1.1.0", "1.2.0", "1.1.0", "1.0.0", "1.2.0"]
    assert sum("current" in line for line in lines) == 2
    assert_whole(store)


def test_after_a_rollback_and_a_new_version_the_bad_one_is_not_gone_back_to(release: str, out: Path) -> None:
    for step in (("promote", "1.0.0"), ("promote", "1.1.0"), ("rollback", ""), ("promote", "1.2.0"), ("rollback", "")):
        arguments = [step[0], NAME, *([step[1]] if step[1] else []), "stable"]
        assert run(release, out, *arguments) == 0
    assert pointer(open_store(release))["current"] == "1.0.0"


def test_a_version_never_changes(release: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(release, out, "promote", NAME, "1.0.0", "stable") == 0
    toy_bundle(tmp_path / "other" / "bundles", "1.0.0", weights=b"something else")
    assert run(release, tmp_path / "other", "promote", NAME, "1.0.0", "canary") == 6
    assert "a version never changes" in capsys.readouterr().err
    assert run(release, out, "promote", NAME, "1.0.0", "canary") == 0, "the same bytes are the same version"
    assert run(release, out, "promote", NAME, "1.0.0", "canary") == 0, "and pointing there again changes nothing"
    assert len(pointer(open_store(release), "canary")["history"]) == 1


def test_an_older_version_is_not_promoted(release: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(release, out, "promote", NAME, "1.1.0", "stable") == 0
    assert run(release, out, "promote", NAME, "1.0.0", "stable") == 6
    assert "rollback" in capsys.readouterr().err


def test_a_broken_contract_needs_a_major_version(
    release: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(release, out, "promote", NAME, "1.0.0", "stable") == 0
    bundles = tmp_path / "next" / "bundles"
    labels = ["a", "c", "b"]
    for version in ("1.3.0", "2.0.0"):
        toy_bundle(bundles, version, labels=labels)
    assert run(release, bundles.parent, "promote", NAME, "1.3.0", "stable") == 6
    said = capsys.readouterr().err
    assert "class 1 was 'b', now it is 'c'" in said
    assert "2.0.0" in said
    assert pointer(open_store(release))["current"] == "1.0.0"
    assert run(release, bundles.parent, "promote", NAME, "1.3.0", "canary") == 0, "an empty channel has no apps"
    assert run(release, bundles.parent, "promote", NAME, "2.0.0", "stable") == 0
    assert "class order changed" in capsys.readouterr().out
    assert run(release, out, "rollback", NAME, "stable") == 0, "going back is a person's decision"
    assert "may rely on" in capsys.readouterr().out


def test_what_changed_is_said(release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundles = tmp_path / "out" / "bundles"
    toy_bundle(bundles, "1.0.0", p95_ms=4.0)
    toy_bundle(bundles, "1.0.1", p95_ms=5.5, decided=(0, 2, 2), weights=b"w" * 2000)
    for version in ("1.0.0", "1.0.1"):
        assert run(release, bundles.parent, "promote", NAME, version, "stable") == 0
    said = capsys.readouterr().out
    assert "size 7 B -> 2.0 kB" in said
    assert "top1_accuracy 0.9000 -> 0.9000" in said
    assert "1 of 3 decisions changed" in said
    assert "p95 on Phone 1 4.00 ms -> 5.50 ms" in said


def test_what_is_not_whole_is_not_published(release: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = archive_of(out / "bundles" / f"{NAME}-1.0.0")
    file.write_bytes(flip(file.read_bytes()))
    assert run(release, out, "promote", NAME, "1.0.0", "stable") == 4
    assert "is not the file that SHA256SUMS lists" in capsys.readouterr().err
    assert run(release, out, "promote", NAME, "9.9.9", "stable") == 2
    assert "there is no bundle" in capsys.readouterr().err
    assert channels.read_channel(open_store(release), NAME, "stable") is None


def test_a_published_version_that_rots_is_not_pointed_to(out: Path, tmp_path: Path) -> None:
    release = str(tmp_path / "release")
    for version in ("1.0.0", "1.1.0"):
        assert run(release, out, "promote", NAME, version, "stable") == 0
    file = archive_of(tmp_path / "release" / NAME / "versions" / "1.0.0")
    file.write_bytes(flip(file.read_bytes()))
    assert run(release, out, "rollback", NAME, "stable") == 4
    assert pointer(open_store(release))["current"] == "1.1.0"


def test_a_signature_can_be_required(release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = key_pair(tmp_path / "ours")
    _, stranger = key_pair(tmp_path / "theirs")
    bundles = tmp_path / "out" / "bundles"
    toy_bundle(bundles, "1.0.0", sign=private)
    toy_bundle(bundles, "1.1.0")
    promote = ("promote", NAME)
    assert run(release, bundles.parent, *promote, "1.0.0", "stable", "--key", str(stranger)) == 4
    assert run(release, bundles.parent, *promote, "1.0.0", "stable", "--key", str(public)) == 0
    assert run(release, bundles.parent, *promote, "1.0.0", "canary", "--key", str(stranger)) == 4
    assert run(release, bundles.parent, *promote, "1.1.0", "stable", "--key", str(public)) == 4
    assert "not signed" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["..", "a/b", "-x", "", "a b"])
def test_a_name_is_one_part_of_a_path(out: Path, tmp_path: Path, text: str) -> None:
    assert run(str(tmp_path / "r"), out, "promote", "--", text, "1.0.0", "stable") == 2
    assert run(str(tmp_path / "r"), out, "promote", "--", NAME, "1.0.0", text) == 2
    assert not (tmp_path / "r").exists()


def test_a_result_that_cannot_be_written_is_refused_before_anything_is_promoted(out: Path, tmp_path: Path) -> None:
    assert run(str(tmp_path / "r"), out, "promote", NAME, "1.0.0", "stable", "--json", str(tmp_path)) == 2
    assert not (tmp_path / "r").exists()


def test_promotions_at_the_same_time_are_all_in_the_history(tmp_path: Path) -> None:
    bundles = tmp_path / "out" / "bundles"
    versions = [f"1.{n}.0" for n in range(6)]
    for version in versions:
        toy_bundle(bundles, version)
    release = str(tmp_path / "release")
    with ThreadPoolExecutor(max_workers=6) as pool:
        codes = list(pool.map(lambda v: run(release, bundles.parent, "promote", NAME, v, "stable"), versions))
    found = pointer(open_store(release))
    assert set(codes) <= {0, 6}, "an older one that comes too late is refused"
    assert [e["version"] for e in found["history"]] == [
        v for v, c in sorted(zip(versions, codes, strict=True)) if c == 0
    ]
    assert found["current"] == "1.5.0"
    assert_whole(open_store(release))


def test_two_bundles_under_one_number_are_not_mixed(tmp_path: Path) -> None:
    release = str(tmp_path / "release")
    outs = []
    for n in range(4):
        outs.append(tmp_path / f"out{n}")
        toy_bundle(outs[-1] / "bundles", "1.0.0", weights=f"weights {n}".encode())
    with ThreadPoolExecutor(max_workers=4) as pool:
        codes = list(pool.map(lambda o: run(release, o, "promote", NAME, "1.0.0", "stable"), outs))
    assert sorted(codes) == [0, 6, 6, 6]
    assert_whole(open_store(release))


def test_a_damaged_pointer_is_an_error(out: Path, tmp_path: Path) -> None:
    release = str(tmp_path / "release")
    assert run(release, out, "promote", NAME, "1.0.0", "stable") == 0
    file = tmp_path / "release" / channels.channel_place(NAME, "stable")
    file.write_text(json.dumps({**json.loads(file.read_text()), "current": "1.1.0"}))
    assert run(release, out, "promote", NAME, "1.1.0", "stable") == 7


@pytest.mark.slow
def test_kills_leave_every_channel_on_a_whole_version(tmp_path: Path) -> None:
    bundles = tmp_path / "out" / "bundles"
    versions = [f"1.{n}.0" for n in range(30)]
    for version in versions:
        toy_bundle(bundles, version, weights=version.encode() * 200_000)
    release, chance = str(tmp_path / "release"), random.Random(1)
    store = open_store(release)
    command = [sys.executable, "-m", "build.bundle"]
    tail = ["--release", release, "--out", str(bundles.parent)]
    assert run(release, bundles.parent, "promote", NAME, versions[0], "stable") == 0
    started = time.monotonic()
    subprocess.run([*command, "history", NAME, *tail], cwd=ROOT, env=environment(), check=True, capture_output=True)
    span = 2 * (time.monotonic() - started)
    killed = tries = 0
    while killed < 50 and tries < 500:
        tries += 1
        now = pointer(store)["current"]
        following = versions[min(versions.index(now) + 1, len(versions) - 1)]
        back = now == versions[-1] or (tries % 3 == 2 and channels.previous(pointer(store)) is not None)
        step = ["rollback", NAME, "stable"] if back else ["promote", NAME, following, "stable"]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen([*command, *step, *tail], cwd=ROOT, env=environment(), stdout=log, stderr=log)
            time.sleep(chance.uniform(0, span))
            alive = process.poll() is None
            killed += alive
            span *= 1.05 if alive else 0.9  # the machine may have become slower or faster: two of three are to be hit
            process.kill()
            process.wait()
        assert_whole(store)
        assert back or pointer(store)["current"] in (now, following)
    assert killed == 50
    assert run(release, bundles.parent, "promote", NAME, versions[-1], "stable") == 0
    assert not list((tmp_path / "release").rglob(".part-*"))
