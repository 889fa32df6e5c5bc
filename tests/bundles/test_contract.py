"""What breaks an app and what does not; versions; what a difference of two files is said to be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from build.bundle import contract as contracts
from build.bundle import manifest as manifests
from build.bundle.contents import labels_text
from build.bundle.difference import explain
from build.bundle.selftest import changed_between
from build.bundle.version import Version
from build.errors import InputError
from tests.bundles import support
from tests.conftest import ROOT

Change = Callable[[dict[str, Any]], object]


def _dim(value: dict[str, Any], side: str = "inputs") -> dict[str, Any]:
    found: dict[str, Any] = value[side][0]["shape"][0]
    return found


def _artifact(value: dict[str, Any], target: str) -> None:
    value["artifacts"].append({**value["artifacts"][0], "target": target})


BREAKING: dict[str, tuple[Change, str]] = {
    "input renamed": (lambda c: c["inputs"][0].update(name="z"), "inputs were"),
    "input added": (lambda c: c["inputs"].append({**c["inputs"][0], "name": "z"}), "inputs were"),
    "input dtype": (lambda c: c["inputs"][0].update(dtype="int64"), "was float32"),
    "input rank": (lambda c: c["inputs"][0]["shape"].append(1), "had 2 dimensions"),
    "input fixed size": (lambda c: c["inputs"][0]["shape"].__setitem__(1, 3), "dimension 1"),
    "range narrower": (lambda c: _dim(c).update(hi=4), "was 1..8, now it is 1..4"),
    "range begins later": (lambda c: _dim(c).update(lo=2), "was 1..8"),
    "range in steps": (lambda c: _dim(c).update(scale=2, offset=1), "dimension 0"),
    "size now fixed": (lambda c: c["inputs"][0]["shape"].__setitem__(0, 1), "now it is 1"),
    "layout": (lambda c: c["inputs"][0].update(layout="NHWC"), "layout"),
    "output renamed": (lambda c: c["outputs"][0].update(name="z"), "outputs were"),
    "output dtype": (lambda c: c["outputs"][0].update(dtype="float16"), "was float32"),
    "output size": (lambda c: c["outputs"][0]["shape"].__setitem__(1, 4), "dimension 1 of output"),
    "output no longer dynamic": (lambda c: c["outputs"][0]["shape"].__setitem__(0, 1), "dimension 0 of output"),
    "class order": (lambda c: c["labels"].reverse(), "class 0 was 'a', now it is 'c'"),
    "class count": (lambda c: c["labels"].append("d"), "there were 3"),
    "deciding output": (lambda c: c.update(decision_output=None), "deciding output"),
    "preprocessing": (lambda c: c["preprocessing"].update(mean=[1.0]), "mean was"),
    "constants": (lambda c: c.update(constants={"1": 2}), "constant outputs"),
    "target gone": (lambda c: c["artifacts"][0].update(target="litert"), "ort_web is gone"),
}
HARMLESS: dict[str, Change] = {
    "nothing": lambda c: None,
    "range wider": lambda c: _dim(c).update(lo=0, hi=None),
    "symbol renamed": lambda c: [_dim(c, s).update(symbol="s7") for s in ("inputs", "outputs")],
    "output added": lambda c: c["outputs"].append({**c["outputs"][0], "name": "z"}),
    "target added": lambda c: _artifact(c, "litert"),
}


@pytest.mark.parametrize("name", BREAKING)
def test_what_breaks_an_app_is_named(name: str) -> None:
    old, new = support.contract(), copy.deepcopy(support.contract())
    change, says = BREAKING[name]
    change(new)
    found = contracts.differences(old, new)
    assert any(says in f for f in found), found


@pytest.mark.parametrize("name", HARMLESS)
def test_what_breaks_no_app_is_let_pass(name: str) -> None:
    new = copy.deepcopy(support.contract())
    HARMLESS[name](new)
    assert contracts.differences(support.contract(), new) == []


def test_sizes_that_must_be_equal_now_break_an_app() -> None:
    old = support.contract()
    old["inputs"].append({**copy.deepcopy(old["inputs"][0]), "name": "w"})
    _dim(old)["symbol"], old["inputs"][1]["shape"][0]["symbol"] = "s0", "s1"
    new = copy.deepcopy(old)
    new["inputs"][1]["shape"][0]["symbol"] = "s0"
    assert contracts.differences(new, old) == []
    assert "must now be equal" in contracts.differences(old, new)[0]


def test_a_tokenizer_file_is_part_of_the_contract() -> None:
    old, new = (support.contract(tokenizer=[{"path": "tokenizer/t.json", "sha256": d * 64}]) for d in "ab")
    assert contracts.differences(old, new) == ["tokenizer file tokenizer/t.json changed"]


def test_versions_are_ordered_as_the_standard_says() -> None:
    texts = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
             "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]  # fmt: skip
    assert [str(v) for v in sorted(map(Version, reversed(texts)))] == texts
    assert Version("1.0.0") == Version("1.0.0")


@pytest.mark.parametrize("text", ["1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0 ", "../1.0.0", ""])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a semantic version"):
        Version(text)


def test_changed_decisions_are_counted_on_the_same_inputs_only() -> None:
    def value(inputs: dict[str, str], classes: dict[str, list[int]]) -> dict[str, Any]:
        return {"inputs": inputs, "artifacts": {"litert/fp32": classes}}

    old = value({"0": "h0", "1": "h1", "2": "h2"}, {"0": [1], "1": [2], "2": [3]})
    new = value({"a": "h0", "b": "h1", "c": "other"}, {"a": [1], "b": [7], "c": [0]})
    assert changed_between(old, new, "litert/fp32") == (1, 2)
    assert changed_between(old, new, "coreml/fp32") is None
    assert changed_between(None, new, "litert/fp32") is None


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "says"),
    [
        ("a.json", {"x": {"y": 1}}, {"x": {"y": 2}}, "/x/y is 1, rebuilt 2"),
        ("a.json", {"x": 1}, {"z": 1}, "/x is only in the bundle"),
        ("a.json", {"f": [{"path": "m", "n": 1}]}, {"f": [{"path": "m", "n": 2}]}, "/f/m/n is 1"),
        ("a.txt", "one\ntwo\n", "one\nTwo\n", "line 2: 'two', rebuilt 'Two'"),
        ("a.txt", "one\n", "one\ntwo\n", "1 lines, rebuilt 2"),
        ("a.bin", b"\xff\0producer_name\0\1", b"\xff\0producer_name\0\2", "1 bytes differ, the first at 16, after"),
        ("a.bin", b"\xff\0\0", b"\xff\0", "3 bytes, rebuilt 2"),
    ],
)
def test_a_difference_is_said_so_that_one_can_look_there(
    tmp_path: Path, name: str, ours: object, theirs: object, says: str
) -> None:
    paths = []
    for folder, value in (("a", ours), ("b", theirs)):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / name)
        data = value if isinstance(value, bytes) else value if isinstance(value, str) else json.dumps(value)
        paths[-1].write_bytes(data if isinstance(data, bytes) else data.encode())
    assert says in explain(*paths)


@pytest.mark.parametrize("label", ["", "a\nb", "a\r", "a\u2028b"])
def test_a_class_label_is_one_line(label: str) -> None:
    assert labels_text(["tench", "great white shark"]) == "tench\ngreat white shark\n"
    with pytest.raises(InputError, match="cannot be one line"):
        labels_text(["tench", label])


def test_schemas_are_schemas_and_the_contract_keeps_to_its() -> None:
    for path in (ROOT / "build" / "bundle").glob("*.schema.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    schema = json.loads((ROOT / "build" / "bundle" / "contract.schema.json").read_text())
    jsonschema.validate(support.contract(), schema)
    assert manifests.bundle_name("toy", "web") == support.NAME
