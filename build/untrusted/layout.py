"""What lies in a ``.pt2``: the files torch 2.13 writes, and their text. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted import grammar, pickles
from build.untrusted.container import DAMAGED, EXPORT, NEWER, Container, Limits
from build.untrusted.operators import check_operator
from build.untrusted.payloads import PAYLOAD, check_payloads, check_unused
from build.untrusted.strict_json import read_json, step

#: torch._export.serde.schema.SCHEMA_VERSION of torch 2.13.
SCHEMA_MAJOR = 8

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"
_REQUIRED = ("archive_format", "archive_version", MODEL, WEIGHTS, CONSTANTS, SAMPLES)
_KNOWN = frozenset((*_REQUIRED, "byteorder", ".data/version", ".data/serialization_id", ".format_version"))


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
    weights = check_payloads(container, WEIGHTS, trust=trust, limits=limits)
    constants = check_payloads(container, CONSTANTS, trust=trust, limits=limits)
    check_unused(container, weights, constants)
    _check_bindings(model, {**weights, **constants}, container.label)
    if not trust:
        pickles.check_tensor_file(container.read(SAMPLES), f"{container.label}: {SAMPLES}", limits)


def _check_files(container: Container, *, trust: bool) -> None:
    label, names = container.label, container.names()
    if "serialized_exported_program.json" in names:
        raise UntrustedInputError(f"{label} was made by torch 2.7 or older", remedy=NEWER)
    if "data.pkl" in names:
        script = "constants.pkl" in names or any(n.startswith("code/") for n in names)
        what = "TorchScript (torch.jit.save)" if script else "what torch.save writes (a module, a state_dict, tensors)"
        raise UntrustedInputError(f"{label} is {what}, not an exported program", remedy=EXPORT)
    if "version" in names and "archive_format" not in names:
        raise UntrustedInputError(f"{label} was made by torch 2.7 or older", remedy=NEWER)
    compiled = next((n for n in names if n.startswith("data/aotinductor/")), None)
    if compiled is not None and not trust:
        raise UntrustedInputError(
            f"{label}: holds compiled code ({compiled}) that would run when loaded", remedy="Save the program alone."
        )
    missing = [n for n in _REQUIRED if n not in container]
    if "archive_format" not in container or container.read("archive_format", 64) != b"pt2":
        raise UntrustedInputError(f"{label} is a zip archive, but not a torch.export program", remedy=EXPORT)
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
        if name in _KNOWN or PAYLOAD.fullmatch(name) or name.startswith("extra/"):
            continue
        if not (trust and name.startswith(("data/aotinductor/", "data/weights/", "data/constants/"))):
            raise UntrustedInputError(f"{label}: unexpected entry '{name}'", remedy=NEWER)


def _check_version(model: dict[str, Any], container: Container) -> None:
    version = model.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if type(major) is not int or not 0 <= major <= 1000:
        raise UntrustedInputError(f"{container.label}: {MODEL} has no schema version", remedy=DAMAGED)
    if major != SCHEMA_MAJOR:
        maker = re.sub(r"[^\w.+]", "?", str(model.get("torch_version", "unknown"))[:40])
        age = "a newer" if major > SCHEMA_MAJOR else "an older"
        raise UntrustedInputError(
            f"{container.label} was made by {age} torch: schema {major}, torch {maker}; this reads {SCHEMA_MAJOR}",
            remedy=NEWER,
        )


def walk(data: Any, path: str = "") -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Every (path, key, value, owner) of nested JSON objects; a list's entries have their list's key."""
    stack: list[tuple[str, str, Any, dict[str, Any]]] = [(path, "", data, {})]
    while stack:
        where, key, value, owner = stack.pop()
        yield where, key, value, owner
        if isinstance(value, dict):
            stack += [(step(where, k), k, v, value) for k, v in value.items()]
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
            if key == "forward_arg_names" and isinstance(value, list) and len(set(map(str, value))) != len(value):
                raise UntrustedInputError(f"{where}: two inputs have one name", remedy=DAMAGED)
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
        where = f"{label}: tensor {str(name)[:80]!r}"
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
