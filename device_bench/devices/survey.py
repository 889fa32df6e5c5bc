"""What a device's shell is asked about itself, and how the answers are read. Works with GNU, busybox and toybox."""

from __future__ import annotations

import re
from collections.abc import Mapping

from build.errors import DeviceError
from device_bench.devices.base import Conditions, Facts

_PROPERTIES = (
    "ro.product.manufacturer",
    "ro.product.model",
    "ro.soc.model",
    "ro.board.platform",
    "ro.build.version.release",
    "ro.build.version.sdk",
    "ro.product.cpu.abi",
    "ro.kernel.qemu",
    "ro.boot.qemu",
    "ro.hardware",
    "ro.edgeport.emulated",
)

FACTS_SCRIPT = f"""
echo "machine=$(uname -m)"
echo "kernel=$(uname -r)"
if command -v getprop >/dev/null 2>&1; then
  for p in {" ".join(_PROPERTIES)}; do echo "$p=$(getprop $p)"; done
fi
[ -r /etc/os-release ] && sed -n 's/^PRETTY_NAME=/os=/p' /etc/os-release | tr -d '"'
[ -r /proc/device-tree/model ] && echo "board=$(tr -d '\\000' < /proc/device-tree/model)"
[ -r /sys/devices/virtual/dmi/id/product_name ] && echo "product=$(cat /sys/devices/virtual/dmi/id/product_name)"
sed -n 's/^model name[[:space:]]*: /cpu=/p' /proc/cpuinfo | head -n 1
echo "cores=$(grep -c '^processor' /proc/cpuinfo)"
sed -n 's/^MemTotal: */memory_kb=/p' /proc/meminfo
true
"""

CONDITIONS_SCRIPT = """
[ -r /proc/loadavg ] && echo "load=$(cat /proc/loadavg)"
for c in /sys/devices/system/cpu/cpu[0-9]*; do
  [ -r "$c/cpufreq/scaling_cur_freq" ] && echo "khz.${c##*/}=$(cat "$c/cpufreq/scaling_cur_freq")"
  [ -r "$c/cpufreq/scaling_governor" ] && echo "governor.${c##*/}=$(cat "$c/cpufreq/scaling_governor")"
done
for z in /sys/class/thermal/thermal_zone*; do
  [ -r "$z/temp" ] && echo "zone.$(cat "$z/type" 2>/dev/null)=$(cat "$z/temp" 2>/dev/null)"
done
for b in /sys/class/power_supply/*; do
  [ "$(cat "$b/type" 2>/dev/null)" = Battery ] || continue
  echo "battery.level=$(cat "$b/capacity" 2>/dev/null)"
  echo "battery.status=$(cat "$b/status" 2>/dev/null)"
done
command -v dumpsys >/dev/null 2>&1 && dumpsys battery 2>/dev/null | sed -n 's/^ *\\([A-Za-z ]*\\): */dumpsys.\\1=/p'
true
"""

_ARCHES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv8l": "aarch64"}
_ABIS = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}
#: thermal zones whose type names a CPU sensor, on Linux boards and phones alike.
_CPU_ZONE = re.compile(r"cpu|x86_pkg_temp|soc|coretemp", re.IGNORECASE)


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition("=")
        if mark and value.strip():
            found.setdefault(key.strip(), value.strip())
    return found


def read_facts(kind: str, serial: str, text: str) -> Facts:
    """Facts from the output of ``FACTS_SCRIPT``.

    Raises:
        DeviceError: an architecture that the harness is not built for.
    """
    said = _pairs(text)
    machine = said.get("machine", "")
    abi = said.get("ro.product.cpu.abi")
    arch = _ABIS.get(abi or "", "") or ("" if abi else _ARCHES.get(machine, ""))
    if not arch:
        raise DeviceError(
            f"{kind} {serial}: the harness is not built for this device (ABI {abi or machine or 'unknown'})",
            remedy="It is built for aarch64 and x86_64.",
        )
    why = _emulated(said, arch, machine)
    release = said.get("ro.build.version.release")
    memory = said.get("memory_kb", "").split()
    return Facts(
        kind=kind,
        serial=serial,
        arch=arch,
        machine=machine,
        manufacturer=said.get("ro.product.manufacturer"),
        model=said.get("ro.product.model") or said.get("board") or said.get("product"),
        soc=said.get("ro.soc.model") or said.get("ro.board.platform") or said.get("cpu"),
        os=f"Android {release} (API {said.get('ro.build.version.sdk', '?')})" if release else said.get("os"),
        abi=abi,
        cores=int(said["cores"]) if said.get("cores", "").isdigit() else None,
        memory_mb=int(memory[0]) // 1024 if memory and memory[0].isdigit() else None,
        emulated=why is not None,
        why_emulated=why,
    )


def _emulated(said: Mapping[str, str], arch: str, machine: str) -> str | None:
    if said.get("ro.edgeport.emulated") == "1":
        return "Edgeport's emulated device"
    if said.get("ro.kernel.qemu") == "1" or said.get("ro.boot.qemu") == "1":
        return "Android's emulator (ro.kernel.qemu)"
    if said.get("ro.hardware") in ("goldfish", "ranchu"):
        return f"Android's emulator ({said['ro.hardware']})"
    if _ARCHES.get(machine) != arch:
        return f"{arch} programs on a {machine} kernel"
    return None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.split()[0])
    except (ValueError, IndexError):
        return None


def read_conditions(text: str) -> Conditions:
    """Conditions from the output of ``CONDITIONS_SCRIPT``.

    The gate's sensor is the battery (what Android's own tools go by), else the hottest CPU zone, else the hottest zone.
    """
    said = _pairs(text)
    zones = _zones(text)
    celsius, sensor = _temperature(said, zones)
    level = _number(said.get("dumpsys.level")) or _number(said.get("battery.level"))
    khz = {k.removeprefix("khz."): int(v) for k, v in said.items() if k.startswith("khz.") and v.isdigit()}
    return Conditions(
        celsius=celsius,
        sensor=sensor,
        battery_percent=level,
        charging=_charging(said),
        load1=_number(said.get("load")),
        governors=tuple(sorted({v for k, v in said.items() if k.startswith("governor.")})),
        khz=khz,
    )


def _zones(text: str) -> list[tuple[str, float]]:
    """Type and degrees of every zone: several may share a type. Readings that no chip has are left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("zone."):
            key, _, value = line.removeprefix("zone.").partition("=")
            reading = _number(value)
            if reading is not None:
                degrees = reading / 1000 if abs(reading) >= 1000 else reading
                if -40 < degrees < 150:
                    found.append((key, degrees))
    return found


def _temperature(said: Mapping[str, str], zones: list[tuple[str, float]]) -> tuple[float | None, str | None]:
    battery = _number(said.get("dumpsys.temperature"))
    if battery is not None:
        return battery / 10, "battery"
    chosen = [z for z in zones if _CPU_ZONE.search(z[0])] or zones
    if not chosen:
        return None, None
    sensor, degrees = max(chosen, key=lambda z: z[1])
    return degrees, sensor


def _charging(said: Mapping[str, str]) -> bool | None:
    powered = [said.get(f"dumpsys.{source} powered") for source in ("AC", "USB", "Wireless")]
    if any(p is not None for p in powered):
        return "true" in powered
    status = said.get("battery.status")
    return None if status is None else status.lower() in ("charging", "full")
