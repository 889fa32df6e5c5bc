"""Quantising an ``ov.Model`` with NNCF: 8-bit arithmetic by calibration, or small weights in float arithmetic."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.errors import MissingToolError
from build.legalize.marks import Region
from targets.openvino_ir.marks import mark_of
from targets.openvino_ir.weights import whole_rows

if TYPE_CHECKING:
    from targets.contract import Array

#: weights of one row that share a scale and a zero point at 4 bits. With 128, NNCF's own choice, a text encoder
#: (all-MiniLM-L6-v2) came out at 9 dB.
_GROUP = 32


@contextlib.contextmanager
def _nncf() -> Iterator[Any]:
    """NNCF without its usage reports, progress bars and notices.

    Raises:
        MissingToolError: NNCF is not installed.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                import nncf
                from nncf.telemetry import decorator
            except ImportError as error:
                raise MissingToolError("NNCF is not installed", remedy="Install the 'openvino' group.") from error
            # it reports each call over the network
            decorator.telemetry = _Silent()
            yield nncf
    finally:
        logging.disable(level)


class _Silent:
    """In the place of NNCF's reporter."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _scope(nncf: Any, model: Any, region: Region) -> Any:
    names = [n.get_friendly_name() for n in model.get_ops() if mark_of(n) in region.ops]
    return nncf.IgnoredScope(names=sorted(names)) if names else None


def static(model: Any, calls: Sequence[Mapping[str, Array]], names: Sequence[str], region: Region) -> Any:
    """8-bit weights and activations, ranged by calibration.

    Weights use half their range: two products of full 8-bit operands overflow the 16 bits in which CPUs without VNNI
    add them.

    Args:
        names: the model's inputs, in order.
        calls: input name -> array, one entry per call.
    """
    # Correcting biases takes the mean error of each layer off. NNCF's fast way made a small CNN worse by 20 dB, its
    # slow way a text encoder by 2 dB (NNCF 3.4.0).
    with _nncf() as nncf:
        from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

        kinds = {n.get_type_name() for n in model.get_ops()}
        attention = bool(kinds & {"ScaledDotProductAttention", "Softmax"})
        quantized = nncf.quantize(
            model,
            nncf.Dataset([[call[n] for n in names] for call in calls]),
            subset_size=len(calls),
            preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER if attention else None,
            fast_bias_correction=attention,
            ignored_scope=_scope(nncf, model, region),
            advanced_parameters=AdvancedQuantizationParameters(
                overflow_fix=OverflowFix.ENABLE, activations_range_estimator_params=_whole_range()
            ),
        )
    keep_values(quantized, region)
    return quantized


def _whole_range() -> Any:
    """From the smallest to the largest value of all calls; NNCF's own choice, the mean over calls, cuts values off."""
    from nncf.quantization.range_estimator import (
        AggregatorType,
        RangeEstimatorParameters,
        StatisticsCollectorParameters,
        StatisticsType,
    )

    return RangeEstimatorParameters(
        min=StatisticsCollectorParameters(StatisticsType.MIN, AggregatorType.MIN),
        max=StatisticsCollectorParameters(StatisticsType.MAX, AggregatorType.MAX),
    )


def keep_values(model: Any, region: Region) -> None:
    """Take the quantisation off every value that stays float."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "FakeQuantize" and mark_of(node.input_value(0).get_node()) in region.values:
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(node.input_value(0))


def _eight_bits_for_other_rows() -> Any:
    """NNCF's own choice is to stop at a weight whose rows are no whole groups."""
    from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode

    return AdvancedCompressionParameters(group_size_fallback_mode=GroupSizeFallbackMode.ADJUST)


def small_weights(model: Any, bits: int, region: Region) -> Any:
    """Weights of 8 bits, one scale per output channel, or of 4 where a matrix product reads them; floats compute."""
    with _nncf() as nncf:
        modes = nncf.CompressWeightsMode
        options: dict[str, Any] = {"mode": modes.INT8_SYM}
        if bits == 4:
            options = {"mode": modes.INT4_ASYM, "group_size": _GROUP, "backup_mode": nncf.BackupMode.INT8_SYM}
            if not whole_rows(model, _GROUP):
                options["advanced_parameters"] = _eight_bits_for_other_rows()
        return nncf.compress_weights(model, ignored_scope=_scope(nncf, model, region), **options)
