"""Torch's exceptions and logs as one line."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator


def reason(error: BaseException) -> str:
    """The innermost cause in one line: torch wraps it in the text of a whole traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    text = re.sub(r"Exception raised from .*", "", text)
    return f"{type(error).__name__}: {text}"[:300].rstrip(". ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch logs whole tracebacks on its way to an exception that we turn into one line."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
