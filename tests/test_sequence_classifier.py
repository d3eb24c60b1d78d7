"""Re-rankers and encoders of every architecture: transformers' own forward pass, pair by pair, is the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
import transformers
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from simzoo.core.records import Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save, save_sentence_transformer
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.sequence_classifier import SequenceClassifier
from tests.hub_client import Client
from tests.loopback_hub import Hub
from tests.test_layouts import scores

pytest_plugins = ["tests.hub_client"]

TEXTS = ["a boat", "the land beside a river, a river, a river", "z", "", "money in the bank " * 12]
ASKED = ["the boat lay on the river bank", "banks", "where is the house by the sea, and who lives in it now " * 3]
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def word_piece(folder: Path, segments: bool) -> None:
    """BERT's tokenizer, with or without segments."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbone())
    names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    tokenizer.model_input_names = names
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": names}))


def byte_level(folder: Path, segments: bool) -> None:
    """RoBERTa's: bytes with the space before them, <s> query </s></s> item </s>, padding with 1."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet, "Ġb", "oa"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "b"), ("o", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    _save(tokenizer, folder, {"bos": "<s>", "cls": "<s>", "sep": "</s>", "eos": "</s>", "pad": "<pad>"}, 40)


def sentence_piece(folder: Path, segments: bool) -> None:
    """A unigram model with the sign for spaces, as XLM-R and DeBERTa have it."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = [(c, -4.0) for c in "abcdefghijklmnopqrstuvwxyz,▁"]
    pieces = [*((token, 0.0) for token in special), *letters, ("▁boat", -3.0), ("▁the", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    kinds = [1, 1] if segments else [0, 0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair=f"<s> $A </s> </s> $B:{kinds[0]} </s>:{kinds[1]}",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    named = {"bos": "<s>", "cls": "<s>", "sep": "</s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    _save(tokenizer, folder, named, 48, segments)


def _save(tokenizer: Tokenizer, folder: Path, named: dict[str, str], longest: int, segments: bool = False) -> None:
    names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    fast: Any = PreTrainedTokenizerFast
    made = fast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=names,
        **{f"{kind}_token": token for kind, token in named.items()},
    )
    made.save_pretrained(folder)


# Name in transformers: tokenizer, whether it gives segments, settings.
KINDS: dict[str, tuple[Callable[[Path, bool], None], bool, dict[str, Any]]] = {
    "Bert": (word_piece, True, {"max_position_embeddings": 64}),
    "Roberta": (byte_level, False, {"max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}),
    "XLMRoberta": (sentence_piece, False, {"max_position_embeddings": 50, "type_vocab_size": 1, "pad_token_id": 1}),
    "Camembert": (sentence_piece, False, {"max_position_embeddings": 60, "type_vocab_size": 1, "pad_token_id": 1}),
    "DebertaV2": (
        sentence_piece,
        True,
        {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"],
         "type_vocab_size": 0, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
         "pad_token_id": 1, "pooler_hidden_size": 32},
    ),
    "Deberta": (word_piece, True, {"max_position_embeddings": 64, "pooler_hidden_size": 32}),
    "ModernBert": (
        word_piece,
        False,
        {"max_position_embeddings": 64, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0,
         "classifier_pooling": "mean"},
    ),
    "DistilBert": (word_piece, False, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48,
                                       "max_position_embeddings": 64}),
    "Electra": (word_piece, True, {"embedding_size": 16, "max_position_embeddings": 64}),
    "Albert": (word_piece, True, {"embedding_size": 16, "max_position_embeddings": 64}),
    "MPNet": (byte_level, False, {"max_position_embeddings": 42, "pad_token_id": 1}),
    "GPT2": (byte_level, False, {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "pad_token_id": 1}),
}  # fmt: skip
RERANKERS, ENCODERS = list(KINDS), [kind for kind in KINDS if kind != "GPT2"]


def made(kind: str, folder: Path, ending: str, **more: Any) -> Any:
    """A small random model of a kind, with weights large enough that scores differ, and its tokenizer."""
    write, segments, settings = KINDS[kind]
    write(folder, segments)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {} if kind in ("DistilBert", "GPT2") else SMALL
    config = getattr(transformers, f"{kind}Config")(
        **{**sizes, "pad_token_id": 0, **settings, "vocab_size": len(tokenizer), **more}
    )
    torch.manual_seed(11)
    model = getattr(transformers, f"{kind}{ending}")(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(8 if value.ndim > 1 else 1).add_(0.02 * torch.randn_like(value))
    model.save_pretrained(folder)
    return model


def reranker(kind: str, folder: Path) -> Any:
    return made(kind, folder, "ForSequenceClassification", num_labels=1)


@torch.inference_mode()
def reference(folder: Path, query: str, text: str, longest: int) -> float:
    """One pair through transformers' own tokenizer and model, nothing else in the batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(
        [query], [text], truncation="longest_first", max_length=longest, return_tensors="pt"
    )
    return float(model(**inputs).logits[0, 0])


def expected(folder: Path, longest: int) -> Tensor:
    return torch.tensor([[reference(folder, query, text, longest) for text in TEXTS] for query in ASKED])


def ours(model: Any) -> Tensor:
    return scores(model, [Query("q", query) for query in ASKED], [Item("i", text) for text in TEXTS])


@pytest.mark.parametrize("kind", [kind for kind in RERANKERS if kind != "Bert"])
def test_scores_are_transformers_own(kind: str, tmp_path: Path) -> None:
    """Positions from the padding, segments where there are none, or another way to cut: close scores, another order."""
    reranker(kind, tmp_path / "m")
    model = load(tmp_path / "m")
    assert isinstance(model, SequenceClassifier)
    found = ours(model)
    longest = {"byte_level": 40, "sentence_piece": 48, "word_piece": 64}[KINDS[kind][0].__name__]
    torch.testing.assert_close(found, expected(tmp_path / "m", longest), **CLOSE)
    assert found.std() > 1e-3
    assert model.text.truncated > 0, "no text was long enough to be cut"
    save(model, tmp_path / "ours")
    assert torch.equal(ours(load(tmp_path / "ours")), found)


@pytest.mark.parametrize("kind", ["Roberta", "DebertaV2", "ModernBert", "DistilBert"])
def test_scores_are_sentence_transformers_logits(kind: str, tmp_path: Path) -> None:
    """Squashed scores rank alike, and fail every method that fits a line to them."""
    reranker(kind, tmp_path / "base")
    theirs = sentence_transformers.CrossEncoder(str(tmp_path / "base"), device="cpu", max_length=32)
    theirs.prompts, theirs.default_prompt_name = {"search": "find: "}, "search"
    theirs.save(str(tmp_path / "m"), create_model_card=False)
    wanted = theirs.predict([(q, t) for q in ASKED for t in TEXTS], activation_fn=torch.nn.Identity())
    model = load(tmp_path / "m")
    assert isinstance(model, SequenceClassifier)
    torch.testing.assert_close(ours(model), torch.tensor(wanted).view(len(ASKED), len(TEXTS)), **CLOSE)


def test_bert_stays_a_cross_encoder(tmp_path: Path) -> None:
    """Checkpoints on the Hub that are in use must not change their scores with a new version."""
    reranker("Bert", tmp_path)
    assert isinstance(load(tmp_path), CrossEncoder)
    short = [Query("q", "the boat")], [Item("i", text) for text in TEXTS[:3]]
    classifier = SequenceClassifier(BackboneConfig(str(tmp_path))).eval()
    torch.testing.assert_close(scores(load(tmp_path), *short), scores(classifier, *short), **CLOSE)
    torch.testing.assert_close(ours(classifier), expected(tmp_path, 64), **CLOSE)


def test_several_outputs_are_refused(tmp_path: Path) -> None:
    """The first of three logits (contradiction, say) is a number too."""
    made("Roberta", tmp_path, "ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match=r"has 3 labels, expected one score"):
        load(tmp_path)


def test_a_lacking_head_is_refused(tmp_path: Path) -> None:
    """A head that is not in the file would be random, and the model scores all the same."""
    from safetensors.torch import load_file, save_file

    reranker("Roberta", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("classifier.out_proj.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no classifier\.out_proj\.weight, which its config\.json asks for"):
        load(tmp_path)


@pytest.mark.parametrize("lora", [None, LoRA(2, 4)])
@pytest.mark.parametrize("kind", ["Roberta", "DebertaV2", "ModernBert"])
def test_an_encoder_gets_a_head_that_is_saved(kind: str, lora: LoRA | None, tmp_path: Path) -> None:
    """A new head, or a new pooler inside the transformer, that is frozen or not saved is another one when loaded."""
    made(kind, tmp_path / "base", "Model")
    model = SequenceClassifier(BackboneConfig(str(tmp_path / "base"), lora=lora), max_length=30)
    with torch.no_grad():
        for value in model.trained_state().values():
            value.add_(torch.randn_like(value), alpha=0.1)
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    torch.testing.assert_close(ours(loaded), ours(model.eval()), **CLOSE)
    assert ours(loaded).std() > 1e-3
    if lora is not None:
        size = sum(value.numel() for value in model.trained_state().values())
        assert size < sum(value.numel() for value in model.parameters()) / 2


def test_marks_and_titles(tmp_path: Path) -> None:
    """A mention that is not marked makes two queries of one sentence the same."""
    reranker("DistilBert", tmp_path)
    model = SequenceClassifier(BackboneConfig(str(tmp_path)), mention_marks=("[", "]"), query_prompt="q: ").eval()
    queries = [Query("q", "a river boat", (2, 7)), Query("q", "a river boat", (8, 12))]
    found = scores(model, queries, [Item("i", "water", "river")])
    wanted = [reference(tmp_path, text, "river water", 64) for text in ("q: a [river] boat", "q: a river [boat]")]
    torch.testing.assert_close(found[:, 0], torch.tensor(wanted), **CLOSE)


def test_max_length_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    """RoBERTa has two positions less than its configuration says; the third last token would fail at the first use."""
    reranker("Roberta", tmp_path)
    with pytest.raises(ValueError, match=r"max_length is 41, but .* takes at most 40 tokens"):
        SequenceClassifier(BackboneConfig(str(tmp_path)), max_length=41)
    assert SequenceClassifier(BackboneConfig(str(tmp_path))).encoder.max_length == 40


@pytest.mark.parametrize("kind", ["Roberta", "ModernBert"])
def test_a_name_on_the_hub(kind: str, tmp_path: Path, hub: Hub, client: Client) -> None:
    """What works for a folder must work for what most users have: a name."""
    reranker(kind, tmp_path)
    hub.add("cross-encoder/ms-marco-tiny", {path.name: path.read_bytes() for path in tmp_path.iterdir()})
    found = client.run(
        "import simzoo\n"
        "model = simzoo.load('cross-encoder/ms-marco-tiny')\n"
        f"value = [type(model).__name__, model.rank({ASKED[0]!r}, {TEXTS!r})]"
    )
    assert found[0] == "SequenceClassifier"
    longest = {"Roberta": 40, "ModernBert": 64}[kind]
    wanted = torch.tensor([reference(tmp_path, ASKED[0], text, longest) for text in TEXTS])
    torch.testing.assert_close(torch.tensor([score for _, score in sorted(found[1])]), wanted, **CLOSE)


def test_export_to_sentence_transformers(tmp_path: Path) -> None:
    """Their default is a sigmoid: a folder that does not say otherwise comes back with other scores."""
    reranker("Electra", tmp_path / "m")
    model = load(tmp_path / "m")
    save_sentence_transformer(model, tmp_path / "theirs")
    theirs = sentence_transformers.CrossEncoder(str(tmp_path / "theirs"), device="cpu")
    wanted = theirs.predict([(q, t) for q in ASKED for t in TEXTS])
    torch.testing.assert_close(ours(model), torch.tensor(wanted).view(len(ASKED), len(TEXTS)), **CLOSE)
    torch.testing.assert_close(ours(load(tmp_path / "theirs")), ours(model), **CLOSE)


# -- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_vectors_are_sentence_transformers_own(kind: str, pooling: str, tmp_path: Path) -> None:
    """An embedder of another family whose prompts are joined with the text another way is a little wrong everywhere."""
    made(kind, tmp_path / "base", "Model")
    modules = [Transformer(str(tmp_path / "base")), Pooling(32, pooling), *([Normalize()] if pooling == "cls" else [])]
    prompts = {"query": "boat search:", "passage": "the text: "}
    theirs = sentence_transformers.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    theirs.save(str(tmp_path / "m"), create_model_card=False)
    model = load(tmp_path / "m")
    assert isinstance(model, DualEncoder)
    with torch.inference_mode():
        query = model.encode_queries(model.collate_queries([Query("q", text) for text in ASKED]))["vector"]
        item = model.encode_items(model.collate_items([Item("i", text) for text in TEXTS]))["vector"]
    torch.testing.assert_close(query, torch.tensor(theirs.encode_query(ASKED)), **CLOSE)
    torch.testing.assert_close(item, torch.tensor(theirs.encode_document(TEXTS)), **CLOSE)


def test_a_transformer_alone_is_pooled_as_theirs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder without modules was no checkpoint at all; sentence-transformers takes the mean."""
    made("MPNet", tmp_path, "Model")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    model = load(tmp_path)
    assert "does not say how its states become a vector" in caplog.text
    with torch.inference_mode():
        item = model.encode_items(model.collate_items([Item("i", text) for text in TEXTS]))["vector"]
    torch.testing.assert_close(item, torch.tensor(theirs.encode(TEXTS)), **CLOSE)
