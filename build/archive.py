"""Reading and writing programs (``.pt2``): untrusted on the way in, the same bytes for the same program on the way out.

``torch.export.load`` unpickles without limits, evaluates text as Python and links shared libraries. So a file is
checked first, without torch (``check_pt2``), and is then loaded with those ways in closed as well.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from build.archive_writer import save_program
from build.calls import check_value
from build.errors import EdgeportError, InputError, UntrustedInputError
from build.program import drop_unreadable_guards, plain_tensors, signature_of, torch_dtype_name
from build.untrusted.container import DEFAULT_LIMITS, Container, Limits
from build.untrusted.layout import check_layout
from build.untrusted.torch_noise import quiet, reason

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LOCK = threading.Lock()

__all__ = ["check_pt2", "load_program", "save_program"]

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
        with _LOCK, quiet(), _no_code(trust=trust):
            program = _load(stream, path)
    _check_whole(program, path)
    _drop_derived_ranges(program)
    _drop_gradients(program)
    drop_unreadable_guards(program)
    return plain_tensors(program)


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
        raise InputError(f"torch cannot load {path.name}: {reason(error)}", remedy=RE_EXPORT) from error
    if "model" not in programs:
        raise InputError(f"{path.name} holds no program named 'model'", remedy=RE_EXPORT)
    return programs["model"]


def _check_whole(program: ExportedProgram, path: Path) -> None:
    """Whatever reads the program later relies on this: the graph takes the inputs that it declares."""
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
        raise InputError(f"{path.name} is not a whole program: {reason(error)}", remedy=RE_EXPORT) from error
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


def _drop_gradients(program: ExportedProgram) -> None:
    """Buffers and constants do not learn. The loader marks them so when they share bytes with a parameter."""
    import torch

    for table in (program._state_dict, program._constants):
        for name, value in (table or {}).items():
            if type(value) is torch.Tensor and value.requires_grad:
                table[name] = value.detach()
