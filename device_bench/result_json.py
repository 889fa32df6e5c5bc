"""Reading JSON that comes from a device or from a folder of results. Standard library only."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from build.errors import RejectedResultError


def read_json(content: bytes, what: str) -> Any:
    """JSON of finite numbers.

    Args:
        what: for the message: ``the result``.

    Raises:
        RejectedResultError: not text, cut short, a NaN, or nested without end.
    """
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RejectedResultError(f"{what} is not text") from error
    except RecursionError as error:
        raise RejectedResultError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise RejectedResultError(f"{what} is not whole JSON: {str(error)[:120]}") from error


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
