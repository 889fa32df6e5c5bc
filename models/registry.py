"""Which models there are: reads ``models.toml``. Imports neither torch nor a model until ``load``."""

from __future__ import annotations

import difflib
import importlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import InputError, MissingToolError

if TYPE_CHECKING:
    from models.spec import ModelSpec

_TABLE = Path(__file__).with_name("models.toml")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One table of ``models.toml``.

    Attributes:
        name: as ``--model`` spells it.
        module: what ``load`` imports; it offers ``spec() -> ModelSpec``.
        summary: one line.
        packages: distributions whose versions decide the weights, the data or the graph.
    """

    name: str
    module: str
    summary: str
    packages: tuple[str, ...]


def available() -> list[ModelFacts]:
    """All models, in the order of ``models.toml``.

    Raises:
        InputError: the table is not TOML, or one of its models lacks a key.
    """
    try:
        tables = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"models/{_TABLE.name} is not valid TOML: {error}") from error
    return [_facts(name, table) for name, table in tables.items()]


def _facts(name: str, table: object) -> ModelFacts:
    keys = {"module", "summary", "packages"}
    if not isinstance(table, dict) or set(table) != keys:
        raise InputError(
            f"models/{_TABLE.name}: [{name}] must have exactly the keys {', '.join(sorted(keys))}",
            remedy="See the comment at the top of that file.",
        )
    return ModelFacts(
        name=name, module=str(table["module"]), summary=str(table["summary"]), packages=tuple(table["packages"])
    )


def facts(name: str) -> ModelFacts:
    """The facts of one model.

    Raises:
        InputError: no model has that name; the message lists those there are.
    """
    known = {f.name: f for f in available()}
    if name in known:
        return known[name]
    # Names are compared without case and with "-" as "_": the two commonest slips.
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise InputError(f"no model is named '{name}'", remedy=f"{hint}Known models: {', '.join(sorted(known))}.")


def load(name: str) -> ModelSpec:
    """Import the model's module and ask it for its spec. Makes neither weights nor data yet.

    Raises:
        InputError: no model has that name, or the module speaks of another model.
        MissingToolError: packages that the model needs are not installed.
    """
    found = facts(name)
    missing = [package for package in found.packages if not _installed(package)]
    if missing:
        raise MissingToolError(
            f"model '{name}' needs packages that are not installed: {', '.join(missing)}",
            remedy="Install the dependency group 'models' of pyproject.toml.",
        )
    spec: ModelSpec = importlib.import_module(found.module).spec()
    if spec.name != name:
        raise InputError(f"{found.module}.spec() calls itself '{spec.name}', but models/{_TABLE.name} says '{name}'")
    return spec


def _installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # an unchanged build does without

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
