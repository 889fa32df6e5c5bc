"""Reading pickles of tensors without running them.

``torch.load`` pickles are walked opcode by opcode, only the names that rebuild plain tensors are allowed, and the
tensors' sizes are compared with the bytes that are there. Standard library only.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted.container import Container, Limits
from build.untrusted.words import words

#: bytes per element of torch's storage types.
STORAGE_BYTES = {
    "FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16, "UntypedStorage": 1,
}  # fmt: skip
_DTYPE_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip

_OPCODES = words(
    "PROTO FRAME GLOBAL STACK_GLOBAL REDUCE MARK TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT APPEND "
    "APPENDS SETITEM SETITEMS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE "
    "BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE STOP"
)
_MAX_PICKLE_BYTES = 64 << 20
_MAX_NUMEL = 2**62
_MAX_DEPTH = 100
_MAX_LEAVES = 1_000_000
_NESTED_FILES = frozenset(
    {"data.pkl", "byteorder", "version", ".data/serialization_id", ".format_version", ".storage_alignment"}
)


@dataclass(frozen=True, kw_only=True)
class _Storage:
    key: str
    item_bytes: int
    numel: int


@dataclass(frozen=True, kw_only=True)
class _Dtype:
    name: str


class _Refused(Exception):
    pass


def check_tensor_file(data: bytes, where: str, limits: Limits) -> None:
    """Check a ``torch.save`` file that may hold tensors, numbers, strings, tuples, lists and dicts only.

    Args:
        data: the whole file.
        where: how messages name it.

    Raises:
        UntrustedInputError: it is damaged, or unpickling would call anything else.
    """
    if not data:
        return
    container = Container(io.BytesIO(data), where, limits)
    container.verify()
    for name in container.names():
        if name not in _NESTED_FILES and not (name.startswith("data/") and name[5:].isdigit()):
            raise UntrustedInputError(f"{where}: unexpected entry '{name}' in a torch.save file")
    if "byteorder" in container and container.read("byteorder", 16) != b"little":
        raise UntrustedInputError(
            f"{where}: tensors in another byte order", remedy="Export on a little-endian machine."
        )
    program = container.read("data.pkl", _MAX_PICKLE_BYTES)
    check_opcodes(program, where)
    _rebuild(program, container, where)


def check_opcodes(data: bytes, where: str) -> None:
    """Walk a pickle without running it: only opcodes and globals that rebuild plain tensors.

    Raises:
        UntrustedInputError: names what would be called, or says where the pickle is damaged.
    """
    operations = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            operations += 1
            name = opcode.name
            if name not in _OPCODES:
                raise _refuse(where, f"the pickle uses {name}, which plain tensors do not need")
            if name in ("BINPUT", "LONG_BINPUT") and (argument or 0) > operations:
                raise _refuse(where, "the pickle asks for an absurd amount of memory")
            if name == "GLOBAL":
                module, _, attribute = str(argument).partition(" ")
                _allowed(module, attribute, where)
            if name == "STOP" and (position or 0) + 1 != len(data):
                raise _refuse(where, "bytes follow the end of the pickle")
    except UntrustedInputError:
        raise
    except Exception as error:
        raise _refuse(where, f"the pickle is damaged ({' '.join(str(error).split())[:100]})") from None


def _refuse(where: str, what: str) -> UntrustedInputError:
    return UntrustedInputError(
        f"{where}: {what}; unpickling it could run code",
        remedy="Use plain tensors as example inputs, weights and constants, or say --trust if you made this file.",
    )


def _allowed(module: str, name: str, where: str) -> Any:
    """An inert stand-in for a global that ``torch.load(weights_only=True)`` allows for plain tensors."""
    if (module, name) == ("collections", "OrderedDict"):
        return OrderedDict
    if module == "torch._utils" and name in _REBUILD:
        return _REBUILD[name]
    if module in ("torch", "torch.storage") and name in STORAGE_BYTES:
        return _StorageType(name)
    if module == "torch" and name in _DTYPE_BYTES:
        return _Dtype(name=name)
    if (module, name) == ("torch", "Size"):
        return tuple
    raise _refuse(where, f"the pickle calls {ascii(module[:60] + chr(46) + name[:60])[1:-1]}")


@dataclass(frozen=True)
class _StorageType:
    name: str


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> object:
    if not isinstance(storage, _Storage):
        raise _Refused("a tensor without a storage")
    numbers = (offset, *size, *stride)
    if any(type(n) is not int or not 0 <= n < _MAX_NUMEL for n in numbers) or len(size) != len(stride):
        raise _Refused("a tensor with impossible sizes")
    if 0 not in size:
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if last >= storage.numel or math.prod(size) > _MAX_NUMEL:
            raise _Refused(f"a tensor of sizes {tuple(size)} over a storage of {storage.numel} elements")
    hooks = rest[1] if len(rest) > 1 else OrderedDict()
    if hooks:
        raise _Refused("a tensor with hooks")
    return "tensor"


def _tensor_v3(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any) -> object:
    if not isinstance(storage, _Storage) or not isinstance(dtype, _Dtype):
        raise _Refused("a tensor without a storage or dtype")
    item = _DTYPE_BYTES[dtype.name]
    sized = _Storage(key=storage.key, item_bytes=item, numel=storage.numel * storage.item_bytes // item)
    return _tensor(sized, offset, size, stride, grad, hooks)


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> object:
    if data != "tensor" or type(requires_grad) is not bool or hooks:
        raise _Refused("a parameter that is not a tensor")
    return data


_REBUILD: dict[str, Callable[..., object]] = {
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter,
}


def _rebuild(program: bytes, container: Container, where: str) -> None:
    """Run the pickle with inert stand-ins, to compare every tensor with its storage's bytes."""

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _allowed(module, name, where)

        def persistent_load(self, pid: Any) -> _Storage:
            kind, storage_type, key, location, numel = pid
            if kind != "storage" or not isinstance(storage_type, _StorageType) or not isinstance(key, str):
                raise _Refused("an unknown storage")
            if location != "cpu":
                raise _Refused(f"a tensor on the device {str(location)[:20]!r}: move it to the cpu before export")
            item, entry = STORAGE_BYTES[storage_type.name], f"data/{key}"
            if type(numel) is not int or numel < 0 or entry not in container or container.size(entry) != numel * item:
                raise _Refused(f"storage {key[:20]!r}, whose size is not that of its bytes")
            return _Storage(key=key, item_bytes=item, numel=numel)

    try:
        _count_leaves(Reader(io.BytesIO(program)).load(), {}, 0)
    except UntrustedInputError:
        raise
    except _Refused as error:
        raise UntrustedInputError(f"{where}: it holds {error}") from None
    except Exception as error:
        raise _refuse(where, f"the pickle is damaged ({type(error).__name__})") from None


def _count_leaves(value: Any, known: dict[int, int], depth: int) -> int:
    """Leaves of nested containers: a few shared tuples can stand for more leaves than there are atoms."""
    if depth > _MAX_DEPTH:
        raise _Refused("containers nested too deep, or inside themselves")
    if not isinstance(value, (tuple, list, dict)):
        return 1
    if id(value) not in known:
        children = list(value.values()) if isinstance(value, dict) else value
        known[id(value)] = total = sum(_count_leaves(child, known, depth + 1) for child in children)
        if total > _MAX_LEAVES:
            raise _Refused("more values than a program can take")
    return known[id(value)]
