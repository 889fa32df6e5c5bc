"""Saving a program is exact and reproducible."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from build.archive import load_program, save_program
from build.content_hash import content_hash
from build.errors import InputError
from build.program import call, signature_of
from tests.archive_support import PROGRAMS, entries_of, refused, save_all


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    return save_all(tmp_path_factory.mktemp("programs"))


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
    assert max(len(v) for k, v in entries_of(tmp_path / "v.pt2").items() if "/weight_" in k) <= 64
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


def _not_exported(name: str, path: Path) -> None:
    module = torch.nn.Linear(4, 3).eval()
    if name == "TorchScript":
        torch.jit.save(torch.jit.trace(module, torch.randn(1, 4)), path)  # type: ignore[no-untyped-call]
    elif name == "pickle":
        torch.save(module.state_dict(), path, _use_new_zipfile_serialization=False)
    else:
        torch.save(module if name == "module" else module.state_dict(), path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("module", "is what torch.save writes"),
        ("state_dict", "is what torch.save writes"),
        ("TorchScript", "is TorchScript"),
        ("pickle", "is a pickle"),
    ],
)
def test_other_files_of_torch_are_named_and_the_way_out_is_export(name: str, says: str, tmp_path: Path) -> None:
    _not_exported(name, tmp_path / "m.pt2")
    said = refused(tmp_path / "m.pt2", says, "exported program", "torch.export.save")
    assert "or older" not in said


@pytest.mark.parametrize("cut", [1, 22, 200])
def test_a_file_that_was_cut_is_said_to_be(cut: int, saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    torch.export.save(saved["conv"][1], tmp_path / "c.pt2")
    (tmp_path / "c.pt2").write_bytes((tmp_path / "c.pt2").read_bytes()[:-cut])
    assert "after the end" not in refused(tmp_path / "c.pt2", "cut short")


def test_a_file_with_something_behind_it_is_said_to_be(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    (tmp_path / "c.pt2").write_bytes(saved["conv"][0].read_bytes() + b"more")
    refused(tmp_path / "c.pt2", "bytes after the end")
