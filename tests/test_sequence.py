"""Sequence encoders and next-item recommendation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.metrics import ndcg_score

from simzoo.core.batch import Batch
from simzoo.core.records import DataError, History, Item, Query
from simzoo.datamodules.next_items import NextItemLists, NextItems
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import BinaryCrossEntropy, SoftmaxCrossEntropy, Targets
from simzoo.losses.ranking import binary_cross_entropy
from simzoo.models.formats import load, save
from simzoo.models.next_item import NextItem, rank_metrics, target_ranks
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.sequence import SequenceConfig, SequenceEncoder, build_encoder
from simzoo.models.training import Optimization
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searchers.exact import Exact

CONFIGS = [
    SequenceConfig("sasrec", width=16, heads=2, length=8, aligned="first"),
    SequenceConfig("sasrec", width=16, length=8, hidden=32, aligned="last"),
    SequenceConfig("sasrec", width=16, length=8, norms="plain"),
    SequenceConfig("hstu", width=16, heads=2, length=8, time_buckets=32),
    SequenceConfig("hstu", width=16, heads=4, length=8, aligned="last"),
]


@pytest.fixture(params=CONFIGS, ids=lambda c: f"{c.architecture}-{c.aligned}-{c.time_buckets}-{c.norms}")
def encoder(request: pytest.FixtureRequest) -> SequenceEncoder:
    torch.manual_seed(0)
    return build_encoder(request.param, num_items=9).eval()


IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [9, 9, 2, 1, 0]])
TIMES = torch.tensor([[0, 9, 90, 9_000, 10_000], [4, 5, 0, 0, 0], [1, 2, 3, 400, 0]])


@torch.inference_mode()
def test_a_later_action_never_changes_an_earlier_state(encoder: SequenceEncoder) -> None:
    """A state that sees its target learns to copy it: training looks perfect, serving is random."""
    before = encoder(IDS, TIMES)
    for place in range(1, 5):
        ids, times = IDS.clone(), TIMES.clone()
        ids[0, place] = 8
        times[0, place:] += 100_000
        after = encoder(ids, times)
        torch.testing.assert_close(after[0, :place], before[0, :place], atol=1e-6, rtol=0)
        assert (after[0, place] - before[0, place]).abs().max() > 1e-3
        torch.testing.assert_close(after[1:], before[1:], atol=0, rtol=0)


@torch.inference_mode()
def test_padding_changes_nothing_on_either_side(encoder: SequenceEncoder) -> None:
    """A state that depends on what else is in the batch cannot be reproduced when serving one user."""
    together = encoder(IDS, TIMES)
    for row, length in enumerate((5, 2, 4)):
        ids, times = IDS[row : row + 1, :length], TIMES[row : row + 1, :length]
        alone = encoder(ids, times)[0]
        torch.testing.assert_close(together[row, :length], alone, atol=1e-6, rtol=1e-5)
        assert together[row, length:].abs().sum() == 0
        left = [torch.nn.functional.pad(part, (8 - length, 0)) for part in (ids, times)]
        torch.testing.assert_close(encoder(*left)[0, -length:], alone, atol=1e-6, rtol=1e-5)


@torch.inference_mode()
def test_order_and_times_matter() -> None:
    """A bias that is never added, or positions that are all alike, leave a bag of items."""
    for config in CONFIGS:
        encoder = build_encoder(config, 9).eval()
        turned = encoder(torch.tensor([[1, 2, 3], [2, 1, 3]]), torch.tensor([[1, 2, 3], [1, 2, 3]]))
        assert (turned[0, 2] - turned[1, 2]).abs().max() > 1e-4
        apart = encoder(torch.tensor([[1, 2], [1, 2]]), torch.tensor([[1, 2], [1, 50_000]]))
        assert ((apart[0, 1] - apart[1, 1]).abs().max() > 1e-6) == bool(config.time_buckets)


@torch.inference_mode()
def test_hstu_attention_by_hand() -> None:
    """One block, in loops as the formulas are written: a softmax, a scale or a shifted bias would still train."""
    config = SequenceConfig("hstu", width=4, blocks=1, heads=2, length=6, time_buckets=5)
    encoder: Any = build_encoder(config, 9).eval()
    block = encoder.blocks[0]
    torch.nn.init.normal_(block.uvqk.weight)
    torch.nn.init.normal_(block.position_bias)
    torch.nn.init.normal_(block.time_bias)
    ids, times = torch.tensor([[3, 1, 4]]), torch.tensor([[100, 101, 190]])

    def norm(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()

    def silu(x: torch.Tensor) -> torch.Tensor:
        return x * x.sigmoid()

    x = encoder.item.weight[ids[0]] * 2 + encoder.position.weight[:3]
    u, v, q, k = silu(norm(x) @ block.uvqk.weight.T).split(4, dim=1)
    attended = torch.zeros(3, 4)
    for i, j in itertools.product(range(3), range(3)):
        seconds = max(abs(int(times[0, i] - times[0, j])), 1)
        bucket = min(int(math.log(seconds) / 0.301), 5)
        bias = block.position_bias[i - j] + block.time_bias[bucket] if j <= i else 0
        for head in (slice(0, 2), slice(2, 4)):
            weight = silu(q[i, head] @ k[j, head] + bias) / 6 if j <= i else 0
            attended[i, head] += weight * v[j, head]
    expected = x + block.output(u * norm(attended))
    torch.testing.assert_close(encoder(ids, times)[0], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_plain_norms_are_those_of_rails() -> None:
    """A scale that is learned after all, or a norm behind the last block, is another model than that of the tables.

    The expectation is RAILS's own code, line by line, with torch's attention (modeling/sequential/sasrec.py).
    """
    torch.manual_seed(0)
    ours = build_encoder(SequenceConfig("sasrec", width=16, heads=2, length=8, norms="plain"), num_items=9).eval()
    norm = partial(torch.nn.functional.layer_norm, normalized_shape=(16,), eps=1e-8)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    x = ours.item(ids) * 4 + ours.position(torch.arange(5))
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    blocks: Any = ours.blocks
    for block in blocks:
        attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        attention.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
        attention.in_proj_bias.copy_(torch.randn(48))
        block.query.bias.copy_(attention.in_proj_bias[:16])
        block.key_value.bias.copy_(attention.in_proj_bias[16:])
        attention.out_proj.load_state_dict(block.output.state_dict())
        asked = norm(x)
        fed = norm(asked + attention(query=asked, key=x, value=x, attn_mask=later)[0])
        x = block.feed(fed) + fed
    torch.testing.assert_close(ours(ids), x)
    assert not [name for name, _ in ours.named_parameters() if "norm" in name]


def test_bad_sequences_are_refused(encoder: SequenceEncoder) -> None:
    """An index error from inside an embedding, or NaN from attention over nothing, names no culprit."""
    times = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"sequences \[0, 1\] of the batch are empty: nothing but padding"):
        encoder(torch.zeros(2, 2, dtype=torch.int64), times)
    with pytest.raises(ValueError, match=r"sequences \[1\] of the batch are empty"):
        encoder(torch.tensor([[1, 2], [0, 0]]), times)
    with pytest.raises(ValueError, match="rows 1 to 9, got 1 to 10"):
        encoder(torch.tensor([[1, 10], [1, 2]]), times)
    with pytest.raises(ValueError, match="sequences of 9 items, but the encoder was built for 8"):
        encoder(torch.ones(1, 9, dtype=torch.int64), torch.zeros(1, 9))
    if encoder.config.time_buckets:
        with pytest.raises(ValueError, match="no times were given"):
            encoder(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="go with bias_time: next, but it is last"):
        encoder(torch.tensor([[1, 2]]), times[:1], times[:1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "must divide width"),
        ({"dropout": 1.0}, "below 1"),
        ({"time_buckets": 4}, "for hstu only"),
        ({"length": 0}, "at least 1"),
        ({"architecture": "hstu", "bias_time": "next"}, "bias_time: next needs time_buckets"),
        ({"output_length": -1}, "output_length is 0 or more"),
        ({"architecture": "hstu", "norms": "plain"}, "norms: plain is a choice of sasrec"),
    ],
)
def test_bad_sizes_are_refused(settings: dict[str, Any], message: str) -> None:
    """A setting that only fails in the first step wastes the reading of the data before it."""
    with pytest.raises(ValueError, match=message):
        SequenceConfig(**settings)


def test_bad_records_are_refused() -> None:
    """An unknown item that becomes padding would be left out of a history silently."""
    model = NextItem.tiny()
    with pytest.raises(DataError, match="user 'u': item 'i9' is unknown: it is not among the 5"):
        model.collate_queries([History.of("u", ["i1", "i9"], [1, 2])])
    with pytest.raises(DataError, match="item 'i9' is unknown"):
        model.collate_items([Item("i9", "")])
    with pytest.raises(DataError, match="user 'u' has no times, but the encoder has time buckets"):
        model.collate_queries([History.of("u", ["i1"])])
    with pytest.raises(DataError, match="needs a History"):
        model.collate_queries([Query("q", "i1")])
    with pytest.raises(DataError, match="2 actions, but 1 times"):
        History.of("u", ["i1", "i2"], [1])
    with pytest.raises(ValueError, match="needs their ids"):
        NextItem([])
    with pytest.raises(ValueError, match="1 ids more than once"):
        NextItem(["a", "a"])


@torch.inference_mode()
def test_positions_and_queries_agree() -> None:
    """Training scores positions in order of length and puts them back: each state must return to its own place."""
    model = NextItem.tiny().eval()
    model.tokens_per_batch = 6
    histories = [
        History.of(f"u{n}", [f"i{(n + k) % 5}" for k in range(length)], range(length))
        for n, length in enumerate((2, 11, 1, 3))
    ]
    states = model._states(model.collate_queries(histories))
    assert states.shape == (2 + 8 + 1 + 3, 16)
    place = 0
    for history in histories:
        assert history.times is not None
        first = max(0, len(history.items) - 8)
        for end in range(first + 1, len(history.items) + 1):
            prefix = History.of("u", history.items[first:end], history.times[first:end])
            alone = model.encode_queries(model.collate_queries([prefix]))["vector"]
            torch.testing.assert_close(states[place : place + 1], alone, atol=1e-5, rtol=1e-5)
            place += 1


@pytest.mark.parametrize("bias_time", ["last", "next"])
def test_time_biases_begin_where_they_are_told(bias_time: Any) -> None:
    """Biases by the next action's time need it at every position; off by one, each state is asked at another's time."""
    config = SequenceConfig("hstu", width=8, blocks=1, length=4, time_buckets=64, bias_time=bias_time, output_length=3)
    model = NextItem([f"i{n}" for n in range(5)], config).eval()
    torch.nn.init.normal_(model.encoder.blocks[0].time_bias)  # type: ignore[union-attr, arg-type]
    history = History.of("u", ["i0", "i1", "i2", "i3", "i4"], [1, 9, 80, 900, 8_000], now=90_000)
    tokens = model.collate_queries([history])
    assert [part.values.tolist() for part in tokens.values()][1:] == (  # type: ignore[union-attr]
        [[9, 80, 900, 8_000]] if bias_time == "last" else [[9, 80, 900, 8_000], [80, 900, 8_000, 90_000]]
    )
    before = model.encode_positions(tokens)["vector"]
    later = model.encode_positions(model.collate_queries([replace(history, now=900_000_000)]))["vector"]
    assert isinstance(before, torch.Tensor) and isinstance(later, torch.Tensor)
    torch.testing.assert_close(before[:3], later[:3])
    assert ((before[3] - later[3]).abs().max() > 1e-4) == (bias_time == "next")


@pytest.mark.parametrize("kind", [NextItem, NextItemMoL])
def test_shared_candidates_score_as_listed_ones(kind: Any) -> None:
    """Shared negatives go through other matrix products; a transposed one would train on other pairs' scores."""
    torch.manual_seed(0)
    model = kind.tiny().eval()
    histories = [History.of("1", ["i0", "i2", "i1"], [1, 5, 9]), History.of("2", ["i4"], [3])]
    queries, items = model.collate_queries(histories), model.collate_items([Item(f"i{n}", "") for n in range(5)])
    own, shared = torch.tensor([[2], [1], [3], [0]]), torch.tensor([4, 0, 2])
    listed = torch.cat([own, shared.expand(4, 3)], dim=1)
    targets = Targets((torch.arange(4) == 0).float().expand(4, 4), torch.ones(4, 4, dtype=torch.bool))
    apart = Batch(queries, items, own, targets, ["1", "2"], True, shared)
    together = Batch(queries, items, listed, targets, ["1", "2"], True)
    torch.testing.assert_close(model.list_scores(apart), model.list_scores(together), atol=1e-5, rtol=1e-5)
    model.log_dict = lambda *_, **__: None
    torch.testing.assert_close(model.training_loss(apart), model.training_loss(together), atol=1e-5, rtol=1e-5)


def test_ranks_and_metrics_against_sklearn() -> None:
    """Ties in favour of the target make a model that scores everything alike perfect."""
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(generator.normal(size=(20, 30)))
    labels = torch.zeros(20, 30)
    labels[torch.arange(20), torch.from_numpy(generator.integers(30, size=20))] = 1
    ranks = target_ranks(scores, labels, torch.ones(20, 30, dtype=torch.bool))
    metrics = rank_metrics(ranks)
    assert metrics["ndcg@10"].mean() == pytest.approx(ndcg_score(labels, scores, k=10))
    assert metrics["mrr"].mean() == pytest.approx((1 / ranks).mean().item())
    assert metrics["hr@10"].sum() == sum(
        int(label.argmax()) in row.topk(10).indices for row, label in zip(scores, labels, strict=True)
    )
    mask = torch.ones(2, 4, dtype=torch.bool)
    target = torch.tensor([[0.0, 1, 0, 0]] * 2)
    mask[1, 0] = False
    assert target_ranks(torch.tensor([[3.0, 2, 2, 1]] * 2), target, mask).tolist() == [3, 2]
    assert target_ranks(torch.full((2, 4), math.nan), target, mask).tolist() == [4, 3]


def test_binary_cross_entropy_is_torchs() -> None:
    """The SASRec paper's loss, against torch's own on the same pairs; a masked candidate must not count."""
    scores, labels = torch.randn(6, 3), torch.tensor([[1.0, 0, 0]] * 6)
    mask = torch.tensor([[True, True, False]] * 6)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, :2], labels[:, :2], reduction="sum") / 6
    torch.testing.assert_close(binary_cross_entropy(scores, labels, mask), expected)
    torch.testing.assert_close(BinaryCrossEntropy(2.0)(2 * scores, Targets(labels, mask)), expected)


def cycle(folder: Path, sampling: Literal["position", "batch", "all"] = "position", negatives: int = 8) -> TrainingData:
    """Twelve users, each at another place of a cycle of twelve items."""
    path = folder / "cycle.txt"
    path.write_text("".join(f"u{user} i{(user + step) % 12}\n" for user in range(12) for step in range(9)))
    return TrainingData(NextItems(path, "sasrec"), NextItemLists(sampling, negatives), batch_size=4)


def fit(folder: Path, data: TrainingData, model: NextItem, epochs: int, **settings: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **settings,
    )
    ckpt = settings.get("callbacks") and folder / "none.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=ckpt if ckpt and ckpt.exists() else None, weights_only=True)
    return trainer


def cycle_model(data: TrainingData, architecture: Literal["sasrec", "hstu"], normalize: bool, loss: Any) -> NextItem:
    torch.manual_seed(0)
    encoder = SequenceConfig(architecture, width=16, blocks=1, length=8, dropout=0.0)
    # Constant, so that a run that is stopped early has the same rates up to there.
    steps = Optimization(lr=2e-2, warmup=0.0, weight_decay=0.0, schedule="constant_with_warmup")
    return NextItem(data.item_ids, encoder, normalize, loss=loss, optimization=steps)


@pytest.mark.parametrize(
    ("architecture", "sampling", "negatives", "normalize", "loss"),
    [
        ("sasrec", "position", 8, True, SoftmaxCrossEntropy(0.1)),
        ("hstu", "position", 8, True, SoftmaxCrossEntropy(0.1)),
        ("hstu", "batch", 8, True, SoftmaxCrossEntropy(0.1)),
        ("sasrec", "all", 8, False, SoftmaxCrossEntropy()),
        ("sasrec", "position", 1, False, BinaryCrossEntropy()),
    ],
)
def test_a_cycle_is_learnt(
    architecture: Any, sampling: Any, negatives: int, normalize: bool, loss: Any, tmp_path: Path
) -> None:
    """What follows is certain here: a loop that trains on shifted targets or wrong rows stays at chance."""
    data = cycle(tmp_path, sampling, negatives)
    model = cycle_model(data, architecture, normalize, loss)
    trainer = fit(tmp_path, data, model, epochs=50, enable_checkpointing=False, check_val_every_n_epoch=50)
    assert trainer.callback_metrics["val/mrr"] > 0.95
    assert trainer.callback_metrics["val/hr@1"] > 0.9
    trainer.test(model, datamodule=data, verbose=False)
    assert trainer.callback_metrics["val/hr@10"] == 1
    known = model.eval().rank(History.of("new", ["i7", "i8", "i9"]), [Item(name, "") for name in data.item_ids])
    assert data.item_ids[known[0][0]] == "i10"


def test_a_search_finds_what_validation_ranks(tmp_path: Path) -> None:
    """The command line and the training loop would otherwise report two different hit rates of one model."""
    data = cycle(tmp_path)
    model = cycle_model(data, "hstu", True, None).eval()
    [collection] = data.collections("test")
    batch = data.lists.validation(collection, model, 0, 1).batch(range(12), 0)
    with torch.inference_mode():
        ranks = target_ranks(model.list_scores(batch), batch.targets.labels, batch.targets.mask)
    corpus = Corpus.of(collection, SimilarityJudge.of(model, collection.items))
    found = evaluate(Exact(), corpus, collection, np.arange(12), 3, ["R@1", "R@3"])
    assert 0 < (ranks <= 3).sum() < 12
    for k in (1, 3):
        np.testing.assert_array_equal(found.values[f"R@{k}"], ranks <= k)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Negatives drawn from a global generator would differ after a restart."""
    whole = cycle_model(cycle(tmp_path), "sasrec", True, None)
    fit(tmp_path, cycle(tmp_path), whole, epochs=3, enable_checkpointing=False)
    kept = ModelCheckpoint(tmp_path, filename="none", every_n_train_steps=4, save_top_k=1, enable_version_counter=False)
    data = cycle(tmp_path)
    fit(tmp_path, data, cycle_model(data, "sasrec", True, None), epochs=3, callbacks=[kept], max_steps=4)
    data = cycle(tmp_path)
    resumed = cycle_model(data, "sasrec", True, None)
    fit(tmp_path, data, resumed, epochs=3, callbacks=[kept])
    for name, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[name]), name


def test_the_id_map_travels_with_the_checkpoint(tmp_path: Path) -> None:
    """Rows without their ids recommend other items after the data is read in another order."""
    model = NextItem(["b", "a", "c"], SequenceConfig(width=8, length=4)).eval()
    save(model, tmp_path)
    loaded = load(tmp_path)
    items = [Item(name, "") for name in "abc"]
    history = History.of("u", ["c", "a"])
    assert loaded.item_ids == ["b", "a", "c"]
    assert dict(loaded.rank(history, items)) == pytest.approx(dict(model.rank(history, items)))
    saved = {"state_dict": model.trained_state(), "arguments": {"item_ids": ["a", "b", "c"]}}
    with pytest.raises(ValueError, match="trained on other items"):
        model.on_load_checkpoint(saved)
