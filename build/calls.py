"""Calls of a program, kept beside it as ``.safetensors``.

Tensor ``CALL/INPUT`` is the value of the program's input INPUT in call CALL (each call may have its own sizes);
``CALL/label`` is the call's label, a whole number.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import InputError, UntrustedInputError
from build.untrusted.safetensors_header import TensorEntry, read_header
from targets.contract import DynamicDim, Signature, TensorSpec

if TYPE_CHECKING:
    import torch

LABEL = "label"
_INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of a program.

    Attributes:
        id: its name in the file.
        inputs: the program's inputs by name, in the order of the signature.
        label: the right answer's class, where known.
    """

    id: str
    inputs: dict[str, torch.Tensor]
    label: int | None = None


def read_calls(path: Path, signature: Signature, *, warn: Callable[[str], None] | None = None) -> list[Call]:
    """Read and check a file of calls against a program's signature.

    Args:
        path: the ``.safetensors`` file.
        signature: the program's.
        warn: told of values that are legal but suspicious (NaN, infinity), one line per tensor.

    Returns:
        The calls in natural order of their ids (``2`` before ``10``).

    Raises:
        UntrustedInputError: the file is damaged or crafted.
        InputError: a call does not fit the program; the message names the call, the input, and both sides.
    """
    entries = read_header(path)
    calls = _group(path, entries, signature)
    for call_id, found in calls.items():
        _check_call(path, call_id, found, signature)
    tensors = _load(path)
    return [_make(path, call_id, found, tensors, signature, warn) for call_id, found in calls.items()]


def write_calls(path: Path, calls: Iterable[Call]) -> None:
    """Write calls so that ``read_calls`` gives them back. The file appears whole or not at all.

    Raises:
        InputError: two calls have one id, an id cannot be a name, or the disk refuses.
    """
    import torch
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    for call in calls:
        if not call.id or not call.id.isprintable() or any(k.split("/")[0] == call.id for k in tensors):
            raise InputError(
                f"call id {call.id[:80]!r} is empty, unprintable or used twice", remedy="Number the calls."
            )
        if "/" in call.id:
            raise InputError(f"call id {call.id[:80]!r} contains '/'", remedy="Number the calls.")
        for name, value in call.inputs.items():
            tensors[f"{call.id}/{name}"] = value.detach().to("cpu").contiguous().clone()
        if call.label is not None:
            if f"{call.id}/{LABEL}" in tensors:
                raise InputError(
                    f"call '{call.id}': the program has an input named '{LABEL}', so a label has no place",
                    remedy="Rename the input.",
                )
            tensors[f"{call.id}/{LABEL}"] = torch.tensor(call.label, dtype=torch.int64)
    data = save(tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(stream.name, path)
    except OSError as error:
        raise InputError(f"cannot write {path.name}: {error.strerror or error}") from error


def _group(path: Path, entries: dict[str, TensorEntry], signature: Signature) -> dict[str, dict[str, TensorEntry]]:
    names = [spec.name for spec in signature.inputs]
    calls: dict[str, dict[str, TensorEntry]] = {}
    for key, entry in entries.items():
        call_id, slash, name = key.rpartition("/")
        if not slash or not call_id:
            raise InputError(
                f"{path.name}: tensor '{key[:80]}' is not named CALL/INPUT",
                remedy=f"Name it like '0/{names[0] if names else LABEL}'.",
            )
        if name not in names and name != LABEL:
            near = difflib.get_close_matches(name, names, n=1)
            raise InputError(
                f"{path.name}: call '{call_id}' has a tensor '{name[:80]}', which is no input of the program "
                f"(it takes {', '.join(names)})",
                remedy=f"Did you mean '{near[0]}'?" if near else "Rename or remove it.",
            )
        calls.setdefault(call_id, {})[name] = entry
    if not calls:
        raise InputError(f"{path.name} holds no calls", remedy=f"Write at least one, as tensors '0/{names[0]}'.")
    return dict(sorted(calls.items(), key=lambda item: _natural(item[0])))


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in re.split(r"([0-9]{1,18})", text)]


def _check_call(path: Path, call_id: str, found: dict[str, TensorEntry], signature: Signature) -> None:
    where = f"{path.name}: call '{call_id}'"
    roots: dict[str, tuple[int, str]] = {}
    for spec in signature.inputs:
        entry = found.get(spec.name)
        if entry is None:
            raise InputError(f"{where} has no value for input '{spec.name}'", remedy=f"Add '{call_id}/{spec.name}'.")
        check_value(f"{where}, input '{spec.name}'", entry.dtype, entry.shape, spec, roots)
    label = found.get(LABEL)
    if label is None or any(spec.name == LABEL for spec in signature.inputs):
        return
    if label.dtype not in _INTEGERS or label.shape not in ((), (1,)):
        raise InputError(
            f"{where}: its label is {label.dtype} of shape {list(label.shape)}; expected one whole number",
            remedy="Store the class index as an int64 scalar.",
        )


def check_value(
    where: str, dtype: str, shape: tuple[int, ...], spec: TensorSpec, roots: dict[str, tuple[int, str]]
) -> None:
    """One tensor against the input it is meant for.

    Args:
        where: how the message names it.
        dtype: torch's name.
        shape: its sizes.
        spec: the input.
        roots: symbol -> (size, where it was met first); grows with every input of one call.

    Raises:
        InputError: dtype, rank, a size, or the equality of two sizes is wrong.
    """
    if dtype != spec.dtype:
        raise InputError(f"{where}: dtype is {dtype}; expected {spec.dtype}", remedy=f"Convert it to {spec.dtype}.")
    expected = [_describe(d) for d in spec.shape]
    if len(shape) != len(spec.shape):
        raise InputError(
            f"{where}: shape {list(shape)} has {len(shape)} dimensions; expected [{', '.join(expected)}]",
            remedy="Reshape it (a single example needs its batch dimension too).",
        )
    for axis, (size, dim) in enumerate(zip(shape, spec.shape, strict=True)):
        problem = _size_problem(size, dim)
        if problem is not None:
            raise InputError(
                f"{where}: dimension {axis} of shape {list(shape)} is {size}; expected {problem}",
                remedy="Resize the data, or export the program with a range that holds this size.",
            )
        if isinstance(dim, DynamicDim):
            root = (size - dim.offset) // dim.scale
            known, place = roots.setdefault(dim.symbol, (root, f"input '{spec.name}', dimension {axis}"))
            if known != root:
                raise InputError(
                    f"{where}: dimension {axis} is {size}, which means {dim.symbol}={root}; "
                    f"{place} means {dim.symbol}={known}",
                    remedy="Sizes that the program declares equal must be equal within a call.",
                )


def _describe(dim: int | DynamicDim) -> str:
    if isinstance(dim, int):
        return str(dim)
    return f"{dim.lo}..{dim.hi if dim.hi is not None else ''}"


def _size_problem(size: int, dim: int | DynamicDim) -> str | None:
    if isinstance(dim, int):
        return None if size == dim else str(dim)
    if size < dim.lo or (dim.hi is not None and size > dim.hi):
        return _describe(dim)
    if (size - dim.offset) % dim.scale:
        plus = f" plus {dim.offset}" if dim.offset else ""
        return f"a multiple of {dim.scale}{plus}"
    return None


def _load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise UntrustedInputError(
            f"{path.name} cannot be read as safetensors: {' '.join(str(error).split())[:200]}",
            remedy="Write the file again.",
        ) from error


def _make(
    path: Path,
    call_id: str,
    found: dict[str, TensorEntry],
    tensors: dict[str, torch.Tensor],
    signature: Signature,
    warn: Callable[[str], None] | None,
) -> Call:
    import torch

    inputs = {}
    for spec in signature.inputs:
        value = inputs[spec.name] = tensors[found[spec.name].name]
        where = f"{path.name}: call '{call_id}', input '{spec.name}'"
        if value.dtype == torch.bool and bool((value.view(torch.uint8) > 1).any()):
            raise UntrustedInputError(f"{where}: a truth value is neither 0 nor 1", remedy="Write the file again.")
        if warn is not None and (value.is_floating_point() or value.is_complex()):
            wide = value.to(torch.float32) if value.element_size() == 1 else value
            if bool(wide.isnan().any()):
                warn(f"{where} holds NaN; targets differ in what they make of it")
            elif bool(wide.isinf().any()):
                warn(f"{where} holds infinity; targets differ in what they make of it")
    label = None
    if LABEL in found and LABEL not in inputs:
        label = int(tensors[found[LABEL].name].reshape(()))
        if label < 0:
            raise InputError(f"{path.name}: call '{call_id}': its label is {label}", remedy="Labels count from 0.")
    return Call(id=call_id, inputs=inputs, label=label)
