"""Run a bundle's self-test vectors in a target's runtime: ``python -m build.bundle.selftest_worker TARGET``.

One job per artifact. Everything is read from the unpacked bundle; nothing of the build is at hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.bundle import contract as contracts
from build.bundle import selftest
from build.errors import UnverifiedError, VerificationError
from build.protocol import Emit, serve
from build.verify.check import signature_problems
from build.verify.compare import Tolerance, difference
from targets import registry
from targets.checks import SIGNATURE_VERSION, signature_from_json

if TYPE_CHECKING:
    from targets.contract import Array, Signature, Target


def run(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Load an artifact and compare its answers.

    Args:
        job: ``folder`` (the unpacked bundle), ``target``, ``precision``, ``main`` and ``files`` (paths in the bundle).

    Returns:
        ``{"runtime", "calls", "max_abs_diff"}``.

    Raises:
        VerificationError: the runtime refuses it, it declares another signature, or an answer is off.
        UnverifiedError: nothing on this host can run all of it.
    """
    folder = Path(job["folder"])
    signature = signature_of(json.loads((folder / contracts.FILE).read_text(encoding="utf-8")))
    home = f"models/{job['target']}/{job['precision']}/"
    emit("load")
    names = [job["main"], *(f for f in job["files"] if f != job["main"])]
    runner = target.load(folder / home, [n.removeprefix(home) for n in names], signature)
    wrong = signature_problems(runner.signature(), signature)
    if wrong:
        raise VerificationError(f"{job['main']} does not keep to the contract: {wrong[0]}")
    test = json.loads((folder / selftest.FILE).read_text(encoding="utf-8"))
    limits = test["tolerances"][f"{job['target']}/{job['precision']}"]
    missing = [s.name for s in signature.outputs if s.name not in limits]
    if missing:
        raise UnverifiedError(f"there is no tolerance for output '{missing[0]}': it was never run")
    worst = 0.0
    emit("run")
    for call in test["calls"]:
        got = runner.run({t["name"]: read(folder, t) for t in call["inputs"]})
        for tensor in call["outputs"]:
            name = tensor["name"]
            if name not in got:
                raise VerificationError(f"call '{call['id']}': {runner.runtime} returned no '{name}'")
            found = difference(name, got[name], read(folder, tensor), Tolerance(**limits[name]))
            if not found.ok:
                why = found.problem or f"off by up to {found.max_abs:g}"
                raise VerificationError(
                    f"self-test call '{call['id']}' in {runner.runtime}: output '{name}' has {found.beyond} elements "
                    f"beyond tolerance and {found.nonfinite} that are NaN or infinite where they should not be ({why})"
                )
            worst = max(worst, found.max_abs)
    return {"runtime": runner.runtime, "calls": len(test["calls"]), "max_abs_diff": worst}


def signature_of(contract: Mapping[str, Any]) -> Signature:
    """The signature inside a contract."""
    value = {"version": SIGNATURE_VERSION, "inputs": contract["inputs"], "outputs": contract["outputs"]}
    return signature_from_json(json.dumps(value))


def read(folder: Path, tensor: Mapping[str, Any]) -> Array:
    """A tensor of the self-test.

    Raises:
        VerificationError: its file does not hold what it should.
    """
    import numpy as np

    dtype = np.dtype(tensor["dtype"])
    data = (folder / tensor["file"]).read_bytes()
    count = int(np.prod(tensor["shape"], dtype=np.int64))
    if len(data) != count * dtype.itemsize:
        raise VerificationError(
            f"{tensor['file']} has {len(data)} bytes, {tensor['shape']} {dtype} needs another number"
        )
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(tensor["shape"])


def main() -> None:
    """Serve jobs for the target named on the command line."""
    target = registry.load(registry.select([sys.argv[1]])[0])
    serve(lambda job, emit: run(target, job, emit))


if __name__ == "__main__":
    main()
