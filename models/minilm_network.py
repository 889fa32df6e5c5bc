"""The network of all-MiniLM-L6-v2: a BERT encoder of 6 layers, mean pooling, unit length.

It computes what transformers' BertModel and the pooling of sentence-transformers compute (a test compares them), spelt
with plain ops: no data-dependent branch, no boolean mask, no dropout, and a mask constant that fits 16-bit floats.
Method: Devlin et al., "BERT", 2019; Wang et al., "MiniLM", 2020; Reimers and Gurevych, "Sentence-BERT", 2019.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from build.errors import InputError

if TYPE_CHECKING:
    import torch

WIDTH = 384
_HEADS = 12
_INNER = 1536
_LAYERS = 6
_VOCABULARY = 30522
_POSITIONS = 512
_NORM_EPSILON = 1e-12
#: added to the attention score of a padding token. exp() of it is exactly 0 in 32 and in 16 bits, and it is a 16-bit
#: float itself; the lowest 32-bit float, which transformers adds, becomes -inf in 16 bits and then NaN.
_MASKED = -10000.0
#: smallest vector length divided by: far below that of any sentence, and not 0 in 16 bits.
_TINY = 1e-6

#: names in the published checkpoint -> ours.
_RENAMES = (
    (r"^embeddings\.word_embeddings\.weight$", "words.weight"),
    (r"^embeddings\.position_embeddings\.weight$", "positions"),
    (r"^embeddings\.token_type_embeddings\.weight$", "segments"),
    (r"^embeddings\.LayerNorm\.", "norm."),
    (r"^encoder\.layer\.(\d+)\.attention\.self\.", r"layers.\1."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.mix."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_norm."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.expand."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.contract."),
    (r"^encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.output_norm."),
)
#: tensors of the checkpoint that the embedding does not use.
_UNUSED = re.compile(r"^(pooler\.|embeddings\.position_ids$)")


def _renamed(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if not _UNUSED.match(name):
            for pattern, replacement in _RENAMES:
                name = re.sub(pattern, replacement, name)
            found[name] = tensor
    return found


def make_network(weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """``input_ids``, ``attention_mask`` int64 [batch, sequence] -> embedding float32 [batch, 384] of length 1.

    A row without a single real token gives zeros.

    Args:
        weights: tensors by their names in the published checkpoint.

    Raises:
        InputError: they are not those of all-MiniLM-L6-v2.
    """
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import gelu

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(WIDTH, WIDTH)
            self.key = nn.Linear(WIDTH, WIDTH)
            self.value = nn.Linear(WIDTH, WIDTH)
            self.mix = nn.Linear(WIDTH, WIDTH)
            self.attention_norm = nn.LayerNorm(WIDTH, eps=_NORM_EPSILON)
            self.expand = nn.Linear(WIDTH, _INNER)
            self.contract = nn.Linear(_INNER, WIDTH)
            self.output_norm = nn.LayerNorm(WIDTH, eps=_NORM_EPSILON)

        def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
            batch, sequence = hidden.shape[:2]
            split = (batch, sequence, _HEADS, WIDTH // _HEADS)
            query = self.query(hidden).reshape(split).transpose(1, 2)
            key = self.key(hidden).reshape(split).transpose(1, 2)
            value = self.value(hidden).reshape(split).transpose(1, 2)
            scores = torch.matmul(query, key.transpose(2, 3)) * (WIDTH // _HEADS) ** -0.5
            seen = torch.matmul(torch.softmax(scores + bias, dim=-1), value)
            seen = seen.transpose(1, 2).reshape(batch, sequence, WIDTH)
            hidden = self.attention_norm(self.mix(seen) + hidden)
            result: Tensor = self.output_norm(self.contract(gelu(self.expand(hidden))) + hidden)
            return result

    class MiniLm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(_VOCABULARY, WIDTH)
            self.positions = nn.Parameter(torch.empty(_POSITIONS, WIDTH))
            self.segments = nn.Parameter(torch.empty(2, WIDTH))
            self.norm = nn.LayerNorm(WIDTH, eps=_NORM_EPSILON)
            self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            # The op itself: Tensor.to would put an assertion about the input's dtype into the exported graph.
            mask = torch.ops.aten._to_copy.default(attention_mask, dtype=self.positions.dtype)
            # One sentence per row: every token is of segment 0, and positions count from 0.
            hidden = self.words(input_ids) + self.segments[0] + self.positions[: input_ids.shape[1]]
            hidden = self.norm(hidden)
            bias = ((mask - 1.0) * -_MASKED).unsqueeze(1).unsqueeze(2)
            for layer in self.layers:
                hidden = layer(hidden, bias)
            # Mean over the real tokens; an empty row is divided by 1, not by 0.
            weight = mask.unsqueeze(2)
            pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1.0)
            length = (pooled * pooled).sum(1, keepdim=True).sqrt()
            return pooled / length.clamp(min=_TINY)

    with torch.device("meta"):  # no random initial weights: they would advance the caller's random numbers
        network = MiniLm()
    try:
        network.load_state_dict(_renamed(weights), assign=True)
    except RuntimeError as error:
        raise InputError(f"the weights are not those of all-MiniLM-L6-v2: {error}") from error
    return network.eval()
