"""Trained weights kept by what they were trained from. A file that is not exactly what was written is not used."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import InputError

if TYPE_CHECKING:
    import torch

#: environment variable that names the cache folder.
CACHE_VARIABLE = "EDGEPORT_CACHE"


def cache_dir() -> Path:
    """``$EDGEPORT_CACHE``, else ``out/cache`` of this checkout. It need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(__file__).resolve().parents[1] / "out" / "cache"


def cache_key(*parts: str) -> str:
    """sha256 of texts; where one ends and the next begins counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(name: str, key: str, train: Callable[[], Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The weights that ``train`` gives, from ``NAME-KEY.safetensors`` in the cache folder when they are there.

    The file carries the sha256 of its tensors. A missing, damaged or altered file is trained again and replaced;
    writing is atomic, so processes may share the folder.

    Raises:
        InputError: the cache folder cannot be written.
    """
    path = cache_dir() / f"{name}-{key[:32]}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    tensors = {n: t.detach().clone().contiguous() for n, t in train().items()}
    _write(path, tensors)
    return tensors


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(cache_key(name, str(tensor.dtype), str(tuple(tensor.shape))).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, torch.Tensor] | None:
    """The file's tensors; None when there is no file or it is not what ``_write`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError):
        return None
    return tensors if metadata.get("sha256") == _digest(tensors) else None


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    data = save(tensors, metadata={"sha256": _digest(tensors)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write trained weights to {path.parent}: {error.strerror or error}",
            remedy=f"Set {CACHE_VARIABLE} to a folder that can be written.",
        ) from error
