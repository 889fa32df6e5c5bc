"""ONNX for ONNX Runtime Web (the wasm build's CPU provider)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError, MissingToolError, VerificationError
from build.legalize import legalize
from build.legalize.marks import Kept, Region
from build.legalize.quantized_graph import brings_own, require_static
from targets.checks import four_bit_weights, name_findings, require_distinct_names
from targets.contract import Arithmetic, Finding, Lowered, LowerRequest, Signature
from targets.diagnosis import blame, dtype_findings, mutation_findings, nan_unsafe, op_findings
from targets.onnx_web.clips import open_bounds
from targets.onnx_web.dynamic import dynamic
from targets.onnx_web.four_bits import four_bits
from targets.onnx_web.marks import present
from targets.onnx_web.model import FILE, coverage, export, halve_weights, save, set_interface, strip
from targets.onnx_web.own_quantization import unsigned
from targets.onnx_web.runner import OrtRunner, session
from targets.onnx_web.static import static
from targets.onnx_web.weights import arithmetic, float_ops, store_small, weight_bits
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
    "attention_of_three_dimensions",
    "attention_of_blind_rows",
    "atan2_by_quadrant",
    "float_floor_division",
    "int_division_by_floor",
    "float_remainder_by_fmod",
    "softmax_dtype",
    "mean_dtype",
    "mean_dim_dtype",
    "median_by_sort",
    "cdist_by_difference",
    "cumprod_by_doubling",
    "scatter_as_reduce",
    "scatter_value_as_reduce",
    "scatter_mean_by_sum",
    "fmax_by_compare",
    "fmin_by_compare",
    "copysign_by_compare",
    "isin_by_compare",
    "searchsorted_by_compare",
    "nanmedian_by_sort",
    "nanmedian_of_row",
    "sort_of_bools",
    "median_of_everything",
    "kthvalue_by_sort",
    "cummax_by_doubling",
    "cummin_by_doubling",
    "hypot_with_nan",
    "adaptive_avg_pool3d_by_windows",
    "unroll_projected_lstm",
    "gather_cropped",
    "avg_pool2d_exact",
    "avg_pool1d_exact",
    "antialiased_bilinear_by_matmul",
    "infinite_norm_by_extreme",
    "aminmax_by_both",
    "max_dim_with_nan",
    "min_dim_with_nan",
    "max_all_with_nan",
    "min_all_with_nan",
    "amax_with_nan",
    "amin_with_nan",
    "argmax_with_nan",
    "argmin_with_nan",
    "sign_of_nan",
    "bce_with_logits_written_out",
    "log_sigmoid_with_nan",
    "logaddexp_shifted",
    "logaddexp2_shifted",
    "logcumsumexp_by_doubling",
    "log1p_near_zero",
    "expm1_near_zero",
    "pooled_infinities",
    "own_output_nodes",
)

#: ONNX opset of the artifacts. onnxruntime-web runs up to opset 23 or later since 1.22; 20 is the first with Gelu,
#: bool ReduceMax and 3-d GridSample, and runs on every onnxruntime-web since 1.17.
OPSET = 20


#: ops whose output differed from PyTorch's when they were given NaN or infinity, each tried alone on ONNX Runtime 1.32
#: (one x86-64 CPU): max pools lose NaN and make -inf the lowest finite number, argsort orders NaN differently, atan2
#: gives another value, and attention keeps NaN where PyTorch's own kernel gives zeros. Listed for the places that they
#: return, as argsort's; their values were right: sort, topk, median.
_NAN_UNSAFE = frozenset(
    f"aten.{op}"
    for op in """
        max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d sort argsort topk median
        atan2 scaled_dot_product_attention
    """.split()  # noqa: SIM905
)


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What the ONNX exporter and ONNX Runtime's CPU kernels cannot take. Needs torch only."""
    return [
        *mutation_findings(program, "ONNX"),
        *name_findings(signature, "ONNX"),
        *dtype_findings(program, signature, {}),
        *op_findings(program, REWRITES),
    ]


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Export to ONNX with the program's names, and its bounds in the model's metadata.

    fp16 stores weights in half and casts them to float32 when the session starts: the CPU provider (wasm as well)
    has no half kernels for convolution, matrix product or elementwise arithmetic.

    Raises:
        LoweringError: with the op, its source line and the way out.
    """
    require_distinct_names(request.signature, "ONNX")
    fragile = nan_unsafe(program, _NAN_UNSAFE)
    own = brings_own(program, request)
    kept = Kept.mark(program, request.keep_float)
    if precision(request.precision).quantized:
        # a converter that merges a norm into its layer loses the names of both
        program = legalize(program, ("drop_derived_ranges", "fold_batch_norm"))
    legal = legalize(program, REWRITES)
    if own:
        require_static(legal, "ONNX Runtime")
    try:
        model = export(legal, OPSET)
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="the ONNX exporter") from error
    open_bounds(model)
    set_interface(model, request.signature)
    notes = halve_weights(model) if request.precision == "fp16" else ()
    floats: dict[str, int] = {}
    bits: dict[str, str] = {}
    computed: Arithmetic | None = None
    if own:
        unsigned(model)
        floats = float_ops(model)
        computed = arithmetic(model) if precision(request.precision).quantized else None
    elif precision(request.precision).quantized:
        region = kept.region(present(model.graph))
        model = _quantized(model, request, region)
        floats = float_ops(model, region.ops)
        if precision(request.precision).activations != "float":
            computed = arithmetic(model, region.ops)
        bits = four_bit_weights(request.precision, weight_bits(model))
    strip(model, request)
    files = save(model, request.directory)
    try:
        session(request.directory / FILE)
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="ONNX Runtime") from error
    return Lowered(
        files=files,
        coverage=coverage(model),
        warnings=notes,
        nan_unsafe=fragile,
        unquantized=floats,
        arithmetic=computed,
        contract={"opset": OPSET, **bits},
    )


def _quantized(model: Any, request: LowerRequest, region: Region) -> Any:
    """The model at the request's precision."""
    match request.precision:
        case "int8-static":
            model = static(model, request.calibration, region)
            store_small(model, region.ops)
        case "int8-dynamic":
            dynamic(model, region)
            store_small(model, region.ops)
        case "int4-weight":
            four_bits(model, region)
            store_small(model, region.ops)
        case "int8-weight":
            store_small(model, region.ops)
        case _:
            raise LoweringError(
                f"ONNX has no recipe for precision '{request.precision}'", op="the program", remedy="Use int8-static."
            )
    return model


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Create a session of ONNX Runtime on this host's CPU.

    Raises:
        MissingToolError: ONNX Runtime is not installed.
        VerificationError: the model cannot be loaded, or declares another signature than ``signature``.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise MissingToolError("ONNX Runtime is not installed", remedy="Install the 'ort-web' group.") from error
    try:
        loaded = session(directory / lowered_files[0])
    except Exception as error:
        raise VerificationError(f"ONNX Runtime refuses {lowered_files[0]}: {error}") from error
    runner = OrtRunner(loaded, f"onnxruntime {ort.__version__} (CPU provider, the wasm build's kernels)")
    if runner.signature() != signature:
        raise VerificationError(f"{lowered_files[0]} declares another signature than the program's")
    return runner
