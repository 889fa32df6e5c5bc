"""System packages that later steps use: installed with apt where we may, otherwise the exact command is printed."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from build import shell
from build.errors import EdgeportError, MissingToolError
from build.log import fail, say


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A Debian package, the program (or file, for one without) that shows it is there, and what it is for."""

    package: str
    program: str
    purpose: str

    @property
    def present(self) -> bool:
        """Whether it is on this machine."""
        if self.program.startswith("/"):
            return Path(self.program).exists()
        return shutil.which(self.program) is not None


TOOLS = (
    Tool(package="g++", program="g++", purpose="builds this machine's harness"),
    Tool(package="g++-aarch64-linux-gnu", program="aarch64-linux-gnu-g++", purpose="builds the arm64 harness"),
    Tool(package="nlohmann-json3-dev", program="/usr/include/nlohmann/json.hpp", purpose="the harness's JSON library"),
    Tool(package="qemu-user-static", program="qemu-aarch64-static", purpose="runs arm64 programs for tests"),
    Tool(package="adb", program="adb", purpose="reaches Android devices"),
    Tool(package="openssh-client", program="ssh", purpose="reaches boards"),
    Tool(package="chromium", program="chromium", purpose="runs the web harness"),
)


def setup(*, dry_run: bool = False) -> None:
    """Install what is missing.

    Args:
        dry_run: say what is missing and the command, and run nothing.

    Raises:
        MissingToolError: we may not install; the message is the command that someone who may can run.
    """
    missing = [t for t in TOOLS if not t.present]
    for tool in TOOLS:
        say(f"{tool.package}: {'missing' if tool in missing else 'present'} ({tool.purpose})")
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *(t.package for t in missing)]
    if dry_run:
        say(f"would run: {shlex.join(command)}")
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise MissingToolError(
            f"not allowed to install {', '.join(t.package for t in missing)}",
            remedy=f"Run: sudo apt-get update && sudo {' '.join(command)}",
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    shell.run(["apt-get", "update", "-qq"], echo=True, env=quiet)
    shell.run(command, echo=True, env=quiet)
    say("system packages are installed")


def main(argv: list[str]) -> int:
    """``nox -s setup``."""
    about = "Install the system packages that are missing."
    p = argparse.ArgumentParser(prog="nox -s setup --", allow_abbrev=False, description=about)
    p.add_argument("--dry-run", action="store_true", help="say what is missing, and install nothing")
    raw, others = p.parse_known_args(argv)
    if others:  # nox gives what follows -- to every session named before it
        say(f"setup leaves {shlex.join(others)} to the sessions beside it")
    try:
        setup(dry_run=raw.dry_run)
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
