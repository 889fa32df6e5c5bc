"""Seeded mutants of valid ``.pt2`` and ``.safetensors`` files, and a runner that watches what reading them does."""

from tests.fuzz.archives import bomb, evil_pickle, newer_version, read_zip, symlink, unsafe_name, write_zip
from tests.fuzz.documents import CALL_MUTATORS, PROGRAM_MUTATORS, mutants
from tests.fuzz.parts import FAULTS, HOSTILE_TEXTS, Entries, Mutant
from tests.fuzz.raw import truncate
from tests.fuzz.running import run_all

__all__ = [
    "CALL_MUTATORS",
    "FAULTS",
    "HOSTILE_TEXTS",
    "PROGRAM_MUTATORS",
    "Entries",
    "Mutant",
    "bomb",
    "evil_pickle",
    "mutants",
    "newer_version",
    "read_zip",
    "run_all",
    "symlink",
    "truncate",
    "unsafe_name",
    "write_zip",
]
