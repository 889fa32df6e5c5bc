"""A small CNN that reads handwritten digits: real labelled images, weights trained here in seconds.

Data: the 1,797 images of 8x8 pixels that scikit-learn ships (UCI "Optical Recognition of Handwritten Digits",
test set; E. Alpaydin and C. Kaynak, 1998, CC BY 4.0).

Training is reproducible on one machine: fixed seeds, one thread, deterministic algorithms. Another CPU type may sum in
another order and give other last bits, so the CPU's vector level is part of the cache key.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.spec import Budget, Call, ModelSpec, OutputMeaning, Preprocessing
from models.weights_cache import cache_key, cached

if TYPE_CHECKING:
    import torch

_SEED = 20240607
_TEST_IMAGES = 360
_CALIBRATION_IMAGES = 100
_EPOCHS = 14
_BATCH = 64
_MAX_BATCH = 64
#: pixel values are whole numbers from 0 to 16.
_WHITE = 16.0


def make_network() -> torch.nn.Module:
    """The network with untrained weights: ``image`` float32 [batch, 1, 8, 8] -> logits float32 [batch, 10]."""
    from torch import Tensor, nn

    class DigitsCnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1, bias=False),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, padding=1, bias=False),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(32, 32, 3, padding=1, bias=False),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            self.classifier = nn.Linear(32 * 2 * 2, 10)

        def forward(self, image: Tensor) -> Any:
            return self.classifier(self.features(image).flatten(1))

    return DigitsCnn()


@functools.cache
def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels, in a fixed shuffled order.

    Images are float32 [n, 1, 8, 8] from 0 to 1, labels int64 [n].
    """
    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(_SEED).permutation(len(digits.target))
    images = torch.from_numpy((digits.images[order, None] / _WHITE).astype(np.float32))
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    return images[_TEST_IMAGES:], labels[_TEST_IMAGES:], images[:_TEST_IMAGES], labels[:_TEST_IMAGES]


@contextmanager
def reproducible() -> Iterator[None]:
    """One thread, fixed seed, deterministic algorithms; the process's own settings return afterwards."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        try:
            torch.set_num_threads(1)
            torch.use_deterministic_algorithms(True)
            torch.manual_seed(_SEED)
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic)


def train() -> dict[str, torch.Tensor]:
    """Train from scratch on the training images; returns the state dict."""
    import torch
    from torch.nn.functional import cross_entropy

    images, labels, _, _ = load_data()
    with reproducible(), torch.enable_grad():
        network = make_network().train()
        steps = _EPOCHS * (len(labels) // _BATCH)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
        for _ in range(_EPOCHS):
            # The last, incomplete batch is dropped: a batch norm over a handful of images is noise.
            order = torch.randperm(len(labels))[: len(labels) // _BATCH * _BATCH]
            for batch in order.split(_BATCH):
                optimizer.zero_grad()
                cross_entropy(network(images[batch]), labels[batch]).backward()
                optimizer.step()
                schedule.step()
    return {name: tensor.detach() for name, tensor in network.state_dict().items()}


def _training_key() -> str:
    """Names everything that decides the trained weights."""
    import torch

    packages = ("torch", "numpy", "scikit-learn")
    return cache_key(
        Path(__file__).read_text(encoding="utf-8"),
        *(f"{name}=={importlib.metadata.version(name)}" for name in packages),
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    )


def _factory() -> torch.nn.Module:
    import torch

    weights = cached("digits_cnn", _training_key(), train)
    with torch.device("meta"):  # no random initial weights: they would advance the caller's random numbers
        network = make_network()
    network.load_state_dict(weights, assign=True)
    return network.eval()


def _example() -> Mapping[str, torch.Tensor]:
    # 16 images: PyTorch's CPU convolution takes another path below 16, and re-tracing must not pin that side.
    return {"image": load_data()[0][:16].clone()}


def _dynamic_shapes() -> Mapping[str, Any]:
    from torch.export import Dim

    return {"image": {0: Dim("batch", min=1, max=_MAX_BATCH)}}


def _calls(part: str, images: torch.Tensor, labels: torch.Tensor) -> Sequence[Call]:
    return [
        Call(id=f"digits/{part}/{i}", inputs={"image": images[i : i + 1].clone()}, label=int(label))
        for i, label in enumerate(labels)
    ]


def _calibration() -> Sequence[Call]:
    images, labels, _, _ = load_data()
    return _calls("train", images[:_CALIBRATION_IMAGES], labels[:_CALIBRATION_IMAGES])


def _evaluation() -> Sequence[Call]:
    _, _, images, labels = load_data()
    return _calls("test", images, labels)


def spec() -> ModelSpec:
    """The digits model: input ``image``, output ``logits``."""
    return ModelSpec(
        name="digits_cnn",
        summary="small CNN on scikit-learn's 8x8 handwritten digits, trained here in seconds",
        factory=_factory,
        example=_example,
        dynamic_shapes=_dynamic_shapes,
        preprocessing=Preprocessing(
            steps=(
                "8x8 pixels, ink 16, paper 0 (count of dark pixels per 4x4 block of a 32x32 bitmap)",
                "divide by 16",
                "float32, shape [batch, 1, 8, 8]",
            ),
            layout="NCHW",
            color="gray",
            mean=(0.0,),
            std=(_WHITE,),
        ),
        output=OutputMeaning(output="logits", kind="classes", labels=tuple("0123456789")),
        calibration=_calibration,
        evaluation=_evaluation,
        metric="top1_accuracy",
        sizes={"batch": (7,)},
        # At most one point of accuracy lost, and a file small enough to sit inside any app.
        budgets=(Budget(max_bytes=100_000, max_metric_drop=0.01),),
        output_names=("logits",),
        licence="Apache-2.0 (weights, trained here); data CC BY 4.0 (UCI Optical Recognition of Handwritten Digits)",
    )
