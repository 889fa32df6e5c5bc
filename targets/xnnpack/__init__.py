"""Parts of the ExecuTorch target: partitioning, ranges, coverage, diagnosis and the host runner."""
