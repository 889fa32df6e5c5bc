"""The digits model: trained when first needed, always to the same bytes, and cached."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from build.errors import InputError
from models import digits_cnn, weights_cache
from tests.model_support import module_of, spec_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(weights_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_two_trainings_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    files = []
    for number, name in enumerate(("first", "second")):
        monkeypatch.setenv(weights_cache.CACHE_VARIABLE, str(tmp_path / name))
        torch.manual_seed(number)  # what the process did before must not matter
        before = (torch.initial_seed(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
        digits_cnn.spec().factory()
        after = (torch.initial_seed(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
        assert after == before
        [path] = (tmp_path / name).iterdir()
        files.append((path.name, path.read_bytes()))
    assert files[0] == files[1]


def test_digits_are_read_from_images_never_trained_on() -> None:
    import torch

    module, evaluation = module_of("digits_cnn"), spec_of("digits_cnn").evaluation()
    with torch.no_grad():
        right = [int(module(**call.inputs).argmax()) == call.label for call in evaluation]
    assert len(right) == 360
    assert sum(right) / len(right) > 0.97
    train, _, test, _ = digits_cnn.load_data()
    assert not {i.numpy().tobytes() for i in train} & {i.numpy().tobytes() for i in test}


def test_digits_input_is_the_raw_image_as_preprocessing_says() -> None:
    from sklearn.datasets import load_digits

    spec = spec_of("digits_cnn")
    call = spec.evaluation()[0]
    raw = (call.inputs["image"][0, 0] * spec.preprocessing.std[0] + spec.preprocessing.mean[0]).numpy()
    digits = load_digits()
    [found] = [i for i, image in enumerate(digits.images) if (image == raw).all()]
    assert digits.target[found] == call.label


# The cache of trained weights


def _tiny() -> Mapping[str, Any]:
    import torch

    return {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "n": torch.tensor(7)}


def _never() -> Mapping[str, Any]:
    raise AssertionError("trained although the cache holds the weights")


def test_cached_weights_come_back_unchanged(cache: Path) -> None:
    import torch

    weights_cache.cached("m", "0" * 64, _tiny)
    again = weights_cache.cached("m", "0" * 64, _never)
    assert again.keys() == _tiny().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in _tiny().items())
    with pytest.raises(AssertionError, match="trained although"):
        weights_cache.cached("m", "1" * 64, _never)
    assert [path.suffix for path in cache.iterdir()] == [".safetensors"]


def _flip_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        _flip_last_byte,
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not a safetensors file",
        lambda data: data.replace(b'"sha256":"', b'"sha257":"'),
        lambda data: data.replace(b'"a":', b'"b":'),
    ],
    ids=["a bit flipped", "cut", "empty", "other content", "no hash", "renamed tensor"],
)
def test_a_damaged_cache_file_is_made_anew(cache: Path, damage: Any) -> None:
    weights_cache.cached("m", "0" * 64, _tiny)
    [path] = cache.iterdir()
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert path.read_bytes() != good
    weights_cache.cached("m", "0" * 64, _tiny)
    assert path.read_bytes() == good


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv(weights_cache.CACHE_VARIABLE, str(blocker))
    with pytest.raises(InputError, match=weights_cache.CACHE_VARIABLE):
        weights_cache.cached("m", "0" * 64, _tiny)


def test_the_key_tells_apart_texts_that_join_to_the_same() -> None:
    assert weights_cache.cache_key("ab", "c") != weights_cache.cache_key("a", "bc")
