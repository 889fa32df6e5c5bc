"""Every error a user can meet, each with its own exit code. The one place where errors are defined."""

from __future__ import annotations

from typing import ClassVar


class EdgeportError(Exception):
    """An expected failure: one clear line (what, where, what to do), no traceback unless ``--debug``."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, op: str | None = None, source: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.source = source
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.message]
        if self.op and self.op not in self.message:
            parts.append(f"op {self.op}")
        if self.source:
            parts.append(f"at {self.source}")
        line = "; ".join(parts)
        return f"{line}. {self.remedy}" if self.remedy else line


class InputError(EdgeportError):
    """The command line, program, data or module that we were given cannot be used."""

    code = "bad-input"
    exit_code = 2


class UntrustedInputError(InputError):
    """A file that is damaged, hostile, or would run code when read."""

    code = "untrusted-input"


class LoweringError(EdgeportError):
    """No artifact: a target cannot express the program, or its converter failed."""

    code = "lowering-failed"
    exit_code = 3


class UnsupportedError(LoweringError):
    """The target's pre-flight refused the program before any conversion."""

    code = "unsupported"


class ConverterCrash(LoweringError):
    """The converter's process died (signal, abort, out of memory)."""

    code = "converter-crashed"


class VerificationError(EdgeportError):
    """An artifact was made, but it does not compute what the program computes."""

    code = "verification-failed"
    exit_code = 4


class UnverifiedError(VerificationError):
    """An artifact was made, but nothing on this host can run all of it: it is kept, and it is not ``ok``."""

    code = "unverified"


class MissingToolError(EdgeportError):
    """A tool or package that this step needs is not on this machine."""

    code = "missing-tool"
    exit_code = 5


class GateError(EdgeportError):
    """A gate the user asked for (``--strict``, ``--min-delegated``) was not met."""

    code = "gate-failed"
    exit_code = 6


class StorageError(EdgeportError):
    """The output folder cannot be written: disk full, no permission."""

    code = "storage"
    exit_code = 7


class DeviceError(EdgeportError):
    """A device cannot be reached or used, or a measurement on it failed."""

    code = "device"
    exit_code = 8


class DeviceLostError(DeviceError):
    """The connection to a device broke: what was running there may or may not have finished."""

    code = "device-lost"


class HarnessError(DeviceError):
    """The harness on the device ended without a measurement: it crashed, hung, or its engine failed."""

    code = "harness-failed"


class RejectedResultError(DeviceError):
    """What came back from a device is not a result: cut short, of another job, or not what the schema says."""

    code = "rejected-result"


INTERRUPTED_EXIT = 130


class InterruptedBuildError(EdgeportError):
    """Ctrl-C or a TERM signal came before this was done."""

    code = "interrupted"
    exit_code = INTERRUPTED_EXIT


#: code -> exit code, for rows that travel as JSON between processes.
EXIT_CODES: dict[str, int] = {
    c.code: c.exit_code
    for c in (
        EdgeportError,
        InputError,
        UntrustedInputError,
        LoweringError,
        UnsupportedError,
        ConverterCrash,
        VerificationError,
        UnverifiedError,
        MissingToolError,
        GateError,
        StorageError,
        DeviceError,
        DeviceLostError,
        HarnessError,
        RejectedResultError,
        InterruptedBuildError,
    )
}
