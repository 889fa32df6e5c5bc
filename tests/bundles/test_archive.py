"""The archive: one content is one sequence of bytes; and whatever a stranger puts into one stays outside."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from build.bundle import archive
from build.errors import UntrustedInputError

#: of the archive below: a change of Python's zip writer that changed every bundle's bytes would show here
GOLDEN = "143b9d848d4c948a93859477b0f02fecd1ffd6e2e6a41cfcb2ba008690d21a0f"


def _files(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True)
    content = {
        "manifest.json": b"{}\n",
        "models/b.bin": bytes(range(256)),
        "models/a.txt": "ä\n".encode(),
        "run": b"#!",
    }
    for name, data in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return {name: folder / name for name in content}


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    first = _files(tmp_path / "here")
    archive.write(first, tmp_path / "1.zip", top="toy-1.0.0", executables={"run"})
    umask = os.umask(0o077)
    try:
        second = _files(tmp_path / "some" / "where" / "else")
    finally:
        os.umask(umask)
    for path in second.values():
        os.utime(path, (1, 1))
        path.chmod(0o700)
    archive.write(dict(reversed(second.items())), tmp_path / "2.zip", top="toy-1.0.0", executables={"run"})
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert hashlib.sha256((tmp_path / "1.zip").read_bytes()).hexdigest() == GOLDEN


def test_what_was_packed_comes_out(tmp_path: Path) -> None:
    files = _files(tmp_path / "in")
    archive.write(files, tmp_path / "a.zip", top="toy-1.0.0", executables={"run"})
    out = tmp_path / "out"
    out.mkdir()
    assert archive.extract(tmp_path / "a.zip", out) == sorted(files)
    for name, path in files.items():
        assert (out / name).read_bytes() == path.read_bytes()
    assert os.access(out / "run", os.X_OK)
    assert not (out / "manifest.json").stat().st_mode & stat.S_IXUSR
    assert archive.read_member(tmp_path / "a.zip", "models/a.txt") == "ä\n".encode()


def _zip(entries: list[tuple[zipfile.ZipInfo, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as z:
        warnings.simplefilter("ignore")  # of a name that is in it twice: that is what is to be made
        for info, data in entries:
            z.writestr(info, data, compress_type=compression)
    return buffer.getvalue()


def _entry(name: str, kind: int = stat.S_IFREG, mode: int = 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = (kind | mode) << 16
    info.create_system = 3
    return info


GOOD = (_entry("top/good.txt"), b"good")


def _bomb() -> bytes:
    """Ten gigabytes of zeros in about ten megabytes: one deflated block, repeated."""
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    size = 10_000 << 20
    data = one * 10_000 + end
    name = b"top/bomb.bin"
    zip64 = struct.pack("<HHQQ", 1, 16, size, len(data))
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 8, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), len(zip64))
    head = local + name + zip64
    central = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        *(b"PK\1\2", 3 << 8 | 45, 45, 0, 8, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), len(zip64)),
        *(0, 0, 0, (stat.S_IFREG | 0o644) << 16, 0),
    )
    central += name + zip64
    start = len(head) + len(data)
    return head + data + central + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(central), start, 0)


def _patched(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    value = bytearray(data)
    change(value)
    return bytes(value)


def _other_local_name(data: bytearray) -> None:
    data[data.index(b"top/good.txt")] = ord("T")


def _encrypted(data: bytearray) -> None:
    data[data.index(b"PK\1\2") + 8] |= 1


def _local_method(data: bytearray) -> None:
    data[8] = 8


def _overlap(data: bytearray) -> None:
    """The second entry's header is the first's."""
    second = data.rindex(b"PK\1\2")
    data[second + 42 : second + 46] = bytes(4)


HOSTILE = {
    "parent": (_zip([GOOD, (_entry("top/../../evil.txt"), b"x")]), "leads outside"),
    "parent at the top": (_zip([(_entry("../evil.txt"), b"x")]), "leads outside"),
    "absolute": (_zip([GOOD, (_entry("/etc/evil"), b"x")]), "leads outside"),
    "drive": (_zip([GOOD, (_entry("top/C:evil"), b"x")]), "leads outside"),
    "backslash": (_zip([GOOD, (_entry("top\\..\\evil"), b"x")]), "characters"),
    "control character": (_zip([GOOD, (_entry("top/a\nb"), b"x")]), "characters"),
    "dot": (_zip([GOOD, (_entry("top/./evil"), b"x")]), "leads outside"),
    "empty part": (_zip([GOOD, (_entry("top//evil"), b"x")]), "leads outside"),
    "device of Windows": (_zip([GOOD, (_entry("top/CON.txt"), b"x")]), "every system"),
    "trailing dot": (_zip([GOOD, (_entry("top/evil."), b"x")]), "every system"),
    "symlink": (_zip([GOOD, (_entry("top/link", stat.S_IFLNK), b"/etc/passwd")]), "symbolic link"),
    "device": (_zip([GOOD, (_entry("top/dev", stat.S_IFBLK), b"")]), "not a regular file"),
    "pipe": (_zip([GOOD, (_entry("top/pipe", stat.S_IFIFO), b"")]), "not a regular file"),
    "no kind": (_zip([GOOD, (_entry("top/kind", 0), b"")]), "not a regular file"),
    "folder": (_zip([GOOD, (_entry("top/sub/"), b"")]), "leads outside, or is no plain path|outside the folder"),
    "twice": (_zip([GOOD, GOOD]), "in it twice"),
    "case": (_zip([GOOD, (_entry("top/GOOD.txt"), b"x")]), "one name on some systems"),
    "accent": (_zip([(_entry("top/é"), b""), (_entry("top/e\u0301"), b"")]), "one name on some systems"),
    "file and folder": (_zip([GOOD, (_entry("top/good.txt/evil"), b"x")]), "both a file and the folder"),
    "two tops": (_zip([GOOD, (_entry("other/x"), b"x")]), "more than one top folder"),
    "no top": (_zip([(_entry("x"), b"x")]), "outside the top folder"),
    "long name": (_zip([(_entry("top/" + "x" * 500), b"x")]), "characters"),
    "compressed": (_zip([(_entry("top/x"), bytes(1000))], compression=zipfile.ZIP_DEFLATED), "is compressed"),
    "encrypted": (_patched(_zip([GOOD]), _encrypted), "encrypted"),
    "another local name": (_patched(_zip([GOOD]), _other_local_name), "another name in its own header"),
    "another local method": (_patched(_zip([GOOD]), _local_method), "described otherwise"),
    "overlap": (_patched(_zip([GOOD, (_entry("top/next"), b"x")]), _overlap), "does not start where"),
    "before it": (b"#!/bin/sh\n" + _zip([GOOD]), "does not start where"),
    "after it": (_zip([GOOD]) + b"more", "after its end"),
    "cut": (_zip([GOOD])[:-30], "not a whole zip"),
    "nothing": (b"", "not a whole zip"),
    "no entries": (_zip([]), "0 entries"),
    "bomb": (_bomb(), "is compressed \\(10485760000 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    data, reason = HOSTILE[name]
    file = tmp_path / "toy.zip"
    file.write_bytes(data)
    out = tmp_path / "a" / "out"
    out.mkdir(parents=True)
    with pytest.raises(UntrustedInputError, match=reason):
        archive.extract(file, out)
    assert set(tmp_path.rglob("*")) == {tmp_path / "a", out, file}


def test_a_comment_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "toy.zip", "w") as z:
        z.writestr(*GOOD)
        z.comment = b"hello"
    with pytest.raises(UntrustedInputError, match=r"comment|after its end"):
        archive.entries(tmp_path / "toy.zip")


def test_damage_inside_an_entry_is_named(tmp_path: Path) -> None:
    data = _zip([GOOD]).replace(b"good", b"goad").replace(b"goad.txt", b"good.txt")
    (tmp_path / "toy.zip").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(UntrustedInputError, match=r"'good.txt' is damaged"):
        archive.extract(tmp_path / "toy.zip", tmp_path / "out")


def test_nothing_that_lies_there_already_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "toy.zip").write_bytes(_zip([GOOD]))
    out = tmp_path / "out"
    out.mkdir()
    (out / "good.txt").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match="cannot unpack"):
        archive.extract(tmp_path / "toy.zip", out)
    assert not (tmp_path / "victim").exists()
