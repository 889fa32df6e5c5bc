"""A program's tables of weights and constants against the bytes they describe. Standard library only."""

from __future__ import annotations

import math
import re
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted import grammar, pickles
from build.untrusted.container import DAMAGED, NEWER, Container, Limits
from build.untrusted.strict_json import read_json

PAYLOAD = re.compile(r"data/(weights/weight|constants/tensor|constants/custom_obj|constants/opaque_obj)_[0-9]+")
#: torch._export.serde.schema.ScalarType -> bytes per element.
_DTYPE_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2,
    28: 2, 29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8,
}  # fmt: skip
_STRIDED = 7
_MAX_SIZE = 2**48


def check_payloads(container: Container, config: str, *, trust: bool, limits: Limits) -> dict[str, Any]:
    """A weights or constants table: returns tensor name -> its entry."""
    folder = config.rsplit("/", 1)[0]
    table = read_json(container, config, limits).get("config")
    if not isinstance(table, dict):
        raise UntrustedInputError(f"{container.label}: {config} has no 'config' table", remedy=DAMAGED)
    dtypes: dict[str, int] = {}
    pickled: set[str] = set()
    for name, entry in table.items():
        where = f"{container.label}: {config}: {name[:80]!r}"
        grammar.check_path(name, where)
        if not isinstance(entry, dict) or set(entry) != {"path_name", "is_param", "use_pickle", "tensor_meta"}:
            raise UntrustedInputError(f"{where} is not a tensor entry", remedy=DAMAGED)
        file = f"{folder}/{entry['path_name']}"
        if not isinstance(entry["path_name"], str) or not PAYLOAD.fullmatch(file) or file not in container:
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
    span = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    needed = 0 if 0 in sizes else item * span
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


def check_unused(container: Container, *tables: dict[str, Any]) -> None:
    used = {
        f"{folder}/{entry['path_name']}"
        for folder, table in zip(("data/weights", "data/constants"), tables, strict=True)
        for entry in table.values()
    }
    for name in container.names():
        if PAYLOAD.fullmatch(name) and name not in used:
            raise UntrustedInputError(f"{container.label}: no tensor uses the file {name}", remedy=DAMAGED)
