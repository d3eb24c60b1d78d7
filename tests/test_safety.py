"""Files made to harm: refused with a message, nothing runs, and memory stays bounded. Pickles: test_unpickle.py."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.pickles import mentions
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig

EXTRA_MEMORY = 200_000  # KB


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = CrossEncoder(BackboneConfig(str(tiny_backbone())), TokenConfig(24, 24), scoring="cls")
    save(model, tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()  # an attacker writes the one that fits
    return tmp_path / "c"


def _short_file_long_claim(size: int) -> bytes:
    header = json.dumps(
        {"head.1.weight": {"dtype": "F32", "shape": [1, size // 4], "data_offsets": [0, size]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 900


def _header_beyond_the_file(size: int) -> bytes:
    return struct.pack("<Q", size) + b"{}" + b"\0" * 900


def _overlapping(size: int) -> bytes:
    entry = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 64


@pytest.mark.parametrize("place", ["checkpoint", "backbone", "start"])
@pytest.mark.parametrize("make", [_short_file_long_claim, _header_beyond_the_file, _overlapping])
def test_a_safetensors_header_that_lies_is_refused(
    make: Callable[[int], bytes], place: str, checkpoint: Path, tmp_path: Path
) -> None:
    """10 GB claimed in 1 KB must not take 10 GB, and must not read what lies behind the file."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if place == "backbone":
        for file in tiny_backbone().iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "model.safetensors").write_bytes(make(10_000_000_000))
        with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
            CrossEncoder(BackboneConfig(str(tmp_path)), TokenConfig(24, 24))
    else:
        (checkpoint / "model.safetensors").write_bytes(make(10_000_000_000))
        started = BackboneConfig(str(tiny_backbone()), start=str(checkpoint))
        loads = {
            "start": lambda: DualEncoder(started, TokenConfig(24, 24)),
            "checkpoint": lambda: load(checkpoint),
        }
        with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
            loads[place]()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < EXTRA_MEMORY


@pytest.mark.parametrize(
    "class_path",
    ["os.system", "subprocess.Popen", "simzoo.models.similarity.LearnedSimilarity", "simzoo.models.formats.own.load",
     "evil.Model", "simzoo.models.cross_encoder.nn.Linear", "models.../evil.Model", "CrossEncoder", "train.Release",
     7, None],
)  # fmt: skip
def test_a_config_with_an_unknown_class_is_refused(class_path: Any, checkpoint: Path, tmp_path: Path) -> None:
    """A class path in a downloaded file is an import that a stranger chooses."""
    _patch(checkpoint / "config.json", **{"class": class_path})
    with pytest.raises(ValueError, match=r"is not a similarity of this project's models, and is not loaded"):
        load(checkpoint)


@pytest.mark.parametrize(
    "arguments",
    [{"class_path": "os.system", "init_args": {"command": "touch ran"}}, {"backbone": {"class_path": "os.system"}},
     {"backbone": "os.system"}, {"loss": {"class_path": "os.system"}}, {"tokens_per_batch": "!!python/name:os.system"}],
)  # fmt: skip
def test_arguments_that_name_code_are_refused(
    arguments: dict[str, Any], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser that reads a config can import classes; from a checkpoint it must not."""
    monkeypatch.chdir(tmp_path)
    _patch(checkpoint / "config.json", arguments=arguments)
    with pytest.raises((ValueError, FileNotFoundError)):
        load(checkpoint)
    assert not (tmp_path / "ran").exists()


def test_remote_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers can fetch and run a repository's own Python files: for a model and for a tokenizer."""
    monkeypatch.setenv("SIMZOO_RAN", str(tmp_path / "ran"))
    for file in tiny_backbone().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    code = "import os\nopen(os.environ['SIMZOO_RAN'], 'w')\nclass Evil: pass\n"
    (tmp_path / "evil.py").write_text(code)
    _patch(
        tmp_path / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
    )
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"backbone .* its tokenizer"):
        CrossEncoder(BackboneConfig(str(tmp_path)), TokenConfig(24, 24))
    (tmp_path / "tokenizer.json").write_bytes((tiny_backbone() / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_bytes((tiny_backbone() / "tokenizer_config.json").read_bytes())
    _patch(tmp_path / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
    with pytest.raises(ValueError, match=r"backbone .* its configuration"):
        CrossEncoder(BackboneConfig(str(tmp_path)), TokenConfig(24, 24))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x", "..\\x"])
@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_an_archive_that_leads_outside_is_refused(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacking must not write to the reader's home."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    archive = _archive(tmp_path / f"a{suffix}", {"config.json": b"{}", name: b"evil"})
    with pytest.raises(ValueError, match="leads outside of the folder; the archive is refused"):
        load(archive)
    assert not list(tmp_path.rglob("x")) and not (tmp_path / "home" / "simzoo" / "config.json").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_an_archive_with_a_link_is_refused(kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that points outside makes a later name inside lead outside."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("config.json")
        link.type, link.linkname = kind, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match="is a link or a device"):
        load(tmp_path / "a.tar")


def test_an_archive_that_fills_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of zeros pack to 100 KB: a small download must not become a full disk."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("w", "w") as record:
        for _ in range(100):
            record.write(bytes(1_000_000))
    with pytest.raises(ValueError, match=r"claims 1 files and 100,000,000 bytes"):
        load(tmp_path / "a.zip")


@pytest.mark.parametrize(("size", "suffix"), [(300_000_000, ".tar.gz"), (2**50, ".tar")])
def test_an_archive_with_an_endless_name_is_refused(
    size: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is read as a whole, before any size is known: 300 MB of one pack to 300 KB."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    opened: Any = Path.open if suffix == ".tar" else gzip.open
    with opened(tmp_path / f"a{suffix}", "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.write(b"a" * 2_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"cannot be unpacked \(a header claims .* bytes of names\)"):
        load(tmp_path / f"a{suffix}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < EXTRA_MEMORY


def test_an_archive_with_damaged_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decompression itself raises is of no class that a command line expects."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    archive = _archive(tmp_path / "a.zip", {"config.json": bytes(range(256)) * 4})
    data = bytearray(archive.read_bytes())
    data[60:90] = b"\xff" * 30
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        load(archive)


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar"])
def test_an_archive_is_a_checkpoint_too(
    suffix: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing is easy: what is in order must load, from the archive and from a file of the folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    whole = [path for path in checkpoint.rglob("*") if path.is_file()]
    files = {f"inside/{path.relative_to(checkpoint)}": path.read_bytes() for path in whole}
    files["inside/notes"] = random.Random(0).randbytes(200_000)  # longer than what is read at once
    archive = _archive(tmp_path / f"a{suffix}", files)
    expected = load(checkpoint).rank("a", ["b", "c"])
    assert load(archive).rank("a", ["b", "c"]) == expected
    assert load(checkpoint / "model.safetensors").rank("a", ["b", "c"]) == expected
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        load(archive)


def test_a_manifest_that_leads_outside_is_refused(checkpoint: Path) -> None:
    """Checking a file must not read, and report the hash of, a file of the reader's."""
    entry = {"size": 1, "sha256": "0" * 64}
    (checkpoint / "manifest.json").write_text(json.dumps({"files": {"../../secret": entry}}))
    with pytest.raises(ValueError, match="lies outside the folder; the checkpoint is refused"):
        load(checkpoint)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"files": {"a": {"size": Infinity, "sha256": "0"}}}'])
def test_a_manifest_that_is_none_is_refused(text: str, checkpoint: Path) -> None:
    """JSON that is too deep, and numbers without an end, raise errors that no command line expects."""
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json: is not a manifest"):
        load(checkpoint)


def test_settings_without_an_end_are_refused(checkpoint: Path) -> None:
    """A config.json is read as a whole, and several times, before anything in it is looked at."""
    with (checkpoint / "config.json").open("r+b") as file:
        file.truncate(1_000_000_000)  # takes no place on the disk
    with pytest.raises(ValueError, match=r"config\.json has 1,000,000,000 bytes, expected settings of at most"):
        load(checkpoint)


@pytest.mark.parametrize("place", ["backbone", "checkpoint", "released"])
def test_a_config_that_claims_more_than_the_weights_hold_is_refused(
    place: str, checkpoint: Path, tmp_path: Path
) -> None:
    """One number in a config.json takes all memory before the weights are looked at."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if place == "backbone":
        _patch(_backbone(tmp_path / "b") / "config.json", vocab_size=200_000_000)
        loading: Callable[[], Any] = lambda: CrossEncoder(BackboneConfig(str(tmp_path / "b")), TokenConfig(24, 24))  # noqa: E731
    elif place == "released":
        from tests.test_hypencoder_released import released

        released(tmp_path / "h", do_residual=False)
        found = json.loads((tmp_path / "h" / "config.json").read_text())
        found["query_encoder_kwargs"]["converter_kwargs"]["vector_dimensions"][1:-1] = [10_000_000, 10_000_000]
        _patch(tmp_path / "h" / "config.json", **found)
        loading = lambda: load(tmp_path / "h")  # noqa: E731
    else:
        arguments = json.loads((checkpoint / "config.json").read_text())["arguments"]
        arguments["backbone"]["lora"] = {"rank": 10_000_000}
        _patch(checkpoint / "config.json", arguments=arguments)
        loading = lambda: load(checkpoint)  # noqa: E731
    with pytest.raises(ValueError, match=r"asks for more than .* numbers, which its files do not hold"):
        loading()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < EXTRA_MEMORY


def test_a_backbone_without_all_its_layers_is_refused(tmp_path: Path) -> None:
    """Layers that the file does not have would be random, and the model scores all the same."""
    weights = _backbone(tmp_path / "b") / "model.safetensors"
    tensors = {name: value for name, value in load_file(weights).items() if ".layer.1." not in name}
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"model\.safetensors has no encoder\.layer\.1\..*, which its config\.json asks"
    ):
        CrossEncoder(BackboneConfig(str(tmp_path / "b")), TokenConfig(24, 24))


@pytest.mark.parametrize("way", ["config.json", "adapter_config.json", "modules.json"])
def test_weights_elsewhere_are_refused(way: str, tmp_path: Path) -> None:
    """A repository that points at other files has weights that nobody checked, or that are the reader's own."""
    _backbone(tmp_path / "other")
    folder = _backbone(tmp_path / "b")
    if way == "config.json":
        index = {"metadata": {"total_size": 1}, "weight_map": {"a": "../other/model.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        _patch(folder / "config.json", transformers_weights="model.safetensors.index.json")
    elif way == "adapter_config.json":
        found = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "other")}
        (folder / "adapter_config.json").write_text(json.dumps(found))
    else:
        module = {"type": "sentence_transformers.models.Pooling", "path": "../other"}
        (folder / "modules.json").write_text(json.dumps([module]))
        with pytest.raises(ValueError, match="names a folder elsewhere; the model is refused"):
            load(folder)
        return
    with pytest.raises(ValueError, match=r"names other weights than its model\.safetensors"):
        CrossEncoder(BackboneConfig(str(folder)), TokenConfig(24, 24))


def _backbone(folder: Path) -> Path:
    return Path(shutil.copytree(tiny_backbone(), folder))


def _patch(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _archive(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tarred:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tarred.addfile(entry, io.BytesIO(content))
    return path


def test_names_that_zipfile_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuzzing found errors of zipfile's own, IndexError and UnicodeDecodeError, which say nothing of the file."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    whole = _archive(tmp_path / "a.zip", {"sub/config.json": b"{}"}).read_bytes()
    start = whole.rindex(b"sub/config.json")
    harmed = tmp_path / "b.zip"
    harmed.write_bytes(whole[:start] + b"\0" + whole[start + 1 :])
    with pytest.raises(ValueError, match=r"b\.zip: cannot be unpacked"):
        load(harmed)
    pickled = tmp_path / "c.pt"
    torch.save({"name": torch.ones(1)}, pickled)
    pickled.write_bytes(pickled.read_bytes().replace(b"data.pkl", b"data\x80pkl", 1))
    assert mentions(pickled, "name")
