"""Seeded mutants of valid ``.pt2`` and ``.safetensors`` files, and a runner that watches what reading them does.

``python -m tests.fuzz FOLDER`` is the child: it reads every mutant of a folder under a memory limit and a time limit
and prints one JSON line before and one after each, so that the parent knows which one killed it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: what hostile text would create, in the child's working folder.
CANARY = "canary"
SECONDS_PER_MUTANT = 60
EXTRA_MEMORY = 2 << 30

Entries = dict[str, bytes]
Mutator = Callable[[bytes, random.Random], bytes]

_CODE = f"open('{CANARY}','w').close()"
HOSTILE_TEXTS = (
    f"__import__('os').system('touch {CANARY}')",
    f"{_CODE}",
    f'exec("{_CODE}")',
    f"s0 if {_CODE} else s0",
    f"(lambda: {_CODE})()",
    f"[x for x in ().__class__.__base__.__subclasses__() if {_CODE}]",
    f"x\n{_CODE}\n#",
    f"x; {_CODE}",
    f"L['x'].size()[0] >= 2, '') or {_CODE} or ('",
    f'" + {_CODE} + "',
    f"'); {_CODE}; ('",
    "torch.os.system",
    "torch.hub.load",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.save.default",
    "_operator.attrgetter",
    "math.__loader__.load_module",
    "9**9**9**9",
    "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))",
    "LShift(Integer(1), Integer(99999999999))",
    "Integer(" * 200 + "1" + ")" * 200,
    "u99999999999",
    "Symbol('u99999999999', integer=True)",
    "../../../../etc/passwd",
    "def",
    "",
    "x" * 100_000,
    "naïve ☃",
)
HOSTILE_NUMBERS = (-1, 0, 1, 2**31, 2**62, 2**63, 2**64, 10**30, -(2**63), 1e308, True, None, 99)


class _Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (_CODE,))


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A file to read, and what it is made of (its name starts with the mutator's)."""

    name: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Result:
    """What reading a mutant did.

    ``outcome``: refused, same, different (it loaded, as another program), or a fault: error, executed, crash, hang,
    long-message.
    """

    name: str
    outcome: str
    detail: str = ""


FAULTS = ("error", "executed", "crash", "hang", "long-message")


# --- bytes ---------------------------------------------------------------------------------------------------------


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def swap_chunks(data: bytes, rng: random.Random) -> bytes:
    n = rng.choice((1, 4, 64, 512))
    a, b = (rng.randrange(max(len(data) - n, 1)) for _ in range(2))
    out = bytearray(data)
    out[a : a + n], out[b : b + n] = data[b : b + n], data[a : a + n]
    return bytes(out)


def zero_range(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data))
    n = rng.choice((1, 16, 256))
    return data[:a] + bytes(len(data[a : a + n])) + data[a + n :]


def insert_bytes(data: bytes, rng: random.Random) -> bytes:
    a = rng.choice((0, len(data), rng.randrange(len(data))))
    return data[:a] + rng.randbytes(rng.choice((1, 7, 100))) + data[a:]


def overwrite_word(data: bytes, rng: random.Random) -> bytes:
    """A 4- or 8-byte number somewhere, as lengths and offsets are."""
    width = rng.choice((2, 4, 8))
    a = rng.randrange(len(data) - width)
    value = rng.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), rng.randrange(2 ** (8 * width))))
    return data[:a] + value.to_bytes(width, "little") + data[a + width :]


BYTE_MUTATORS: tuple[Mutator, ...] = (flip_bit, truncate, swap_chunks, zero_range, insert_bytes, overwrite_word)


# --- zip -----------------------------------------------------------------------------------------------------------


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


def _find(entries: Entries, suffix: str) -> str:
    return next(name for name in entries if name.endswith(suffix))


def _prefix(entries: Entries) -> str:
    return next(iter(entries)).partition("/")[0]


def unsafe_name(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    top = _prefix(entries)
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
    top = _prefix(entries)
    name = rng.choice(
        (
            "data/aotinductor/model/model.so", "data/executorch/model.pte", "models/other.json",
            "data/weights/weight_99",
            "data/constants/model.pt", "data/constants/custom_obj_0", "data/constants/opaque_obj_0", "version",
            "serialized_exported_program.json", "data/nested.zip",
        )
    )  # fmt: skip
    entries[f"{top}/{name}"] = rng.choice((write_zip({"a/b": b"c"}), pickle.dumps(_Exploit()), b"\x7fELF"))
    return write_zip(entries)


def newer_version(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    entries[_find(entries, "archive_version")] = rng.choice((b"1", b"99", b"", b"-1", b"zero", b"0\n"))
    return write_zip(entries)


def flipped_weight(data: bytes, rng: random.Random) -> bytes:
    """A wrong weight with a right checksum: nobody can know. It must load as another program."""
    entries = read_zip(data)
    victim = rng.choice([n for n in entries if "/weight_" in n] or [_find(entries, "archive_format")])
    entries[victim] = flip_bit(entries[victim], rng)
    return write_zip(entries)


def resized_payload(data: bytes, rng: random.Random) -> bytes:
    entries = read_zip(data)
    victim = rng.choice([n for n in entries if "/weight_" in n or "/tensor_" in n] or [_find(entries, "model.pt")])
    content = entries[victim]
    entries[victim] = rng.choice((b"", content[:-1], content[: len(content) // 2], content[:-4]))
    return write_zip(entries)


def evil_pickle(data: bytes, rng: random.Random) -> bytes:
    """A pickle that runs code, wherever the loader unpickles."""
    entries = read_zip(data)
    top = _prefix(entries)
    payload = pickle.dumps(_Exploit(), protocol=rng.choice((0, 1, 2, 4)))
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
    name = _find(entries, "data/sample_inputs/model.pt")
    nested = read_zip(entries[name])
    inner = _find(nested, "data.pkl")
    nested[inner] = rng.choice(BYTE_MUTATORS)(nested[inner], rng)
    entries[name] = write_zip(nested)
    return write_zip(entries)


# --- json ----------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values that are neither objects nor lists."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path


def place(root: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``root`` with the value at ``path`` replaced."""
    root = copy.deepcopy(root)
    owner = root
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return root


def bend_json(document: Any, rng: random.Random) -> Any:
    """One leaf of another value or type, one key renamed or dropped, or two leaves swapped."""
    paths = list(leaves(document))
    path = rng.choice(paths)
    kind = rng.choice(("number", "text", "type", "drop", "rename", "swap", "wrap"))
    if kind == "number":
        numeric = [p for p in paths if isinstance(_at(document, p), (int, float))]
        return place(document, rng.choice(numeric or paths), rng.choice(HOSTILE_NUMBERS))
    if kind == "text":
        texts = [p for p in paths if isinstance(_at(document, p), str)]
        return place(document, rng.choice(texts or paths), rng.choice(HOSTILE_TEXTS))
    if kind == "type":
        return place(document, path, rng.choice(([], {}, [[[]]], {"as_int": 1}, "text", 1.5, None, True)))
    if kind == "swap":
        other = rng.choice(paths)
        a, b = _at(document, path), _at(document, other)
        return place(place(document, path, b), other, a)
    if kind == "wrap":
        deep: Any = 0
        for _ in range(rng.choice((5, 300))):
            deep = [deep]
        return place(document, path, deep)
    owner_path = path[:-1]
    while owner_path and not isinstance(_at(document, owner_path), dict):
        owner_path = owner_path[:-1]
    root = copy.deepcopy(document)
    owner = _at(root, owner_path)
    if isinstance(owner, dict) and owner:
        key = rng.choice(sorted(owner))
        value = owner.pop(key)
        if kind == "rename":
            owner[rng.choice(("zzz", *HOSTILE_TEXTS))] = value
    return root


def _at(root: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        root = root[key]
    return root


def bent_model(data: bytes, rng: random.Random) -> bytes:
    return _bent(data, "models/model.json", rng)


def bent_weights(data: bytes, rng: random.Random) -> bytes:
    return _bent(data, rng.choice(("model_weights_config.json", "model_constants_config.json")), rng)


def _bent(data: bytes, suffix: str, rng: random.Random) -> bytes:
    entries = read_zip(data)
    name = _find(entries, suffix)
    document = json.loads(entries[name])
    if not list(leaves(document)):
        document = {"config": {"evil": {"path_name": "../x"}}}
    entries[name] = json.dumps(bend_json(document, rng)).encode()
    return write_zip(entries)


def hostile_text(data: bytes, rng: random.Random) -> bytes:
    """Python where the loader evaluates, looks up or pastes text."""
    entries = read_zip(data)
    name = _find(entries, "models/model.json")
    document = json.loads(entries[name])
    keys = {"expr_str", "guards_code", "name", "as_name", "target", "in_spec", "out_spec", "fqn", "parameter_name"}
    paths = [p for p in leaves(document) if isinstance(_at(document, p), str) and keys & {str(k) for k in p[-2:]}]
    by_key: dict[str, list[tuple[Any, ...]]] = {}
    for p in paths:
        by_key.setdefault(str(p[-1] if isinstance(p[-1], str) else p[-2]), []).append(p)
    target = rng.choice(by_key[rng.choice(sorted(by_key))])
    document = place(document, target, rng.choice(HOSTILE_TEXTS))
    entries[name] = json.dumps(document).encode()
    return write_zip(entries)


def plausible(data: bytes, rng: random.Random) -> bytes:
    """One to three leaves replaced by others of the same key: a dtype, a size, an op, a node's name."""
    entries = read_zip(data)
    name = _find(entries, rng.choice(("models/model.json", "models/model.json", "weights_config.json")))
    document = json.loads(entries[name])
    by_key: dict[str, list[tuple[Any, ...]]] = {}
    for path in leaves(document):
        by_key.setdefault(next(k for k in reversed(path) if isinstance(k, str)), []).append(path)
    for _ in range(rng.randint(1, 3) if by_key else 0):
        paths = by_key[rng.choice(sorted(by_key))]
        target, value = rng.choice(paths), _at(document, rng.choice(paths))
        if type(value) is int and rng.random() < 0.6:
            value = rng.choice((value + 1, value - 1, rng.randrange(0, 40)))
        elif type(value) is bool:
            value = not value
        elif str(value).startswith("torch.ops") and rng.random() < 0.6:
            value = f"torch.ops.aten.{rng.choice(OTHER_OPS)}"
        document = place(document, target, value)
    entries[name] = json.dumps(document).encode()
    return write_zip(entries)


OTHER_OPS = (
    "relu.default", "add.Tensor", "cat.default", "reshape.default", "sym_size.int", "item.default",
    "empty.memory_format",
    "max.dim", "resize_.default", "as_strided.default", "split.Tensor", "_assert_scalar.default", "no_such_op.default",
    "embedding.default", "index.Tensor", "set_.source_Tensor", "native_batch_norm.default",
)  # fmt: skip


def renamed_everywhere(data: bytes, rng: random.Random) -> bytes:
    """A node's name replaced in every place, so that the graph stays whole."""
    entries = read_zip(data)
    name = _find(entries, "models/model.json")
    document = json.loads(entries[name])
    victim = rng.choice(sorted(document["graph_module"]["graph"]["tensor_values"]))
    text = entries[name].decode().replace(json.dumps(victim), json.dumps(rng.choice(HOSTILE_TEXTS)))
    entries[name] = text.encode()
    return write_zip(entries)


def import_in_structure(data: bytes, rng: random.Random) -> bytes:
    """An output structure whose context makes the loader import a module."""
    entries = read_zip(data)
    name = _find(entries, "models/model.json")
    document = json.loads(entries[name])
    enum = json.dumps([{"__enum__": True, "fqn": "antigravity:X", "name": "Y"}])
    factory = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a"]}
    node = rng.choice(
        (
            {"type": "builtins.dict", "context": enum, "children_spec": [_LEAF]},
            {"type": "collections.defaultdict", "context": json.dumps(factory), "children_spec": [_LEAF]},
            {"type": "os.system", "context": "null", "children_spec": []},
        )
    )
    for entry in document["graph_module"]["module_call_graph"]:
        if entry["signature"]:
            entry["signature"]["out_spec"] = json.dumps([1, node])
    entries[name] = json.dumps(document).encode()
    return write_zip(entries)


_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}

PROGRAM_MUTATORS: tuple[Mutator, ...] = (
    *BYTE_MUTATORS, unsafe_name, symlink, duplicate_entry, bomb, lying_size, encrypted, two_archives, missing_entry,
    unknown_entry, newer_version, flipped_weight, resized_payload, evil_pickle, bent_pickle, bent_model, bent_model,
    bent_weights, plausible, plausible, hostile_text, hostile_text, renamed_everywhere, import_in_structure,
)  # fmt: skip


def bent_header(data: bytes, rng: random.Random) -> bytes:
    """The JSON header of a ``.safetensors`` file changed, its length right."""
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(bend_json(json.loads(data[8 : 8 + length]), rng)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def header_length(data: bytes, rng: random.Random) -> bytes:
    value = rng.choice((0, 1, 7, len(data), 2**31, 2**63, 2**64 - 1))
    return value.to_bytes(8, "little") + data[8:]


#: those that get past checksums and schema, for long runs.
DEEP_MUTATORS: tuple[Mutator, ...] = (
    bent_model,
    bent_weights,
    bent_pickle,
    plausible,
    plausible,
    hostile_text,
    lying_size,
)


CALL_MUTATORS: tuple[Mutator, ...] = (*BYTE_MUTATORS, bent_header, bent_header, header_length)


def mutants(sources: list[bytes], mutators: tuple[Mutator, ...], count: int, seed: int) -> Iterator[Mutant]:
    """``count`` mutants: every mutator in turn, over every source."""
    for i in range(count):
        rng = random.Random(f"{seed}-{i}")
        mutator = mutators[i % len(mutators)]
        source = sources[(i // len(mutators)) % len(sources)]
        yield Mutant(name=f"{mutator.__name__}-{i}", data=mutator(source, rng))


# --- running -------------------------------------------------------------------------------------------------------


def run_all(folder: Path, files: list[Mutant], suffix: str, known_hashes: list[str]) -> list[Result]:
    """Write the mutants into ``folder`` and read each in a child process; a child that dies is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, mutant in enumerate(files):
        (folder / f"{i:06d}{suffix}").write_bytes(mutant.data)
    results: dict[int, Result] = {}
    while len(results) < len(files):
        first = len(results)
        before = len(results)
        command = [sys.executable, "-m", "tests.fuzz", str(folder), suffix, str(first), *known_hashes]
        process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
        started = first
        for line in process.stdout.splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                started = row["index"]
                if "outcome" in row:
                    results[started] = Result(name=files[started].name, outcome=row["outcome"], detail=row["detail"])
        if len(results) < len(files):
            if len(results) == before and started == first and not process.stdout:
                raise RuntimeError(f"the child did not start: {process.stderr[-2000:]}")
            kind = "hang" if process.returncode == 99 else "crash"
            detail = f"exit {process.returncode}: {process.stderr[-1500:]}"
            results[len(results)] = Result(name=files[len(results)].name, outcome=kind, detail=detail)
    return [results[i] for i in range(len(files))]


def _child(folder: Path, suffix: str, first: int, known: set[str]) -> None:
    import faulthandler
    import resource
    import signal

    import torch

    from build.errors import EdgeportError

    read = _reader(suffix, folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, used + EXTRA_MEMORY))
    torch.set_num_threads(1)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    faulthandler.enable()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def too_long(*_: object) -> None:
        faulthandler.dump_traceback()
        os._exit(99)

    signal.signal(signal.SIGALRM, too_long)
    for path in sorted(p for p in folder.iterdir() if p.suffix == suffix and p.stem.isdigit())[first:]:
        index = int(path.stem)
        print(json.dumps({"index": index}), file=out, flush=True)
        signal.alarm(SECONDS_PER_MUTANT)
        try:
            outcome, detail = read(path, known)
        except EdgeportError as error:
            text = str(error)
            outcome = "refused" if text and "\n" not in text and len(text) < 1200 else "long-message"
            detail = f"{error.code}: {text}"
        except BaseException as error:
            outcome, detail = "error", f"{type(error).__name__}: {error}"[:1500]
        signal.alarm(0)
        if "antigravity" in sys.modules or any(work.iterdir()):
            outcome = "executed"
            for found in work.iterdir():
                found.unlink()
        print(json.dumps({"index": index, "outcome": outcome, "detail": detail}), file=out, flush=True)


def _reader(suffix: str, folder: Path) -> Callable[[Path, set[str]], tuple[str, str]]:
    from build.archive import load_program
    from build.program import call, content_hash, signature_of

    if suffix == ".selftest":

        def read_unchecked(path: Path, known: set[str]) -> tuple[str, str]:
            if path.read_bytes() == b"dies":
                os.abort()
            exec(_CODE)
            return "same", ""

        return read_unchecked

    if suffix == ".pt2":

        def read_program(path: Path, known: set[str]) -> tuple[str, str]:
            import torch
            from torch.utils._pytree import tree_leaves

            program = load_program(path)
            signature_of(program)
            if content_hash(program) in known:
                return "same", ""
            # A program that differs may fail when it runs, but running it must not do anything else.
            detail = "runs"
            try:
                examples = [t for t in tree_leaves(program.example_inputs) if isinstance(t, torch.Tensor)]
                call(program)(examples)
            except Exception as error:
                detail = f"fails when run: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
            return "different", detail

        return read_program

    from build.calls import read_calls

    signature = signature_of(load_program(folder / "program.pt2", trust=True))

    def read_call_file(path: Path, known: set[str]) -> tuple[str, str]:
        calls = read_calls(path, signature, warn=lambda _: None)
        for one in calls:
            for spec in signature.inputs:
                if str(one.inputs[spec.name].dtype) != f"torch.{spec.dtype}":
                    raise TypeError(f"{spec.name} has another dtype")
                one.inputs[spec.name].clone()
        return "different", f"{len(calls)} calls"

    return read_call_file


if __name__ == "__main__":
    _child(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), set(sys.argv[4:]))
