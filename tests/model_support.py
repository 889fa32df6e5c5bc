"""The models' specs and networks, each made once for all tests of a process."""

from __future__ import annotations

import functools
from typing import Any

from models import registry
from models.spec import ModelSpec


@functools.cache
def spec_of(name: str) -> ModelSpec:
    """A model's spec."""
    return registry.load(name)


@functools.cache
def module_of(name: str) -> Any:
    """A model's network, with its weights."""
    return spec_of(name).factory()
