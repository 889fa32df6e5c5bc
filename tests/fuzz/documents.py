"""Mutants that keep the archive whole: the documents in it, and the header of a ``.safetensors``, changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.archives import (
    bent_pickle,
    bomb,
    duplicate_entry,
    encrypted,
    evil_pickle,
    find_entry,
    flipped_weight,
    lying_size,
    missing_entry,
    newer_version,
    read_zip,
    resized_payload,
    symlink,
    two_archives,
    unknown_entry,
    unsafe_name,
    write_zip,
)
from tests.fuzz.parts import HOSTILE_NUMBERS, HOSTILE_TEXTS, Mutant, Mutator
from tests.fuzz.raw import BYTE_MUTATORS


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
    name = find_entry(entries, suffix)
    document = json.loads(entries[name])
    if not list(leaves(document)):
        document = {"config": {"evil": {"path_name": "../x"}}}
    entries[name] = json.dumps(bend_json(document, rng)).encode()
    return write_zip(entries)


def hostile_text(data: bytes, rng: random.Random) -> bytes:
    """Python where the loader evaluates, looks up or pastes text."""
    entries = read_zip(data)
    name = find_entry(entries, "models/model.json")
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
    name = find_entry(entries, rng.choice(("models/model.json", "models/model.json", "weights_config.json")))
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
    name = find_entry(entries, "models/model.json")
    document = json.loads(entries[name])
    victim = rng.choice(sorted(document["graph_module"]["graph"]["tensor_values"]))
    text = entries[name].decode().replace(json.dumps(victim), json.dumps(rng.choice(HOSTILE_TEXTS)))
    entries[name] = text.encode()
    return write_zip(entries)


def import_in_structure(data: bytes, rng: random.Random) -> bytes:
    """An output structure whose context makes the loader import a module."""
    entries = read_zip(data)
    name = find_entry(entries, "models/model.json")
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
