"""Files that are made to harm: each is refused in one line, in a process with little memory and time."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save as safetensors

from simzoo.core.hub import write_manifest
from simzoo.core.records import Item
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import save
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.retrieval.engine import Engine
from tests.forks import Forks

BOMB = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": 10 * "a"}] * 9,
}
DEEP = "[" * 200_000
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 10)
)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A process that has imported all entry points."""
    found = Forks("tests.limited_work", "tests.fault_work")
    yield found
    found.close()


def backbone(folder: Path) -> Path:
    """A small backbone in transformers' layout, as a plain encoder with a head for pairs."""
    shutil.copytree(tiny_backbone(), folder)
    return folder


def change(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **changes}))


def own(folder: Path) -> Path:
    """A checkpoint of this project whose manifest fits whatever is changed next."""
    save(CrossEncoder.tiny(), folder)
    (folder / "manifest.json").unlink()
    return folder


def other_tokenizer(folder: Path) -> Path:
    """A second tokenizer, which the usual one's check does not see, under a versioned name."""
    place = own(folder)
    change(place / "backbone" / "tokenizer.json")
    whole = json.loads((place / "backbone" / "tokenizer.json").read_text())
    (place / "backbone" / "tokenizer.1.0.0.json").write_text(json.dumps({**whole, "normalizer": BOMB}))
    change(place / "backbone" / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.1.0.0.json"])
    return place


def tokenizer_elsewhere(folder: Path) -> Path:
    """A tokenizer of another folder of the reader's."""
    place = own(folder)
    elsewhere = folder.with_name("elsewhere.json")
    shutil.copy(place / "backbone" / "tokenizer.json", elsewhere)
    change(place / "backbone" / "tokenizer_config.json", tokenizer_file=str(elsewhere))
    return place


def token_without_embedding(folder: Path) -> Path:
    """A token whose id is beyond the embeddings: an IndexError at the first text that has it."""
    place = own(folder)
    whole = json.loads((place / "backbone" / "tokenizer.json").read_text())
    whole["model"]["vocab"]["a"] = 10**6
    (place / "backbone" / "tokenizer.json").write_text(json.dumps(whole))
    return place


def configuration_elsewhere(folder: Path) -> Path:
    """transformers reads the file that this setting names instead, outside of the folder too."""
    place = own(folder)
    shutil.copy(place / "backbone" / "config.json", folder.with_name("config.1.0.0.json"))
    change(place / "backbone" / "config.json", configuration_files=["../../config.1.0.0.json"])
    return place


def backbone_elsewhere(folder: Path) -> Path:
    """A model type that fetches another repository's weights."""
    place = own(folder)
    settings = {"model_type": "maskformer", "use_pretrained_backbone": True, "backbone": "org/other"}
    (place / "backbone" / "config.json").write_text(json.dumps(settings))
    return place


def quantized(folder: Path) -> Path:
    """Weights that another program has to read."""
    place = own(folder)
    change(place / "backbone" / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    return place


def pipe(name: str) -> Callable[[Path], Path]:
    """A pipe in a checkpoint: to open it waits for ever."""

    def made(folder: Path) -> Path:
        place = own(folder)
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)
        return place

    return made


def many_tensors(folder: Path) -> Path:
    """A header of 30,000 empty tensors, each of which takes memory and time."""
    place = own(folder)
    header = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(30_000)}
    data = json.dumps(header).encode()
    (place / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)
    return place


def endless(name: str) -> Callable[[Path], Path]:
    """A file that is read as a whole and takes no place on the disk."""

    def made(folder: Path) -> Path:
        place = own(folder)
        (place / name).touch()
        os.truncate(place / name, 10**10)
        return place

    return made


def lzma(folder: Path) -> Path:
    """An archive whose header asks for a dictionary of 4 GB."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("config.json", 100 * b"{}")
    data = bytearray(path.read_bytes())
    start = data.index(b"config.json") + len("config.json") + 5
    data[start : start + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    return path


def text(content: str, suffix: str = ".yaml") -> Callable[[Path], Path]:
    """A recipe."""

    def made(folder: Path) -> Path:
        folder.with_suffix(suffix).write_text(content)
        return folder.with_suffix(suffix)

    return made


def huge_recipe(folder: Path) -> Path:
    """A recipe of 10 GB."""
    folder.with_suffix(".yaml").touch()
    os.truncate(folder.with_suffix(".yaml"), 10**10)
    return folder.with_suffix(".yaml")


def matrix_of(described: str, scores: np.ndarray) -> Callable[[Path], Path]:
    """A file of scores."""

    def made(folder: Path) -> Path:
        path = folder.with_suffix(".safetensors")
        path.write_bytes(safetensors({"scores": scores}, {"matrix": described}))
        return path

    return made


def named(**changes: Any) -> str:
    """What a matrix of two queries says of itself."""
    return json.dumps({"query_ids": ["a", "b"], "fingerprint": "f", "checkpoint": "c", **changes})


class Huge:
    """A pickle's call that takes 100 GB; torch lets it through."""

    def __reduce__(self) -> Any:
        return bytearray, (10**11,)


def huge_ckpt(folder: Path) -> Path:
    """A training checkpoint with it."""
    torch.save({}, whole := folder.with_suffix(".whole"))
    data = pickle.dumps({"state_dict": {}, "loops": {}, "global_step": Huge()}, protocol=2)
    path = folder.with_suffix(".ckpt")
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name.endswith("data.pkl") else old.read(name))
    return path


def wrong_ckpt(folder: Path) -> Path:
    """One on which Lightning would break down."""
    path = folder.with_suffix(".ckpt")
    torch.save({"state_dict": {}, "loops": {}, "global_step": 0, "callbacks": [1], "optimizer_states": [1]}, path)
    return path


def index(change_it: Callable[[Path], None]) -> Callable[[Path], Path]:
    """An index with something changed."""

    def made(folder: Path) -> Path:
        Engine(lambda pairs: [0.0 for _ in pairs], folder=folder).add(["1", "2", "3"], ["boat", "river", "bank"])
        change_it(folder)
        return folder

    return made


def generation(**changes: Any) -> Callable[[Path], Path]:
    """An index whose generation says something else."""
    return index(lambda folder: change(folder / "generation.json", **changes))


def settings(**changes: Any) -> Callable[[Path], Path]:
    """An index whose settings say something else."""
    return index(lambda folder: change(folder / "settings.json", **changes))


def ids_without_rows(folder: Path) -> None:
    path = next(folder.glob("data-*/ids-*"))
    words = np.fromfile(path, dtype=np.int64)
    words[len(words) // 2 :] = 10**9
    words.tofile(path)


def index_pipe(folder: Path) -> None:
    (folder / "generation.json").unlink()
    os.mkfifo(folder / "generation.json")


def nested(folder: Path) -> Path:
    """A data set whose first item is deeper than a parser's stack."""
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(DEEP + "\n")
    return folder


GRAPH = {"class": "GraphConfig", "arguments": {"folder": {"path": "/nonexistent/elsewhere"}}}
CASES: list[tuple[str, Callable[[Path], Path], str]] = [
    ("load", other_tokenizer, "fast_tokenizer_files names other files"),
    ("load", tokenizer_elsewhere, "tokenizer_file names other files"),
    ("load", token_without_embedding, "has a token of id 1,000,000"),
    ("load", configuration_elsewhere, "configuration_files names other files"),
    ("load", backbone_elsewhere, "backbone names other files"),
    ("load", quantized, "quantization_config names other files"),
    ("load", pipe("config.json"), "is a pipe, a socket or a device"),
    ("load", pipe("tokenizer.json"), "is a pipe, a socket or a device"),
    ("load", many_tensors, "names 30,000 tensors, expected at most 20,000"),
    ("load", lzma, "is packed in another way than deflate"),
    ("load", endless("vocab.txt"), "has 10,000,000,000 bytes, expected settings"),
    ("verify", endless("README.md"), "has 10,000,000,000 bytes, expected settings"),
    ("verify", endless("metrics.json"), "has 10,000,000,000 bytes, expected settings"),
    ("verify", pipe("README.md"), "is a pipe, a socket or a device"),
    ("evaluate", text(LAUGHS), "once its aliases are written out"),
    ("train", text(LAUGHS), "once its aliases are written out"),
    ("evaluate", text("a: &a [*a]\n"), "has no end"),
    ("train", text("model: &a {x: *a}\n"), "has no end"),
    ("evaluate", text(f"a: {DEEP}"), "deep in each other"),
    ("train", text(f"a: {5000 * '['}{5000 * ']'}"), "deep in each other"),
    ("train", huge_recipe, "expected a recipe of at most"),
    ("matrix", matrix_of(DEEP, np.zeros((2, 3), np.float32)), "not a whole score matrix"),
    ("matrix", matrix_of("[]", np.zeros((2, 3), np.float32)), "not a whole score matrix"),
    ("matrix", matrix_of(named(query_ids=5), np.zeros((2, 3), np.float32)), "not a whole score matrix"),
    ("matrix", matrix_of(named(query_ids=[["a"], {}]), np.zeros((2, 3), np.float32)), "are no texts"),
    ("matrix", matrix_of(named(), np.zeros((1, 3), np.float32)), r"scores of shape [1, 3] for 2 queries"),
    ("matrix", matrix_of(named(), np.zeros((2, 3), np.int64)), "I64 scores"),
    ("matrix", matrix_of(named(), np.full((2, 3), np.nan, np.float32)), "not finite"),
    ("resume", huge_ckpt, "cannot be read as a training checkpoint"),
    ("resume", wrong_ckpt, "callbacks, optimizer_states is of another kind"),
    ("engine", generation(data="../victim"), "is no folder of an index"),
    ("engine", generation(rows=10**12), "rows do not fit the lengths"),
    ("engine", generation(lengths={"../../x": 5}), "rows do not fit the lengths"),
    ("engine", generation(columns={"texts": {"dtype": "|u1", "width": [0], "fields": 3}}), "no possible kind"),
    ("engine", generation(columns={"texts": {"dtype": "(9999999999,)f4", "width": [], "fields": 3}}), "is damaged"),
    ("engine", generation(extras={}), "ids do not make up 3 rows"),
    ("engine", generation(extras={"ids": [[0, 3]], "search": {"folder": "../x"}}), "names a folder elsewhere"),
    ("engine", index(lambda folder: (folder / "generation.json").write_text(DEEP) and None), "is damaged"),
    ("engine", index(lambda folder: os.truncate(folder / "generation.json", 10**10)), "expected settings of at most"),
    ("engine", index(lambda folder: os.truncate(folder / "settings.json", 10**10)), "expected settings of at most"),
    ("engine", index(lambda folder: (folder / "settings.json").write_text("[]") and None), "expected an object"),
    ("engine", index(index_pipe), "is a pipe, a socket or a device"),
    ("engine", settings(anchors=5), "expected a list"),
    ("engine", settings(anchors=[{"class": "Query", "id": ["x"], "text": {}}]), "an anchor that is no query"),
    ("engine", settings(similarity=["a"]), "expected what was loaded"),
    ("engine", settings(search={"class": "GraphSearch", "arguments": {"graph": GRAPH}}), "lies outside of the index"),
    ("engine", settings(search={"class": "os.system", "arguments": {}}), "expected one of"),
    ("data", nested, "corpus.jsonl:1"),
]


@pytest.mark.parametrize(("entry", "make", "message"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_what_is_made_to_harm_is_refused(
    entry: str, make: Callable[[Path], Path], message: str, forks: Forks, tmp_path: Path
) -> None:
    """Each ended in a traceback, an abort, a wait without end, all memory, or in wrong results without a word."""
    place = make(tmp_path / "place")
    run = forks.run("tests.limited_work:limited", entry, place, output=tmp_path / "log")
    assert run.wait() in (1, 2), run.words()[-2000:]
    said = run.words().splitlines()
    assert "Traceback" not in run.words() and message in said[-1], run.words()[-2000:]


@pytest.mark.parametrize("entry", ["load", "verify", "engine", "evaluate", "train", "matrix", "resume", "data"])
def test_the_limit_leaves_room_for_what_is_in_order(entry: str, forks: Forks, tmp_path: Path) -> None:
    """Under a limit that nothing passes, everything would seem to be refused."""
    place = tmp_path / "place"
    if entry in ("load", "verify"):
        write_manifest(own(place))
    elif entry == "engine":
        index(lambda folder: None)(place)
    elif entry in ("evaluate", "train"):
        place = text("seed_everything: 0\n" if entry == "train" else "seed: 0\n")(place)
    elif entry == "matrix":
        place = matrix_of(named(), np.zeros((2, 3), np.float32))(place)
    elif entry == "resume":
        place = place.with_suffix(".ckpt")
        torch.save({"state_dict": {}, "loops": {}, "global_step": 0}, place)
    else:
        place.mkdir()
        (place / "corpus.jsonl").write_text('{"_id": "1", "title": "", "text": "boat"}\n')
    run = forks.run("tests.limited_work:limited", entry, place, output=tmp_path / "log")
    missing = {"verify": "the card says nothing", "evaluate": "data"}
    if entry in missing:  # what it comes to after the file was read
        assert run.wait() and missing[entry] in run.words() and "Traceback" not in run.words(), run.words()
    else:
        assert run.wait() == 0, run.words()


@pytest.mark.parametrize("link", [False, True])
def test_an_index_deletes_and_writes_nothing_elsewhere(link: bool, tmp_path: Path) -> None:
    """The next addition cleaned up the folder that the index named, and so emptied any folder of the reader's."""
    folder = index(lambda folder: None)(tmp_path / "index")
    victim = tmp_path / "victim"
    shutil.copytree(folder / "data-000001", victim)
    (victim / "precious.txt").write_text("precious")
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    if link:
        shutil.rmtree(folder / "data-000001")
        (folder / "data-000001").symlink_to(victim)
    else:
        change(folder / "generation.json", data="../victim")
    with pytest.raises(ValueError, match=r"leads out of its folder|is no folder of an index"):
        Engine.load(folder, similarity=lambda pairs: [0.0 for _ in pairs]).add(["4"], ["boat"])
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """What it leads to was cut to the lock's few words, and the link removed."""
    folder = index(lambda folder: None)(tmp_path / "index")
    (tmp_path / "precious").write_text("precious")
    (folder / "writer.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="is a link"):
        Engine.load(folder, similarity=lambda pairs: [0.0 for _ in pairs]).add([Item("4", "boat")])
    assert (tmp_path / "precious").read_text() == "precious"


def test_ids_that_name_no_rows_are_refused(tmp_path: Path) -> None:
    """An IndexError said nothing of the folder; a negative row was another item."""
    folder = index(ids_without_rows)(tmp_path / "index")
    with pytest.raises(ValueError, match="the ids of the index name the rows 1000000000"):
        assert "1" in Engine.load(folder, similarity=lambda pairs: [0.0 for _ in pairs])


def test_a_checkpoint_cannot_name_what_its_run_removes(forks: Forks, tmp_path: Path) -> None:
    """A run takes over from its checkpoint which file was the best so far, and removes it after a better one."""
    (first := tmp_path / "first").mkdir()
    assert forks.run("tests.fault_work:train", first, output=tmp_path / "log").wait() == 0
    victim = tmp_path / "precious.ckpt"
    victim.write_text("precious")
    (second := tmp_path / "second" / "checkpoints").mkdir(parents=True)
    found = torch.load(first / "checkpoints" / "resume.ckpt", weights_only=True)
    named = str(second / ".." / ".." / victim.name)
    for key, state in found["callbacks"].items():
        if key.startswith("ModelCheckpoint"):
            state.pop("dirpath")
            lowest = torch.tensor(-1.0)
            state |= {"best_model_path": named, "kth_best_model_path": named, "best_k_models": {named: lowest}}
            state |= {"kth_value": lowest, "best_model_score": lowest}
    torch.save(found, second / "resume.ckpt")
    forks.run("tests.fault_work:train", second.parent, output=tmp_path / "log").wait()
    assert victim.read_text() == "precious"
