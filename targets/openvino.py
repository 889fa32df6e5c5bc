"""OpenVINO IR (``model.xml`` and ``model.bin``) for desktop and laptop CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError, LoweringError, MissingToolError, VerificationError
from build.legalize import legalize
from build.legalize.marks import Kept, Region
from build.legalize.quantized_graph import brings_own
from targets.checks import four_bit_weights, name_findings, require_distinct_names, signature_to_json
from targets.contract import Arithmetic, Finding, Lowered, LowerRequest, Signature
from targets.diagnosis import blame, dtype_findings, mutation_findings, nan_unsafe, op_findings
from targets.openvino_ir.convert import convert, decompose, set_interface, stable_names
from targets.openvino_ir.limits import NAN_UNSAFE, wide_integers, width_warnings
from targets.openvino_ir.marks import clear, present
from targets.openvino_ir.own_quantization import Stored, expand, store
from targets.openvino_ir.quantize import small_weights, static
from targets.openvino_ir.runner import RT_INFO, OpenVinoRunner, compile_model, coverage
from targets.openvino_ir.weights import arithmetic, float_ops, weight_bits
from targets.precisions import precision

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Runner

REWRITES: tuple[str, ...] = (
    "drop_derived_ranges",
    "functional_form",
    "quantization_constants",
    "quantization_bounds",
    "flat_interface",
    "div_of_narrow_integers",
    "floor_divide_of_narrow_integers",
    "remainder_of_narrow_integers",
    "fmod_of_narrow_integers",
    "float_floor_division",
    "int_floor_division_by_trunc",
    "int_remainder_by_trunc",
    "bitwise_and_tensors",
    "bitwise_or_tensors",
    "bitwise_xor_tensors",
    "left_shift_by_product",
    "right_shift_by_division",
    "cumprod_by_doubling",
    "exp2_by_power",
    "ldexp_by_power",
    "hypot_with_nan",
    "copysign_by_compare",
    "fmax_by_compare",
    "fmin_by_compare",
    "gcd_of_rows",
    "left_shift_by_tensor",
    "right_shift_by_tensor",
    "bilinear_by_matmul",
    "cross_by_linalg_cross",
    "linalg_cross_by_parts",
    "index_add_written_out",
    "unfold_by_slices",
    "cumsum_of_int64",
    "prod_of_int64",
    "prod_dim_of_int64",
    "cummax_by_doubling",
    "cummin_by_doubling",
    "logcumsumexp_by_doubling",
    "kthvalue_by_sort",
    "median_of_row",
    "nanmedian_by_sort",
    "nanmedian_of_row",
    "searchsorted_by_compare",
    "vector_norm_of_order_zero",
    "vector_norm_over_all_dims",
    "scatter_as_reduce",
    "scatter_value_as_reduce",
    "scatter_reduce_by_parts",
    "var_of_all",
    "std_of_all",
    "var_correction_given",
    "std_correction_given",
    "var_any_correction",
    "std_any_correction",
    "lstm_cell_written_out",
    "gru_cell_written_out",
    "rnn_tanh_cell_written_out",
    "rnn_relu_cell_written_out",
    "trunc_by_floor",
    "frac_by_floor",
    "round_decimals",
    "softmax_dtype",
    "mean_dtype",
    "mean_dim_dtype",
    "std_mean_correction",
    "std_mean_dim",
    "std_mean_all",
    "var_mean_correction",
    "var_mean_dim",
    "median_by_sort",
    "bucketize_of_nan",
    "sort_of_nan",
    "stable_sort_of_nan",
    "topk_of_nan",
    "diagonal_by_select",
    "gather_cropped",
    "pad_circular",
    "constant_pad_negative",
    "avg_pool2d_exact",
    "avg_pool1d_exact",
    "adaptive_avg_pool2d_by_windows",
    "antialiased_bilinear_by_matmul",
    "attention_of_blind_rows",
    "grouped_query_attention",
    "aminmax_by_parts",
    "max_dim_unbounded",
    "min_dim_unbounded",
    "max_all_unbounded",
    "min_all_unbounded",
    "amax_unbounded",
    "amin_unbounded",
    "argmax_with_nan",
    "argmin_with_nan",
    "sign_of_nan",
    "bce_with_logits_written_out",
    "log_sigmoid_with_nan",
    "log_sigmoid_forward_with_nan",
    "softplus_by_log1p",
    "log1p_near_zero",
    "expm1_near_zero",
    "pooled_infinities",
    "exact_integers",
    "aliases_dropped",
    "outputs_at_their_roots",
    "own_output_nodes",
)

#: of what PyTorch's decompositions leave: einsum's diagonals, and every comparison and 8-bit sum that they make.
LAST_REWRITES: tuple[str, ...] = (
    "cumprod_by_doubling",
    "vector_norm_over_all_dims",
    "diagonal_by_select",
    "narrow_integers",
    "less_for_greater",
)

FILES = ("model.xml", "model.bin")

_COMPLEX = "OpenVINO has no complex numbers"


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What OpenVINO's PyTorch frontend and CPU plugin cannot take. Needs torch only."""
    return [
        *mutation_findings(program, "OpenVINO IR"),
        *name_findings(signature, "OpenVINO IR"),
        *_doubles(signature),
        *wide_integers(program),
        *dtype_findings(program, signature, {"complex64": _COMPLEX, "complex128": _COMPLEX}),
        *op_findings(program, REWRITES),
    ]


def _doubles(signature: Signature) -> list[Finding]:
    return [
        Finding(
            subject="float64",
            kind="dtype",
            verdict="refused",
            why=f"'{tensor.name}' would be computed in float32 by OpenVINO's CPU plugin",
            remedy="Use float32 inputs and outputs.",
        )
        for tensor in (*signature.inputs, *signature.outputs)
        if tensor.dtype == "float64"
    ]


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Convert to IR with the program's names and bounds, and save it.

    fp16 halves the weights' size; arithmetic stays float32 unless the device prefers half.

    Raises:
        LoweringError: with the op, its source line and the way out.
    """
    import openvino as ov

    require_distinct_names(request.signature, "OpenVINO IR")
    fragile = nan_unsafe(program, NAN_UNSAFE)
    warnings = width_warnings(program)
    own = brings_own(program, request)
    kept = Kept.mark(program, request.keep_float)
    if precision(request.precision).quantized:
        # a converter that merges a norm into its layer loses the names of both
        program = legalize(program, ("drop_derived_ranges", "fold_batch_norm"))
    legal = legalize(program, REWRITES)
    stored: Mapping[bytes, Stored] = {}
    bits: dict[str, str] = {}
    floats: dict[str, int] = {}
    computed: Arithmetic | None = None
    if own:
        stored, note = expand(legal)
        warnings = (*warnings, *([note] if note else []))
    try:
        legal = legalize(decompose(legal), LAST_REWRITES)
        model = convert(legal)
        store(model, stored)
        set_interface(model, request.signature)
        stable_names(model, request.signature)
        if precision(request.precision).quantized:
            region = kept.region(present(model))
            model = model if own else _quantized(model, request, region)
            floats = float_ops(model, region.ops)
            if precision(request.precision).activations != "float":
                computed = arithmetic(model, region.ops)
            bits = four_bit_weights(request.precision, weight_bits(model))
            stable_names(model, request.signature)
        clear(model)
    except EdgeportError:
        raise
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="OpenVINO") from error
    model.set_friendly_name(request.model)
    model.set_rt_info(signature_to_json(request.signature), RT_INFO)
    xml = request.directory / FILES[0]
    ov.save_model(model, xml, compress_to_fp16=request.precision == "fp16")
    try:
        compiled = compile_model(ov.Core(), ov.Core().read_model(xml))
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="OpenVINO's CPU plugin") from error
    return Lowered(
        files=FILES,
        coverage=coverage(compiled),
        warnings=warnings,
        nan_unsafe=fragile,
        unquantized=floats,
        arithmetic=computed,
        contract=bits,
    )


def _quantized(model: Any, request: LowerRequest, region: Region) -> Any:
    """The model at the request's precision."""
    match request.precision:
        case "int8-static":
            names = [spec.name for spec in request.signature.inputs]
            return static(model, request.calibration, names, region)
        case "int8-weight" | "int4-weight":
            return small_weights(model, precision(request.precision).weight_bits, region)
    raise LoweringError(
        f"OpenVINO has no recipe for precision '{request.precision}'", op="the program", remedy="Use int8-static."
    )


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Read the IR back and compile it for this host's CPU.

    Raises:
        MissingToolError: OpenVINO is not installed.
        VerificationError: the IR cannot be read or compiled, or declares another signature than ``signature``.
    """
    try:
        import openvino as ov
    except ImportError as error:
        raise MissingToolError("OpenVINO is not installed", remedy="Install the 'openvino' group.") from error
    core = ov.Core()
    try:
        model = core.read_model(directory / lowered_files[0])
        compiled = compile_model(core, model)
    except RuntimeError as error:
        raise VerificationError(f"OpenVINO refuses {lowered_files[0]}: {error}") from error
    runner = OpenVinoRunner(model, compiled, f"openvino {ov.__version__.split('-')[0]} (CPU)")
    if runner.signature() != signature:
        raise VerificationError(f"{lowered_files[0]} declares another signature than the program's")
    return runner
