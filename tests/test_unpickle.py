"""Old checkpoints: what they may hold, and files that are made to harm."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import resource
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from simzoo.models.parts.pickles import StandIn, load_pickle, load_tensors, mentions

Files = Callable[[Any], Path]


class Config:
    """Stands for ANNCUR's settings class, under its own module's name."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs


@pytest.fixture
def lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Lightning checkpoint whose pickle names utils.config.Config, as the released ones do."""
    package, module = types.ModuleType("utils"), types.ModuleType("utils.config")
    module.Config = Config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "utils", package)
    monkeypatch.setitem(sys.modules, "utils.config", module)
    monkeypatch.setattr(Config, "__module__", "utils.config")
    base = torch.arange(12, dtype=torch.float32)
    held = {
        "epoch": 3,
        "state_dict": OrderedDict(a=base.view(3, 4).T, b=base[4:6], h=torch.ones(2, dtype=torch.float16)),
        "hyper_parameters": {"config": Config(4), "args": argparse.Namespace(lr=1e-5)},
        "parameter": nn.Parameter(torch.zeros(2)),
    }
    torch.save(held, tmp_path / "old.ckpt")
    torch.save(held, tmp_path / "older.ckpt", _use_new_zipfile_serialization=False)
    return tmp_path


@pytest.mark.parametrize("name", ["old.ckpt", "older.ckpt"])
def test_tensors_come_out_as_they_went_in(lightning: Path, name: str) -> None:
    """A stride or offset that is lost gives weights that load and score nonsense."""
    found = load_tensors(lightning / name, "state_dict")
    base = torch.arange(12, dtype=torch.float32)
    assert torch.equal(found["a"], base.view(3, 4).T) and torch.equal(found["b"], base[4:6])
    assert found["h"].dtype == torch.float16 and list(found) == ["a", "b", "h"]
    whole = load_pickle(lightning / name)
    assert whole["epoch"] == 3 and isinstance(whole["hyper_parameters"]["config"], StandIn)
    assert torch.equal(whole["parameter"], torch.zeros(2))
    assert mentions(lightning / name, "hyper_parameters") and not mentions(lightning / name, "optimizer_states")


class Evil:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _zip(path: Path, data: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for key, record in records.items():
            archive.writestr(f"archive/data/{key.removeprefix('r')}", record)
    return path


def _persistent(pid: Any) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return pid if value == "here" else None

    file = io.BytesIO()
    Pickler(file, protocol=2).dump({"w": "here"})
    return file.getvalue()


@pytest.mark.parametrize("kind", ["zip", "stream", "bare"])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, r"(posix|nt)\.system"), (eval, r"(__builtin__|builtins)\.eval"), (getattr, r"\.getattr")],
)
def test_a_pickle_that_runs_something_is_refused_by_name(
    function: Any, named: str, deep: bool, kind: str, tmp_path: Path
) -> None:
    """Loading a stranger's checkpoint must not run a stranger's program."""
    mark = tmp_path / "ran"
    arguments: Any = {
        os.system: (f"touch {mark}",),
        eval: (f"open({str(mark)!r}, 'w')",),
        getattr: (os, "system"),
    }[function]
    evil: Any = Evil(function, *arguments) if function is not getattr else Evil(getattr, Evil(eval, "1"), "real")
    held = {"state_dict": OrderedDict(a=torch.zeros(2), b=[(evil,)])} if deep else evil
    path = tmp_path / "evil.ckpt"
    if kind == "bare":
        path.write_bytes(pickle.dumps(held if not deep else {"a": [(evil,)]}, protocol=2))
    else:
        torch.save(held, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(ValueError, match="is refused") as refused:
        load_pickle(path)
    assert kind == "bare" or refused.match(named)
    assert not mark.exists()


@pytest.mark.parametrize(
    "pid",
    [
        Evil(os.system, "touch ran"),
        ("storage", Evil(os.system, "touch ran"), "0", "cpu", 1),
        ("storage", torch.FloatStorage, "../../../etc/passwd", "cpu", 1),
        ("storage", torch.FloatStorage, "0", "cpu", -1),
        ("storage", torch.FloatStorage, "0", "cpu", 2_500_000_000),
        ("module", "os", "system"),
        "0",
    ],
    ids=["call", "call as type", "path", "negative", "10 GB", "module", "text"],
)
def test_persistent_ids_name_storages_alone(pid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own hook for storages is a second way into a file, past the names of classes."""
    monkeypatch.chdir(tmp_path)
    path = _zip(tmp_path / "evil.ckpt", _persistent(pid), r0=b"\0" * 4)
    with pytest.raises(ValueError, match="is refused"):
        load_pickle(path)
    assert not (tmp_path / "ran").exists()


def _state_on_function() -> bytes:
    """BUILD on the function that makes tensors: tries to change it for all later files."""
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x05\x00\x00\x00_callK\x01sb."


def _state_on_stand_in() -> bytes:
    return b"\x80\x02cargparse\nNamespace\nN}X\x06\x00\x00\x00appendK\x01s\x86b."


def _attribute_of_an_allowed_name() -> bytes:
    return b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93."


def _huge_memo() -> bytes:
    return b"\x80\x02K\x01r" + struct.pack("<I", 2**31) + b"."


def _huge_string() -> bytes:
    return b"\x80\x04\x8e" + struct.pack("<Q", 10**13) + b"abc."


def _huge_bytearray() -> bytes:
    return b"\x80\x05\x96" + struct.pack("<Q", 10**13) + b"abc."


@pytest.mark.parametrize(
    "make",
    [_state_on_function, _state_on_stand_in, _attribute_of_an_allowed_name, _huge_memo, _huge_string, _huge_bytearray],
)
def test_tricks_of_the_pickle_machine_are_refused(make: Callable[[], bytes], tmp_path: Path) -> None:
    """What is allowed by name must not be changed, taken apart, or used to fill the memory."""
    before = dict(vars(StandIn))
    with pytest.raises(ValueError, match="is refused"):
        load_pickle(_zip(tmp_path / "evil.ckpt", make()))
    assert dict(vars(StandIn)) == before
    torch.save({"a": torch.ones(2)}, tmp_path / "good.pt")
    assert torch.equal(load_tensors(tmp_path / "good.pt")["a"], torch.ones(2))


def _stretched(tmp_path: Path) -> Path:
    """A tensor that reaches far beyond its storage."""
    torch.save({"a": torch.zeros(4)}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        data = archive.read("good/data.pkl").replace(b"K\x04\x85", b"J\x00\x00\x00\x40\x85")
    return _zip(tmp_path / "evil.pt", data, r0=b"\0" * 16)


def _bomb(tmp_path: Path) -> Path:
    """10 GB of zeros, which a zip file holds in a few bytes."""
    with zipfile.ZipFile(tmp_path / "evil.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}, protocol=2))
        with archive.open("archive/data/0", "w", force_zip64=True) as record:
            for _ in range(100):
                record.write(bytes(1_000_000))
    return tmp_path / "evil.pt"


def _legacy_claim(tmp_path: Path) -> Path:
    """A file of the old format whose storage claims 10 GB."""
    torch.save({"a": torch.zeros(70_000)}, tmp_path / "good.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "good.pt").read_bytes().replace(struct.pack("<i", 70_000), struct.pack("<i", 2**31 - 1))
    (tmp_path / "evil.pt").write_bytes(data[:1024])
    return tmp_path / "evil.pt"


@pytest.mark.parametrize("make", [_stretched, _bomb, _legacy_claim])
def test_claims_beyond_the_file_take_no_memory(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """A file of 1 KB that claims 10 GB must be refused before the memory is taken."""
    path = make(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="is refused"):
        load_pickle(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_a_file_does_not_choose_what_is_looked_at(tmp_path: Path) -> None:
    """A dictionary that brings a method `items` of its own would show the check something else than what it holds."""
    program = b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00aK\x01u"
    program += b"}X\x05\x00\x00\x00itemscargparse\nNamespace\nsb."
    with pytest.raises(ValueError, match="no dictionary of tensors"):
        load_tensors(_zip(tmp_path / "evil.pt", program))


def test_no_dictionary_of_tensors_is_said(tmp_path: Path) -> None:
    """A file of settings must not pass for an empty set of weights."""
    torch.save({"state_dict": {"a": 1}}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="no dictionary of tensors under state_dict"):
        load_tensors(tmp_path / "x.ckpt", "state_dict")
