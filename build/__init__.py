"""The pipeline: capture, legalise, lower, verify, cache, manifest. Generated files go to ``out/``, never here."""
