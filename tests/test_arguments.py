"""Arguments of a downloaded config.json are data: nothing that they name is imported, what they say is checked."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from simzoo.losses import MutualInformation, UserL2
from simzoo.models.formats import arguments, load, save
from simzoo.models.formats.arguments import build
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.mixture import MixtureConfig
from simzoo.models.parts.sequence import SequenceConfig
from simzoo.models.similarity import LearnedSimilarity
from tests.test_similarities import registered

PAYLOAD = "import os\nopen(os.environ['SIMZOO_RAN'], 'w')\n\nclass X:\n    def __init__(self, **kw): pass\n"
EVIL = {"class_path": "simzoo_evil.payload.X", "init_args": {}}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the code of a package, which can be imported, has run."""
    package = tmp_path / "simzoo_evil"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "payload.py").write_text(PAYLOAD)
    (package / "arguments.json").write_text(json.dumps(EVIL))
    monkeypatch.setenv("SIMZOO_RAN", str(tmp_path / "ran"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("simzoo_evil", "simzoo_evil.payload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "ran"


def mixture(**own: Any) -> NextItemMoL:
    projections: Any = {"query_projection": "swiglu", "item_projection": "linear"}
    config = MixtureConfig(3, 2, width=8, hidden=16, gate_hidden=16, query_gate=True, user_hashes=(7,), **projections)
    return NextItemMoL(["a", "b", "c"], SequenceConfig(width=16, length=8), config, **own)


def changed(model: LearnedSimilarity, folder: Path, **changes: Any) -> Path:
    save(model, folder)
    (folder / "manifest.json").unlink()  # an attacker writes the one that fits
    config = json.loads((folder / "config.json").read_text())
    config["arguments"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("key", ["gate_loss", "user_loss", "encoder", "mixture", "tokens_per_batch", "seed"])
@pytest.mark.parametrize(
    "value",
    [EVIL, "simzoo_evil.payload.X", "simzoo_evil/arguments.json", {"class_path": "simzoo_evil.payload.X"},
     {"class_path": "MutualInformation", "init_args": {"weight": EVIL}},
     {"class_path": "simzoo.losses.mixture.MutualInformation", "init_args": {"weight": EVIL}},
     {"class_path": "simzoo.losses.mixture.UserL2", "init_args": {"weight": EVIL}},
     {"width": EVIL}, {"hidden": "simzoo_evil.payload.X"}, {**EVIL, "dict_kwargs": {}}, [EVIL]],
)  # fmt: skip
def test_a_class_in_the_arguments_is_not_imported(key: str, value: Any, ran: Path, tmp_path: Path) -> None:
    """A parser of command lines imports every class_path that it meets, and reads files that a text names."""
    folder = changed(mixture(), tmp_path / "m", **{key: value})
    with pytest.raises(ValueError) as refused:
        load(folder)
    assert not ran.exists() and "simzoo_evil.payload" not in sys.modules
    assert f"config.json: arguments.{key}" in str(refused.value)


def test_classes_of_the_expected_base_alone_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of this project may still be the wrong one; one that moved must be found by the name that it had."""
    given = {"class_path": "simzoo.losses.mixture.MutualInformation", "init_args": {"weight": 0.25}}
    loaded = load(changed(mixture(), tmp_path / "m", gate_loss=given))
    assert isinstance(loaded, NextItemMoL) and loaded.gate_loss.weight == 0.25
    for path in (
        "simzoo.losses.mixture.UserL2",
        "simzoo.losses.mixture.nn.Module",
        "torch.nn.Linear",
        "losses.old.MutualInformation",
        None,
        [],
    ):
        folder = changed(mixture(), tmp_path / "m", gate_loss={**given, "class_path": path})
        with pytest.raises(ValueError, match=r"arguments\.gate_loss\.class_path .* is not a MutualInformation of this"):
            load(folder)
    monkeypatch.setitem(arguments.MOVED, "losses.old", "simzoo.losses.mixture")
    folder = changed(mixture(), tmp_path / "m", gate_loss={**given, "class_path": "losses.old.MutualInformation"})
    assert load(folder).gate_loss.weight == 0.25  # type: ignore[union-attr]


def test_a_released_class_that_moved_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint outlives the place of its class: without its old name it could not be loaded any more."""
    folder = changed(mixture(), tmp_path / "m")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        text.replace("simzoo.models.next_item_mol.NextItemMoL", "models.gone.NextItemMoL")
    )
    with pytest.raises(ValueError, match=r"'models\.gone\.NextItemMoL' is not a similarity of this project"):
        load(folder)
    monkeypatch.setitem(arguments.MOVED, "models.gone", "simzoo.models.next_item_mol")
    assert isinstance(load(folder), NextItemMoL)


@pytest.mark.parametrize("cls", registered(), ids=lambda cls: cls.__name__)
def test_arguments_come_back_as_they_were(cls: type[LearnedSimilarity], tmp_path: Path) -> None:
    """A tuple that comes back as a list, or a number as a text, shows only where somebody compares or counts it."""
    saved = cls.tiny()
    save(saved, tmp_path / "a")
    loaded = load(tmp_path / "a")
    without = [{k: v for k, v in model.arguments.items() if k != "backbone"} for model in (saved, loaded)]
    assert repr(without[0]) == repr(without[1])
    save(loaded, tmp_path / "b")
    assert (tmp_path / "b" / "config.json").read_text() == (tmp_path / "a" / "config.json").read_text()


@torch.inference_mode()
def test_losses_of_training_are_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    """A loss that is written into config.json as an object cannot be written at all; as a path it would be code."""
    saved = mixture(gate_loss=MutualInformation(0.5), user_loss=UserL2(0.3)).eval()
    save(saved, tmp_path / "m")
    written = json.loads((tmp_path / "m" / "config.json").read_text())["arguments"]
    assert written.keys() == {"item_ids", "encoder", "mixture", "tokens_per_batch"}
    loaded = load(tmp_path / "m")
    assert repr(loaded.arguments) == repr(saved.arguments)
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@dataclass
class Inner:
    size: int = 1
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("size must be at least 1")


class Outer:
    def __init__(
        self,
        names: list[str],
        pair: tuple[int, int] = (0, 0),
        many: tuple[float, ...] = (),
        kind: Literal["a", "b", 1] = "a",
        inner: Inner | None = None,
        flag: bool = False,
        either: int | str = 0,
        loss: object = None,
        path: Path | None = None,
        anything: Any = None,
    ) -> None:
        self.given = (names, pair, many, kind, inner, flag, either)


def test_values_become_what_the_hints_say() -> None:
    """JSON has no tuples, no dataclasses and one kind of number."""
    given = {"names": ["a"], "pair": [1, 2], "many": [1, 2.5], "kind": "b", "inner": {"size": 3, "share": 1},
             "flag": True, "either": "x"}  # fmt: skip
    found = build(Outer, given, "f").given
    assert repr(found) == repr((["a"], (1, 2), (1.0, 2.5), "b", Inner(3, 1.0), True, "x"))
    assert build(Outer, {"names": [], "inner": None}, "f").given == ([], (0, 0), (), "a", None, False, 0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("names", None, r"^f\.names: got None, expected a list"),
        ("names", ["a", 1], r"^f\.names\[1\]: got 1, expected a text"),
        ("pair", [1], r"^f\.pair: got 1 values, expected 2"),
        ("pair", [1, True], r"^f\.pair\[1\]: got True, expected a whole number"),
        ("pair", [1, 10**400], r"^f\.pair\[1\]: got 1000.*\.\.\., expected a whole number of 64 bits"),
        ("many", [float("nan")], r"^f\.many\[0\]: got nan, expected a finite number"),
        ("many", [10**400], r"^f\.many\[0\]: got 1000.*\.\.\., expected a finite number"),
        ("many", ["1"], r"^f\.many\[0\]: got '1', expected a finite number"),
        ("kind", "c", r"^f\.kind: got 'c', expected one of 'a', 'b', 1"),
        ("kind", True, r"^f\.kind: got True, expected one of"),
        ("kind", [], r"^f\.kind: got \[\], expected one of"),
        ("inner", {"sise": 1}, r"^f\.inner\.sise: there is no such argument; expected some of size, share"),
        ("inner", {"size": 1.0}, r"^f\.inner\.size: got 1\.0, expected a whole number"),
        ("inner", {"size": 0}, r"^f\.inner: size must be at least 1"),
        ("inner", "x", r"^f\.inner: got 'x', expected an object"),
        ("flag", 1, r"^f\.flag: got 1, expected true or false"),
        ("either", 1.5, r"^f\.either: got 1\.5, expected a whole number of 64 bits; or .*, expected a text"),
        ("loss", {}, r"^f\.loss: there is no such argument"),
        ("path", {"class_path": "pathlib.Path"}, r"^f\.path\.class_path 'pathlib\.Path' is not a Path of this project"),
        ("path", "/etc/passwd", r"^f\.path: got '/etc/passwd', expected an object of"),
        ("anything", 1, r"^f\.anything: this argument is of type typing\.Any, which a file cannot give"),
        ("self", 1, r"^f\.self: there is no such argument"),
    ],
)
def test_other_values_are_refused_by_place(key: str, value: Any, message: str) -> None:
    """A value that is bent into the type, or refused without its place, is a model that nobody asked for."""
    with pytest.raises(ValueError, match=message):
        build(Outer, {"names": [], key: value}, "f", skip=("loss",))


def test_an_argument_that_is_missing_is_named() -> None:
    """Python's own message names neither file nor key."""
    with pytest.raises(ValueError, match=r"^f\.names is missing"):
        build(Outer, {}, "f")
