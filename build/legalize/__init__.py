"""Meaning-preserving graph rewrites. ``core.py`` says how one is written; every other module holds some."""

from __future__ import annotations

import importlib
import pkgutil

from build.legalize.core import REGISTRY, Rewrite, legalize

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "core":
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["REGISTRY", "Rewrite", "legalize"]
