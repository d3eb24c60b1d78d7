"""Random harm to the files that loaders read: `make fuzz` does this for longer than the tests."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simzoo.core.archives import unpacked
from simzoo.core.hub import parse_name, read_manifest
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load, save
from simzoo.models.formats.own import read_config
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.pickles import load_pickle, mentions
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import read_weights
from simzoo.retrieval.hub.card import empty_sections
from tests.test_safety import _archive

EXAMPLES = int(os.environ.get("SIMZOO_FUZZ", "25"))
fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
WORDS = [b"torch._utils", b"_rebuild_tensor_v2", b"collections", b"OrderedDict", b"os", b"system", b"builtins", b"eval"]


@lru_cache
def seeds() -> dict[str, bytes]:
    """Files in order, to be harmed."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    state = {"state_dict": OrderedDict(a=torch.arange(6.0).view(2, 3), b=torch.ones(4, dtype=torch.float16))}
    torch.save(state, folder / "zip")
    torch.save(state, folder / "stream", _use_new_zipfile_serialization=False)
    model = CrossEncoder(BackboneConfig(str(tiny_backbone())), TokenConfig(24, 24))
    save(model, folder / "model")
    _archive(folder / "a.zip", {"config.json": b"{}", "sub/model.safetensors": b"x" * 100})
    _archive(folder / "a.tar.gz", {"config.json": b"{}", "sub/model.safetensors": b"x" * 100})
    files = [*folder.glob("*"), *(folder / "model").glob("*")]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


@st.composite
def harm(draw: st.DrawFn, content: bytes) -> bytes:
    """A content with bytes changed, cut out, doubled or put in; sizes in headers among them."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(1, 16))
        match draw(st.sampled_from(["byte", "cut", "double", "put", "number", "end"])):
            case "byte":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del data[at : at + size]
            case "double":
                data[at:at] = data[at : at + size]
            case "put":
                data[at:at] = draw(st.one_of(st.binary(max_size=16), st.sampled_from(WORDS)))
            case "number":
                data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from([0, 1, 2**31 - 1, 2**40, 2**63, 2**64 - 1])))
            case "end":
                del data[at:]
    return bytes(data)


def harmed(name: str) -> st.SearchStrategy[bytes]:
    """One of the files, harmed."""
    return harm(seeds()[name])


def refused_or_read(function: Callable[[Path], Any], path: Path, content: bytes) -> None:
    """Either a value, or an error that names the file: nothing else may come out."""
    path.write_bytes(content)
    said = ""
    try:
        function(path)
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
    assert not said or str(path) in said or path.parent.name in said, f"does not say where: {said}"


@pytest.mark.parametrize("name", ["zip", "stream"])
@fuzzed
@given(data=st.data())
def test_unpickler_refuses_or_reads(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A crash, a hang or a call inside the unpickler, from a file of any shape."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.ckpt"
    refused_or_read(load_pickle, path, data.draw(harmed(name)))
    assert mentions(path, "state_dict") in (True, False)


@fuzzed
@given(
    body=st.lists(st.one_of(st.binary(max_size=6), st.sampled_from([b"c", b"\n", b".", b"R", b"b", b"\x85", *WORDS])))
)
def test_any_program_of_the_pickle_machine(body: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that no torch.save wrote."""
    from tests.test_unpickle import _zip

    path = tmp_path_factory.getbasetemp() / "program.ckpt"
    content = _zip(path, b"\x80\x02" + b"".join(body) + b".", r0=b"\0" * 16).read_bytes()
    refused_or_read(load_pickle, path, content)


@fuzzed
@given(data=st.data())
def test_safetensors_are_refused_or_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A header of any shape."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    refused_or_read(read_weights, path, data.draw(harmed("model.safetensors")))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("whole", [False, True])
@fuzzed
@given(data=st.data())
def test_a_config_is_refused_or_read(
    whole: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A key of any type, at any depth, of a config.json that is otherwise in order."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed-model"
    folder.mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(seeds()[name])
    shutil.copytree(tiny_backbone(), folder / "backbone", dirs_exist_ok=True)
    if not whole:
        refused_or_read(lambda path: read_config(path.parent), folder / "config.json", data.draw(harmed("config.json")))
        return
    config = json.loads(seeds()["config.json"])
    place = config
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    (folder / "config.json").write_text(json.dumps(config))
    with suppress(ValueError, FileNotFoundError):
        load(folder)


@fuzzed
@given(data=st.data())
def test_a_manifest_is_refused_or_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A list of files of any shape."""
    path = tmp_path_factory.getbasetemp() / "manifest.json"
    content = data.draw(harmed("manifest.json") | JSON.map(lambda value: json.dumps(value).encode()))
    refused_or_read(lambda path: read_manifest(path.parent), path, content)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@fuzzed
@given(data=st.data())
def test_an_archive_is_refused_or_unpacked_inside(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A name, size or type of any kind in an archive."""
    base = tmp_path_factory.getbasetemp()
    home = base / "unpacked"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HOME", str(home))
        refused_or_read(unpacked, base / name, data.draw(harmed(name)))
    assert not (base / "model.safetensors").exists() and not (base.parent / "model.safetensors").exists()


@fuzzed
@given(name=st.text(max_size=30))
def test_names_and_cards_of_any_kind(name: str) -> None:
    """A name from a command line or a config, and a card from a repository."""
    repo = "refused"
    with suppress(FileNotFoundError):
        repo, _ = parse_name(name)
    assert ".." not in repo.split("/") and not repo.startswith("/")
    assert isinstance(empty_sections(name), list)


def test_the_seeds_are_in_order(tmp_path: Path) -> None:
    """Fuzzing what is broken from the start would find nothing."""
    for name in ("zip", "stream"):
        (tmp_path / name).write_bytes(seeds()[name])
        assert torch.equal(load_pickle(tmp_path / name)["state_dict"]["a"], torch.arange(6.0).view(2, 3))
    (tmp_path / "model.safetensors").write_bytes(seeds()["model.safetensors"])
    assert read_weights(tmp_path / "model.safetensors")
    with pytest.raises(ValueError):
        load_pickle(_written(tmp_path / "x", pickle.dumps(len, protocol=2)))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
