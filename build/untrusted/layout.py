"""What lies in a ``.pt2``: the files torch 2.13 writes, their JSON, and that they fit together. Standard library only."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted import grammar, pickles
from build.untrusted.container import DAMAGED, Container, Limits
from build.untrusted.operators import check_operator

#: torch._export.serde.schema.SCHEMA_VERSION of torch 2.13.
SCHEMA_MAJOR = 8
NEWER = "Export the program again with torch 2.13, or update this tool."

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"
_REQUIRED = ("archive_format", "archive_version", MODEL, WEIGHTS, CONSTANTS, SAMPLES)
_PAYLOAD = re.compile(r"data/(weights/weight|constants/tensor|constants/custom_obj|constants/opaque_obj)_[0-9]+")
_KNOWN = frozenset((*_REQUIRED, "byteorder", ".data/version", ".data/serialization_id", ".format_version"))
_MAX_JSON_DEPTH = 120
#: torch._export.serde.schema.ScalarType -> bytes per element.
_DTYPE_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2,
    28: 2, 29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8,
}  # fmt: skip
_STRIDED = 7
_MAX_SIZE = 2**48


def check_layout(container: Container, *, trust: bool, limits: Limits) -> None:
    """Check everything in the archive that can be checked without torch.

    Raises:
        UntrustedInputError: says which file and what is wrong with it.
    """
    _check_files(container, trust=trust)
    container.verify()
    model = read_json(container, MODEL, limits)
    _check_version(model, container)
    _check_text(model, container.label, trust=trust)
    weights = _check_payloads(container, WEIGHTS, trust=trust, limits=limits)
    constants = _check_payloads(container, CONSTANTS, trust=trust, limits=limits)
    _check_unused(container, weights, constants)
    _check_bindings(model, {**weights, **constants}, container.label)
    if not trust:
        pickles.check_tensor_file(container.read(SAMPLES), f"{container.label}: {SAMPLES}", limits)


def read_json(container: Container, name: str, limits: Limits) -> Any:
    """Parse one JSON file strictly: no duplicate keys, no NaN, bounded depth.

    Raises:
        UntrustedInputError: it isn't such JSON.
    """
    where = f"{container.label}: {name}"

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a key appears twice")
        return found

    def constant(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    try:
        text = container.read(name, limits.text_bytes).decode("utf-8")
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise UntrustedInputError(f"{where} is not valid JSON: {why}", remedy=DAMAGED) from None
    if not isinstance(data, dict):
        raise UntrustedInputError(f"{where} is not a JSON object", remedy=DAMAGED)
    stack: list[tuple[Any, int]] = [(data, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > _MAX_JSON_DEPTH:
            raise UntrustedInputError(f"{where} is nested too deep", remedy=DAMAGED)
        if isinstance(value, (dict, list)):
            stack += [(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
    return data


def _check_files(container: Container, *, trust: bool) -> None:
    label, names = container.label, container.names()
    if "serialized_exported_program.json" in names or "version" in names:
        raise UntrustedInputError(f"{label} was made by torch 2.7 or older", remedy=NEWER)
    compiled = next((n for n in names if n.startswith("data/aotinductor/")), None)
    if compiled is not None and not trust:
        raise UntrustedInputError(
            f"{label}: holds compiled code ({compiled}) that would run when loaded", remedy="Save the program alone."
        )
    missing = [n for n in _REQUIRED if n not in container]
    if "archive_format" not in container or container.read("archive_format", 64) != b"pt2":
        raise UntrustedInputError(f"{label} is a zip archive, but not a torch.export program", remedy=NEWER)
    version = container.read("archive_version", 64) if "archive_version" in container else b""
    if version != b"0":
        shown = version.decode("ascii", "replace")[:20]
        raise UntrustedInputError(f"{label} was made by a newer torch: archive version {shown!r}", remedy=NEWER)
    if missing:
        models = sorted(n for n in names if n.startswith("models/"))
        raise UntrustedInputError(f"{label} lacks {missing[0]} (models: {models[:5]})", remedy=DAMAGED)
    if "byteorder" in container and container.read("byteorder", 16) != b"little":
        raise UntrustedInputError(f"{label} has another byte order", remedy="Export on a little-endian machine.")
    for name in names:
        if name in _KNOWN or _PAYLOAD.fullmatch(name) or name.startswith("extra/"):
            continue
        if not (trust and name.startswith(("data/aotinductor/", "data/weights/", "data/constants/"))):
            raise UntrustedInputError(f"{label}: unexpected entry '{name}'", remedy=NEWER)


def _check_version(model: dict[str, Any], container: Container) -> None:
    version = model.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if type(major) is not int or not 0 <= major <= 1000:
        raise UntrustedInputError(f"{container.label}: {MODEL} has no schema version", remedy=DAMAGED)
    if major != SCHEMA_MAJOR:
        maker = str(model.get("torch_version", "unknown"))[:40]
        age = "a newer" if major > SCHEMA_MAJOR else "an older"
        raise UntrustedInputError(
            f"{container.label} was made by {age} torch: schema {major}, torch {maker}; torch 2.13 reads {SCHEMA_MAJOR}",
            remedy=NEWER,
        )


def walk(data: Any, path: str = "") -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Every (path, key, value, owner) of nested JSON objects; a list's entries have their list's key."""
    stack: list[tuple[str, str, Any, dict[str, Any]]] = [(path, "", data, {})]
    while stack:
        where, key, value, owner = stack.pop()
        yield where, key, value, owner
        if isinstance(value, dict):
            stack += [(f"{where}.{k[:40]}", k, v, value) for k, v in value.items()]
        elif isinstance(value, list):
            stack += [(f"{where}[{i}]", key, v, owner) for i, v in enumerate(value)]


_NAME_KEYS = frozenset({"name", "as_name", "user_input_name", "forward_arg_names"})
_PATH_KEYS = frozenset({"parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name", "fqn", "verifiers"})
_VALUE_TABLES = ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "custom_obj_values")


def _check_text(model: dict[str, Any], label: str, *, trust: bool) -> None:
    """Every string that torch evaluates, looks up or pastes into Python source."""
    ranges = model.get("range_constraints")
    for key in ranges if isinstance(ranges, dict) else ():
        grammar.check_range_key(key, f"{label}: range_constraints")
    for path, key, value, owner in walk(model):
        where = f"{label}: {MODEL}{path}"
        if isinstance(value, (dict, list)):
            if key in _VALUE_TABLES and isinstance(value, dict):
                for name in value:
                    grammar.check_identifier(name, where)
            continue
        if key == "expr_str":
            grammar.check_expression(value, where)
        elif key == "guards_code":
            grammar.check_guard(value, where)
        elif key == "target" or key == "as_operator":
            check_operator(value, where, trust=trust)
        elif key in _NAME_KEYS and value is not None:
            # An argument's name may be empty, and is then a Python keyword such as ``from``.
            if not (key == "name" and ("arg" in owner or "value" in owner) and _plain_argument(value)):
                grammar.check_identifier(value, where)
        elif key in _PATH_KEYS:
            grammar.check_path(value, where)
        elif key in ("in_spec", "out_spec") and not trust:
            grammar.check_treespec(value, where, keyword_names=key == "in_spec")
        elif key == "class_fqn" and not trust:
            raise UntrustedInputError(f"{where}: the program holds an object of a custom class", remedy="Use tensors.")
        elif isinstance(value, str) and len(value) > 1 << 20:
            raise UntrustedInputError(f"{where} is {len(value)} characters long", remedy=DAMAGED)


def _plain_argument(value: object) -> bool:
    return isinstance(value, str) and (value == "" or (value.isidentifier() and value.isascii()))


def _check_payloads(container: Container, config: str, *, trust: bool, limits: Limits) -> dict[str, Any]:
    """A weights or constants table: returns tensor name -> its entry."""
    folder = config.rsplit("/", 1)[0]
    table = read_json(container, config, limits).get("config")
    if not isinstance(table, dict):
        raise UntrustedInputError(f"{container.label}: {config} has no 'config' table", remedy=DAMAGED)
    dtypes: dict[str, int] = {}
    pickled: set[str] = set()
    for name, entry in table.items():
        where = f"{container.label}: {config}: '{name[:80]}'"
        grammar.check_path(name, where)
        if not isinstance(entry, dict) or set(entry) != {"path_name", "is_param", "use_pickle", "tensor_meta"}:
            raise UntrustedInputError(f"{where} is not a tensor entry", remedy=DAMAGED)
        file = f"{folder}/{entry['path_name']}"
        if not isinstance(entry["path_name"], str) or not _PAYLOAD.fullmatch(file) or file not in container:
            raise UntrustedInputError(
                f"{where} refers to a missing file {str(entry['path_name'])[:60]!r}", remedy=DAMAGED
            )
        if type(entry["is_param"]) is not bool or type(entry["use_pickle"]) is not bool:
            raise UntrustedInputError(f"{where} has flags that are neither true nor false", remedy=DAMAGED)
        if not re.search(r"/(weight|tensor)_[0-9]+$", file):
            if not trust:
                raise UntrustedInputError(
                    f"{where} is a pickled object of a custom class; loading it would run code", remedy="Use tensors."
                )
            continue
        if entry["use_pickle"]:
            if not trust and file not in pickled:
                pickles.check_tensor_file(container.read(file), f"{container.label}: {file}", limits)
            pickled.add(file)
            continue
        dtype = _check_tensor(entry["tensor_meta"], container.size(file), where)
        if dtypes.setdefault(file, dtype) != dtype:
            raise UntrustedInputError(
                f"{where} shares the bytes of a tensor with another dtype; torch would load it wrong",
                remedy="Clone the tensor before export.",
            )
    if pickled & set(dtypes):
        raise UntrustedInputError(f"{container.label}: {config} reads one file in two ways", remedy=DAMAGED)
    return table


def _check_tensor(meta: Any, file_bytes: int, where: str) -> int:
    """A raw tensor's dtype, sizes and strides against the bytes of its file. Returns the dtype's number."""
    if not isinstance(meta, dict) or meta.get("layout") != _STRIDED:
        raise UntrustedInputError(f"{where} has no description of a plain (strided) tensor", remedy=DAMAGED)
    dtype = meta.get("dtype")
    if type(dtype) is not int or dtype not in _DTYPE_BYTES:
        raise UntrustedInputError(f"{where} has the unknown dtype {str(dtype)[:20]}", remedy=NEWER)
    device = meta.get("device")
    if not isinstance(device, dict) or device.get("type") != "cpu":
        kind = device.get("type") if isinstance(device, dict) else device
        raise UntrustedInputError(
            f"{where} lies on the device {str(kind)[:20]!r}", remedy="Move the module to the cpu before export."
        )
    sizes, strides = _integers(meta.get("sizes"), where), _integers(meta.get("strides"), where)
    (offset,) = _integers([meta.get("storage_offset")], where)
    if len(sizes) != len(strides) or len(sizes) > 64 or math.prod(max(n, 1) for n in sizes) > _MAX_SIZE:
        raise UntrustedInputError(f"{where} has impossible sizes {sizes[:8]} and strides {strides[:8]}", remedy=DAMAGED)
    item = _DTYPE_BYTES[dtype]
    if 0 in sizes:
        needed = 0
    else:
        needed = item * (offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)))
    if needed > file_bytes or file_bytes % item:
        raise UntrustedInputError(
            f"{where}: sizes {sizes[:8]} of {item}-byte elements need {needed} bytes, its file has {file_bytes}",
            remedy=DAMAGED,
        )
    return dtype


def _integers(values: Any, where: str) -> list[int]:
    found = []
    for value in values if isinstance(values, list) else [None]:
        number = value.get("as_int") if isinstance(value, dict) and len(value) == 1 else None
        if type(number) is not int or not 0 <= number <= _MAX_SIZE:
            raise UntrustedInputError(f"{where} has a size, stride or offset that is not a count", remedy=DAMAGED)
        found.append(number)
    return found


def _check_unused(container: Container, *tables: dict[str, Any]) -> None:
    used = {
        f"{folder}/{entry['path_name']}"
        for folder, table in zip(("data/weights", "data/constants"), tables, strict=True)
        for entry in table.values()
    }
    for name in container.names():
        if _PAYLOAD.fullmatch(name) and name not in used:
            raise UntrustedInputError(f"{container.label}: no tensor uses the file {name}", remedy=DAMAGED)


def _check_bindings(model: dict[str, Any], payloads: dict[str, Any], label: str) -> None:
    """Each parameter, buffer and constant that the graph takes exists, with the dtype and sizes that the graph says."""
    try:
        module = model["graph_module"]
        values = module["graph"]["tensor_values"]
        specs = [next(iter(spec.items())) for spec in module["signature"]["input_specs"]]
        bound = [
            (spec[field], values[spec["arg"]["name"]])
            for kind, spec in specs
            for field in ("parameter_name", "buffer_name", "tensor_constant_name")
            if field in spec
        ]
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise UntrustedInputError(
            f"{label}: {MODEL} has no graph or signature of the known form", remedy=DAMAGED
        ) from None
    for name, value in bound:
        where = f"{label}: tensor '{str(name)[:80]}'"
        entry = payloads.get(name) if isinstance(name, str) else None
        if entry is None:
            raise UntrustedInputError(f"{where} is used by the graph but is not in the file", remedy=DAMAGED)
        meta = entry["tensor_meta"]
        if not isinstance(meta, dict) or not isinstance(value, dict):
            continue
        for field in ("dtype", "sizes"):
            if meta.get(field) != value.get(field):
                raise UntrustedInputError(
                    f"{where}: its {field} in the graph and in the weights table differ", remedy=DAMAGED
                )
