"""MIL's element types: how each is stored in a package, and as which torch type the evaluator holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from build.errors import VerificationError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ElementType:
    """One MIL element type.

    Attributes:
        name: MIL's own short name (``fp16``, ``int32``, ``bool``, ``uint4``).
        bits: size of one element in a package.
        numpy: name of the numpy dtype that holds one unpacked element.
        torch: name of the torch dtype that the evaluator computes with. fp16 is held as float32 values that
            are already rounded to fp16; uint16 and uint32 are held in a wider signed type, which torch indexes with.
    """

    name: str
    bits: int
    numpy: str
    torch: str


def _table(*rows: tuple[str, int, str, str]) -> dict[str, ElementType]:
    return {n: ElementType(name=n, bits=b, numpy=np_name, torch=t) for n, b, np_name, t in rows}


ELEMENT_TYPES = _table(
    ("bool", 8, "bool", "bool"),
    ("fp16", 16, "float16", "float32"),
    ("fp32", 32, "float32", "float32"),
    ("int4", 4, "int8", "int8"),
    ("int8", 8, "int8", "int8"),
    ("int16", 16, "int16", "int16"),
    ("int32", 32, "int32", "int32"),
    ("uint1", 1, "uint8", "uint8"),
    ("uint2", 2, "uint8", "uint8"),
    ("uint3", 3, "uint8", "uint8"),
    ("uint4", 4, "uint8", "uint8"),
    ("uint6", 6, "uint8", "uint8"),
    ("uint8", 8, "uint8", "uint8"),
    ("uint16", 16, "uint16", "int32"),
    ("uint32", 32, "uint32", "int64"),
)

#: names of ``MIL.proto``'s ``DataType`` enumeration -> MIL's short names.
PROTO_NAMES = {
    "BOOL": "bool",
    "STRING": "string",
    "FLOAT16": "fp16",
    "FLOAT32": "fp32",
    **{f"INT{n}": f"int{n}" for n in (4, 8, 16, 32)},
    **{f"UINT{n}": f"uint{n}" for n in (1, 2, 3, 4, 6, 8, 16, 32)},
}

INTEGER_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
}


def element_type(name: str) -> ElementType:
    """The facts of a MIL element type.

    Raises:
        VerificationError: the evaluator does not know the type.
    """
    found = ELEMENT_TYPES.get(name)
    if found is None:
        raise VerificationError(f"the evaluator cannot hold MIL values of type {name}")
    return found


def torch_dtype(name: str) -> Any:
    """The torch dtype in which a value of MIL type ``name`` is held."""
    import torch

    return getattr(torch, element_type(name).torch)


def unpack(data: bytes, dtype: str, count: int) -> Array:
    """``count`` elements of MIL type ``dtype`` from packed little-endian bytes.

    Elements of less than a byte are packed without gaps, from the least significant bit up (the documentation of
    ``constexpr_lut_to_dense`` draws it); int4 is two's complement.
    """
    kind = element_type(dtype)
    if dtype != "bool" and kind.bits < 8:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * kind.bits]
        values = bits.reshape(count, kind.bits) @ (1 << np.arange(kind.bits))
        if dtype == "int4":
            values = np.where(values >= 8, values - 16, values)
        return values.astype(kind.numpy)
    return np.frombuffer(data, np.dtype(kind.numpy).newbyteorder("<"), count).astype(kind.numpy)


def packed_size(dtype: str, count: int) -> int:
    """Bytes that ``count`` elements take in a package."""
    return -(-count * element_type(dtype).bits // 8)


def to_torch(array: Array, dtype: str) -> Any:
    """A torch tensor that holds ``array`` as MIL type ``dtype`` (values are rounded to fp16 where that is the type)."""
    import torch

    kind = element_type(dtype)
    held = np.array(array, dtype=kind.numpy, copy=True, order="C")  # a copy: callers may change theirs later
    if kind.numpy != kind.torch:
        held = held.astype(kind.torch)
    return torch.from_numpy(held).reshape(held.shape)


def to_numpy(tensor: Any, dtype: str) -> Array:
    """The numpy array of a held value, with the numpy dtype of MIL type ``dtype``."""
    array: Array = tensor.contiguous().numpy().astype(element_type(dtype).numpy)
    return array
