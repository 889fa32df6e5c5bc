"""Reads ``weight.bin``: the storage format of an ML Program's large constants (coremltools, ``MILBlob``).

The file is a 64-byte header (count, version), then one 64-byte record per blob (sentinel, type, byte size, offset of
the data, padding bits), each followed by its data, all 64-byte aligned and little-endian.
"""

from __future__ import annotations

import struct
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from build.errors import UntrustedInputError

from .dtypes import packed_size, unpack

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SENTINEL = 0xDEADBEEF
_RECORD = struct.Struct("<IIQQ")

#: MILBlob's own type numbers.
_BLOB_TYPES = {
    1: "fp16",
    2: "fp32",
    3: "uint8",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
}


class WeightFiles:
    """The weight files beside one ``model.mlmodel``, each read once."""

    def __init__(self, model_directory: Path) -> None:
        self._root = model_directory.resolve()
        self._files: dict[str, memoryview] = {}

    def _file(self, name: str) -> memoryview:
        if name not in self._files:
            relative = PurePosixPath(name.removeprefix("@model_path/"))
            path = (self._root / relative).resolve()
            if not path.is_relative_to(self._root):
                raise UntrustedInputError(f"the program names a weight file outside its package: {name}")
            if not path.is_file():
                raise UntrustedInputError(f"the package lacks its weight file {name}")
            self._files[name] = memoryview(path.read_bytes())
        return self._files[name]

    def read(self, name: str, offset: int, dtype: str, count: int) -> npt.NDArray[np.generic]:
        """``count`` elements of MIL type ``dtype`` whose record starts at ``offset`` of the file ``name``.

        Raises:
            UntrustedInputError: the record is damaged, or is not of the type and size that the program declares.
        """
        data = self._file(name)
        where = f"{name} at offset {offset}"
        if offset < 0 or offset + _RECORD.size > len(data):
            raise UntrustedInputError(f"{where} lies beyond the end of the file ({len(data)} bytes)")
        sentinel, kind, size, start = _RECORD.unpack_from(data, offset)
        if sentinel != _SENTINEL:
            raise UntrustedInputError(f"{where} is not the start of a weight")
        stored = _BLOB_TYPES.get(kind, f"type {kind}")
        if stored != dtype:
            raise UntrustedInputError(f"{where} holds {stored} where the program declares {dtype}")
        need = packed_size(dtype, count)
        if size < need or start + need > len(data):
            raise UntrustedInputError(f"{where} holds {size} bytes where the program needs {need}")
        return unpack(bytes(data[start : start + need]), dtype, count)
