"""Recipes that build on another one: ``base: ../base/wordnet.yaml``, relative to the file that says so.

>>> over({"trainer": {"max_epochs": 1, "precision": "32"}}, {"trainer": {"max_epochs": 3}})
{'trainer': {'max_epochs': 3, 'precision': '32'}}
>>> over({"loss": {"class_path": "A", "init_args": {"a": 1}}}, {"loss": {"class_path": "B"}})
{'loss': {'class_path': 'B'}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["over", "read_recipe", "with_base"]


def over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The base with what a recipe sets over it.

    Mappings are merged, key by key; all else is replaced, and so is an object by one of another class.
    """
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        merged[key] = over(before, value) if isinstance(before, dict) and _fit(before, value) else value
    return merged


def _fit(before: dict[str, Any], value: Any) -> bool:
    """Whether a value is a mapping, and if it names a class, one of the same."""
    if not isinstance(value, dict):
        return False
    return "class_path" not in before or before["class_path"] == value.get("class_path", before["class_path"])


def with_base(recipe: Any, folder: Path) -> Any:
    """A recipe with its base, and that one's, filled in; what has none is given back as it is.

    Args:
        recipe: what a YAML file holds.
        folder: where that file lies.

    Raises:
        ValueError: the base cannot be read, or is a base of itself.
    """
    seen: list[Path] = []
    while isinstance(recipe, dict) and "base" in recipe:
        path = (folder / str(recipe["base"])).resolve()
        if path in seen:
            raise ValueError(f"{path} is a base of itself")
        seen.append(path)
        try:
            base = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ValueError(f"base: {recipe['base']}: expected a recipe at {path}: {error}") from error
        if not isinstance(base, dict):
            raise ValueError(f"base: {recipe['base']}: expected a recipe at {path}, got {type(base).__name__}")
        recipe = over(base, {key: value for key, value in recipe.items() if key != "base"})
        folder = path.parent
    return recipe


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe's file and its bases set.

    Raises:
        ValueError: see `with_base`.
    """
    found: dict[str, Any] = with_base(yaml.safe_load(path.read_text(encoding="utf-8")), path.parent)
    return found
