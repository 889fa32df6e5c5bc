"""One module per target. ``contract.py`` is the Protocol; ``targets.toml`` holds the facts."""
