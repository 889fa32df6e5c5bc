"""A device's outputs against this host's: what counts as rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from device_bench.accuracy import against_host
from tests.test_accuracy import record


def _outputs(noise_db: float | None = None) -> dict[str, dict[str, Any]]:
    """One call of unit signal, with noise so many dB below it."""
    rng = np.random.default_rng(1)
    value = rng.choice([-1.0, 1.0], 4096)
    if noise_db is not None:
        value = value + rng.choice([-1.0, 1.0], 4096) * 10 ** (-noise_db / 20)
    return {"call": {"y": value.astype(np.float32)}}


@pytest.mark.parametrize(
    ("device_db", "own_db", "flagged"),
    [
        (31.0, None, False),
        (29.0, None, True),
        (29.0, 40.0, True),
        (29.0, 24.1, True),
        (29.0, 22.0, False),
        (17.0, 10.0, False),
        (15.0, 10.0, True),
    ],
)
def test_a_quantised_artifact_may_round_a_part_of_its_own_noise(
    device_db: float, own_db: float | None, flagged: bool
) -> None:
    found = against_host(record(), "int8-static", _outputs(device_db), _outputs(), {"y": own_db})
    assert found["flagged"] is flagged
    assert not found["identical"]
    if flagged:
        assert f"SNR of {device_db:.1f} dB against the host, the least is" in found["why"][0]


def test_a_float_artifact_is_held_to_its_tolerance() -> None:
    found = against_host(record(), "fp32", _outputs(60.0), _outputs(), {"y": 10.0})
    assert found["flagged"]
    assert "beyond the tolerance" in found["why"][0]
    assert not against_host(record(), "fp32", _outputs(130.0), _outputs(), {"y": 120.0})["flagged"]
