"""Program to ``.pte``: legalise, partition, keep the ranges, write, then load it once and try it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError, InputError, LoweringError, UnsupportedError, VerificationError
from build.legalize import legalize
from build.legalize.marks import Kept
from build.quantize.arithmetic import arithmetic
from targets.checks import four_bit_weights
from targets.contract import Coverage, Lowered, LowerRequest, Signature, shape_at
from targets.precisions import precision
from targets.trials import largest_trial
from targets.xnnpack import coverage, diagnosis, partition, preflight, quantized, ranges
from targets.xnnpack.runner import ExecuTorchRunner
from targets.xnnpack.weights import weights_alone

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array

#: The one file of an artifact.
FILE = "model.pte"

REWRITES: Sequence[str] = (
    "drop_derived_ranges",
    "functional_form",
    "flat_interface",
    "contiguous_tensors",
    "fold_batch_norm",
    "batch_norm_of_batch",
    "training_batch_norm",
    "layer_norm_centred",
    "group_norm_centred",
    "instance_norm_centred",
    "gelu_tanh",
    "sign_of_nan",
    "addmm_scaled",
    "baddbmm_scaled",
    "round_decimals",
    "int_floor_division_by_trunc",
    "floor_division_by_zero",
    "int_remainder_by_trunc",
    "shift_operators",
    "median_by_sort",
    "sort_by_rank",
    "stable_sort_by_rank",
    "argsort_by_rank",
    "bucketize_by_compare",
    "constant_pad_negative",
    "pad_circular",
    "adaptive_max_pool2d_by_windows",
    "conv3d_by_planes",
    "avg_pool3d_by_planes",
    "antialiased_bilinear_by_matmul",
    "fmax_by_compare",
    "fmin_by_compare",
    "erfc_by_erf",
    "exp2_by_power",
    "hypot_with_nan",
    "searchsorted_by_compare",
    "scatter_reduce_by_parts",
    "kthvalue_by_sort",
    "dequantize_by_product",
    "fold_weight_views",
)

#: For ``fp16``: the same, then half precision inside with the program's own dtypes outside.
FP16_REWRITES: Sequence[str] = (*REWRITES, "half_inside")


@dataclass(frozen=True, kw_only=True)
class _Converted:
    executorch_program: Any
    data: bytes
    coverage: Coverage
    loses_nan: tuple[str, ...]
    unquantized: dict[str, int]


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Convert, first with XNNPACK; when that fails, on the portable kernels alone, with a warning.

    Raises:
        UnsupportedError: the pre-flight refuses the program.
        LoweringError: the converter or the runtime refuses it, or it would hold less than the declared range.
    """
    _refuse(program, request.signature)
    rewrites = FP16_REWRITES if request.precision == "fp16" else REWRITES
    try:
        kept = Kept.mark(program, request.keep_float)
        program = quantized.quantized(program, request)
        ranged = precision(request.precision).activations != "float"
        computed = arithmetic(program, request.keep_float) if ranged else None
        program = weights_alone(legalize(program, rewrites))
    except EdgeportError:
        raise
    except Exception as error:  # torch's own tracing, over a program of any kind
        raise diagnosis.from_exception(program, error) from error
    try:
        return replace(_attempt(program, request, kept, with_xnnpack=True), arithmetic=computed)
    except LoweringError as error:
        first = error
    try:
        lowered = _attempt(program, request, kept, with_xnnpack=False)
    except LoweringError as second:
        raise (second if second.source else first) from first
    note = f"XNNPACK refused the program, all of it runs on the portable kernels: {first.message}"
    return replace(lowered, warnings=(*lowered.warnings, note), arithmetic=computed)


def _refuse(program: ExportedProgram, signature: Signature) -> None:
    for finding in preflight.findings(program, signature, list(REWRITES)):
        if finding.verdict == "refused":
            raise UnsupportedError(
                f"ExecuTorch cannot take {finding.subject}: {finding.why}",
                op=finding.subject,
                source=finding.source,
                remedy=finding.remedy,
            )


def _attempt(program: ExportedProgram, request: LowerRequest, kept: Kept, *, with_xnnpack: bool) -> Lowered:
    try:
        converted = _convert(program, request, kept, with_xnnpack=with_xnnpack)
    except InputError:
        raise
    except Exception as error:  # the converter raises every kind of exception; none may pass without its op
        raise diagnosis.from_exception(program, error) from error
    missing = diagnosis.missing_operators(converted.executorch_program)
    if missing:
        raise diagnosis.error_for(program, missing, f"the runtime has no kernel {', '.join(missing)}")
    path = request.directory / FILE
    path.write_bytes(converted.data)
    request.converted()
    try:
        runner = ExecuTorchRunner(path, request.signature)
        _check_ranges(program, request.signature, runner)
        _run_at_bounds(program, request.signature, runner)
    except VerificationError as error:
        path.unlink()
        raise diagnosis.error_for(program, [], error.message) from error
    except LoweringError:
        path.unlink()
        raise
    return Lowered(
        files=(FILE,),
        coverage=converted.coverage,
        warnings=quantized.warnings(request, converted.coverage),
        nan_unsafe=converted.loses_nan,
        unquantized=converted.unquantized,
        contract={
            "method": "forward",
            "inputs": [s.name for s in request.signature.inputs],
            "outputs": [s.name for s in request.signature.outputs],
            "names": "a .pte file holds no tensor names: inputs and outputs are positional, in this order",
            "ranges": "a .pte file holds upper bounds only, and its runtime checks an input's total size: "
            "the caller must check each dimension against the manifest",
            "memory": "planned for the upper bound of every dimension, and taken whatever size is run",
            **four_bit_weights(request.precision, quantized.FOUR_BITS),
        },
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter's own warnings and log lines, about its internals, off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _no_resize_patterns() -> Iterator[None]:
    """Skip XNNPACK's search for decomposed bilinear resizes.

    The partitioner keeps a resize as one op, so there are none to find, and building the patterns (four exports by
    tracing Python bytecode) takes longer than the rest of a small program's conversion.
    """
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d

    original = bilinear_2d.get_graphs_dict
    bilinear_2d.get_graphs_dict = dict
    try:
        yield
    finally:
        bilinear_2d.get_graphs_dict = original


def _convert(program: ExportedProgram, request: LowerRequest, kept: Kept, *, with_xnnpack: bool) -> _Converted:
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    declared = ranges.declared_ranges(program)
    ranges.restore_ranges(program.graph_module, declared)
    with ranges.no_cpu_backend_guards(), _no_resize_patterns(), _quiet():
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[partition.partitioner()] if with_xnnpack else [],
            # The validity check runs every op on fake tensors and so narrows ranges; each artifact is run instead.
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        edge_program = edge.exported_program()
        ranges.restore_ranges(edge_program.graph_module, declared)
        # Without this a buffer that the program writes to starts as whatever is in memory, not at its saved value.
        written = set(edge_program.graph_signature.buffers_to_mutate.values())
        names = [n for n, buffer in edge_program.graph_signature.inputs_to_buffers.items() if buffer in written]
        passes = [InitializedMutableBufferPass(names)] if names else []
        # Counted before to_executorch, which turns the edge program's ops into their out variants in place.
        counted, unsafe = coverage.count(edge_program), coverage.loses_nan(edge_program)
        floats = coverage.float_weights(edge_program, kept) if precision(request.precision).quantized else {}
        manager = edge.to_executorch(ExecutorchBackendConfig(passes=passes))
    return _Converted(
        executorch_program=manager.executorch_program,
        data=bytes(manager.buffer),
        coverage=counted,
        loses_nan=unsafe,
        unquantized=floats,
    )


def _check_ranges(program: ExportedProgram, signature: Signature, runner: ExecuTorchRunner) -> None:
    lost = ranges.narrowed(signature, runner.input_sizes)
    if lost:
        raise LoweringError(
            f"ExecuTorch would hold less than the program's range: {'; '.join(lost)}",
            op="dynamic dimensions",
            source=", ".join(f"input '{line.split('[')[0]}'" for line in lost),
            remedy="Export one program per size, or export with an example size of at least 16 in that dimension.",
        )


def _run_at_bounds(program: ExportedProgram, signature: Signature, runner: ExecuTorchRunner) -> None:
    """Run at the lower bound of every dynamic dimension, and at the upper one as far as a trial goes.

    Any values will do: zeros first (an index into any table), then ones (a divisor of integers).
    """
    low = {symbol: lo for symbol, (lo, _) in signature.dynamic_symbols.items()}
    high = {symbol: hi or 0 for symbol, (_, hi) in signature.dynamic_symbols.items()}
    for sizes in (low, largest_trial(program, low, high)) if low else (low,):
        try:
            runner.run(_filled(signature, sizes, 0))
        except VerificationError:
            runner.run(_filled(signature, sizes, 1))


def _filled(signature: Signature, sizes: Mapping[str, int], value: int) -> dict[str, Array]:
    """Inputs full of ``value`` at the given sizes of the root symbols."""
    import numpy as np

    return {s.name: np.full(shape_at(s.shape, sizes), value, dtype=s.dtype) for s in signature.inputs}
