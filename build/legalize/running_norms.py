"""Instance norms that use the statistics of training instead of the input's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition(
    "aten.instance_norm.default",
    fault="coremltools never reads use_input_stats: it takes the input's statistics in place of the running ones",
)
def instance_norm_of_running_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """With given statistics, an instance norm and a batch norm at inference are one and the same."""
    import torch

    if use_input_stats or mean is None or var is None:
        return NotImplemented
    return torch.batch_norm(x, weight, bias, mean, var, False, momentum, eps, False)
