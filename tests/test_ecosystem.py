"""Both ways with sentence-transformers and PyLate, and ONNX: their own programs are the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import sentence_transformers
import torch
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification

from simzoo.core.records import Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save, save_onnx, save_sentence_transformer
from simzoo.models.late_interaction import SumOfMax
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from tests.test_layouts import CLOSE, ITEMS, QUERIES, TEXTS, scores


def adapted(cls: type, **arguments: Any) -> Any:
    """A model whose adapters are not at their start, merged as a loaded one is."""
    model = cls(BackboneConfig(str(tiny_backbone()), lora=LoRA(2, 4)), TokenConfig(24, 24), **arguments)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in model.trained_state().values():
            value.normal_(std=0.3)
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [False, True])
def test_dual_encoder_becomes_a_sentence_transformer(pooling: str, normalize: bool, tmp_path: Path) -> None:
    """Embeddings that differ a little from the model's own make every index built on them a little wrong."""
    save(adapted(DualEncoder, pooling=pooling, normalize=normalize), tmp_path / "ours")
    model = load(tmp_path / "ours")
    save_sentence_transformer(model, tmp_path / "theirs")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    plain = [Query("q", text) for text in TEXTS], [Item("i", text) for text in TEXTS]
    with torch.inference_mode():
        ours = [
            model.encode_queries(model.collate_queries(plain[0]))["vector"],
            model.encode_items(model.collate_items(plain[1]))["vector"],
        ]
    torch.testing.assert_close(torch.tensor(theirs.encode_query(TEXTS)), ours[0], **CLOSE)
    torch.testing.assert_close(torch.tensor(theirs.encode_document(TEXTS)), ours[1], **CLOSE)
    tagged = torch.tensor(theirs.encode(["boat [unused2] a small boat"]))
    with torch.inference_mode():
        own = model.encode_items(model.collate_items(ITEMS[:1]))["vector"]
    torch.testing.assert_close(tagged, own, **CLOSE)
    back = load(tmp_path / "theirs")
    torch.testing.assert_close(scores(back, *plain), scores(model, *plain), **CLOSE)


@pytest.mark.parametrize("scoring", ["cls", "pooled"])
def test_cross_encoder_becomes_theirs(scoring: str, tmp_path: Path) -> None:
    """Scores with BERT's pooler between, or without the tags, would be those of another model."""
    save(adapted(CrossEncoder, scoring=scoring), tmp_path / "ours")
    model = load(tmp_path / "ours")
    save_sentence_transformer(model, tmp_path / "theirs")
    theirs = sentence_transformers.CrossEncoder(str(tmp_path / "theirs"), device="cpu")
    found = torch.tensor(theirs.predict([("the boat", text) for text in TEXTS]))
    expected = scores(model, [Query("q", "the boat")], [Item("i", text) for text in TEXTS])[0]
    torch.testing.assert_close(found, expected, **CLOSE)
    if scoring == "cls":
        back = load(tmp_path / "theirs")
        torch.testing.assert_close(
            scores(back, [Query("q", "the boat")], [Item("i", text) for text in TEXTS])[0], expected, **CLOSE
        )


def write_tokenizer(folder: Path) -> None:
    """The tiny tokenizer, and BERT's [CLS] and [SEP], which ours puts in itself."""
    made: Any = AutoTokenizer.from_pretrained(tiny_backbone())
    special = [(token, made.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    made.save_pretrained(folder)
    _patch(folder / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def test_their_cross_encoder_becomes_ours(tmp_path: Path) -> None:
    """Most cross-encoders on the Hub are BERT with its own head for sequences."""
    config = BertConfig.from_pretrained(tiny_backbone(), num_labels=1)
    torch.manual_seed(2)
    made = BertForSequenceClassification(config)
    with torch.no_grad():
        for value in made.parameters():
            value.mul_(10 if value.ndim > 1 else 1)
    made.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu", activation_fn=torch.nn.Identity())
    expected = torch.tensor(theirs.predict([("the boat", text) for text in TEXTS]))
    model = load(tmp_path)
    found = scores(model, [Query("q", "the boat")], [Item("i", text) for text in TEXTS])[0]
    torch.testing.assert_close(found, expected, **CLOSE)


def multi_vector(folder: Path) -> Any:
    torch.manual_seed(4)
    dense = Dense(16, 8, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    normalize = Normalize(module_input_name="token_embeddings", module_output_name="token_embeddings")
    base = folder / "base"
    AutoModel.from_pretrained(tiny_backbone()).save_pretrained(base)
    write_tokenizer(base)
    made = sentence_transformers.MultiVectorEncoder(modules=[Transformer(str(base)), dense, normalize])
    made.save(str(folder), create_model_card=False)
    return made


def test_late_interaction_becomes_sum_of_max(tmp_path: Path) -> None:
    """A projection that is dropped, or vectors of another length, keep the shape of the scores and not their order."""
    theirs = multi_vector(tmp_path)
    queries, items = theirs.encode_query(TEXTS[:2]), theirs.encode_document(TEXTS)
    expected = torch.tensor(
        [[float((torch.tensor(q) @ torch.tensor(i).T).amax(dim=1).sum()) for i in items] for q in queries]
    )
    _patch(tmp_path / "config_sentence_transformers.json", do_query_expansion=False)
    model = load(tmp_path)
    found = scores(model, [Query("q", text) for text in TEXTS[:2]], [Item("i", text) for text in TEXTS])
    torch.testing.assert_close(found, expected, **CLOSE)


def test_pylate_layout(tmp_path: Path) -> None:
    """PyLate's marker token stands after [CLS]; what fills queries with [MASK] computes something else."""
    multi_vector(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    lengths = {"query_length": 32, "document_length": 40}
    marks = {"query_prefix": "[unused0] ", "document_prefix": "[unused1] "}
    settings = tmp_path / "config_sentence_transformers.json"
    _patch(settings, **lengths, **marks, do_query_expansion=True, skiplist_words=["!"])
    with pytest.raises(ValueError, match=r"fills queries up with \[MASK\]"):
        load(tmp_path)
    _patch(settings, do_query_expansion=False, skiplist_words=[])
    model = load(tmp_path)
    assert isinstance(model, SumOfMax) and model.text.config.query_length == 32 and model.normalize
    ids = model.collate_queries([Query("q", "a boat")])["ids"].values.tolist()
    assert model.text.tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "[unused0]", "a", "boat", "[SEP]"]
    # PyLate's own marks are added to the vocabulary, with their space.
    tokenizer, encoder = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(tmp_path)
    encoder.resize_token_embeddings(len(tokenizer))
    encoder.save_pretrained(tmp_path)
    _patch(settings, query_prefix="[Q] ", document_prefix="[D] ")
    model = load(tmp_path)
    assert isinstance(model, SumOfMax)
    ids = model.collate_queries([Query("q", "a boat")])["ids"].values.tolist()
    assert ids[1] == len(tokenizer) - 2


def _patch(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_modules_that_compute_something_else_are_refused(tmp_path: Path) -> None:
    """A module that is passed over in silence gives embeddings that are nobody's."""
    made = sentence_transformers.SentenceTransformer(
        modules=[Transformer(str(tiny_backbone())), Pooling(16, "mean"), Dense(16, 4)]
    )
    made.save(str(tmp_path / "a"), create_model_card=False)
    with pytest.raises(ValueError, match=r"modules .*Dense.* are not supported"):
        load(tmp_path / "a")
    made = sentence_transformers.SentenceTransformer(modules=[Transformer(str(tiny_backbone())), Pooling(16, "max")])
    made.save(str(tmp_path / "b"), create_model_card=False)
    with pytest.raises(ValueError, match=r"pooling .* is not supported"):
        load(tmp_path / "b")
    with pytest.raises(TypeError, match="no model of sentence-transformers"):
        save_sentence_transformer(CrossEncoder.tiny(), tmp_path / "c")


# -- ONNX -------------------------------------------------------------------------------------------------------------


def run_onnx(path: Path, **inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.tensor(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])


@pytest.mark.parametrize("scoring", ["cls", "emb"])
def test_onnx_pairs_score_alike(scoring: Any, tmp_path: Path) -> None:
    """An export that is fixed to the shape it was traced with fails, or worse, cuts, at the first other batch."""
    torch.manual_seed(5)
    model = CrossEncoder(BackboneConfig(str(tiny_backbone())), TokenConfig(24, 24), scoring=scoring).eval()
    save_onnx(model, tmp_path)
    queries, items = model.collate_queries(QUERIES), model.collate_items(ITEMS)
    expected = scores(model, QUERIES, ITEMS)
    for q, row in enumerate(expected):
        left = queries["ids"].take(torch.tensor([q])).values
        ids, mask, types = (torch.zeros(len(ITEMS), 48, dtype=torch.int64) for _ in range(3))
        tags = torch.zeros(len(ITEMS), 3, dtype=torch.int64)
        for i in range(len(ITEMS)):
            right = items["ids"].take(torch.tensor([i])).values
            both = torch.cat([left, right])
            ids[i, : len(both)], mask[i, : len(both)], types[i, len(left) : len(both)] = both, 1, 1
            tags[i] = torch.cat([queries["tags"][q], len(left) + items["tags"][i]])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        found = run_onnx(tmp_path / "pair.onnx", **inputs, **({"tags": tags} if scoring == "emb" else {}))
        torch.testing.assert_close(found, row, **CLOSE)


def test_onnx_vectors_are_alike(tmp_path: Path) -> None:
    """Mean pooling over the padding is the classic error of an export."""
    model = DualEncoder.tiny().eval()
    save_onnx(model, tmp_path)
    tokens = model.collate_items(ITEMS)
    ids, mask = tokens["ids"].pad()
    with torch.inference_mode():
        expected = model.encode_items(tokens)["vector"]
    padded = [torch.nn.functional.pad(value.long(), (0, 5)) for value in (ids, mask)]
    found = run_onnx(tmp_path / "item.onnx", input_ids=padded[0], attention_mask=padded[1])
    torch.testing.assert_close(found, expected, **CLOSE)
