"""The private root folder of an emulated device, and the namespace in which arm64 programs run.

Everything is mounted in a user and mount namespace of the emulator's own: nothing on the host changes, and no
privileges are needed. arm64 programs are run by qemu through a binfmt_misc of that namespace (Linux 6.7 and later).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from build import shell
from build.errors import EdgeportError, MissingToolError

_MARK = "EDGEPORT_EMULATOR_NAMESPACE"
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# The ELF header of a 64-bit little-endian AArch64 executable or shared object, and the bits that decide.
_MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
_MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
_HOST_FOLDERS = ("usr", "bin", "lib", "lib64", "sbin")
#: folders of a root that are the host's own, mounted.
MOUNTED = ("proc", "dev", *_HOST_FOLDERS)
#: the cores of the device; what the cpuinfo library must find, or arm64 builds of it crash on the host's x86 files.
_CORES = 2
#: for qemu, and what /proc/cpuinfo says. Not qemu's "max": its SME gives int8 models wrong products (seen with 7.2:
#: 13 % accuracy in place of 99 %, from both engines alike).
CPU = "cortex-a76"
BATTERY = "battery.txt"
#: dumpsys battery, as Android prints it: temperature in tenths of a degree.
_BATTERY_TEXT = """Current Battery Service state:
  AC powered: false
  USB powered: false
  Wireless powered: false
  level: 90
  temperature: 280
"""


def enter_namespace(argv: Sequence[str]) -> None:
    """Start this program again inside its own namespace, once; then register qemu there.

    Raises:
        MissingToolError: qemu is not installed, or the kernel does not allow such a namespace.
    """
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        raise MissingToolError("cannot run 'qemu-aarch64-static': it is not installed", remedy="Run: nox -s setup")
    if _MARK not in os.environ:
        probe = shell.run(["unshare", "-Urm", "--propagation", "private", "true"], check=False)
        if probe.returncode != 0:
            raise MissingToolError(
                "this machine allows no user namespaces, which the emulated device lives in",
                remedy="Allow them (sysctl kernel.unprivileged_userns_clone=1), or use a real device.",
            )
        os.environ[_MARK] = "1"
        command = ["unshare", "-Urm", "--propagation", "private", sys.executable, *argv]
        os.execvp(command[0], command)
    try:
        shell.run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT])
        (_BINFMT / "register").write_bytes(f":qemu-aarch64:M::{_MAGIC}:{_MASK}:{qemu}:OF".encode())
    except (EdgeportError, OSError) as error:
        raise MissingToolError(
            f"arm64 programs cannot be registered in a namespace: {error}",
            remedy="It takes Linux 6.7 or later; use a real device otherwise.",
        ) from error


def make_root(root: Path, properties: Mapping[str, str]) -> None:
    """Lay out a device: Android's folders, a shell, ``getprop``, ``dumpsys``, an arm64 ``/proc/cpuinfo``."""
    for name in ("data/local/tmp", "system/bin", "proc", "dev", "sys", "tmp", *_HOST_FOLDERS):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("proc", "dev"):
        shell.run(["mount", "--rbind", f"/{name}", root / name])
    for name in _HOST_FOLDERS:
        if Path(f"/{name}").is_dir():
            shell.run(["mount", "--rbind", "-o", "ro", f"/{name}", root / name])
    for name, text in _system_files().items():
        (root / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / name).write_text(text + "\n")
    (root / "tmp/cpuinfo").write_text("".join(_core(i) for i in range(_CORES)))
    shell.run(["mount", "--bind", root / "tmp/cpuinfo", root / "proc/cpuinfo"])
    if not (root / BATTERY).exists():
        (root / BATTERY).write_text(_BATTERY_TEXT)
    programs = root / "system/bin"
    (programs / "sh").unlink(missing_ok=True)
    (programs / "sh").symlink_to("/bin/sh")
    cases = "".join(f"  {name}) echo '{value}';;\n" for name, value in properties.items())
    every = "".join(f"echo '[{name}]: [{value}]'\n" for name, value in properties.items())
    _script(programs / "getprop", f"case \"$1\" in\n  '')\n{every};;\n{cases}  *) echo;;\nesac\n")
    _script(programs / "dumpsys", f'[ "$1" = battery ] && cat /{BATTERY}\n')


def _system_files() -> dict[str, str]:
    """Path below ``/sys`` -> content: CPUs, their clocks, a temperature."""
    cpus = "devices/system/cpu"
    found = {f"{cpus}/{name}": f"0-{_CORES - 1}" for name in ("possible", "present", "online")}
    found[f"{cpus}/kernel_max"] = str(_CORES - 1)
    for core in range(_CORES):
        clock = f"{cpus}/cpu{core}/cpufreq"
        found |= {f"{clock}/scaling_cur_freq": "1800000", f"{clock}/cpuinfo_max_freq": "2400000"}
        found[f"{clock}/scaling_governor"] = "schedutil"
    zone = "class/thermal/thermal_zone0"
    return found | {f"{zone}/type": "cpu-0-0", f"{zone}/temp": "41500"}


def _script(path: Path, text: str) -> None:
    path.write_text("#!/system/bin/sh\n" + text)
    path.chmod(0o755)


def _core(number: int) -> str:
    return (
        f"processor\t: {number}\nBogoMIPS\t: 100.00\n"
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
        "asimddp\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: 0xd0b\nCPU revision\t: 1\n\n"
    )
