"""What a model says of itself. One module per model in this folder offers ``spec() -> ModelSpec``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the model.

    Attributes:
        id: unique within its set; what reports name (``digits/test/17``).
        inputs: name -> tensor, in the order of ``forward``.
        label: the right class, where the data has one.
    """

    id: str
    inputs: Mapping[str, torch.Tensor]
    label: int | None = None


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How raw data becomes the model's inputs: what an app must repeat, byte for byte.

    Attributes:
        steps: in order, in words (``"resize to 224x224, bilinear, antialias"``).
        layout: axis order of the main input (``NCHW``; ``BT`` for tokens).
        color: ``RGB``, ``BGR``, ``gray`` or None.
        mean, std: per channel, in the unit of the raw data: the input is ``(raw - mean) / std``.
        tokenizer: how to tokenise, for text.
    """

    steps: Sequence[str]
    layout: str
    color: str | None = None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    tokenizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputMeaning:
    """What the main output says.

    Attributes:
        output: its name.
        kind: ``classes`` (scores over the last axis), ``embedding`` (a direction) or ``raw``.
        labels: class names in order, for ``classes``.
    """

    output: str
    kind: Literal["classes", "embedding", "raw"]
    labels: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits that an artifact must keep to ship. None: no limit.

    Attributes:
        platform: ``android``, ``web``, …; ``*`` for every one.
        device_class: the caller's own name for a class of devices (``low-end``); ``*`` for every one.
        max_bytes: size of all files of the artifact, in bytes.
        min_metric: lowest value of the model's metric.
        max_metric_drop: largest loss of the metric against PyTorch, in the metric's unit.
        max_changed: most changed decisions on the evaluation set, near-ties left out.
        p95_ms: largest 95th percentile of the latency on the device, in milliseconds.
        peak_mb: largest peak memory on the device, in MiB.
    """

    platform: str = "*"
    device_class: str = "*"
    max_bytes: int | None = None
    min_metric: float | None = None
    max_metric_drop: float | None = None
    max_changed: int | None = None
    p95_ms: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model: how to make it, feed it, judge it.

    Attributes:
        name: as ``--model`` spells it.
        summary: one line.
        factory: makes the module, weights loaded, in eval mode.
        example: the inputs it is exported with, by name, in the order of ``forward``.
        dynamic_shapes: as ``torch.export.export`` takes it, by input name.
        calibration, evaluation: calls for calibrated precisions and for judging artifacts; they share no input.
            A call's sizes may be any inside the declared ranges; a call with a label has batch 1.
        metric: ``top1_accuracy`` (share of evaluation calls whose argmax is the label), ``top1_agreement`` (share whose
            argmax is PyTorch's, for data without labels) or ``cosine_agreement`` (mean cosine similarity of the
            artifact's embeddings with PyTorch's).
        sizes: further sizes to verify at, beyond the bounds: dimension name (as ``Dim`` spells it) -> sizes.
        output_names: names for the outputs, when ``forward`` returns a bare tensor or tuple.
        tolerances: precision -> ``{"atol", "rtol", "scale"}`` (``fp32``, ``fp16``) or ``{"max_metric_drop",
            "min_snr_db"}`` (quantised ones), where the defaults do not fit; the reason in a comment.
        budgets: limits per platform and device class; ``nox -s check`` judges by them.
        licence: SPDX of the weights, or where they say it.
    """

    name: str
    summary: str
    factory: Callable[[], torch.nn.Module]
    example: Callable[[], Mapping[str, torch.Tensor]]
    preprocessing: Preprocessing
    output: OutputMeaning
    calibration: Callable[[], Sequence[Call]]
    evaluation: Callable[[], Sequence[Call]]
    metric: Literal["top1_accuracy", "top1_agreement", "cosine_agreement"]
    dynamic_shapes: Callable[[], Mapping[str, Any]] = dict
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    output_names: Sequence[str] = ()
    tolerances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    budgets: Sequence[Budget] = ()
    licence: str = "unknown"
