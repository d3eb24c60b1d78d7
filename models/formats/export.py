"""Models for other programs: folders of sentence-transformers, and ONNX files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats.portable import save_tokenizer, without_places
from simzoo.models.parts.backbone import Encoder
from simzoo.models.parts.int8 import check_not_quantized
from simzoo.models.parts.pooling import mean_state
from simzoo.models.parts.pretrained import unasked
from simzoo.models.sequence_classifier import SequenceClassifier
from simzoo.models.similarity import LearnedSimilarity


def save_sentence_transformer(model: LearnedSimilarity, folder: Path) -> None:
    """Writes a folder that SentenceTransformer or CrossEncoder loads: the same embeddings or scores.

    A dual encoder's tags become the prompts ``query`` and ``document``: use encode_query and encode_document. A
    cross-encoder's tags are put in by the tokenizer. Both hold for plain texts; the tags of mentions and titles are
    written into the text by the caller, and longer texts are cut as that package cuts them.

    Args:
        model: a dual encoder with one encoder for both sides, a cross-encoder that scores by [CLS],
            or a sequence classifier.
        folder: to write.

    Raises:
        TypeError: another model, which that package has no modules for.
        ValueError: the model is quantized.
    """
    check_not_quantized(model)
    if isinstance(model, SequenceClassifier):
        _write_classifier(model, folder)
        return
    from sentence_transformers import CrossEncoder as Pairs
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    encoder = _exportable(model)
    assert isinstance(model, (CrossEncoder, DualEncoder))
    width = encoder.width
    _write_transformer(encoder, model, folder)
    kwargs = ("model_kwargs", "processor_kwargs", "config_kwargs")
    with unasked():
        transformer: Any = Transformer(str(folder), **{name: {"trust_remote_code": False} for name in kwargs})
    if isinstance(model, DualEncoder):
        modules = [transformer, Pooling(width, model.pooling), *([Normalize()] if model.normalize else [])]
        prompts = {"query": _prompt(model, query=True), "document": _prompt(model, query=False)}
        made: Any = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name="dot")
    else:
        assert model.head is not None
        parts = [part for part in model.head if isinstance(part, nn.Linear)]
        dense = [Dense(width, width, activation_function=nn.Tanh()) for _ in parts[:-1]]
        dense.append(Dense(width, 1, activation_function=nn.Identity(), module_output_name="scores"))
        for module, part in zip(dense, parts, strict=True):
            module.linear.load_state_dict(part.state_dict())
        made = Pairs(modules=[transformer, Pooling(width, "cls"), *dense], activation_fn=nn.Identity())
    made.save(str(folder), create_model_card=False)
    without_places(folder)
    for weights in folder.rglob("*.safetensors"):  # safetensors makes its files for their owner alone
        shutil.copymode(folder / "config.json", weights)


def save_onnx(model: LearnedSimilarity, folder: Path) -> None:
    """Writes ONNX files with free batch and length, and the tokenizer.

    A dual encoder becomes query.onnx and item.onnx: input_ids and attention_mask (B, L) to vector (B, h). A
    cross-encoder becomes pair.onnx: input_ids, attention_mask and token_type_ids (B, L) to score (B,), and also tags
    (B, 3) where it scores by the tags' states: the places of the two of the mention and that of the item.

    Args:
        model: a dual encoder or a cross-encoder whose items' positions follow the query's.
        folder: to write.

    Raises:
        TypeError: another model.
        ValueError: the model is quantized.
    """
    check_not_quantized(model)
    if not isinstance(model, DualEncoder) and not (isinstance(model, CrossEncoder) and model.plain):
        raise TypeError(
            f"this {type(model).__name__} has no ONNX export; dual encoders have one, and packed cross-encoders that "
            "score by tags or [CLS], without prior and gates"
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(model.text.tokenizer, folder)
    if isinstance(model, DualEncoder):
        for name, encoder in (("query", model.query_encoder), ("item", model.item_encoder)):
            _export(_Vector(encoder, model), folder / f"{name}.onnx", ("input_ids", "attention_mask"), "vector")
        return
    names = ("input_ids", "attention_mask", "token_type_ids", *(("tags",) if model.head is None else ()))
    _export(_Pair(model), folder / "pair.onnx", names, "score")


class _Vector(nn.Module):
    def __init__(self, encoder: Encoder, model: DualEncoder) -> None:
        super().__init__()
        self.encoder, self.pooling, self.normalize = encoder, model.pooling, model.normalize

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(ids, mask)
        vector = hidden[:, 0] if self.pooling == "cls" else mean_state(hidden, mask)
        return F.normalize(vector, dim=1) if self.normalize else vector


class _Pair(nn.Module):
    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.encoder, self.head = model.encoder, model.head

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor, tags: Tensor | None = None) -> Tensor:
        hidden = self.encoder(ids, mask, types)
        if self.head is not None:
            score: Tensor = self.head(hidden[:, 0])[:, 0]
        else:
            assert tags is not None
            states = hidden.gather(1, tags[..., None].expand(-1, -1, hidden.shape[-1]))
            score = (states[:, :2].mean(dim=1) * states[:, 2]).sum(dim=1)
        return score


def _export(module: nn.Module, path: Path, names: tuple[str, ...], output: str) -> None:
    ids = torch.ones(2, 8, dtype=torch.int64)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])  # without padding the mask would be left out of the graph
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0, "tags": ids[:, :3]}
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    free = {name: {0: batch} if name == "tags" else {0: batch, 1: length} for name in names}
    torch.onnx.export(
        module.eval(),
        tuple(inputs[name] for name in names),
        path,
        input_names=list(names),
        output_names=[output],
        dynamic_shapes=tuple(free.values()),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    _without_traces(path)


def _without_traces(path: Path) -> None:
    """Takes out of an ONNX file where in the exporter's source each operation comes from: absolute paths."""
    import onnx

    model = onnx.load(str(path))
    graphs = [model.graph, *model.functions]
    while graphs:
        graph = graphs.pop()
        held = [graph, *graph.node, *graph.value_info]
        held += [*graph.input, *graph.output, *graph.initializer] if isinstance(graph, onnx.GraphProto) else []
        for part in held:
            del part.metadata_props[:]
            part.doc_string = ""
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            graphs += [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
    del model.metadata_props[:]
    onnx.save(model, str(path))


def _exportable(model: LearnedSimilarity) -> Encoder:
    if isinstance(model, DualEncoder) and model.item_encoder is model.query_encoder:
        encoder = model.query_encoder
    elif isinstance(model, CrossEncoder) and model.head is not None and model.plain:
        encoder = model.encoder
    else:
        raise TypeError(
            f"this {type(model).__name__} is no model of sentence-transformers: a dual encoder with one encoder for "
            "both sides is, and a packed cross-encoder that scores by [CLS]"
        )
    if encoder.adapted:
        raise TypeError("the adapters are not merged: load the model with `simzoo.load`, or call Encoder.merge()")
    return encoder


def _write_classifier(model: SequenceClassifier, folder: Path) -> None:
    """The model in Hugging Face's layout, as it is; its scores are the logits for that package, too."""
    if model.encoder.adapted:
        raise TypeError("the adapters are not merged: load the model with `simzoo.load`, or call Classifier.merge()")
    model.encoder.model.save_pretrained(folder)
    save_tokenizer(model.text.tokenizer, folder)
    longest = model.text.room + model.text.template.added
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    for name, changes in (("config", {"sentence_transformers": identity}), ("tokenizer_config", {})):
        path = folder / f"{name}.json"
        settings = json.loads(path.read_text()) | changes
        if name == "tokenizer_config":
            settings["model_max_length"] = longest
        path.write_text(json.dumps(settings, indent=2) + "\n")
    if model.text.query_prompt:
        prompt = {"prompts": {"query": model.text.query_prompt}, "default_prompt_name": "query"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompt, indent=2) + "\n")


def _write_transformer(encoder: Encoder, model: CrossEncoder | DualEncoder, folder: Path) -> None:
    """The transformer in Hugging Face's layout, with the tags as tokens that a text may contain."""
    text = model.text
    folder.mkdir(parents=True, exist_ok=True)
    encoder.model.save_pretrained(folder)
    save_tokenizer(text.tokenizer, folder)
    path = folder / "tokenizer.json"
    tokenizer: Any = type(text.tokenizer.backend_tokenizer).from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in text.tag_ids])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    first, second = (_tags(model, query=side) for side in (True, False))
    cls, sep = text.tokenizer.cls_token, text.tokenizer.sep_token
    pair = isinstance(model, CrossEncoder)
    tagged = [f"{cls} {' '.join(first)} $A {sep}".split(), [f"{part}:1" for part in [*second, "$B", sep]]]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=" ".join([*tagged[0], *tagged[1]]) if pair else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, text.cls_id), (sep, text.sep_id), *text.tag_ids.items()],
    )
    tokenizer.save(str(path))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    lengths = text.config.query_length, text.config.item_length
    settings["model_max_length"] = sum(lengths) if pair else max(lengths)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _tags(model: CrossEncoder | DualEncoder, query: bool) -> tuple[str, ...]:
    """Tokens before a query without a mention, or before an item without a title."""
    config = model.text.config
    if query:
        return (*config.query_prefix, *(config.mention_tags or ())[:1])
    return (*config.item_prefix, *((config.item_tag,) if config.item_tag else ()))


def _prompt(model: DualEncoder, query: bool) -> str:
    written = model.text.config.query_prompt if query else model.text.config.item_prompt
    return "".join(f"{tag} " for tag in _tags(model, query)) + written
