"""Capture one source into a folder: ``program.pt2``, ``reference.safetensors``, ``program.json``."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.archive import load_program, save_program
from build.cache import sha256_file
from build.capture.checks import constant_outputs, refuse_training_mode
from build.capture.export import example_shapes, export_module
from build.capture.reference import Recorder, edge_inputs, resampled, write_reference
from build.capture.sizes import example_sizes, size_points
from build.errors import EdgeportError, InputError
from build.program import call, content_hash, signature_of
from build.record import PROGRAM, RECORD, REFERENCE, CallRecord, ProgramRecord
from models.spec import Call, ModelSpec, OutputMeaning
from targets.contract import Signature

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

Emit = Callable[[str], None]


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


def capture(source: Mapping[str, Any], folder: Path, emit: Emit) -> ProgramRecord:
    """Capture one source.

    Args:
        source: ``{"kind": "model"|"program"|"module", "name", "key", "path"?, "data"?, "factory"?, "trust"?}``.
        folder: an empty folder; the three files are written here.

    Raises:
        InputError: the source can't be used; the message says what, where and what to do.
    """
    import torch

    emit("capture")
    found = open_source(source)
    refuse_training_mode(found.program)
    signature = signature_of(found.program)
    if not signature.outputs:
        raise InputError(f"'{source['name']}' returns no tensor", remedy="A program needs at least one tensor output.")
    save_program(found.program, folder / PROGRAM)
    # From here on, what was written is what counts: a fault of saving shows in the reference data at once.
    program = load_program(folder / PROGRAM)
    emit("reference")
    recorder = Recorder(signature, call(program), found.symbols)
    _record(recorder, signature, found)
    write_reference(folder / REFERENCE, recorder.calls)
    constants = constant_outputs(program)
    warnings = list(found.warnings)
    if constants:
        warnings.append(f"outputs {', '.join(constants)} are constants, not tensors: they are not part of the artifact")
    spec, meaning = found.spec, _meaning(found.spec, signature)
    record = ProgramRecord(
        name=source["name"],
        key=source["key"],
        sha256=content_hash(program),
        signature=signature,
        calls=tuple(c.record for c in recorder.calls),
        files={f: sha256_file(folder / f) for f in (PROGRAM, REFERENCE)},
        source={k: v for k, v in source.items() if k in ("kind", "factory")},
        symbols=dict(found.symbols),
        decision_output=meaning.output if meaning and meaning.kind == "classes" else None,
        metric=spec.metric if spec else None,
        labels=tuple(meaning.labels) if meaning else (),
        preprocessing=dataclasses.asdict(spec.preprocessing) if spec else None,
        tolerances=dict(spec.tolerances) if spec else {},
        constants={
            k: v if isinstance(v, (int, float, str, bool, type(None))) else repr(v) for k, v in constants.items()
        },
        licence=spec.licence if spec else "unknown",
        versions={"torch": torch.__version__.split("+")[0]},
        warnings=tuple(warnings),
    )
    (folder / RECORD).write_text(json.dumps(record.to_json(), indent=1) + "\n")
    return record


def open_source(source: Mapping[str, Any]) -> Captured:
    """The program of a source with its data, not yet checked or saved.

    Raises:
        InputError: the source can't be read or exported.
    """
    return {"model": _model, "program": _program, "module": _module}[source["kind"]](source)


def _record(recorder: Recorder, signature: Signature, found: Captured) -> None:
    """Example, size points, edge values, then the evaluation calls."""
    real = [*found.calibration, *found.evaluation]
    pools: dict[str, list[Any]] = {
        s.name: [*([found.example[s.name]] if found.example else []), *(c.inputs[s.name] for c in real)][:32]
        for s in signature.inputs
    }
    example = found.example
    if example is None and real:
        example = real[0].inputs
    if example is None:
        shapes = example_shapes(found.program)
        example = {s.name: resampled(s, shapes[s.name], (), seed=0) for s in signature.inputs}
    sizes = example_sizes(signature, {n: tuple(t.shape) for n, t in example.items()})
    recorder.add(CallRecord(id="example", kind="example", sizes=sizes), example)
    named = {s: found.spec.sizes[n] for s, n in found.symbols.items() if found.spec and n in found.spec.sizes}
    recorder.add_points(size_points(signature, sizes, named), pools)
    for name, inputs in edge_inputs(signature, example).items():
        recorder.add(CallRecord(id=f"edge-{name}", kind="edge", sizes=sizes), inputs, finite_only=True)
    for item in found.evaluation:
        here = example_sizes(signature, {n: tuple(t.shape) for n, t in item.inputs.items()})
        recorder.add(
            CallRecord(id=f"evaluation/{item.id}", kind="evaluation", sizes=here, label=item.label), item.inputs
        )


def _meaning(spec: ModelSpec | None, signature: Signature) -> OutputMeaning | None:
    if spec is None:
        return None
    names = [s.name for s in signature.outputs]
    if spec.output.output not in names:
        raise InputError(
            f"model '{spec.name}' says its main output is '{spec.output.output}', but the program returns "
            f"{', '.join(names)}",
            remedy="Correct `output` or `output_names` in the model's spec.",
        )
    return spec.output


def _from_spec(spec: ModelSpec) -> Captured:
    module = spec.factory()
    if spec.output_names:
        module = _named_outputs(module, spec.output_names)
    program, example, symbols = export_module(module, spec.example(), spec.dynamic_shapes())
    return Captured(
        program=program,
        example=example,
        symbols=symbols,
        calibration=spec.calibration(),
        evaluation=spec.evaluation(),
        spec=spec,
        warnings=(),
    )


def _named_outputs(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """Wrap a module so that its outputs are a dict with these names, and its inputs keep theirs."""
    import inspect

    import torch

    class Named(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            out = self.inner(*args, **kwargs)
            values = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            return dict(zip(names, values, strict=True))

    wrapped = Named(module)
    wrapped.forward.__func__.__signature__ = inspect.signature(type(module).forward)  # type: ignore[attr-defined]
    return wrapped


def _model(source: Mapping[str, Any]) -> Captured:
    from models import registry

    return _from_spec(registry.load(source["name"]))


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
        spec.loader.exec_module(loaded)
        made = getattr(loaded, source["factory"])()
    except EdgeportError:
        raise
    except Exception as error:
        raise InputError(f"{where} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if isinstance(made, ModelSpec):
        return _from_spec(made)
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


def _by_name(module: Any, example: Any, where: str) -> dict[str, torch.Tensor]:
    import inspect

    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{where}: the first item is a {type(module).__name__}, not a torch.nn.Module")
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
    evaluation: Sequence[Call] = ()
    warnings = []
    if source.get("data"):
        evaluation = [
            Call(id=c.id, inputs=c.inputs, label=c.label) for c in read_calls(Path(source["data"]), signature)
        ]
    else:
        warnings.append(f"no calls beside it ({path.stem}.safetensors): verified on made-up inputs only")
    example = _saved_example(program, signature)
    if example is None and not evaluation:
        warnings.append("it holds no example inputs: integer inputs are all zero in the reference data")
    return Captured(
        program=program,
        example=example,
        symbols={},
        calibration=(),
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
