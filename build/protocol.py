"""How a build talks to its worker processes: JSON lines, jobs on stdin, events on a pipe of their own.

Converters print whatever they like on stdout and stderr; both go to the worker's log. A worker serves many jobs,
so its imports are paid once; when a converter kills the process, that job is lost and the next worker goes on.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from build import shell
from build.errors import ConverterCrash, EdgeportError, InterruptedBuildError, StorageError

Emit = Callable[[str], None]
Handler = Callable[[Mapping[str, Any], Emit], Mapping[str, Any]]
_PIPE = "EDGEPORT_EVENTS_FD"
#: begins a job's part of the log
_JOB = "=== job"


def is_full_disk(error: BaseException) -> bool:
    """Whether writing failed for a reason that no program is to blame for."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def error_to_json(error: BaseException) -> dict[str, Any]:
    """``{"code", "message", "op", "source", "remedy", "trace"}`` of any exception."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, EdgeportError):
        return {
            "code": error.code,
            "message": error.message,
            "op": error.op,
            "source": error.source,
            "remedy": error.remedy,
            "trace": trace,
        }
    if is_full_disk(error):
        return {**error_to_json(StorageError(f"cannot write: {getattr(error, 'strerror', error)}")), "trace": trace}
    if isinstance(error, KeyboardInterrupt):
        return {**error_to_json(InterruptedBuildError("interrupted")), "trace": trace}
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return {
        "code": "internal",
        "message": f"{type(error).__name__}: {first}"[:400],
        "op": None,
        "source": None,
        "remedy": "This is a fault in Edgeport: please report it with the log.",
        "trace": trace,
    }


def _end_with_parent() -> None:
    """Leave when the build is gone (killed): nobody waits for the answer any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _import_while_idle(modules: Sequence[str]) -> None:
    """Import one after the other until the first job is there. What is wrong with one, the job that needs it says."""
    for name in modules:
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def serve(handle: Handler, imports: Sequence[str] = ()) -> NoReturn:
    """The worker's side: answer jobs until stdin closes, then leave at once.

    Toolchains take seconds to tear down and some crash while doing it; everything that counts is on disk by then.

    Args:
        imports: modules that take long to import, for the time until the first job comes.
    """
    _end_with_parent()
    with os.fdopen(int(os.environ.pop(_PIPE)), "w") as events:

        def send(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")
            events.flush()

        send(event="ready")
        _import_while_idle(imports)
        for line in sys.stdin:
            job = json.loads(line)
            print(f"\n{_JOB} {job.get('label', '')}", flush=True)
            try:
                result = handle(job, lambda stage: send(event="stage", stage=stage))
                send(event="done", result=result)
            except BaseException as error:
                traceback.print_exc()
                leaves = not isinstance(error, Exception)
                send(event="failed", error=error_to_json(error), leaves=leaves)
                if leaves:
                    break
    sys.stdout.flush()
    os._exit(0)


class Worker:
    """The build's side of one worker process, started when the first job comes."""

    def __init__(self, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str], name: str) -> None:
        self._command, self._log, self._env, self.name = command, log, env, name
        self._process: subprocess.Popen[bytes] | None = None
        self._events = -1
        self._buffer = b""

    def start(self) -> None:
        """Start the process now, so that its imports run while something else is waited for.

        Raises:
            StorageError: its log cannot be written, or this machine has no room for another process.
        """
        if self._process is not None:
            return
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._launch(log)
        except OSError as error:
            raise StorageError(
                f"cannot start the {self.name} process with its log '{self._log}': {error.strerror or error}"
            ) from error

    def _launch(self, log: IO[bytes]) -> None:
        read, write = os.pipe()
        try:
            self._process = shell.start(
                self._command, stdout=log, env={**self._env, _PIPE: str(write)}, pass_fds=(write,)
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._events, self._buffer = read, b""

    def submit(self, job: Mapping[str, Any], on_stage: Callable[[str], None]) -> dict[str, Any]:
        """Run one job.

        Returns:
            ``{"result": …}`` or ``{"error": …}`` (see :func:`error_to_json`).

        Raises:
            ConverterCrash: the process died; the message says at which stage and of what.
        """
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        stage = "start"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        for event in self._read():
            if event["event"] == "stage":
                stage = event["stage"]
                on_stage(stage)
            elif event["event"] == "done":
                return {"result": event["result"]}
            elif event["event"] == "failed":
                if event["leaves"]:
                    self.close()  # the next job starts another
                return {"error": event["error"]}
        code = process.wait()
        self.close()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise ConverterCrash(
            f"the {self.name} process died during '{stage}' ({cause}): {self._last_words()}",
            remedy=f"Its output is in {self._log}; --debug shows it. Run preflight to see which ops are at risk.",
        )

    def _read(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                yield json.loads(line)
            select.select([self._events], [], [])
            chunk = os.read(self._events, 65536)
            if not chunk:
                return
            self._buffer += chunk

    def _last_words(self) -> str:
        try:
            text = self._log.read_bytes()[-4000:].decode(errors="replace")
        except OSError as error:
            return f"its log cannot be read: {error.strerror or error}"
        lines = [x for x in text.rpartition(_JOB)[2].splitlines()[_JOB in text :] if x.strip()]
        return lines[-1].strip()[:200] if lines else "it printed nothing"

    def close(self) -> None:
        """End the process, if it runs."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        shell.stop(process)
        os.close(self._events)

    def kill(self) -> None:
        """End the process at once (the user interrupted)."""
        if self._process is not None:
            shell.stop(self._process, grace=0.2)
