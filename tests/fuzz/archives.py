"""Mutants of a ``.pt2``: its zip archive and the pickles in it changed."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import warnings
import zipfile
from collections.abc import Callable

from tests.fuzz.parts import Entries, Exploit
from tests.fuzz.raw import BYTE_MUTATORS, flip_bit


def read_zip(data: bytes) -> Entries:
    """Name -> bytes of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(entries: Entries, *, tweak: Callable[[zipfile.ZipInfo], None] | None = None) -> bytes:
    """A stored archive of entries; ``tweak`` may change each entry's header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            if tweak is not None:
                tweak(info)
            archive.writestr(info, content)
    return buffer.getvalue()


def find_entry(entries: Entries, suffix: str) -> str:
    return next(name for name in entries if name.endswith(suffix))


def prefix_of(entries: Entries) -> str:
    return next(iter(entries)).partition("/")[0]


def unsafe_name(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    top = prefix_of(entries)
    name = rng.choice(
        (
            "../escape",
            f"{top}/../../escape",
            "/escape",
            f"{top}/a/../b",
            f"{top}\\a",
            "C:/escape",
            "stray",
            f"{top}//x",
        )
    )
    entries[name] = b"x"
    return write_zip(entries)


def symlink(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    victim = rng.choice(sorted(entries))

    def tweak(info: zipfile.ZipInfo) -> None:
        if info.filename == victim:
            info.external_attr = 0o120777 << 16

    return write_zip(entries, tweak=tweak)


def duplicate_entry(data: bytes, rng: random.Random) -> bytes:
    """The same name twice: readers differ in which one they take."""
    entries = read_zip(data)
    victim = rng.choice(sorted(entries))
    buffer = io.BytesIO(write_zip(entries))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(victim, rng.choice((b"other", entries[victim])))
    return buffer.getvalue()


def bomb(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    victim = rng.choice([n for n in entries if n.endswith((".json", ".pt")) or "weight_" in n])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            if name == victim:
                archive.writestr(name, bytes(64 << 20), compress_type=zipfile.ZIP_DEFLATED)
            else:
                archive.writestr(name, content)
    return buffer.getvalue()


def lying_size(data: bytes, rng: random.Random) -> bytes:
    """A size or offset in the zip's directory replaced: overlaps, entries outside the file, exabytes."""
    start = data.rfind(b"PK\x05\x06")
    directory = struct.unpack_from("<I", data, start + 16)[0]
    places = []
    at = data.find(b"PK\x01\x02", directory)
    while 0 <= at < start:
        places.append(at)
        at = data.find(b"PK\x01\x02", at + 4)
    out = bytearray(data)
    field = rng.choice((8, 10, 16, 20, 24, 42))
    width = 2 if field in (8, 10) else 4
    value = rng.choice((0, 1, 8, 99, 2**31, 2**32 - 1, rng.randrange(len(data)))) % 2 ** (8 * width)
    for place in rng.sample(places, k=rng.choice((1, 2))):
        out[place + field : place + field + width] = value.to_bytes(width, "little")
    return bytes(out)


def encrypted(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    directory = struct.unpack_from("<I", data, data.rfind(b"PK\x05\x06") + 16)[0]
    out[directory + 8] |= rng.choice((1, 0x41))
    return bytes(out)


def two_archives(data: bytes, rng: random.Random) -> bytes:
    """Something before or after the archive, or the archive twice: what the first reader sees the second doesn't."""
    return rng.choice((data + data, b"#!/bin/sh\n" + data, data + b"PK\x05\x06" + bytes(18), data[:-2] + b"\x04\0abcd"))


def missing_entry(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    del entries[rng.choice(sorted(entries))]
    return write_zip(entries)


def unknown_entry(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    top = prefix_of(entries)
    name = rng.choice(
        (
            "data/aotinductor/model/model.so", "data/executorch/model.pte", "models/other.json",
            "data/weights/weight_99",
            "data/constants/model.pt", "data/constants/custom_obj_0", "data/constants/opaque_obj_0", "version",
            "serialized_exported_program.json", "data/nested.zip",
        )
    )  # fmt: skip
    entries[f"{top}/{name}"] = rng.choice((write_zip({"a/b": b"c"}), pickle.dumps(Exploit()), b"\x7fELF"))
    return write_zip(entries)


def newer_version(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    entries[find_entry(entries, "archive_version")] = rng.choice((b"1", b"99", b"", b"-1", b"zero", b"0\n"))
    return write_zip(entries)


def flipped_weight(data: bytes, rng: random.Random) -> bytes:
    """A wrong weight with a right checksum: nobody can know. It must load as another program."""
    entries = read_zip(data)
    victim = rng.choice([n for n in entries if "/weight_" in n] or [find_entry(entries, "archive_format")])
    entries[victim] = flip_bit(entries[victim], rng)
    return write_zip(entries)


def resized_payload(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    victim = rng.choice([n for n in entries if "/weight_" in n or "/tensor_" in n] or [find_entry(entries, "model.pt")])
    content = entries[victim]
    entries[victim] = rng.choice((b"", content[:-1], content[: len(content) // 2], content[:-4]))
    return write_zip(entries)


def evil_pickle(data: bytes, rng: random.Random) -> bytes:
    """A pickle that runs code, wherever the loader unpickles."""
    entries = read_zip(data)
    top = prefix_of(entries)
    payload = pickle.dumps(Exploit(), protocol=rng.choice((0, 1, 2, 4)))
    archive = write_zip({"archive/data.pkl": payload, "archive/version": b"3\n", "archive/byteorder": b"little"})
    form = rng.choice((payload, archive))
    place = rng.choice(("sample", "weight", "constant", "custom_obj_0", "opaque_obj_0", "legacy", "tail"))
    if place == "sample":
        entries[f"{top}/data/sample_inputs/model.pt"] = form
    elif place == "tail":
        entries[f"{top}/data/sample_inputs/model.pt"] += form
    elif place == "legacy":
        entries[f"{top}/data/constants/model.pt"] = form
    else:
        kind = "weights" if place == "weight" else "constants"
        config_name = f"{top}/data/{kind}/model_{kind}_config.json"
        config = json.loads(entries[config_name])
        file = {"weight": "weight_77", "constant": "tensor_77"}.get(place, place)
        config["config"]["evil"] = {
            "path_name": file, "is_param": False, "use_pickle": True, "tensor_meta": None,
        }  # fmt: skip
        entries[config_name] = json.dumps(config).encode()
        entries[f"{top}/data/{kind}/{file}"] = form
    return write_zip(entries)


def bent_pickle(data: bytes, rng: random.Random) -> bytes:
    """The example inputs' pickle with some bytes changed, checksums right."""
    entries = read_zip(data)
    name = find_entry(entries, "data/sample_inputs/model.pt")
    nested = read_zip(entries[name])
    inner = find_entry(nested, "data.pkl")
    nested[inner] = rng.choice(BYTE_MUTATORS)(nested[inner], rng)
    entries[name] = write_zip(nested)
    return write_zip(entries)
