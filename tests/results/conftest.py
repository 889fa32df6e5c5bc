"""A results folder for the tests of its readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs: three repeats on one device in each, and one more device in the newer."""
    place = tmp_path / "results"
    made.write_repeats(place, OLD, [made.normal(seed=s) for s in range(3)])
    made.write_repeats(place, NEW, [made.normal(seed=s, ms=11) for s in range(3)], started=LATER, threads=2)
    made.write_repeats(place, NEW, [made.normal(seed=9)], started=LATER)
    made.write(place, NEW, made.failed(device="board", target="executorch", started=LATER))
    return place
