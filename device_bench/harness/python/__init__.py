"""The harness of the runtimes that have a Python package: a process of its own for each measurement.

``python -m device_bench.harness.python ENGINE JOB.json``, in the environment of the engine's target. The contract is
the native harness's: job and result files, end-of-run marker, exit codes.
"""
