"""Files of strangers that ask for more than there is: each is refused in one line, in a process with little memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.deformer import DeFormer
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, restore, save
from simzoo.models.next_item import NextItem
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.pretrained import read_config
from simzoo.models.parts.sequence import SequenceConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizer_bounds import MOST_GROWTH, check_tokenizer
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.sequence_classifier import SequenceClassifier
from tests.test_sequence_classifier import byte_level, sentence_piece, word_piece

ROOT = Path(__file__).parents[1]
EXTRA = 1_000_000_000
"""Bytes that a process may map besides what it has when everything is imported."""

LIMITED = """
import json, os, resource, sys, traceback
from simzoo import History, Item, Query
from simzoo.models.formats import load
from simzoo.models.sequence_classifier import SequenceClassifier
from simzoo.models.parts.backbone import BackboneConfig

def told(place, what):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    try:
        model = SequenceClassifier(BackboneConfig(place)) if what == "backbone" else load(place)
        if model.text is not None:
            model.rank(what, [what])
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return "no error"

for line in sys.stdin:  # each case in a process of its own, which need not import all this again
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(told(*json.loads(line))).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    print(json.dumps([os.waitpid(child, 0)[1], answer]), flush=True)
"""


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything, and asks children with little memory."""
    with subprocess.Popen(
        [sys.executable, "-c", LIMITED, str(EXTRA)],
        cwd=ROOT, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        yield started
        assert started.stdin is not None
        started.stdin.close()


Said = Callable[..., str]


@pytest.fixture
def said(process: subprocess.Popen[str]) -> Said:
    """What a process with little memory says of a folder that it loads, and ranks with; one line."""

    def ask(place: Path, what: str = "a") -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([str(place), what]) + "\n")
        process.stdin.flush()
        status, answer = json.loads(process.stdout.readline())
        assert status == 0, f"the process ended with {status}"
        message: str = json.loads(answer)
        assert len(message.splitlines()) == 1, message
        return message

    return ask


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def backbone(folder: Path, **tokenizer: Any) -> Path:
    shutil.copytree(tiny_backbone(), folder)
    change(folder / "tokenizer.json", **tokenizer)
    return folder


def test_the_limit_leaves_room_for_what_is_in_order(tmp_path: Path, said: Said) -> None:
    """A limit under which nothing loads would make every refusal below look right."""
    save(DualEncoder.tiny(), tmp_path / "m")
    assert said(tmp_path / "m") == "no error"
    assert said(backbone(tmp_path / "b"), "backbone") == "no error"


# -- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["sasrec", "hstu"])
@pytest.mark.parametrize("cls", [NextItem, NextItemMoL])
def test_blocks_without_number_are_refused(cls: type, architecture: Any, tmp_path: Path, said: Said) -> None:
    """A billion blocks of width 1 hold few numbers each: what fills memory are the modules."""
    save(cls.tiny(), tmp_path)  # type: ignore[attr-defined]
    (tmp_path / "manifest.json").unlink()
    arguments = json.loads((tmp_path / "config.json").read_text())["arguments"]
    arguments["encoder"] |= {"architecture": architecture, "width": 1, "heads": 1, "hidden": None, "blocks": 10**9}
    if architecture == "sasrec":
        arguments["encoder"] |= {"time_buckets": 0, "bias_time": "last"}
    change(tmp_path / "config.json", arguments=arguments)
    assert "asks for more than" in said(tmp_path)


@pytest.mark.parametrize(
    "claims",
    [{"num_hidden_layers": 10**9, "hidden_size": 2, "num_attention_heads": 1, "intermediate_size": 1},
     {"num_labels": 10**9}, {"model_type": "modernbert", "num_hidden_layers": 10**9},
     {"model_type": "distilbert", "n_layers": 10**9, "dim": 2, "n_heads": 1}, {"num_hidden_layers": 9_000},
     {"text_config": {"num_hidden_layers": 10**9}}],
)  # fmt: skip
def test_layers_without_number_are_refused(claims: dict[str, Any], tmp_path: Path, said: Said) -> None:
    """A transformer's configuration makes lists of its layers and labels before any weight is looked at."""
    folder = backbone(tmp_path / "b")
    change(folder / "config.json", **claims)
    message = said(folder, "backbone")
    assert "expected at most 10,000; it is refused" in message or "asks for more than" in message


# -- tokenizers -------------------------------------------------------------------------------------------------------


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


TENFOLD = replace({"String": "a"}, "a" * 10)
BOMBS: dict[str, Any] = {
    "nine replacements": {"type": "Sequence", "normalizers": [TENFOLD] * 9},
    "nested": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [TENFOLD] * 3}] * 3},
    "one long": replace({"String": "a"}, "a" * 100_000),
    "nothing": replace({"String": ""}, "a" * 1000),
    "a pattern": {"type": "Sequence", "normalizers": [replace({"Regex": "a|b"}, "ab")] * 30},
    "prefixes": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 99}, TENFOLD, TENFOLD]},
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_tokenizer_that_multiplies_texts_is_refused(kind: str, tmp_path: Path, said: Said) -> None:
    """Nine chained replacements make a gigabyte of the query "a"; the library aborts the process."""
    folder = backbone(tmp_path / "b", normalizer=BOMBS[kind])
    message = said(folder, "backbone")
    assert "its normalizer makes up to" in message and "it is made to fill memory, and refused" in message


def test_a_released_checkpoints_tokenizer_is_looked_at_too(tmp_path: Path, said: Said) -> None:
    """A checkpoint of ours takes its backbone's tokenizer, and a cross-encoder's folder its own."""
    folder = backbone(tmp_path / "b")
    save(CrossEncoder(BackboneConfig(str(folder)), TokenConfig(24, 24)), tmp_path / "m")
    (tmp_path / "m" / "manifest.json").unlink()
    for path in tmp_path.rglob("tokenizer.json"):
        change(path, normalizer=BOMBS["nine replacements"])
    assert "its normalizer makes up to" in said(tmp_path / "m")


@pytest.mark.parametrize(
    "normalizer",
    [{"type": "Sequence", "normalizers": 3}, {"type": "Replace", "content": "a"}, {"type": "Precompiled"},
     {"type": "Precompiled", "precompiled_charsmap": "!"}, [], {"no": "type"}, "text"],
)  # fmt: skip
def test_a_normalizer_that_is_none_is_refused(normalizer: Any, tmp_path: Path) -> None:
    """What cannot be read cannot be bounded, and must not pass."""
    folder = backbone(tmp_path / "b", normalizer=normalizer)
    with pytest.raises(ValueError, match=r"tokenizer\.json: its normalizer cannot be read"):
        check_tokenizer(folder / "tokenizer.json")
    with pytest.raises(ValueError, match="its tokenizer cannot be read"):
        SequenceClassifier(BackboneConfig(str(folder)))


def test_a_charsmap_that_multiplies_texts_is_refused(tmp_path: Path) -> None:
    """SentencePiece's compiled table may hold any replacement; its own ones make 18 characters of one at most."""
    import base64
    import struct

    for longest, refused in ((18, False), (5_000, True)):
        table = struct.pack("<I", 8) + bytes(8) + b"a\0" + b"b" * longest + b"\0"
        chain = {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
            replace({"Regex": " {2,}"}, " "), replace({"String": " "}, "▁")]}  # fmt: skip
        path = tmp_path / f"{longest}.json"
        path.write_text(json.dumps({"normalizer": chain}))
        if refused:
            with pytest.raises(ValueError, match="its normalizer makes up to"):
                check_tokenizer(path)
        else:
            check_tokenizer(path)


@pytest.mark.parametrize("write", [word_piece, byte_level, sentence_piece])
def test_tokenizers_in_use_pass(write: Callable[[Path, bool], None], tmp_path: Path) -> None:
    """A bound that refuses what is in use is switched off by the first user."""
    write(tmp_path, False)
    check_tokenizer(tmp_path / "tokenizer.json")
    # The library itself is the oracle: what it makes of a text is within the bound.
    made = AutoTokenizer.from_pretrained(tmp_path)
    assert len(made.tokenize("\ufdfa boat" * 100)) < MOST_GROWTH * 600


@pytest.mark.parametrize("where", ["first", "later"])
def test_a_pattern_that_panics_is_an_error(where: str, tmp_path: Path, said: Said) -> None:
    """A panic of the library is no Exception: it passes every handler and ends the program with a traceback."""
    letters = "a" if where == "first" else "q"
    split = {"type": "Split", "pattern": {"Regex": f"(({letters}+)+)+!!"}, "behavior": "Isolated", "invert": False}
    folder = backbone(tmp_path / "b", pre_tokenizer=split, normalizer=None)
    if where == "first":
        assert "breaks down at a text" in said(folder, "backbone")
        return
    model = DualEncoder(BackboneConfig(str(folder)), TokenConfig(24, 24))
    with pytest.raises(ValueError, match=r"tokenizer .* breaks down at a text .* made to harm"):
        model.rank("q" * 60, ["a"])


# -- texts, lengths, weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DualEncoder, CrossEncoder, SequenceClassifier])
def test_half_a_surrogate_pair_is_named(cls: Any) -> None:
    """The library says "TextEncodeInput must be Union[...]", which names neither the text nor the character."""
    text = cls.tiny().text
    with pytest.raises(ValueError, match=r"the text 'a \\ud800 boat' has U\+D800 at character 2, half of a surrogate"):
        text.ids(["fine", "a \ud800 boat"])  # records refuse it before
    assert len(text.ids(["\U0001f6a3"])) == 1, "a whole pair is a character"


@pytest.mark.parametrize("side", ["query_length", "item_length"])
@pytest.mark.parametrize("cls", [DualEncoder, DeFormer])
def test_lengths_beyond_the_positions_are_refused(cls: Any, side: str) -> None:
    """The first text that is long enough fails inside an embedding, after hours of indexing."""
    lengths = {"query_length": 24, "item_length": 24, side: 65}
    with pytest.raises(ValueError, match=rf"tokens\.{side} is 65, but .* takes at most 64 tokens"):
        cls(BackboneConfig(str(tiny_backbone())), TokenConfig(**lengths))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_no_numbers_are_refused(value: float, dtype: torch.dtype, tmp_path: Path) -> None:
    """Some scores become NaN and sort anywhere; others look right."""
    save(NextItem.tiny(), tmp_path / "m", dtype=torch.float32 if dtype is torch.bfloat16 else dtype)
    (tmp_path / "m" / "manifest.json").unlink()
    path = tmp_path / "m" / "model.safetensors"
    weights = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    name = sorted(weights)[1]
    weights[name].view(-1)[-1] = value
    save_file(weights, path)
    with pytest.raises(ValueError, match=rf"model\.safetensors: {name} holds NaN or infinity"):
        load(tmp_path / "m")
    torch.save({"state_dict": weights, "loops": {}, "global_step": 0}, tmp_path / "m.ckpt")
    with pytest.raises(ValueError, match=rf"m\.ckpt: {name} holds NaN or infinity"):
        restore(NextItem.tiny(), tmp_path / "m.ckpt")


@pytest.mark.parametrize("cls", [DualEncoder, SequenceClassifier])
def test_a_backbone_that_is_no_numbers_is_refused(cls: Any, tmp_path: Path) -> None:
    """Frozen weights are read by another way than trained ones."""
    folder = backbone(tmp_path / "b")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"encoder\.layer\.1\.output\.dense\.weight holds NaN or infinity"):
        cls(BackboneConfig(str(folder)))


@pytest.mark.parametrize("cls", [DualEncoder, SequenceClassifier])
@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("layer_norm_eps", float("nan"), "a finite number"),
        ("layer_norm_eps", float("-inf"), "a finite number"),
        ("layer_norm_eps", 0, "a number above 0 and at most 1"),
        ("layer_norm_eps", -1e-12, "a number above 0 and at most 1"),
        ("layer_norm_eps", 1e30, "a number above 0 and at most 1"),
        ("anything", {"deeper": [1, float("inf")]}, "a finite number"),
        ("hidden_dropout_prob", -0.5, "a share between 0 and 1"),
        ("num_attention_heads", -2, "a whole number above 0"),
        ("rope_parameters", {"rope_theta": 0.0}, "a number above 0"),
    ],
)
def test_a_setting_that_makes_no_numbers_is_refused(
    cls: Any, key: str, value: Any, wanted: str, tmp_path: Path
) -> None:
    """The model was loaded without complaint, and every score was NaN, or the same, in the middle of a search."""
    folder = backbone(tmp_path / "b")
    settings = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(settings))
    name = key if not isinstance(value, dict) else next(iter(value))
    with pytest.raises(ValueError, match=rf"config\.json: {name} is .*, expected {wanted}; it is refused"):
        cls(BackboneConfig(str(folder)))


def test_settings_of_models_in_use_pass(tmp_path: Path) -> None:
    """Zeros that mean nothing, no limit or the padding, and labels of any name, must not be refused."""
    folder = backbone(tmp_path / "b")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"chunk_size_feed_forward": 0, "max_relative_positions": -1, "classifier_dropout": None}
    settings |= {"hidden_dropout_prob": 0, "label2id": {"theta": 0, "eps": 7}, "pad_token_id": 0, "anything": 10**400}
    (folder / "config.json").write_text(json.dumps(settings))
    assert read_config(folder, "b").hidden_dropout_prob == 0


@pytest.mark.parametrize("content", ["", "text", "{}", "[]", '{"model_type": 3}', '{"model_type": []}', "\udcff"])
@pytest.mark.parametrize("name", ["config.json", "notes.txt", "model.safetensors"])
def test_a_checkpoint_that_is_none(name: str, content: str, tmp_path: Path) -> None:
    """A path that was mistyped must end in a line that says what was expected."""
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    for place in (tmp_path, tmp_path / name):
        with pytest.raises((ValueError, FileNotFoundError)) as refused:
            load(place)
        assert len(str(refused.value).splitlines()) == 1 and str(tmp_path) in str(refused.value)


def test_sequences_have_a_bound_that_models_in_use_keep() -> None:
    """The limits must leave room for the largest recipes."""
    encoder = SequenceConfig(architecture="hstu", width=16, blocks=100, length=8, time_buckets=8)
    assert NextItem(["a", "b"], encoder).trained_state()
