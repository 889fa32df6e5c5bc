"""The pretrained models compute what their packages do, on known inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from build.errors import InputError
from models import efficientnet_lite0, minilm
from models.minilm_network import make_network
from models.sentences import EVALUATION
from tests.model_support import module_of, spec_of


@pytest.mark.parametrize(("photo", "known"), [("china", 442), ("flower", 985), ("coffee", 967)])
def test_known_photographs_get_their_known_classes(photo: str, known: int) -> None:
    import torch

    [call] = [c for c in spec_of("efficientnet_lite0").evaluation() if c.id == f"{photo}/whole"]
    with torch.no_grad():
        assert int(module_of("efficientnet_lite0")(**call.inputs).argmax()) == known


def test_the_wrapper_computes_what_the_packages_network_does() -> None:
    import torch

    module, example = module_of("efficientnet_lite0"), spec_of("efficientnet_lite0").example()
    with torch.no_grad():
        assert torch.equal(module(**example), module.net(example["image"]))


def test_preprocessing_keeps_rgb_order_and_scale() -> None:
    import torch
    from PIL import Image

    image = efficientnet_lite0.preprocess(Image.new("RGB", (300, 200), (255, 127, 0)))
    expected = torch.tensor([1.0, 0.0, -127 / 128]).reshape(1, 3, 1, 1).expand(1, 3, 224, 224)
    assert torch.equal(image, expected)


def test_a_photograph_that_is_not_installed_is_an_error_not_a_download() -> None:
    with pytest.raises(InputError, match=r"does not ship nothing\.png"):
        efficientnet_lite0._open("skimage.data", "nothing.png")


# minilm


def _embed(texts: Sequence[str], length: int | None = None) -> Any:
    import torch

    with torch.no_grad():
        return module_of("minilm")(**minilm.tokenize(texts, length))


def test_embeddings_have_length_one_and_paraphrases_are_near() -> None:
    import torch

    found = _embed(["The cat sat on the mat.", "A cat was sitting on a rug.", "Interest rates rose again."])
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    near, far = float(found[0] @ found[1]), float(found[0] @ found[2])
    assert near > 0.5 > 0.2 > far


def test_padding_changes_nothing() -> None:
    import torch

    texts = ["Yes.", "Where is the nearest pharmacy?"]
    alone = torch.cat([_embed([text]) for text in texts])
    torch.testing.assert_close(_embed(texts), alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(_embed(texts, 128), alone, rtol=0, atol=1e-6)


def test_a_row_without_tokens_gives_zeros_not_nan() -> None:
    import torch

    nothing = torch.zeros(2, 3, dtype=torch.int64)
    assert torch.equal(module_of("minilm")(nothing, nothing), torch.zeros(2, 384))


def test_the_mask_survives_16_bit_floats() -> None:
    import torch

    half = make_network({name: tensor.half() for name, tensor in minilm.load_weights().items()})
    inputs = minilm.tokenize(["Yes.", "Where is the nearest pharmacy?"], 64)
    with torch.no_grad():
        found, expected = half(**inputs), module_of("minilm")(**inputs)
    assert found.dtype == torch.float16
    assert float((found.float() * expected).sum(1).min()) > 0.999


def test_long_texts_are_cut_at_128_tokens() -> None:
    inputs = minilm.tokenize(["word " * 500])
    assert tuple(inputs["input_ids"].shape) == (1, 128)
    assert int(inputs["attention_mask"].sum()) == 128


def test_other_weights_are_refused() -> None:
    weights = minilm.load_weights()
    weights.pop("embeddings.LayerNorm.bias")
    with pytest.raises(InputError, match=r"norm\.bias"):
        make_network(weights)


@pytest.mark.slow
def test_minilm_equals_transformers() -> None:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    with minilm.package_files() as folder:
        bert = BertModel(BertConfig.from_json_file(str(folder / "config.json")), add_pooling_layer=False).eval()
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert not bert.load_state_dict(minilm.load_weights(), strict=False).missing_keys
    for start in range(0, len(EVALUATION), 8):
        texts = list(EVALUATION[start : start + 8])
        theirs = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        ours = minilm.tokenize(texts)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        mask = theirs["attention_mask"].unsqueeze(2).float()
        with torch.no_grad():
            hidden = bert(input_ids=theirs["input_ids"], attention_mask=theirs["attention_mask"]).last_hidden_state
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            expected = torch.nn.functional.normalize(pooled, dim=1)
            torch.testing.assert_close(module_of("minilm")(**ours), expected, rtol=0, atol=1e-5)
