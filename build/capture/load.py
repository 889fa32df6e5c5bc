"""From a source (a model of ours, a ``.pt2``, a user's module) to a program with its data."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from build.archive import load_program
from build.capture.calibration import split
from build.capture.export import export_module
from build.capture.given import fitting
from build.capture.user_code import user_code
from build.errors import InputError
from build.program import signature_of
from models.spec import Call, ModelSpec
from targets.contract import Signature

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What every kind of source comes down to."""

    program: ExportedProgram
    example: Mapping[str, torch.Tensor] | None
    symbols: Mapping[str, str]
    calibration: Sequence[Call]
    evaluation: Sequence[Call]
    spec: ModelSpec | None
    warnings: tuple[str, ...]


def open_source(source: Mapping[str, Any], emit: Callable[[str], None] = lambda stage: None) -> Captured:
    """The program of a source with its data, not yet checked or saved.

    Args:
        emit: told before the user's own code runs: should it end the process, that is where it happened.

    Raises:
        InputError: the source can't be read or exported, or its own code fails.
    """
    if source["kind"] == "program":
        return _program(source)
    if source["kind"] == "model":
        from models import registry

        return _from_spec(registry.load(source["name"]), f"model '{source['name']}'")
    emit(f"run {Path(source['path']).name}:{source['factory']}")
    return _module(source)


def _from_spec(spec: ModelSpec, where: str, file: Path | None = None) -> Captured:
    with user_code(where, file):
        module = spec.factory()
        given, shapes = spec.example(), spec.dynamic_shapes()
    _check_module(module, f"{where}: the factory's result")
    if spec.output_names:
        module = _named_outputs(module, spec.output_names)
    program, example, symbols = export_module(module, given, shapes)
    with user_code(where, file):
        calibration, evaluation = list(spec.calibration()), list(spec.evaluation())
    signature = signature_of(program)
    return Captured(
        program=program,
        example=example,
        symbols=symbols,
        calibration=fitting(calibration, signature, f"{where}, calibration set"),
        evaluation=fitting(evaluation, signature, f"{where}, evaluation set"),
        spec=spec,
        warnings=() if evaluation else ("the evaluation set is empty: verified on made-up inputs only",),
    )


def _named_outputs(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """Wrap a module so that its outputs are a dict with these names, and its inputs keep theirs."""
    import torch

    class Named(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.wrapped_module = inner  # build.program.layer_of leaves this name out

        def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            out = self.wrapped_module(*args, **kwargs)
            values = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            return dict(zip(names, values, strict=True))

    wrapped = Named(module)
    wrapped.forward.__func__.__signature__ = inspect.signature(type(module).forward)  # type: ignore[attr-defined]
    return wrapped


def _module(source: Mapping[str, Any]) -> Captured:
    path = Path(source["path"])
    name = f"edgeport_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"'{path}' is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    sys.path.insert(0, str(path.parent))
    where = f"--module {path.name}:{source['factory']}"
    try:
        with user_code(where, path):
            spec.loader.exec_module(loaded)
        factory = _factory(loaded, source["factory"], where)
        with user_code(where, path):
            made = factory()
    finally:
        with contextlib.suppress(ValueError):  # the user's code may change the path too
            sys.path.remove(str(path.parent))
    if isinstance(made, ModelSpec):
        return _from_spec(made, where, path)
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError(
            f"{where} returned {type(made).__name__}",
            remedy="Return a ModelSpec, or (module, example) or (module, example, dynamic_shapes).",
        )
    module, example, shapes = (*made, None)[:3]
    inputs = _by_name(module, example, where)
    if isinstance(shapes, (tuple, list)):
        shapes = dict(zip(inputs, shapes, strict=True))
    program, widened, symbols = export_module(module, inputs, shapes)
    warning = "no evaluation data: verified on made-up inputs only; return a ModelSpec to give real ones"
    return Captured(
        program=program,
        example=widened,
        symbols=symbols,
        calibration=(),
        evaluation=(),
        spec=None,
        warnings=(warning,),
    )


def _factory(loaded: Any, name: str, where: str) -> Callable[[], Any]:
    found = getattr(loaded, name, None)
    if callable(found):
        return cast("Callable[[], Any]", found)
    offered = [k for k, v in vars(loaded).items() if inspect.isfunction(v) and v.__module__ == loaded.__name__]
    raise InputError(
        f"{where}: the file defines no function '{name}'",
        remedy=f"It defines: {', '.join(offered)}." if offered else "Write one that returns (module, example).",
    )


def _check_module(module: Any, what: str) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{what} is a {type(module).__name__}, not a torch.nn.Module")


def _by_name(module: Any, example: Any, where: str) -> dict[str, Any]:
    _check_module(module, f"{where}: the first item")
    if isinstance(example, Mapping):
        return dict(example)
    values = example if isinstance(example, (tuple, list)) else (example,)
    names = list(inspect.signature(module.forward).parameters)
    if len(values) > len(names):
        raise InputError(f"{where}: {len(values)} example inputs for forward({', '.join(names)})")
    return dict(zip(names, values, strict=False))


def _program(source: Mapping[str, Any]) -> Captured:
    from build.calls import read_calls

    path = Path(source["path"])
    program = load_program(path, trust=bool(source.get("trust")))
    signature = signature_of(program)
    calibration: Sequence[Call] = ()
    evaluation: Sequence[Call] = ()
    warnings = []
    if source.get("data"):
        given = read_calls(Path(source["data"]), signature)
        calibration, evaluation = split([Call(id=c.id, inputs=c.inputs, label=c.label) for c in given])
        if not evaluation:
            file = Path(source["data"]).name
            warnings.append(f"{file} holds no calls but those that calibrate: verified on made-up inputs only")
    else:
        warnings.append(f"no calls beside it ({path.stem}.safetensors): verified on made-up inputs only")
    example = _saved_example(program, signature)
    if example is None and not evaluation and not calibration:
        warnings.append("it holds no example inputs: integer inputs are all zero in the reference data")
    return Captured(
        program=program,
        example=example,
        symbols={},
        calibration=calibration,
        evaluation=evaluation,
        spec=None,
        warnings=tuple(warnings),
    )


def _saved_example(program: ExportedProgram, signature: Signature) -> dict[str, torch.Tensor] | None:
    """The example inputs that export saved with the program, if they are all tensors."""
    import torch
    from torch.utils import _pytree as pytree

    if program.example_inputs is None:
        return None
    leaves = [x for x in pytree.tree_leaves(program.example_inputs) if isinstance(x, torch.Tensor)]
    if len(leaves) != len(signature.inputs):
        return None
    return {s.name: t.detach().contiguous() for s, t in zip(signature.inputs, leaves, strict=True)}
