"""One module per model. ``spec.py`` is what a model says of itself; ``models.toml`` lists them."""
