"""The ablations of benchmarks/cmc/train.py."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from benchmarks.cmc.train import VARIANTS


@pytest.mark.parametrize(
    ("name", "baseline", "changed"),
    [
        ("no-skip", "seed-1", {"own": {"skip": "none"}}),
        ("no-skip-at-20", "at-20", {"own": {"skip": "none"}}),
        ("no-kl", "seed-1", {"kl": 0.0}),
        ("no-sampling", "seed-1", {"fixed": 1.0}),
    ],
)
def test_an_ablation_changes_what_it_is_named_after_and_nothing_else(
    name: str, baseline: str, changed: dict[str, Any]
) -> None:
    """A conclusion about the skip connection was drawn from a run that changed temperature and rate as well."""
    ours, theirs = VARIANTS[name], VARIANTS[baseline]
    differing = {
        f.name: getattr(ours, f.name) for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)
    }
    assert differing == changed
    assert ours == replace(theirs, **changed)
