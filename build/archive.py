"""Reading and writing programs (``.pt2``): untrusted on the way in, the same bytes for the same program on the way out.

``torch.export.load`` unpickles without limits, evaluates text as Python and links shared libraries. So a file is
checked first, without torch (``check_pt2``), and is then loaded with those ways in closed as well.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from build.errors import EdgeportError, InputError, UntrustedInputError
from build.calls import check_value
from build.program import signature_of, torch_dtype_name
from build.untrusted.container import DEFAULT_LIMITS, Container, Limits
from build.untrusted.layout import MODEL, SAMPLES, check_layout, walk

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PREFIX = "program"
_SERIALIZATION_ID = b"0" * 40
#: torch aligns tensor data to this, so that a loader may map the file into memory.
_ALIGNMENT = 64
_LOCAL_HEADER_BYTES = 30
_LOCK = threading.Lock()

TRUST = "If you made this file yourself, say so with --trust."
RE_EXPORT = "Export the program again with torch 2.13 (torch.export.save)."


def check_pt2(path: Path, *, trust: bool = False, limits: Limits = DEFAULT_LIMITS) -> None:
    """Inspect a ``.pt2`` without torch, before ``torch.export.load`` may see it.

    Args:
        path: the archive.
        trust: also accept pickled objects, custom classes and compiled code inside; damage is refused all the same.
        limits: how large it may be.

    Raises:
        InputError: the file does not exist or cannot be read.
        UntrustedInputError: it is damaged, hostile, or would run code when read.
    """
    with _open(path) as stream:
        check_layout(Container(stream, path.name, limits), trust=trust, limits=limits)


def load_program(path: Path, *, trust: bool = False, limits: Limits = DEFAULT_LIMITS) -> ExportedProgram:
    """Check a ``.pt2``, then load it.

    Args:
        path: the archive.
        trust: see ``check_pt2``.
        limits: how large it may be.

    Raises:
        InputError: unreadable, or this torch cannot load it (newer schema, unknown op).
        UntrustedInputError: see ``check_pt2``.
    """
    check_pt2(path, trust=trust, limits=limits)
    from build.untrusted.schema import check_against_torch

    with _open(path) as stream:
        check_against_torch(Container(stream, path.name, limits), trust=trust)
        stream.seek(0)
        with _LOCK, _quiet(), _no_code(trust=trust):
            program = _load(stream, path)
    _check_whole(program, path)
    _drop_derived_ranges(program)
    return program


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


@contextlib.contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist" if not path.exists() else "is not a plain file"
            raise InputError(f"{path.name} {what}", remedy="Give the path of a .pt2 file.")
        stream = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror or error}") from error
    with stream:
        yield stream


def _load(stream: IO[bytes], path: Path) -> ExportedProgram:
    from torch.export.pt2_archive._package import load_pt2

    try:
        programs = load_pt2(stream).exported_programs
    except EdgeportError:
        raise
    except (MemoryError, RecursionError) as error:
        raise UntrustedInputError(f"{path.name} needs too much memory or nesting to load") from error
    except Exception as error:
        raise InputError(f"torch cannot load {path.name}: {_reason(error)}", remedy=RE_EXPORT) from error
    if "model" not in programs:
        raise InputError(f"{path.name} holds no program named 'model'", remedy=RE_EXPORT)
    return programs["model"]


def _check_whole(program: ExportedProgram, path: Path) -> None:
    """Whatever reads the program later relies on its structure: the graph's inputs and outputs are those it declares."""
    from torch.utils._pytree import tree_leaves

    from build.untrusted.metadata import check_metadata

    try:
        spec = program.call_spec
        kinds = [s.kind.name for s in program.graph_signature.input_specs]
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        taken = kinds.count("USER_INPUT")
        expected = spec.in_spec.num_leaves if spec.in_spec is not None else taken
        given = len(tree_leaves(program.example_inputs)) if program.example_inputs is not None else expected
        fits = len(placeholders) == len(kinds) and taken == expected == given
        signature = signature_of(program)
    except EdgeportError:
        raise
    except Exception as error:
        raise InputError(f"{path.name} is not a whole program: {_reason(error)}", remedy=RE_EXPORT) from error
    if not fits:
        raise InputError(
            f"{path.name}: the graph takes {taken} inputs of the user, its structure has {expected}, "
            f"its example has {given}",
            remedy=RE_EXPORT,
        )
    roots: dict[str, tuple[int, str]] = {}
    examples = [t for t in tree_leaves(program.example_inputs) if hasattr(t, "dtype")]
    for expected_input, value in zip(signature.inputs, examples, strict=False):
        where = f"{path.name}: example of input '{expected_input.name}'"
        check_value(where, torch_dtype_name(value.dtype), tuple(value.shape), expected_input, roots)
    if examples or not signature.inputs:
        check_metadata(program, {symbol: size for symbol, (size, _) in roots.items()}, path.name)


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: torch wraps it in the text of a whole traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    text = re.sub(r"Exception raised from .*", "", text)
    return f"{type(error).__name__}: {text}"[:300].rstrip(". ")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch logs whole tracebacks on its way to an exception that we turn into one line."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _no_code(*, trust: bool) -> Iterator[None]:
    """Close torch's unrestricted unpickling and its loader of compiled code, for the time of one load."""
    if trust:
        yield
        return
    import torch
    from torch.export.pt2_archive import _package

    real_load = torch.load

    def safe_load(*args: Any, **kwargs: Any) -> Any:
        kwargs["weights_only"] = True
        return real_load(*args, **kwargs)

    def refuse(*_: Any, **__: Any) -> Any:
        raise UntrustedInputError("the program holds a pickled object that would run code when read", remedy=TRUST)

    class NoPickle:
        loads = staticmethod(refuse)

    patches: list[tuple[Any, str, Any]] = [
        (torch, "load", safe_load),
        (torch._C, "_pickle_load_obj", refuse),
        (_package, "pickle", NoPickle),
        (_package, "_load_aoti", refuse),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _drop_derived_ranges(program: ExportedProgram) -> None:
    """Remove ranges that the loader keeps for expressions (``8*n``): later passes expect symbols only."""
    import sympy

    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        env = getattr(mode, "shape_env", None)
        if env is not None:
            for key in [k for k in env.var_to_range if not isinstance(k, sympy.Symbol)]:
                del env.var_to_range[key]
            return


def _save_raw(program: ExportedProgram, path: Path) -> None:
    import torch

    _check_has_data(program)
    try:
        with _quiet(), _plain_tensors(program):
            torch.export.save(program, str(path))
    except OSError:
        raise
    except Exception as error:
        raise InputError(
            f"torch cannot save this program: {_reason(error)}",
            remedy="Return tensors, tuples or dicts from forward, and use ops and constants that torch.export can save.",
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
    users: dict[int, list[tuple[dict[str, Any], str, Any]]] = {}
    for table in tables:
        for name, value in table.items():
            if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
                users.setdefault(value.untyped_storage().data_ptr(), []).append((table, name, value))
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    examples = program._example_inputs
    try:
        for group in users.values():
            used = max((v.numel() * v.element_size() for _, _, v in group), default=0)
            whole = group[0][2].untyped_storage().nbytes()
            mixed = len({v.dtype for _, _, v in group}) > 1
            if mixed or (whole > used and len(group) == 1 and not _overlaps(group[0][2])):
                replaced += group
                for table, name, value in group:
                    copy = value.detach().clone()
                    is_parameter = isinstance(value, torch.nn.Parameter)
                    table[name] = torch.nn.Parameter(copy, value.requires_grad) if is_parameter else copy
        if examples is not None:
            program._example_inputs = tree_map(own, examples)
        yield
    finally:
        program._example_inputs = examples
        for table, name, value in replaced:
            table[name] = value


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
