"""A strict parser of the ``.safetensors`` header, run before the library sees the file. Standard library only.

Format: an unsigned 64-bit little-endian length, a JSON object of that length (name -> dtype, shape, data_offsets),
then the tensors' bytes, without gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.errors import InputError, UntrustedInputError

#: safetensors' own limit on the header.
_MAX_HEADER = 100_000_000
_MAX_RANK = 64
_MAX_NAME = 256
#: safetensors' dtype -> (torch's name, bytes per element).
DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1),
    "U16": ("uint16", 2), "U32": ("uint32", 4), "U64": ("uint64", 8), "BOOL": ("bool", 1), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of the file. ``dtype`` is torch's name; ``start`` and ``end`` are byte offsets in the whole file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Parse and check the header: name -> entry, in the order of the bytes.

    Raises:
        InputError: the file cannot be read.
        UntrustedInputError: it is cut short, damaged or crafted.
    """
    if not path.is_file():
        raise InputError(f"{path.name} is not a file", remedy="Give the path of a .safetensors file.")
    try:
        total = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if total < 8 or length > min(total - 8, _MAX_HEADER):
                raise _refuse(path, f"its header should have {length} bytes, but the file has {total}")
            text = stream.read(length)
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror or error}") from error
    entries = [_entry(path, name, value, 8 + length) for name, value in _json(path, text).items()]
    entries.sort(key=lambda e: (e.start, e.end))
    end = 8 + length
    for entry in entries:
        if entry.start != end:
            what = "overlaps another tensor" if entry.start < end else f"follows {entry.start - end} unused bytes"
            raise _refuse(path, f"tensor '{entry.name}' {what}")
        end = entry.end
    if end != total:
        raise _refuse(path, f"its tensors end at byte {end}, but the file has {total} bytes")
    return {e.name: e for e in entries}


def _refuse(path: Path, what: str) -> UntrustedInputError:
    return UntrustedInputError(f"{path.name} is damaged: {what}", remedy="Write or copy the file again.")


def _json(path: Path, text: bytes) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a name appears twice")
        return found

    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise _refuse(path, f"its header is not valid JSON: {why}") from None
    if not isinstance(data, dict):
        raise _refuse(path, "its header is not a JSON object")
    metadata = data.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _refuse(path, "its metadata is not a table of texts")
    return data


def _entry(path: Path, name: str, value: Any, base: int) -> TensorEntry:
    shown = f"tensor {name[:80]!r}"
    if (
        not name.isprintable()
        or len(name) > _MAX_NAME
        or not isinstance(value, dict)
        or set(value) != {"dtype", "shape", "data_offsets"}
    ):
        raise _refuse(path, f"{shown} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UntrustedInputError(
            f"{path.name}: {shown} has the unknown dtype {str(dtype)[:20]!r}", remedy=f"Use one of {', '.join(DTYPES)}."
        )
    if not _counts(shape) or len(shape) > _MAX_RANK:
        raise _refuse(path, f"{shown} has the impossible shape {str(shape)[:60]}")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _refuse(path, f"{shown} has the impossible offsets {str(offsets)[:60]}")
    torch_dtype, item = DTYPES[dtype]
    if math.prod(shape) * item != offsets[1] - offsets[0]:
        raise _refuse(
            path, f"{shown} of shape {shape} and dtype {dtype} needs {math.prod(shape) * item} bytes, not "
            f"{offsets[1] - offsets[0]}",
        )  # fmt: skip
    return TensorEntry(name=name, dtype=torch_dtype, shape=tuple(shape), start=base + offsets[0], end=base + offsets[1])


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)
