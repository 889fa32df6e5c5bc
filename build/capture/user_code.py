"""Running what the user wrote: whatever it does wrong is their input's fault, and is said with their own line."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from build.errors import EdgeportError, InputError
from build.protocol import is_full_disk


@contextlib.contextmanager
def user_code(where: str, file: Path | None = None) -> Iterator[None]:
    """Turn exceptions, and ``sys.exit``, into one line of bad input.

    Args:
        where: what runs, as the message names it.
        file: whose line to name, where one of its lines is among those that ran.

    Raises:
        InputError: the code raised or left; errors of ours and a full disk pass as they are.
    """
    try:
        yield
    except EdgeportError:
        raise
    except SystemExit as error:
        raise InputError(
            f"{where} called sys.exit({'' if error.code is None else repr(error.code)})",
            source=_line(error, file),
            remedy="It must return, not end the process: put what a script does under if __name__ == '__main__'.",
        ) from error
    except Exception as error:
        if is_full_disk(error):
            raise
        text = " ".join(str(error).split())[:400]
        raise InputError(
            f"{where} failed: {type(error).__name__}" + (f": {text}" if text else ""), source=_line(error, file)
        ) from error


def _line(error: BaseException, file: Path | None) -> str | None:
    """``file.py:12 in make: raise ...``: the innermost line of the user's file, or of what lies beside it."""
    if file is None:
        return None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in Path(f.filename).parts]
    mine = [f for f in frames if Path(f.filename).resolve() == file]
    mine = mine or [f for f in frames if file.parent in Path(f.filename).resolve().parents]
    if not mine:
        return None
    last = mine[-1]
    code = f": {last.line.strip()[:120]}" if last.line else ""
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}{code}"
