"""The models keep what their specs say, and their weights and data are what they claim to be."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from build.errors import InputError, MissingToolError
from models import digits_cnn, efficientnet_lite0, minilm, registry, weights_cache
from models.minilm_network import make_network
from models.sentences import EVALUATION
from models.spec import Call, ModelSpec

NAMES = [found.name for found in registry.available()]
ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def _spec(name: str) -> ModelSpec:
    return registry.load(name)


@functools.cache
def _module(name: str) -> Any:
    return _spec(name).factory()


def _dims(spec: ModelSpec) -> dict[tuple[str, int], tuple[str, int, int]]:
    """(input, axis) -> name, minimum and maximum of its Dim."""
    return {
        (name, axis): (dim.__name__, dim.min, dim.max)
        for name, axes in spec.dynamic_shapes().items()
        for axis, dim in axes.items()
    }


def _bytes(call: Call) -> tuple[bytes, ...]:
    return tuple(tensor.numpy().tobytes() for tensor in call.inputs.values())


# The table


def test_a_model_that_is_quantised_already_needs_no_calibration() -> None:
    assert list(_spec("digits_qat").calibration()) == []
    assert len(_spec("digits_qat").evaluation()) == 360


def test_an_unknown_name_gets_the_known_ones_and_a_guess() -> None:
    with pytest.raises(InputError) as caught:
        registry.facts("Digits-CN")
    assert "Did you mean 'digits_cnn'?" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(InputError) as caught:
        registry.load("zzz")
    assert "Did you mean" not in str(caught.value)


def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    monkeypatch.setattr(registry, "_TABLE", path)


def test_missing_packages_are_named_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _table(
        tmp_path, monkeypatch, '[m]\nmodule = "models.nowhere"\nsummary = "s"\npackages = ["torch", "no-such-thing"]'
    )
    with pytest.raises(MissingToolError, match="not installed: no-such-thing"):
        registry.load("m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[m]\nmodule = "models.digits_cnn"\nsummary = "s"\npackages = []', "calls itself 'digits_cnn'"),
        ('[m]\nmodule = "models.digits_cnn"\n', "must have exactly the keys"),
        ("[m\n", "not valid TOML"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    _table(tmp_path, monkeypatch, text)
    with pytest.raises(InputError, match=message):
        registry.load("m")


def test_specs_are_read_without_torch_or_any_model_package() -> None:
    code = (
        "import sys; from models import registry; [registry.load(f.name) for f in registry.available()];"
        "print([m for m in ('torch', 'numpy', 'sklearn', 'PIL', 'tokenizers', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Every spec


@pytest.mark.parametrize("name", NAMES)
def test_example_calls_and_forward_agree(name: str) -> None:
    spec, forward = _spec(name), inspect.signature(_module(name).forward)
    example = spec.example()
    assert list(example) == list(forward.parameters)
    assert set(spec.dynamic_shapes()) <= set(example)
    dims = _dims(spec)
    for call in [*spec.calibration(), *spec.evaluation()]:
        assert list(call.inputs) == list(example)
        sizes: dict[str, int] = {}
        for key, tensor in call.inputs.items():
            assert tensor.dtype == example[key].dtype
            assert tensor.is_contiguous()
            for axis, (size, model) in enumerate(zip(tensor.shape, example[key].shape, strict=True)):
                dim, lo, hi = dims.get((key, axis), ("", model, model))
                assert lo <= size <= hi, call.id
                assert sizes.setdefault(dim, size) == size or not dim, call.id


@pytest.mark.parametrize("name", [n for n in NAMES if n != "digits_qat"])
def test_calibration_and_evaluation_share_no_input(name: str) -> None:
    spec = _spec(name)
    calibration, evaluation = spec.calibration(), spec.evaluation()
    assert len(calibration) >= 32
    assert len(evaluation) >= 32
    for calls in (calibration, evaluation):
        assert len({call.id for call in calls}) == len(calls)
    assert not {_bytes(call) for call in calibration} & {_bytes(call) for call in evaluation}


@pytest.mark.parametrize("name", NAMES)
def test_making_the_model_leaves_the_random_numbers_alone(name: str) -> None:
    import torch

    before = torch.get_rng_state()
    _spec(name).factory()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_what_the_spec_says(name: str) -> None:
    import torch

    spec = _spec(name)
    module = _module(name)
    assert not module.training
    with torch.no_grad():
        output = module(**spec.example())
    assert list(spec.output_names) == [spec.output.output]
    assert torch.isfinite(output).all()
    if spec.output.kind == "classes":
        assert output.shape[-1] == len(spec.output.labels) == len(set(spec.output.labels))
    assert (spec.metric == "cosine_agreement") == (spec.output.kind == "embedding")


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_there_exactly_where_accuracy_is_measured(name: str) -> None:
    spec = _spec(name)
    for call in spec.evaluation():
        assert (call.label is not None) == (spec.metric == "top1_accuracy")
        if call.label is not None:
            assert 0 <= call.label < len(spec.output.labels)
            assert all(tensor.shape[0] == 1 for tensor in call.inputs.values())


@pytest.mark.parametrize("name", NAMES)
def test_sizes_to_verify_lie_inside_declared_dimensions(name: str) -> None:
    spec = _spec(name)
    dims = {dim: (lo, hi) for dim, lo, hi in _dims(spec).values()}
    assert set(spec.sizes) == set(dims)
    for dim, sizes in spec.sizes.items():
        lo, hi = dims[dim]
        assert sizes
        assert all(lo < size < hi for size in sizes)


#: ops that every exporter and converter knows; nothing data-dependent, random, or asserting.
PLAIN_OPS = {
    *("_to_copy", "adaptive_avg_pool2d", "add", "batch_norm", "clamp", "conv2d", "div", "embedding", "flatten", "gelu"),
    *("hardtanh", "layer_norm", "linear", "matmul", "max_pool2d", "mul", "pad", "relu", "reshape", "select", "slice"),
    *("softmax", "sqrt", "sub", "sum", "sym_size", "transpose", "unsqueeze"),
}


@pytest.mark.parametrize("name", [n if n == "digits_cnn" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_the_export_is_plain_and_keeps_its_range(name: str) -> None:
    import torch

    spec = _spec(name)
    module, example = _module(name), dict(spec.example())
    program = torch.export.export(module, (), example, dynamic_shapes=dict(spec.dynamic_shapes()))
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    assert {str(t).split(".")[1] for t in targets} <= PLAIN_OPS
    declared = sorted({(lo, hi) for _, lo, hi in _dims(spec).values()})
    assert sorted((int(r.lower), int(r.upper)) for r in program.range_constraints.values()) == declared
    exported, dims = program.module(), _dims(spec)
    smallest = {place: lo for place, (_, lo, _) in dims.items()}
    largest = {place: hi for place, (_, _, hi) in dims.items()}
    for ends in (smallest, largest):
        inputs = {
            key: _resized(tensor, [ends.get((key, axis), size) for axis, size in enumerate(tensor.shape)])
            for key, tensor in example.items()
        }
        with torch.no_grad():
            torch.testing.assert_close(exported(**inputs), module(**inputs), rtol=0, atol=1e-6)


def _resized(tensor: Any, shape: Sequence[int]) -> Any:
    """The tensor repeated along each axis, then cut."""
    repeats = [-(-new // old) for new, old in zip(shape, tensor.shape, strict=True)]
    return tensor.repeat(repeats)[tuple(slice(0, new) for new in shape)].contiguous()


# digits_cnn


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

    module, evaluation = _module("digits_cnn"), _spec("digits_cnn").evaluation()
    with torch.no_grad():
        right = [int(module(**call.inputs).argmax()) == call.label for call in evaluation]
    assert len(right) == 360
    assert sum(right) / len(right) > 0.97
    train, _, test, _ = digits_cnn.load_data()
    assert not {i.numpy().tobytes() for i in train} & {i.numpy().tobytes() for i in test}


def test_digits_input_is_the_raw_image_as_preprocessing_says() -> None:
    from sklearn.datasets import load_digits

    spec = _spec("digits_cnn")
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


# efficientnet_lite0


@pytest.mark.parametrize(("photo", "known"), [("china", 442), ("flower", 985), ("coffee", 967)])
def test_known_photographs_get_their_known_classes(photo: str, known: int) -> None:
    import torch

    [call] = [c for c in _spec("efficientnet_lite0").evaluation() if c.id == f"{photo}/whole"]
    with torch.no_grad():
        assert int(_module("efficientnet_lite0")(**call.inputs).argmax()) == known


def test_the_wrapper_computes_what_the_packages_network_does() -> None:
    import torch

    module, example = _module("efficientnet_lite0"), _spec("efficientnet_lite0").example()
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
        return _module("minilm")(**minilm.tokenize(texts, length))


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
    assert torch.equal(_module("minilm")(nothing, nothing), torch.zeros(2, 384))


def test_the_mask_survives_16_bit_floats() -> None:
    import torch

    half = make_network({name: tensor.half() for name, tensor in minilm.load_weights().items()})
    inputs = minilm.tokenize(["Yes.", "Where is the nearest pharmacy?"], 64)
    with torch.no_grad():
        found, expected = half(**inputs), _module("minilm")(**inputs)
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
            torch.testing.assert_close(_module("minilm")(**ours), expected, rtol=0, atol=1e-5)
