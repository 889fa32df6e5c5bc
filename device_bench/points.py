"""The points of a sweep: how many threads, which batch, which way of running. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from build.errors import InputError
from device_bench.job import Settings

_NAMES = ("batch", "threads")
MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class Point:
    """One of the settings under which every artifact is measured.

    Attributes:
        batch: of the timed call; None: the first evaluation call as it is.
        variant: a platform's way of running (a provider, a hint, a compute unit); empty where there is only one.
    """

    threads: int = 1
    batch: int | None = None
    variant: str = ""

    @property
    def slug(self) -> str:
        """For a file name: ``t2.b16.wasm``."""
        words = [f"t{self.threads}", f"b{self.batch}" if self.batch is not None else "", self.variant]
        return ".".join(w for w in words if w)

    @property
    def order(self) -> tuple[str, int, int]:
        """To sort by."""
        return self.variant, self.threads, self.batch or 0

    @property
    def text(self) -> str:
        """For people, after a label: ``, 2 threads, batch 16, wasm``; what is usual is left out."""
        words = [
            f"{self.threads} threads" if self.threads != 1 else "",
            f"batch {self.batch}" if self.batch is not None else "",
            self.variant,
        ]
        return "".join(f", {w}" for w in words if w)

    def applied(self, settings: Settings) -> Settings:
        """Settings with this point's threads and batch."""
        return replace(settings, threads=self.threads, batch=self.batch)

    def to_json(self) -> dict[str, Any]:
        """For a run's record."""
        return {"threads": self.threads, "batch": self.batch, "variant": self.variant}


def read_sweep(words: Sequence[str], *, threads: int, batch: int | None, variants: Sequence[str]) -> tuple[Point, ...]:
    """Every combination of ``batch=1,4,16`` and ``threads=1,2``; what a sweep does not name keeps its one value.

    Raises:
        InputError: another name, a value that is no number of 1 or more, a name twice.
    """
    axes: dict[str, list[int | None]] = {"batch": [batch], "threads": [threads]}
    seen = set()
    for word in words:
        name, _, text = word.partition("=")
        values = [v.strip() for v in text.split(",") if v.strip()]
        if name not in _NAMES or name in seen or not values or not all(v.isdigit() and int(v) > 0 for v in values):
            raise InputError(f"--sweep {word}: not understood", remedy="Write: --sweep batch=1,4,16 threads=1,2")
        if name == "threads" and max(map(int, values)) > MOST_THREADS:
            raise InputError(f"--sweep {word}: at most {MOST_THREADS} threads")
        seen.add(name)
        axes[name] = list(dict.fromkeys(int(v) for v in values))
    return tuple(
        Point(threads=t, batch=b, variant=v) for v in variants for t in axes["threads"] if t for b in axes["batch"]
    )
