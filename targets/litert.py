"""The LiteRT target: ``.tflite`` files for the LiteRT interpreter with XNNPACK.

litert-torch converts programs whose sizes are fixed well; its own dynamic dimensions break what reshapes or broadcasts.
So the program is converted at several sizes, and the differences between the flatbuffers are computed at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import MissingToolError, UnsupportedError
from targets.contract import Finding, Lowered, LowerRequest, Runner, Signature
from targets.precisions import precision
from targets.tflite.lowering import make
from targets.tflite.preflight import inspect

if TYPE_CHECKING:
    from torch.export import ExportedProgram

REWRITES: Sequence[str] = (
    "add_alpha",
    "sub_alpha",
    "rsub_alpha",
    "addmm_scaled",
    "baddbmm_scaled",
    "clamp_tensor_bounds",
    "round_decimals",
    "frac_by_floor",
    "left_shift_by_product",
    "right_shift_by_division",
    "float_floor_division",
    "float_trunc_division",
    "fmod_by_remainder",
    "dequantize_by_product",
    "views_as_reshapes",
    "masked_attention_by_matmul",
    "rms_norm_written_out",
    "layer_norm_centred",
    "group_norm_two_pass",
    "instance_norm_two_pass",
    "transposed_convolution_cropped",
    "transposed_convolution1d_cropped",
    "bucketize_by_compare",
    "col2im_by_transposed_convolution",
    "index_add_written_out",
    "scatter_reduce_by_parts",
    "kthvalue_by_sort",
    "erfc_by_erf",
    "exp2_by_power",
    "hypot_with_nan",
    "fmax_by_compare",
    "fmin_by_compare",
    "copysign_by_compare",
    "isin_by_compare",
    "searchsorted_by_compare",
    "var_of_all",
    "std_of_all",
    "var_mean_of_all",
    "std_mean_of_all",
    "median_by_sort",
    "sort_by_topk",
    "stable_sort_by_topk",
    "argsort_by_topk",
    "stable_argsort_by_topk",
    "topk_last_largest",
    "scatter_add_by_compare",
    "index_put_by_compare",
    "max_pool2d_indices_by_windows",
    "avg_pool2d_exact",
    "avg_pool1d_exact",
    "adaptive_max_pool2d_by_windows",
    "bilinear_by_index",
    "nearest_by_index",
    "nearest1d_by_index",
    "linear1d_by_index",
    "antialiased_bilinear_by_matmul",
    "upsample_bicubic2d_written_out",
    "upsample_nearest_exact1d_written_out",
    "upsample_nearest_exact2d_written_out",
    "grid_sample_by_index",
    "eq_of_small_integers",
    "ne_of_small_integers",
    "lt_of_small_integers",
    "le_of_small_integers",
    "gt_of_small_integers",
    "ge_of_small_integers",
    "sum_of_small_integers",
    "sum_dim_of_small_integers",
    "eye_by_compare",
    "eye_m_by_compare",
    "one_hot_by_compare",
    "low_bits_by_remainder",
    "abs_of_wide_integers",
    "not_of_wide_integers",
    "bool_xor_by_ne",
    "log_of_infinity",
    "log2_of_infinity",
    "log10_of_infinity",
    "log1p_of_infinity",
    "logit_of_one",
    "rsqrt_by_sqrt",
    "whole_power_by_products",
    "infinite_bounds_dropped",
    "topk_values_by_place",
)


#: Left out of quantised artifacts: 8 bits hold neither infinity nor NaN, and each further op would be rounded.
_OF_FLOATS = frozenset(name for name in REWRITES if name.endswith("_of_infinity"))


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """See :class:`targets.contract.Target`."""
    return inspect(program, signature, REWRITES)


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """See :class:`targets.contract.Target`."""
    for finding in preflight(program, request.signature):
        if finding.verdict == "refused":
            raise UnsupportedError(
                f"LiteRT cannot take {finding.subject}: {finding.why}",
                op=finding.subject,
                source=finding.source,
                remedy=finding.remedy,
            )
    quantized = precision(request.precision).quantized
    return make(program, request, [name for name in REWRITES if not (quantized and name in _OF_FLOATS)])


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """See :class:`targets.contract.Target`."""
    from targets.tflite.runner import LiteRtRunner

    try:
        return LiteRtRunner((Path(directory) / lowered_files[0]).read_bytes(), signature)
    except ImportError as error:
        raise MissingToolError(
            f"LiteRT does not run on this host: {error}", remedy="Install ai-edge-litert."
        ) from error
