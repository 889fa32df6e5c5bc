"""Programs from outside: damage and attacks are refused in one line, and saving is exact and reproducible."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from build.archive import check_pt2, load_program, save_program
from build.errors import EdgeportError, InputError, UntrustedInputError
from build.program import call, content_hash, signature_of
from build.untrusted import grammar
from build.untrusted.container import Limits
from tests import fuzz


class _Small(torch.nn.Module):
    """Dynamic batch, a shared and a transposed weight, a constant, and two views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 3)
        self.b = torch.nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.t = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
        self.c = torch.arange(3.0)
        self.register_buffer("row", self.a.weight.detach()[1])
        self.register_buffer("wide", torch.ones(1).expand(3))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.a(x) + self.b(x) * self.c + self.wide
        return {"h": h.reshape(x.shape[0] // 2, 2, 3), "s": self.row.sum() + self.t.sum() + k}


class _Branch(torch.nn.Module):
    """A conditional: graphs within the graph."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cond(x.sum() > 0, lambda v: v * 2.0, lambda v: v - 1.0, (x,))
        return y, x.reshape(-1)[: x.shape[1]]


class _Conv(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).mean((2, 3))


def _dim(name: str, low: int, high: int) -> Any:
    return torch.export.Dim(name, min=low, max=high)


PROGRAMS: dict[str, Any] = {
    "small": lambda: (_Small(), (torch.randn(8, 4), torch.tensor(3)), {"x": {0: 4 * _dim("n", 1, 8)}, "k": None}),
    "branch": lambda: (_Branch(), (torch.randn(4, 5),), {"x": {0: _dim("b", 2, 16), 1: _dim("t", 2, 64)}}),
    "conv": lambda: (_Conv().eval(), (torch.randn(2, 3, 8, 8),), None),
}


def export(name: str) -> Any:
    torch.manual_seed(0)
    module, args, shapes = PROGRAMS[name]()
    return torch.export.export(module, args, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Name -> (its file, the program in memory)."""
    folder = tmp_path_factory.mktemp("programs")
    found = {}
    for name in PROGRAMS:
        program = export(name)
        save_program(program, folder / f"{name}.pt2")
        found[name] = (folder / f"{name}.pt2", program)
    return found


def _entries(path: Path) -> fuzz.Entries:
    return fuzz.read_zip(path.read_bytes())


def _write(path: Path, entries: fuzz.Entries) -> Path:
    path.write_bytes(fuzz.write_zip(entries))
    return path


def _edit(source: Path, target: Path, name: str, old: str, new: str) -> Path:
    """A copy with the first ``old`` of one text entry replaced."""
    entries = _entries(source)
    key = f"program/{name}"
    assert old in entries[key].decode()
    entries[key] = entries[key].decode().replace(old, new, 1).encode()
    return _write(target, entries)


def _refused(path: Path, *words: str, kind: type[EdgeportError] = UntrustedInputError) -> str:
    with pytest.raises(kind) as caught:
        load_program(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize("name", PROGRAMS)
def test_save_then_load_gives_the_same_program(name: str, saved: dict[str, tuple[Path, Any]]) -> None:
    path, program = saved[name]
    loaded = load_program(path)
    assert content_hash(loaded) == content_hash(program)
    assert signature_of(loaded) == signature_of(program)
    tensors = list(PROGRAMS[name]()[1])
    for a, b in zip(call(program)(tensors), call(loaded)(tensors), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_gives_the_same_bytes(name: str, saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, program = saved[name]
    save_program(program, tmp_path / "other name.pt2")
    save_program(load_program(path), tmp_path / "reloaded.pt2")
    sums = {hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, *tmp_path.glob("*.pt2"))}
    assert len(sums) == 1


def test_plain_torch_loads_what_we_save(saved: dict[str, tuple[Path, Any]]) -> None:
    for path, program in saved.values():
        assert content_hash(torch.export.load(path)) == content_hash(program)


def test_we_load_what_plain_torch_saves(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    for name, (_, program) in saved.items():
        torch.export.save(program, tmp_path / f"{name}.pt2")
        assert content_hash(load_program(tmp_path / f"{name}.pt2")) == content_hash(program)


def test_tensor_data_is_aligned_for_memory_mapping(saved: dict[str, tuple[Path, Any]]) -> None:
    path, _ = saved["conv"]
    data = path.read_bytes()
    for info in zipfile.ZipFile(path).infolist():
        name_bytes, extra_bytes = (int.from_bytes(data[info.header_offset + o :][:2], "little") for o in (26, 28))
        assert (info.header_offset + 30 + name_bytes + extra_bytes) % 64 == 0


def test_views_of_another_dtype_and_of_large_storages_survive(tmp_path: Path) -> None:
    class Views(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(4096.0)
            self.register_buffer("bits", torch.arange(8.0))
            self.register_buffer("ints", self.bits.view(torch.int32))
            self.register_buffer("cut", whole[100:104])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x + self.bits, self.ints * 2, self.cut * 1

    module = Views()
    program = torch.export.export(module, (torch.ones(8),))
    save_program(program, tmp_path / "v.pt2")
    loaded = load_program(tmp_path / "v.pt2")
    for a, b in zip(call(loaded)([torch.ones(8)]), module(torch.ones(8)), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    assert max(len(v) for k, v in _entries(tmp_path / "v.pt2").items() if "/weight_" in k) <= 64
    assert program.state_dict["ints"].data_ptr() == program.state_dict["bits"].data_ptr(), "saving changed the program"


def test_derived_dimensions_have_symbol_ranges_only_after_loading(saved: dict[str, tuple[Path, Any]]) -> None:
    import sympy

    loaded = load_program(saved["small"][0])
    envs = [n.meta["val"].fake_mode.shape_env for n in loaded.graph.nodes if n.op == "placeholder"]
    assert envs[0].var_to_range
    assert all(isinstance(key, sympy.Symbol) for key in envs[0].var_to_range)


def test_a_named_tuple_cannot_be_saved_and_leaves_no_file(tmp_path: Path) -> None:
    class TopK(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.topk(x, 2)

    program = torch.export.export(TopK(), (torch.randn(5),))
    with pytest.raises(InputError, match=r"cannot save.*topk"):
        save_program(program, tmp_path / "t.pt2")
    assert list(tmp_path.iterdir()) == []


def test_saving_into_a_file_of_a_folder_is_a_clear_error(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    (tmp_path / "p.pt2").mkdir()
    with pytest.raises(InputError, match=r"cannot write p\.pt2"):
        save_program(saved["conv"][1], tmp_path / "p.pt2")


@pytest.mark.parametrize("what", ["missing.pt2", "folder.pt2"])
def test_paths_that_are_no_files(what: str, tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(InputError, match=what):
        check_pt2(tmp_path / what)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_files_that_are_no_archives(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(content)
    _refused(tmp_path / "x.pt2")


def test_a_newer_archive_and_a_newer_schema_name_torch(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    entries = _entries(path)
    entries["program/archive_version"] = b"1"
    _refused(_write(tmp_path / "a.pt2", entries), "newer torch", "torch 2.13")
    newer = _edit(path, tmp_path / "s.pt2", "models/model.json", '"major": 8', '"major": 9')
    _refused(newer, "newer torch", "schema 9", "torch 2.13")
    unknown = _edit(path, tmp_path / "u.pt2", "models/model.json", '"verifiers"', '"new_field": 1, "verifiers"')
    _refused(unknown, "new_field", "newer torch")


def test_an_unknown_op_is_named(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    absent = _edit(path, tmp_path / "a.pt2", "models/model.json", "aten.relu.default", "aten.relu_nine.default")
    _refused(absent, "aten.relu_nine.default", kind=InputError)
    custom = _edit(path, tmp_path / "c.pt2", "models/model.json", "aten.relu.default", "mine.relu.default")
    _refused(custom, "mine.relu.default", "--trust")


@pytest.mark.parametrize("target", ["torch.os.system", "torch.hub.load", "torch.ops.aten.from_file.default", "eval"])
def test_a_call_that_is_no_tensor_op_is_refused(
    target: str, saved: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, _ = saved["conv"]
    bad = _edit(path, tmp_path / "b.pt2", "models/model.json", "torch.ops.aten.relu.default", target)
    _refused(bad, target.removeprefix("torch.ops."))


def test_recorded_sizes_and_dtypes_must_be_what_the_ops_give(
    saved: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, _ = saved["conv"]
    entries = _entries(path)
    model = json.loads(entries["program/models/model.json"])
    model["graph_module"]["graph"]["tensor_values"]["relu"]["sizes"][1] = {"as_int": 5}
    entries["program/models/model.json"] = json.dumps(model).encode()
    _refused(_write(tmp_path / "b.pt2", entries), "aten.relu.default", "float32[2, 4, 6, 6]", kind=InputError)


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
    _refused(_edit(saved["conv"][0], tmp_path / "w.pt2", "data/weights/model_weights_config.json", old, new))


def test_a_damaged_byte_is_found_though_torch_does_not_look(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, program = saved["conv"]
    data = bytearray(path.read_bytes())
    weight = program.state_dict["net.0.weight"].detach().numpy().tobytes()
    data[data.find(weight) + 3] ^= 1
    (tmp_path / "d.pt2").write_bytes(data)
    assert torch.export.load(tmp_path / "d.pt2") is not None
    _refused(tmp_path / "d.pt2", "damaged", "CRC")


def test_messages_stay_on_one_line_whatever_the_names(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    long = "a\\nb" * 5000
    for entry in ("models/model.json", "data/weights/model_weights_config.json"):
        for old in ('"net.0.weight"', '"dtype"'):
            if f"{old}".encode() in _entries(path)[f"program/{entry}"]:
                assert len(_refused(_edit(path, tmp_path / "n.pt2", entry, old, f'"{long}"'))) < 600
    entries = _entries(path)
    entries[f"program/{'n' * 60_000}"] = b""
    assert len(_refused(_write(tmp_path / "e.pt2", entries))) < 600


def test_size_limits(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = saved["conv"]
    with pytest.raises(UntrustedInputError, match="limit of 1000"):
        check_pt2(path, limits=Limits(total_bytes=1000))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in _entries(path).items():
            archive.writestr(name, bytes(64 << 20) if name.endswith(".pt") else content, zipfile.ZIP_DEFLATED)
    (tmp_path / "bomb.pt2").write_bytes(buffer.getvalue())
    _refused(tmp_path / "bomb.pt2", "bomb")


def test_example_inputs_of_the_users_own_class_need_trust(tmp_path: Path) -> None:
    program = export("conv")
    entries_path = tmp_path / "c.pt2"
    save_program(program, entries_path)
    entries = _entries(entries_path)
    buffer = io.BytesIO()
    torch.save((((Path("x"),), {})), buffer)
    entries["program/data/sample_inputs/model.pt"] = buffer.getvalue()
    _refused(_write(entries_path, entries), "pathlib", "--trust")
    check_pt2(entries_path, trust=True)


def test_the_unrestricted_unpickler_stays_closed_even_past_the_check(tmp_path: Path) -> None:
    """A second lock: with the check switched off, torch's own fallback must still not run code."""
    from build import archive

    path = tmp_path / "e.pt2"
    save_program(export("conv"), path)
    entries = _entries(path)
    canary = tmp_path / "canary"

    class Exploit:
        def __reduce__(self) -> Any:
            return (open, (str(canary), "w"))

    entries["program/data/sample_inputs/model.pt"] = pickle.dumps(Exploit())
    _write(path, entries)
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
