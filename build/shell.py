"""The one place that runs other programs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from build.errors import MissingToolError
from build.log import say


def run(
    command: Sequence[str | Path],
    *,
    echo: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    capture: bool = True,
    input_text: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return what it printed.

    Args:
        echo: say the command on stderr first.
        env: variables on top of this process's own.
        capture: collect stdout and stderr; otherwise they go where ours go.

    Raises:
        MissingToolError: the program is not here, or it failed and ``check`` is set (its last line is in the message).
    """
    words = [str(c) for c in command]
    if echo:
        say(shlex.join(words))
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            text=True,
            errors="replace",
            input=input_text,
            capture_output=capture,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingToolError(f"cannot run '{words[0]}': it is not installed") from error
    if check and done.returncode != 0:
        lines = [line for line in f"{done.stderr or ''}\n{done.stdout or ''}".splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "e:"))] or lines
        raise MissingToolError(
            f"'{shlex.join(words)}' failed with exit code {done.returncode}"
            + (f": {errors[0].strip()}" if errors else "")
        )
    return done


def transfer(
    command: Sequence[str | Path],
    *,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end with bytes in and out: from and to open files where given, else no input and collected output.

    Raises:
        MissingToolError: the program is not here.
        TimeoutError: it was still running after ``timeout`` seconds, and was killed with its children.
    """
    words = [str(c) for c in command]
    try:
        process = subprocess.Popen(
            words,
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingToolError(f"cannot run '{words[0]}': it is not installed") from error
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        stop(process)
        process.communicate()
        raise TimeoutError(f"'{words[0]}' was still running after {timeout:g} s") from error
    except BaseException:
        stop(process)
        raise
    return subprocess.CompletedProcess(words, process.returncode, out or b"", err or b"")


def start(
    command: Sequence[str | Path],
    *,
    stdout: IO[bytes],
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a long-lived program in its own process group, with stdin open and both outputs going to ``stdout``."""
    return subprocess.Popen(
        [str(c) for c in command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        pass_fds=tuple(pass_fds),
        cwd=cwd,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], *, grace: float = 3.0) -> None:
    """End a program started with :func:`start`, and its whole process group: asked first, then killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + grace
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    process.wait()
