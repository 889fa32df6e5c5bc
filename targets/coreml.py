"""Core ML ``.mlpackage`` (ML Program) for iPhone, iPad and Mac."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError
from build.legalize import legalize
from build.program import user_inputs
from build.quantize.arithmetic import arithmetic
from targets.checks import four_bit_weights, signature_to_json
from targets.contract import Coverage, Finding, Lowered, LowerRequest, Signature
from targets.diagnosis import dtype_findings, op_findings
from targets.mlpackage import deployment, features, keywords, package, small_integers, state, values
from targets.mlpackage.convert import convert
from targets.mlpackage.preflight import (
    COMPLEX,
    dim_findings,
    rank_findings,
    refuse_reserved,
    reserved_findings,
    size_findings,
)
from targets.mlpackage.quantize import KeptWeight, four_bits, kept_weights, left_float, quantized
from targets.mlpackage.runner import SIGNATURE_KEY, STATE_KEY, TARGET_KEY, PackageRunner
from targets.precisions import precision
from targets.widths import growing_integers

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from targets.contract import Runner

#: ops that coremltools lacks and others express.
MISSING_OPS: tuple[str, ...] = (
    *("channel_shuffle_by_parts", "lerp_tensor_by_parts", "smooth_l1_loss_by_parts", "huber_loss_by_parts"),
    *("mse_loss_by_parts", "binary_cross_entropy_by_parts", "soft_margin_loss_by_parts", "l1_loss_written_out"),
    *("kl_div_written_out", "dist_by_norm", "trace_by_diagonal", "nanmean_by_count", "xlogy_written_out"),
    *("count_nonzero_by_parts", "count_nonzero_dim_intlist_by_parts", "nansum_by_parts", "aminmax_by_both"),
    *("deg2rad_by_parts", "rad2deg_by_parts", "heaviside_by_parts", "sinc_by_parts", "take_by_parts"),
    *("diag_embed_by_parts", "cross_by_linalg_cross", "linalg_cross_by_parts", "addr_by_parts", "hypot_scaled"),
    *("tensordot_by_matmul", "einsum_of_diagonals", "bilinear_by_matmul"),
    *("erfc_by_erf", "copysign_by_compare", "fmax_by_compare", "fmin_by_compare", "isin_by_compare"),
    *("median_of_everything", "kthvalue_by_sort", "sort_of_bools", "quantile_by_sort", "searchsorted_by_compare"),
    *("nanmedian_by_sort", "nanmedian_of_row", "cummax_by_doubling", "cummin_by_doubling"),
    "scatter_reduce_by_parts",
    *("stable_argsort_by_sort", "stable_sort_by_rank", "as_strided_by_places"),
    *("index_fill_by_compare", "index_copy_by_compare", "cross_entropy_of_classes"),
    *("adaptive_avg_pool3d_by_windows", "adaptive_max_pool1d_by_windows"),
)

DECOMPOSITIONS: tuple[str, ...] = (
    "drop_derived_ranges",
    "functional_form",
    "quantization_constants",
    "quantization_bounds",
    "flat_interface",
    "contiguous_tensors",
    "views_as_reshapes",
    *("add_alpha", "sub_alpha", "rsub_alpha", "addmm_scaled", "baddbmm_scaled", "lerp_scalar"),
    *("reciprocal_by_division", "rsqrt_by_division", "trunc_by_floor", "round_decimals", "sgn_by_sign"),
    *("addcmul_by_product", "addcdiv_by_quotient", "clamp_one_sided", "clamp_tensor_bounds"),
    *("float_floor_division", "int_division_by_floor", "float_trunc_division", "fmod_by_remainder"),
    *("isinf_by_compare", "isnan_by_compare", "isfinite_by_compare", "isclose_by_compare", "cast_to_bool"),
    *("gelu_tanh", "celu_by_exp", "log_softmax_shifted", "log_softmax_int_shifted", "softmax_dtype"),
    *("selu_written_out", "mish_written_out", "hardshrink_written_out", "softshrink_written_out"),
    *(
        "bce_with_logits_written_out",
        "logaddexp_shifted",
        "log_sigmoid_by_log1p",
        "log_sigmoid_forward_written_out",
        "threshold_by_select",
        "softplus_threshold",
        "logit_written_out",
    ),
    *("mean_dtype", "mean_dim_dtype", "sum_dtype", "sum_dim_dtype", "cumsum_dtype", "cumprod_dtype"),
    *("vector_norm_dtype", "prod_by_slices", "prod_all_by_slices", "argmax_all", "argmin_all", "median_by_sort"),
    *("std_mean_correction", "std_mean_dim", "std_mean_all", "var_mean_correction", "var_mean_dim"),
    *("var_correction_given", "std_correction_given", "instance_norm_of_running_statistics"),
    *("logical_and_of_numbers", "logical_or_of_numbers", "logical_xor_of_numbers", "logical_not_of_numbers"),
    *("any_of_numbers", "all_of_numbers"),
    *("add_wrapped", "sub_wrapped", "mul_wrapped", "neg_wrapped"),
    *("group_norm_two_pass", "rms_norm_written_out"),
    *("avg_pool2d_exact", "avg_pool1d_exact", "adaptive_avg_pool2d_by_windows", "adaptive_max_pool2d_by_windows"),
    "max_pool2d_dilated",
    *("constant_pad_negative", "constant_pad_symbolic", "pad_circular"),
    *("bilinear_by_index", "nearest_by_index", "nearest1d_by_index", "linear1d_by_index"),
    *("antialiased_bilinear_by_matmul", "upsample_bicubic2d_written_out", "upsample_trilinear3d_written_out"),
    *("upsample_nearest3d_written_out", "upsample_nearest_exact1d_written_out", "upsample_nearest_exact2d_written_out"),
    *("bicubic_grid_sample_by_index", "affine_grid_generator_written_out"),
    *("attention_by_matmul", "matmul_vector", "mv_by_mm", "outer_by_product", "kron_by_product"),
    *("cdist_by_difference", "diagonal_by_select", "gather_cropped", "unfold_by_slices", "im2col_by_convolution"),
    *("col2im_by_transposed_convolution", "triu_by_compare", "tril_by_compare", "bucketize_by_compare"),
    *("index_add_written_out", "where_scalar_other", "where_scalar_self"),
    *("where_scalars", "where_of_full_size", "and_operator", "bool_and_is_logical", "or_operator"),
    *("bool_or_is_logical", "xor_operator", "bool_xor_is_logical", "new_ones_written_out"),
    *("unsafe_split_tensor_written_out", "unsafe_chunk_by_chunk", "left_shift_by_product", "right_shift_by_division"),
    *("zeros_dtype", "eye_dtype", "eye_m_dtype", "zeros_like_dtype", "ones_like_dtype", "full_like_dtype"),
    *("new_zeros_dtype", "new_full_dtype", "arange_dtype", "scalar_tensor_dtype", "full_of_a_size"),
    *(
        "unroll_gru",
        "unroll_projected_lstm",
        "lstm_cell_written_out",
        "gru_cell_written_out",
        "rnn_tanh_cell_written_out",
    ),
    "rnn_relu_cell_written_out",
    *MISSING_OPS,
)

#: whole-graph rewrites that come last: a later retracing of the graph would undo them.
PASSES: tuple[str, ...] = (
    *("aliases_dropped", "outputs_at_their_roots", "own_output_nodes"),
    *("infer_reshape_size", "rename_clashes", "fill_defaults"),
)

REWRITES: tuple[str, ...] = (*DECOMPOSITIONS, *PASSES)

PACKAGE = "model.mlpackage"


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What Core ML cannot take: rank, dtypes, unbounded dimensions, random and data-dependent ops. Needs torch only."""
    wide = "Core ML computes with float32 at most"
    refused = {"complex64": COMPLEX, "complex128": COMPLEX, "complex32": COMPLEX, "bfloat16": wide, "float64": wide}
    return [
        *dim_findings(signature),
        *reserved_findings(signature),
        *rank_findings(program),
        *dtype_findings(program, signature, refused),
        *size_findings(program),
        *op_findings(program, REWRITES),
    ]


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Convert to an ML Program, save it reproducibly, and read it back.

    Raises:
        LoweringError: with the op, its source line and the way out.
    """
    refuse_reserved(request.signature)
    examples = [_example_shape(node) for node in user_inputs(program)]
    spared = kept_weights(program, request)
    computed = None
    if precision(request.precision).quantized:
        program = quantized(program, request)
        if precision(request.precision).activations != "float":
            computed = arithmetic(program, request.keep_float)
    program = legalize(program, ("drop_derived_ranges", "functional_form"))
    notes = [*_mutation_notes(program), *growing_integers(program)]
    legal = _legal(program)
    keywords.refuse_unread(legal)
    values.refuse_wide_integers(legal)
    if request.precision == "fp16":
        values.refuse_fp16_overflow(legal)
    small_integers.widen_inputs(legal)
    taken = {t.name for t in (*request.signature.inputs, *request.signature.outputs)}
    order = state.output_order(legal)
    states = state.expose(legal, taken)
    by_buffer = {s.buffer: s for s in states}
    full = Signature(
        inputs=(*(s.input for s in states), *request.signature.inputs),
        outputs=(*(by_buffer[b].output for b in order), *request.signature.outputs),
    )
    fixed = [list(state.initial(legal, s.buffer).shape) for s in states]
    interface = features.interface(full, [*fixed, *examples])
    model, target, kept = convert(legal, interface, request)
    if request.precision == "int4-weight":
        model = four_bits(model, spared)
    path = request.directory / PACKAGE
    model.save(str(path))
    metadata = {SIGNATURE_KEY: signature_to_json(request.signature), TARGET_KEY: target}
    if states:
        state.save_initial({s.input.name: state.initial(legal, s.buffer) for s in states}, request.directory)
        described = [
            {"buffer": s.buffer, "input": s.input.name, "output": s.output.name}
            | {"dtype": s.input.dtype, "shape": list(s.input.shape)}
            for s in states
        ]
        metadata[STATE_KEY] = json.dumps(described, sort_keys=True)
        notes.append(
            "Core ML's own state holds fp16 only: pass "
            + ", ".join(f"'{s.output.name}' of each call as '{s.input.name}' of the next" for s in states)
            + f"; the first values are in {state.FILE}"
        )
    package.finish(path, metadata)
    lowered = _lowered(path, request, interface, target, [*notes, *kept], bool(states), spared)
    return replace(lowered, arithmetic=computed)


def _lowered(
    path: Path,
    request: LowerRequest,
    interface: features.Interface,
    target: str,
    notes: list[str],
    stateful: bool,
    kept: Mapping[str, KeptWeight],
) -> Lowered:
    from targets.mil import load as read_back

    made = read_back(path)
    counts = made.op_counts
    floats = left_float(made.float_weights, kept) if precision(request.precision).quantized else {}
    return Lowered(
        files=(PACKAGE, state.FILE) if stateful else (PACKAGE,),
        coverage=Coverage(
            delegated=sum(counts.values()), method="MIL operations; Core ML takes whole graphs: " + _counted(counts)
        ),
        warnings=(*interface.warnings, *notes),
        unquantized=floats,
        contract={
            "minimum_deployment_target": target,
            "deployment": deployment.describe(made, target),
            "carried": dict(interface.carried),
            "mil_ops": dict(counts),
            "compute_precision": "fp16" if request.precision == "fp16" else "fp32",
            **four_bit_weights(
                request.precision, "linear layers and embeddings have 4-bit weights; convolutions 8-bit ones"
            ),
        },
    )


def _counted(counts: Any) -> str:
    return ", ".join(f"{op} {n}" for op, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))


def _example_shape(node: Node) -> list[int]:
    """Sizes of the example that the program was exported with."""
    return [size if isinstance(size, int) else int(size.node.hint or 0) for size in node.meta["val"].shape]


def _mutation_notes(program: ExportedProgram) -> list[str]:
    specs = program.graph_signature.output_specs
    changed = [s.target for s in specs if s.kind.name == "USER_INPUT_MUTATION"]
    return [
        f"the program changes its input '{name}' in place; Core ML leaves the caller's data alone" for name in changed
    ]


def _legal(program: ExportedProgram) -> ExportedProgram:
    """The program in the ATen dialect, with every rewrite applied."""
    program = legalize(program, DECOMPOSITIONS)
    if program.dialect != "ATEN":
        program = program.run_decompositions({})
    return legalize(program, PASSES)


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Load a package: Core ML itself on macOS, an evaluator of its operations elsewhere.

    Raises:
        VerificationError: the package is damaged, or declares something else than the program.
    """
    if PACKAGE not in lowered_files:
        raise VerificationError(f"no {PACKAGE} among the artifact's files")
    return PackageRunner(directory / PACKAGE, signature)
