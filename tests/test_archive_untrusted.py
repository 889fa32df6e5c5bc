"""Programs from outside: damage and attacks are refused in one line, and nothing of them runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from build.archive import check_pt2, save_program
from build.content_hash import content_hash
from build.errors import InputError, UntrustedInputError
from build.untrusted import grammar
from build.untrusted.container import Limits
from tests import fuzz
from tests.archive_support import edit, entries_of, export, refused, save_all, write


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    return save_all(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("what", ["missing.pt2", "folder.pt2"])
def test_paths_that_are_no_files(what: str, tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(InputError, match=what):
        check_pt2(tmp_path / what)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_files_that_are_no_archives(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(content)
    refused(tmp_path / "x.pt2")


def test_a_newer_archive_and_a_newer_schema_name_torch(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    entries = entries_of(path)
    entries["program/archive_version"] = b"1"
    refused(write(tmp_path / "a.pt2", entries), "newer torch", "torch 2.13")
    newer = edit(path, tmp_path / "s.pt2", "models/model.json", '"major": 8', '"major": 9')
    refused(newer, "newer torch", "schema 9", "torch 2.13")
    unknown = edit(path, tmp_path / "u.pt2", "models/model.json", '"verifiers"', '"new_field": 1, "verifiers"')
    refused(unknown, "new_field", "newer torch")


def test_two_inputs_of_one_name_are_refused(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    found = []
    for name, (path, _) in saved.items():
        entries = entries_of(path)
        model = json.loads(entries["program/models/model.json"])
        call = model["graph_module"]["module_call_graph"][0]["signature"]
        if len(call["forward_arg_names"] or ()) > 1:
            call["forward_arg_names"] = [call["forward_arg_names"][0]] * len(call["forward_arg_names"])
            entries["program/models/model.json"] = json.dumps(model).encode()
            found.append(refused(write(tmp_path / f"{name}.pt2", entries), "two inputs have one name"))
    assert found


def test_an_unknown_op_is_named(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    absent = edit(path, tmp_path / "a.pt2", "models/model.json", "aten.relu.default", "aten.relu_nine.default")
    refused(absent, "aten.relu_nine.default", kind=InputError)
    custom = edit(path, tmp_path / "c.pt2", "models/model.json", "aten.relu.default", "mine.relu.default")
    refused(custom, "mine.relu.default", "--trust")


@pytest.mark.parametrize("target", ["torch.os.system", "torch.hub.load", "torch.ops.aten.from_file.default", "eval"])
def test_a_call_that_is_no_tensor_op_is_refused(
    target: str, saved: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, _ = saved["conv"]
    bad = edit(path, tmp_path / "b.pt2", "models/model.json", "torch.ops.aten.relu.default", target)
    refused(bad, target.removeprefix("torch.ops."))


def test_recorded_sizes_and_dtypes_must_be_what_the_ops_give(
    saved: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, _ = saved["conv"]
    entries = entries_of(path)
    model = json.loads(entries["program/models/model.json"])
    model["graph_module"]["graph"]["tensor_values"]["relu"]["sizes"][1] = {"as_int": 5}
    entries["program/models/model.json"] = json.dumps(model).encode()
    refused(write(tmp_path / "b.pt2", entries), "aten.relu.default", "float32[2, 4, 6, 6]", kind=InputError)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"as_int": 4}', '"as_int": 4000000}'),
        ('"as_int": 4}', '"as_int": -4}'),
        ('"dtype": 7', '"dtype": 8'),
        ('"dtype": 7', '"dtype": 77'),
        ('"storage_offset": {"as_int": 0}', '"storage_offset": {"as_int": 99}'),
        ('"weight_0"', '"../weight_0"'),
        ('"weight_0"', '"weight_7777"'),
        ('"type": "cpu"', '"type": "cuda"'),
    ],
)
def test_weights_must_fit_their_bytes(old: str, new: str, saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    refused(edit(saved["conv"][0], tmp_path / "w.pt2", "data/weights/model_weights_config.json", old, new))


def test_a_damaged_byte_is_found_though_torch_does_not_look(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, program = saved["conv"]
    data = bytearray(path.read_bytes())
    weight = program.state_dict["net.0.weight"].detach().numpy().tobytes()
    data[data.find(weight) + 3] ^= 1
    (tmp_path / "d.pt2").write_bytes(data)
    assert torch.export.load(tmp_path / "d.pt2") is not None
    refused(tmp_path / "d.pt2", "damaged", "CRC")


def test_messages_stay_on_one_line_whatever_the_names(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    long = "a\\nb" * 5000
    for entry in ("models/model.json", "data/weights/model_weights_config.json"):
        for old in ('"net.0.weight"', '"dtype"'):
            if f"{old}".encode() in entries_of(path)[f"program/{entry}"]:
                assert len(refused(edit(path, tmp_path / "n.pt2", entry, old, f'"{long}"'))) < 600
    entries = entries_of(path)
    entries[f"program/{'n' * 60_000}"] = b""
    assert len(refused(write(tmp_path / "e.pt2", entries))) < 600


def test_size_limits(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    with pytest.raises(UntrustedInputError, match="limit of 1000"):
        check_pt2(path, limits=Limits(total_bytes=1000))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries_of(path).items():
            archive.writestr(name, bytes(64 << 20) if name.endswith(".pt") else content, zipfile.ZIP_DEFLATED)
    (tmp_path / "bomb.pt2").write_bytes(buffer.getvalue())
    refused(tmp_path / "bomb.pt2", "bomb")


def test_example_inputs_of_the_users_own_class_need_trust(tmp_path: Path) -> None:
    program = export("conv")
    entries_path = tmp_path / "c.pt2"
    save_program(program, entries_path)
    entries = entries_of(entries_path)
    buffer = io.BytesIO()
    torch.save((((Path("x"),), {})), buffer)
    entries["program/data/sample_inputs/model.pt"] = buffer.getvalue()
    refused(write(entries_path, entries), "pathlib", "--trust")
    check_pt2(entries_path, trust=True)


def test_the_unrestricted_unpickler_stays_closed_even_past_the_check(tmp_path: Path) -> None:
    """A second lock: with the check switched off, torch's own fallback must still not run code."""
    from build import archive

    path = tmp_path / "e.pt2"
    save_program(export("conv"), path)
    entries = entries_of(path)
    canary = tmp_path / "canary"

    class Exploit:
        def __reduce__(self) -> Any:
            return (open, (str(canary), "w"))

    entries["program/data/sample_inputs/model.pt"] = pickle.dumps(Exploit())
    write(path, entries)
    with path.open("rb") as stream, archive._no_code(trust=False), pytest.raises(InputError):
        archive._load(stream, path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "text",
    [
        "Mul(Integer(2), Symbol('s1', positive=True, integer=True))",
        "Add(Integer(-1), FloorDiv(Symbol('s77', positive=True, integer=True), Integer(2)))",
        "s0 + 1",
        "Symbol('u0', integer=True)",
    ],
)
def test_sizes_that_torch_writes_are_accepted(text: str) -> None:
    grammar.check_expression(text, "here")


@pytest.mark.parametrize(
    "text", [t for t in fuzz.HOSTILE_TEXTS if t != "def"] + ["E", "Symbol('x')", "open", "s0.free"]
)
def test_hostile_sizes_and_guards_are_refused(text: str) -> None:
    with pytest.raises(UntrustedInputError):
        grammar.check_expression(text, "here")
    if text not in ("9**9**9**9",):
        with pytest.raises(UntrustedInputError):
            grammar.check_guard(text, "here")


@pytest.mark.parametrize(
    "text",
    ["L['x'].size()[0] % 8 == 0", "2 <= L['a']['b_0'].size()[1]", "(L['x'].size()[0] // 2) != 1", "Eq(Mod(4, 2), 0)"],
)
def test_guards_that_torch_writes_are_accepted(text: str) -> None:
    grammar.check_guard(text, "here")


def test_mutants_are_refused_or_load_but_never_harm(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    count = int(os.environ.get("EDGEPORT_FUZZ", "60"))
    sources = [path.read_bytes() for path, _ in saved.values()]
    hashes = [content_hash(program) for _, program in saved.values()]
    files = list(fuzz.mutants(sources, fuzz.PROGRAM_MUTATORS, count, seed=20))
    results = fuzz.run_all(tmp_path, files, ".pt2", hashes)
    assert len(results) == count
    assert [r for r in results if r.outcome in fuzz.FAULTS] == []
    # Another program may come out only where a changed value has a right checksum.
    free = ("flipped_weight", "bent_model", "bent_weights", "bent_pickle", "plausible")
    assert [r for r in results if r.outcome == "different" and not r.name.startswith(free)] == []
    assert sum(r.outcome == "refused" for r in results) > count // 2


def test_the_fuzz_runner_reports_crashes_and_code_that_ran(tmp_path: Path) -> None:
    """The watcher must be able to fail: an unchecked reader of the same mutants is caught."""
    rows = [fuzz.Mutant(name="evil", data=b"evil"), fuzz.Mutant(name="dies", data=b"dies")]
    results = fuzz.run_all(tmp_path, rows, ".selftest", [])
    assert [r.outcome for r in results] == ["executed", "crash"]
