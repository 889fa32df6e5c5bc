"""Programs on which coremltools was quietly wrong, or stopped: each has PyTorch's values now."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from tests.coreml_support import Fn, same

R = torch.randn
NAN, INF = math.nan, math.inf
EDGES = torch.tensor([[NAN, INF, -INF, 0.0, -0.0, 4.0], [1.0, -2.0, NAN, 3.0, 0.5, -0.5]])
FIXED, FREE = "fixed", "free"

Function = Callable[[torch.Tensor], Any]


def holds(function: Function | nn.Module, folder: Path, sizes: str, *examples: torch.Tensor) -> None:
    """On each example; ``FREE``: the first dimension is chosen at run time, and 1 is tried too."""
    torch.manual_seed(0)
    inputs = examples or (R(3, 6) * 2,)
    module = function if isinstance(function, nn.Module) else Fn(lambda s, x: function(x))
    if sizes == FREE:
        inputs = (*inputs, inputs[0][:1])
        same(module, [(x,) for x in inputs], folder, ({0: Dim("b", min=1, max=9)},))
    else:
        same(module, [(inputs[0],)], folder)


both = pytest.mark.parametrize("sizes", [FIXED, FREE])


@both
def test_the_spread_of_everything(tmp_path: Path, sizes: str) -> None:
    def spreads(x: torch.Tensor) -> Any:
        named = torch.var(x, None, correction=2, keepdim=True), torch.std(x, [1], correction=None)
        return x.var(), x.std(), torch.var(x, unbiased=False), x.var(1, correction=0), *named

    holds(spreads, tmp_path, sizes)


def test_a_spread_with_no_freedom_left(tmp_path: Path) -> None:
    holds(lambda x: torch.var(x, [1], correction=3), tmp_path, FREE, R(2, 2))


@both
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("affine", [True, False])
def test_an_instance_norm_with_running_statistics(tmp_path: Path, sizes: str, rank: int, affine: bool) -> None:
    norm = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[rank - 1]
    layer = norm(3, affine=affine, track_running_stats=True)
    layer.load_state_dict({k: torch.full_like(v, 0.3) for k, v in layer.state_dict().items()})
    holds(layer, tmp_path, sizes, R(2, 3, *range(3, 3 + rank)))


@both
def test_logarithms_at_the_ends(tmp_path: Path, sizes: str) -> None:
    holds(
        lambda x: (torch.log2(x), torch.log10(x), torch.log1p(x), torch.log(x), torch.xlogy(x, x.flip(1))),
        tmp_path,
        sizes,
        EDGES,
    )
    (tmp_path / "whole").mkdir()
    holds(lambda x: (torch.log2(x), torch.log10(x)), tmp_path / "whole", sizes, torch.arange(-1, 5).reshape(2, 3))


@both
def test_selects_between_numbers(tmp_path: Path, sizes: str) -> None:
    def selects(x: torch.Tensor) -> Any:
        row, column = torch.arange(6.0), x[:, :1] > 0
        scalars = torch.where(x > 0, 1, 0), torch.where(x > 0, 0.5, -1.0), torch.where(x > 0, True, False)
        return *scalars, torch.where(column, row, torch.ones(6)), torch.where(x > 0, x[0, 0], x[0, 1])

    holds(selects, tmp_path, sizes)


@both
def test_one_tensor_returned_many_times(tmp_path: Path, sizes: str) -> None:
    def repeated(x: torch.Tensor) -> Any:
        y = x.relu()
        handed_on = y.detach(), y.clone(), F.dropout(y, 0.5, False), y.squeeze(1), y[:], y.detach().clone()
        return y, y, y.view(-1), *handed_on, x, x, x.clone(), x[:, :], y[:] * 2

    holds(repeated, tmp_path, sizes)


@both
def test_logic_on_numbers(tmp_path: Path, sizes: str) -> None:
    def logic(x: torch.Tensor) -> Any:
        y = x.flip(1)
        pairs = torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y > 0), torch.logical_not(x)
        return *pairs, x.any(), x.all(), x.any(1), x.all(1, keepdim=True)

    holds(logic, tmp_path, sizes, torch.tensor([[0.5, 0.0, -0.2], [0.0, 0.0, 0.0], [0.1, 0.9, NAN]]))
    (tmp_path / "whole").mkdir()
    holds(logic, tmp_path / "whole", sizes, torch.tensor([[-1, 0, 5], [0, 0, 0], [-1, -2, -3]]))


@both
def test_zeros_like_a_tensor_with_infinities(tmp_path: Path, sizes: str) -> None:
    holds(
        lambda x: (torch.zeros_like(x), x.nansum(1), torch.where(x > 0, x, torch.zeros_like(x))), tmp_path, sizes, EDGES
    )


def test_a_size_as_a_number_in_a_tensor(tmp_path: Path) -> None:
    holds(lambda x: (x.sum(0) / torch.scalar_tensor(x.shape[0]), torch.full([2], x.shape[0])), tmp_path, FREE)


LACKING: dict[str, Function] = {
    "losses": lambda x: (F.smooth_l1_loss(x, x * 2), F.huber_loss(x, -x), F.mse_loss(x, -x), F.l1_loss(x, -x)),
    "entropies": lambda x: (
        F.cross_entropy(x, x.argmin(1)),
        F.kl_div(x, x.softmax(1), reduction="sum"),
        F.binary_cross_entropy(x.sigmoid(), (x * 2).sigmoid()),
        F.soft_margin_loss(x, x.sign()),
    ),
    "counts": lambda x: (torch.count_nonzero(x.relu(), 1), torch.count_nonzero(x.relu()), x.nanmean(1)),
    "angles": lambda x: (torch.deg2rad(x), torch.rad2deg(x), torch.sinc(x * (x > 0)), torch.erfc(x)),
    "pairs": lambda x: (torch.hypot(x, x + 1), torch.copysign(x, x.flip(1)), torch.copysign(x, -1.5)),
    "lerp": lambda x: (torch.lerp(x, x + 1, x.sigmoid()), torch.heaviside(x, torch.tensor(0.5))),
    "shuffle": lambda x: (torch.channel_shuffle(x[:, :, None], 2), torch.diag_embed(x)),
    "products": lambda x: (torch.tensordot(x, x, ([1], [1])), torch.addr(torch.zeros(6, 6), x[0], x[0])),
    "cross": lambda x: (torch.cross(x[:, :3], x[:, 3:], dim=1), torch.linalg.cross(x[:, :3], x[:, 3:])),
    "diagonals": lambda x: (
        torch.einsum("ii->i", x.t() @ x),
        torch.einsum("bii->b", x[:, :, None] * x[:, None]),
        torch.einsum("bii->bi", x[:, :, None] * x[:, None]),
        torch.trace(x.t() @ x),
    ),
    "places": lambda x: (
        x.index_copy(1, torch.tensor([5, 1, 3]), x[:, :3] * 2),
        x.index_fill(1, torch.tensor([0, -2]), -1.5),
        torch.take(x, torch.tensor([0, 3, 5])),
    ),
    "isin": lambda x: torch.isin(x.to(torch.int32), torch.tensor([1, -1], dtype=torch.int32)),
    "order": lambda x: (*torch.kthvalue(x, 2, 1), torch.sort(x > 0, 1)[0], x.quantile(0.3, 1)),
    "stable": lambda x: (*torch.sort(x.round(), dim=1, stable=True), torch.argsort(x.round(), dim=1, stable=True)),
    "running": lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1), torch.logcumsumexp(x, 1)),
    "extremes": lambda x: (*torch.aminmax(x), *torch.nanmedian(x, 1)),
    "searches": lambda x: (
        torch.searchsorted(torch.arange(6.0), x, out_int32=True),
        torch.searchsorted(x.sort(1)[0], x.flip(1), right=True),
    ),
    "scatter": lambda x: (
        x.scatter_reduce(1, x.abs().long().clamp(max=5), x, "sum", include_self=False),
        x.scatter_reduce(1, x.abs().long().clamp(max=5), x, "amax", include_self=False),
        x.scatter_reduce(1, x.abs().long().clamp(max=5), x, "mean"),
    ),
    "pool1d": lambda x: F.adaptive_max_pool1d(x[:, None], 4),
}


@both
@pytest.mark.parametrize("name", LACKING)
def test_ops_that_coremltools_lacks(name: str, tmp_path: Path, sizes: str) -> None:
    holds(LACKING[name], tmp_path, sizes)


@both
def test_extremes_that_pass_over_nan(tmp_path: Path, sizes: str) -> None:
    holds(lambda x: (torch.fmax(x, x.flip(1)), torch.fmin(x, x.flip(1))), tmp_path, sizes, EDGES)


@both
def test_layers_that_coremltools_lacks(tmp_path: Path, sizes: str) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(4, 4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            pooled = F.adaptive_avg_pool3d(x, (2, 1, 3))
            return pooled, self.bilinear(x[:, 0, 0, 0], x[:, 0, 0, 1])

    holds(Both(), tmp_path, sizes, R(2, 2, 5, 3, 4))


def test_the_median_and_strides_of_fixed_sizes(tmp_path: Path) -> None:
    holds(lambda x: (x.median(), torch.as_strided(x, (2, 2), (1, 2))), tmp_path, FIXED)


@both
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_small_integers_wrap_around(tmp_path: Path, sizes: str, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([[info.min, info.max, 100, 3], [info.max - 1, 77, 0, 1]], dtype=dtype)
    holds(lambda x: (x + x.flip(1), x * 2, x - x.flip(1), -x, x.to(torch.int32) * x), tmp_path, sizes, x)
