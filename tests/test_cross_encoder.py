"""Cross-encoders with a prior, and those that begin as a dual encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModel

from simzoo.core.hub import file_sha256
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, restore, save, save_onnx
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.prior import DualEncoderPrior
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import LearnedSimilarity
from tests.test_similarities import (  # noqa: F401  the contract of every similarity holds for these, too
    ITEMS,
    QUERIES,
    reps,
    test_bf16_ranks_alike,
    test_both_doors_agree,
    test_gradients_reach_every_trained_parameter,
    test_missing_candidates_score_minus_infinity,
    test_padding_invariance,
    test_permuting_candidates_permutes_scores,
    test_rank_orders_documents,
    test_scores_tell_items_and_queries_apart,
    test_taking_representations_apart,
)
from tests.test_training import trainer
from tests.toy import toy

TOKENS = TokenConfig(query_length=24, item_length=24)
BACKBONE = BackboneConfig(str(tiny_backbone()), dropout=0.0, lora=LoRA(2, 4))
GATED: dict[str, Any] = {"scoring": "mean", "item_position": "own", "attention": "gated"}


def shaken(model: LearnedSimilarity, seed: int) -> LearnedSimilarity:
    """With trained weights that are not at their start."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in model.trained_state().values():
            value.add_(torch.randn_like(value), alpha=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LearnedSimilarity]:
    """A released dual encoder, and the model it was."""
    folder = tmp_path_factory.mktemp("dual") / "de"
    model = shaken(DualEncoder(BACKBONE, TOKENS), 1)
    save(model, folder)
    return folder, model


def made(kind: str, folder: Path) -> CrossEncoder:
    prior = DualEncoderPrior(str(folder), scale=3.0, learned=kind == "learned")
    if kind in ("fixed", "learned"):
        return CrossEncoder(BACKBONE, TOKENS, scoring="cls" if kind == "fixed" else "emb", prior=prior)
    started = replace(BACKBONE, start=str(folder))
    return CrossEncoder(started, TOKENS, **{**GATED, **({"scoring": kind} if kind != "mean" else {})})


@pytest.fixture(params=["fixed", "learned", "mean", "emb", "cls"])
def similarity(request: pytest.FixtureRequest, dual: tuple[Path, LearnedSimilarity]) -> CrossEncoder:
    model = made(request.param, dual[0]).eval()
    if model.gates is not None:
        torch.nn.init.constant_(model.gates, 0.05)
    return model


@torch.inference_mode()
def test_saved_and_loaded_scores_are_equal(similarity: CrossEncoder, tmp_path: Path) -> None:
    """A gate, a scale or a frozen weight that is not saved comes back as it was at the start, silently."""
    expected = shaken(similarity, 2).score(*reps(similarity))
    save(similarity, tmp_path / "model")
    loaded, merged = load(tmp_path / "model", merge=False), load(tmp_path / "model")
    torch.testing.assert_close(loaded.score(*reps(loaded)), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(merged.score(*reps(merged)), expected, atol=1e-3, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("learned", [False, True])
def test_a_prior_adds_the_dual_encoders_score(dual: tuple[Path, LearnedSimilarity], learned: bool) -> None:
    """Items that the prior reads without [CLS], or with dropout, have other vectors than the dual encoder's."""
    torch.manual_seed(0)
    plain = CrossEncoder(BACKBONE, TOKENS)
    torch.manual_seed(0)
    model = CrossEncoder(BACKBONE, TOKENS, prior=DualEncoderPrior(str(dual[0]), scale=7.0, learned=learned))
    expected = plain.eval().score(*reps(plain)) + 7 * dual[1].score(*reps(dual[1]))
    torch.testing.assert_close(model.eval().score(*reps(model)), expected, atol=1e-4, rtol=1e-5)
    queries, items = reps(model)
    torch.testing.assert_close(items["vector"], dual[1].encode_items(dual[1].collate_items(ITEMS))["vector"])
    assert set(items) == {"ids", "tags", "vector"} and set(queries) == {"ids", "tags", "vector"}


def test_a_prior_is_frozen_and_released(dual: tuple[Path, LearnedSimilarity], tmp_path: Path) -> None:
    """A prior that is trained along is no prior; one that is looked up again may be another one by then, or gone."""
    pinned = DualEncoderPrior(str(dual[0]), file_sha256(dual[0] / "model.safetensors"), 7.0, learned=True)
    model = CrossEncoder(replace(BACKBONE, dropout=0.5), TOKENS, prior=pinned)
    assert model.prior is not None
    trained = [name for name, value in model.named_parameters() if value.requires_grad and name.startswith("prior")]
    assert trained == ["prior.scale"]
    tokens = model.train().collate_queries(QUERIES)
    once, again = (model.prior.vectors(tokens["ids"]) for _ in range(2))
    assert torch.equal(once, again)
    torch.nn.init.constant_(model.prior.scale, 2.5)
    save(model.eval(), tmp_path / "model")
    kept = json.loads((tmp_path / "model" / "config.json").read_text())["arguments"]["prior"]
    assert kept["checkpoint"] is None and kept["sha256"] == pinned.sha256
    (dual[0] / "model.safetensors").rename(tmp_path / "away")
    try:
        loaded, resumed = load(tmp_path / "model"), load(tmp_path / "model", merge=False)
    finally:
        (tmp_path / "away").rename(dual[0] / "model.safetensors")
    with torch.inference_mode():
        expected = model.score(*reps(model))
        torch.testing.assert_close(loaded.score(*reps(loaded)), expected, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(resumed.score(*reps(resumed)), expected, atol=1e-6, rtol=1e-6)
    assert dict(loaded.named_parameters())["prior.scale"].item() == 2.5
    assert not any(value.requires_grad for name, value in resumed.named_parameters() if "prior.encoder" in name)


def test_a_fixed_scale_is_part_of_the_weights(dual: tuple[Path, LearnedSimilarity], tmp_path: Path) -> None:
    """Stored representations and score matrices are known by the weights: two scales must not share them."""
    sums = set()
    for scale in (1.0, 2.0):
        torch.manual_seed(0)
        save(CrossEncoder(BACKBONE, TOKENS, prior=DualEncoderPrior(str(dual[0]), scale=scale)), tmp_path / str(scale))
        sums.add(file_sha256(tmp_path / str(scale) / "model.safetensors"))
    assert len(sums) == 2


def test_another_dual_encoder_is_refused(dual: tuple[Path, LearnedSimilarity], tmp_path: Path) -> None:
    """A checkpoint that was trained anew under the same name changes every score, and nothing says so."""
    for config, message in (
        (DualEncoderPrior(str(dual[0]), "0" * 64), "has sha256 .*, expected 0000"),
        (DualEncoderPrior(str(tmp_path)), "there is no .*model.safetensors"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            CrossEncoder(BACKBONE, TOKENS, prior=config)
    with pytest.raises(ValueError, match="another backbone or lora"):
        CrossEncoder(replace(BACKBONE, lora=LoRA(3, 4)), TOKENS, prior=DualEncoderPrior(str(dual[0])))
    with pytest.raises(ValueError, match=r"prior\.scale must be positive"):
        DualEncoderPrior(scale=0.0)


@torch.inference_mode()
def test_gated_attention_begins_as_the_dual_encoder(dual: tuple[Path, LearnedSimilarity]) -> None:
    """A start that is only near the dual encoder loses in the first steps what it was to keep."""
    model = made("mean", dual[0]).eval()
    expected = dual[1].score(*reps(dual[1]))
    torch.testing.assert_close(model.score(*reps(model)), expected, atol=2e-6, rtol=1e-5)
    assert model.gates is not None
    torch.nn.init.constant_(model.gates, 0.1)
    assert (model.score(*reps(model)) - expected).abs().max() > 1e-3


def test_closed_gates_learn() -> None:
    """A gate whose gradient is 0 where it is closed, such as a sigmoid far off or a masked softmax, never opens."""
    model = CrossEncoder(BACKBONE, TOKENS, **GATED)
    model.score(*reps(model))[:, 0].sum().backward()
    assert model.gates is not None and model.gates.grad is not None
    assert (model.gates.grad != 0).all()


@torch.inference_mode()
def test_open_gates_are_plain_attention() -> None:
    """The gated sum must be of this layer's attention over both texts: transformers' own, token by token."""
    plain = replace(BACKBONE, lora=None)
    model = CrossEncoder(plain, TOKENS, **GATED).eval()
    assert model.gates is not None
    torch.nn.init.constant_(model.gates, 0.1)  # times OPENING
    bert: Any = AutoModel.from_pretrained(tiny_backbone()).eval()
    for query in QUERIES:
        ids = model.collate_queries([query])["ids"].values  # type: ignore[union-attr]
        for item in ITEMS:
            own = model.collate_items([item])["ids"].values  # type: ignore[union-attr]
            places = torch.cat([torch.arange(len(ids)), torch.arange(len(own))])
            states = bert(torch.cat([ids, own])[None].long(), position_ids=places[None]).last_hidden_state[0]
            means = states[: len(ids)].mean(dim=0), states[len(ids) :].mean(dim=0)
            expected = torch.nn.functional.cosine_similarity(*means, dim=0)
            score = model.score(*reps(model, [query], [item]))[0, 0]
            torch.testing.assert_close(score, expected, atol=2e-5, rtol=1e-5)


def test_what_other_projects_cannot_read_is_not_exported(dual: tuple[Path, LearnedSimilarity], tmp_path: Path) -> None:
    """An export without its prior or its gates gives other scores, and nobody sees it."""
    for kind in ("fixed", "mean", "cls"):
        with pytest.raises(TypeError, match="has no ONNX export"):
            save_onnx(made(kind, dual[0]), tmp_path / kind)


@pytest.mark.parametrize("kind", ["fixed", "learned", "mean"])
def test_training_goes_on_from_a_checkpoint(kind: str, dual: tuple[Path, LearnedSimilarity], tmp_path: Path) -> None:
    """A training checkpoint without the prior's weights, or one that a model with a prior refuses, loses the run."""
    model = made(kind, dual[0])
    before = {name: value.clone() for name, value in model.trained_state().items()}
    keep = ModelCheckpoint(tmp_path, "kept", save_top_k=1)
    trainer(tmp_path / "a", keep, epochs=1, limit_train_batches=2, limit_val_batches=0).fit(model, toy())
    moved = {name for name, value in model.trained_state().items() if not torch.equal(value, before[name])}
    frozen = {
        name for name in before if name.startswith("prior.encoder") or (name == "prior.scale" and kind == "fixed")
    }
    assert not moved & frozen and moved
    assert ("prior.scale" in moved) == (kind == "learned") and ("gates" in moved) == (kind == "mean")
    again = made(kind, dual[0])
    restore(again, tmp_path / "kept.ckpt")
    for name, value in again.trained_state().items():
        assert torch.equal(value, model.trained_state()[name]), name
    on = trainer(tmp_path / "b", epochs=2, limit_train_batches=2, limit_val_batches=0)
    on.fit(made(kind, dual[0]), toy(), ckpt_path=tmp_path / "kept.ckpt", weights_only=True)
    assert on.global_step == 4
