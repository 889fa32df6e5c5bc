"""The worker processes of one build: what they run with, and that none outlives it. Standard library only."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from build.cache import ROOT, staging, sweep
from build.envs import Environment
from build.protocol import Worker


class Workers:
    """Made for a build that writes below ``out``; closed at its end."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._all: list[Worker] = []
        self._prepared: dict[str, Worker] = {}
        self._guard = threading.Lock()
        self._scratch = contextlib.ExitStack()
        self._temporary: Path | None = None

    def log(self, name: str) -> Path:
        """Where a worker's output goes."""
        return self._out / "logs" / f"{name}.log"

    def prepare(self, name: str, environment: Environment, module: str, *arguments: str) -> None:
        """Start the process that :meth:`start` will be asked for under this name, where none is prepared yet.

        Raises:
            StorageError: there is no room for it.
        """
        if name not in self._prepared:
            worker = self.start(name, environment, module, *arguments)
            worker.start()
            self._prepared[name] = worker

    def start(self, name: str, environment: Environment, module: str, *arguments: str) -> Worker:
        """A worker that runs a module of ours; its process starts with its first job, if it was not prepared.

        Raises:
            StorageError: there is no room for converters' temporary files.
        """
        prepared = self._prepared.pop(name, None)
        if prepared is not None:
            return prepared
        with self._guard:
            if self._temporary is None:  # where an abandoned build is swept up
                sweep(self._out)
                self._temporary = self._scratch.enter_context(staging(self._out))
        worker = Worker(
            [environment.python, "-m", module, *arguments],
            log=self.log(name),
            env={
                "PYTHONPATH": str(ROOT),
                # Sums in PyTorch are taken in another order with other threads: references, ranges and the bytes made
                # of them must not depend on --jobs or on this machine's cores.
                "OMP_NUM_THREADS": "1",
                "EDGEPORT_CACHE": str(self._out / "cache"),
                "PYTHONUNBUFFERED": "1",
                "TMPDIR": str(self._temporary),
            },
            name=name,
        )
        with self._guard:
            self._all.append(worker)
        return worker

    def kill(self) -> None:
        """End every process at once (the user interrupted)."""
        for worker in self._all:
            worker.kill()

    def close(self) -> None:
        """End every process, and remove what they left in their temporary folder."""
        for worker in self._prepared.values():
            worker.kill()  # there was no job for it, and it may be in the middle of an import
        for worker in self._all:
            worker.close()
        self._scratch.close()
