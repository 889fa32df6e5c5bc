"""Writing programs (``.pt2``) so that the same program gives the same bytes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from build.errors import InputError
from build.untrusted.layout import MODEL, SAMPLES, walk
from build.untrusted.torch_noise import quiet, reason

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PREFIX = "program"
_SERIALIZATION_ID = b"0" * 40
#: torch aligns tensor data to this, so that a loader may map the file into memory.
_ALIGNMENT = 64
_LOCAL_HEADER_BYTES = 30


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a program so that the same program gives the same bytes; any torch can load it.

    The file appears whole or not at all.

    Raises:
        InputError: the program cannot be saved (a named tuple as output, weights without data), or the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            raw, clean = Path(folder) / "raw.pt2", Path(folder) / "clean.pt2"
            _save_raw(program, raw)
            with raw.open("rb") as source, clean.open("wb") as target:
                _normalise(source, target)
                target.flush()
                os.fsync(target.fileno())
            os.replace(clean, path)
    except OSError as error:
        raise InputError(f"cannot write {path.name}: {error.strerror or error}") from error


def _save_raw(program: ExportedProgram, path: Path) -> None:
    import torch

    _check_has_data(program)
    try:
        with quiet(), _plain_tensors(program):
            torch.export.save(program, str(path))
    except OSError:
        raise
    except Exception as error:
        raise InputError(
            f"torch cannot save this program: {reason(error)}",
            remedy="Return tensors, tuples or dicts from forward; use ops and constants that torch.export can save.",
        ) from error


def _check_has_data(program: ExportedProgram) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    for name, value in {**dict(program.state_dict), **dict(program.constants)}.items():
        if isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.is_meta):
            raise InputError(
                f"tensor '{name}' of the program has no data (a fake or meta tensor)",
                remedy="Load the weights before export.",
            )


@contextlib.contextmanager
def _plain_tensors(program: ExportedProgram) -> Iterator[None]:
    """For the time of a save, give tensors storages that torch's writer keeps right.

    The writer stores each storage once, with the dtype of the first tensor that uses it: a view with another dtype
    would come back wrong. And it stores whole storages, so a row cut from a data set would bring the data set along.
    """
    import torch
    from torch.utils._pytree import tree_map

    def own(value: Any) -> Any:
        return value.detach().clone() if type(value) is torch.Tensor else value

    tables = [t for t in (program._state_dict, program._constants) if t]
    kept = [(table, name, value) for table in tables for name, value in table.items()]
    examples = program._example_inputs
    try:
        for table in tables:
            _separate(table)
        if examples is not None:
            program._example_inputs = tree_map(own, examples)
        yield
    finally:
        program._example_inputs = examples
        for table, name, value in kept:
            table[name] = value


def _separate(table: dict[str, Any]) -> None:
    """Replace, in place, the tensors whose storage can't be written as it is; tied weights stay tied."""
    import torch

    users: dict[int, list[str]] = {}
    for name, value in table.items():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            if type(value) is torch.Tensor and value.requires_grad:
                table[name] = value = value.detach()
            users.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    for names in users.values():
        group = [table[name] for name in names]
        mixed = len({v.dtype for v in group}) > 1 or any(v.is_conj() or v.is_neg() for v in group)
        first = group[0]
        bloated = len(group) == 1 and first.untyped_storage().nbytes() > first.numel() * first.element_size()
        if mixed or (bloated and not _overlaps(first)):
            for name, value in zip(names, group, strict=True):
                copy = value.detach().resolve_conj().resolve_neg().clone()
                is_parameter = isinstance(value, torch.nn.Parameter)
                table[name] = torch.nn.Parameter(copy, value.requires_grad) if is_parameter else copy


def _overlaps(tensor: Any) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _normalise(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy an archive: fixed top folder, dates and serialization id, aligned entries; nested archives too."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as new:
        for entry in old.infolist():
            name = entry.filename.partition("/")[2]
            info = zipfile.ZipInfo(f"{_PREFIX}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            info.file_size = entry.file_size
            info.external_attr = 0o644 << 16
            info.create_system = 3
            info.extra = _padding(new, info)
            with new.open(info, "w", force_zip64=entry.file_size > zipfile.ZIP64_LIMIT) as out:
                if name == ".data/serialization_id":
                    out.write(_SERIALIZATION_ID)
                elif name == MODEL:
                    out.write(_canonical_model(old.read(entry)))
                elif name == SAMPLES and entry.file_size > 0:
                    nested = io.BytesIO()
                    _normalise(io.BytesIO(old.read(entry)), nested)
                    out.write(nested.getvalue())
                else:
                    with old.open(entry) as data:
                        while piece := data.read(1 << 20):
                            out.write(piece)


def _canonical_model(text: bytes) -> bytes:
    """Without the storage offsets of values inside the graph, which torch writes after an export but never reads."""
    model = json.loads(text)
    for _, key, value, _ in walk(model):
        if key == "tensor_values" and isinstance(value, dict):
            for meta in value.values():
                meta["storage_offset"] = {"as_int": 0}
    return json.dumps(model, allow_nan=False).encode()


def _padding(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """An extra field (id ``FB``, as torch writes) that puts the entry's data on an aligned offset."""
    zip64 = 20 if info.file_size > zipfile.ZIP64_LIMIT else 0
    data = archive.fp.tell() + _LOCAL_HEADER_BYTES + len(info.filename) + zip64 + 4  # type: ignore[union-attr]
    filler = -data % _ALIGNMENT
    return b"FB" + filler.to_bytes(2, "little") + b"Z" * filler
