"""Mixture-of-Logits: its parts against hand-made examples and plain loops, its losses, and text through all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.batch import Batch
from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged
from simzoo.losses import MutualInformation, Targets, UserL2
from simzoo.losses.mixture import gate_entropies, mutual_information, user_l2
from simzoo.models.mixture_of_logits import MoL, ParameterizedPooling
from simzoo.models.parts.backbone import BackboneConfig, load_tokenizer
from simzoo.models.parts.layers import GatedLinear, HashedUsers
from simzoo.models.parts.mixture import MixtureConfig, MoLHead, mol_scores
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.searchers.mol.topk import BruteForce, ExactMoL
from tests.toy import toy_collection

FULL = MixtureConfig(2, 3, gate_hidden=5, query_gate=True, item_gate=True)


def test_scores_by_hand() -> None:
    """SiLU before the softmax, and the softmax over components: numbers that can be followed with a pencil."""
    logits = torch.tensor([[3.0, 1.0], [-1.0, 2.0]])
    gating = torch.tensor([[0.0, 1.0], [0.0, -2.0]])
    scores, gates = mol_scores(logits, gating)
    one, two = 1 / (1 + np.exp(-1)), -2 / (1 + np.exp(2))
    pi = np.exp(one) / (np.exp(one) + np.exp(two))
    torch.testing.assert_close(gates, torch.tensor([[0.5, pi], [0.5, 1 - pi]], dtype=torch.float32))
    torch.testing.assert_close(scores, torch.tensor([1.0, pi + 2 * (1 - pi)], dtype=torch.float32))


def test_dropped_probabilities_leave_a_distribution() -> None:
    """Dropout on the gate's inputs, or without renormalising, is another model than the paper's."""
    torch.manual_seed(0)
    logits, gating = torch.randn(8, 500), torch.randn(8, 500)
    whole = mol_scores(logits, gating)[1]
    scores, gates = mol_scores(logits, gating, dropout=0.5)
    assert 0.4 < (gates == 0).float().mean() < 0.6
    kept = gates > 0
    left = kept.any(dim=0)  # now and then all eight are dropped
    torch.testing.assert_close(gates.sum(dim=0), left.float())
    torch.testing.assert_close(gates[:, left], (whole * kept / (whole * kept).sum(dim=0))[:, left])
    torch.testing.assert_close(scores, (gates * logits).sum(dim=0))


def heads() -> list[Any]:
    return [
        pytest.param(replace(FULL, query_gate=query, item_gate=item), id=f"query {query}, item {item}")
        for query in (True, False)
        for item in (True, False)
    ]


def plain(head: MoLHead, query: Tensor, item: Tensor) -> Tensor:
    """One pair, one logit after the other, query-major."""
    p_q, p_x = (F.normalize(part.view(-1, head.width), dim=1) for part in (query, item))
    logits = torch.stack([f @ g / head.temperature for f in p_q for g in p_x])
    gate = head.gate
    g = gate.cross_out(F.silu(gate.cross_in(logits)))
    parts = [net(raw) for net, raw in ((gate.query, query), (gate.item, item)) if net is not None]
    if parts:
        g = g + torch.stack(parts).prod(dim=0)
    return (torch.softmax(g * torch.sigmoid(g), dim=0) * logits).sum()


@torch.no_grad()
@pytest.mark.parametrize("config", heads())
def test_the_gate_of_search_is_that_of_training(config: MixtureConfig) -> None:
    """The reordered gate in place of the trained one: a swapped row gives plausible scores and another ranking."""
    torch.manual_seed(0)
    head = MoLHead(config, 8, 12).eval()
    for parameter in head.parameters():
        parameter.copy_(3 * torch.randn_like(parameter))
    raw_q, raw_x = torch.randn(4, 8), torch.randn(5, 12)
    queries, items = head.queries(raw_q), head.items(raw_x)
    logits = torch.einsum("bnd,kmd->bknm", queries["components"], items["components"]).flatten(2) / head.temperature
    order = torch.randperm(6)
    gate = head.gate.for_search(order)
    query = None if head.gate.query is None else head.gate.query(raw_q)[:, None, order]
    item = None if head.gate.item is None else head.gate.item(raw_x)[:, order]
    scores = gate.scores(F.pad(logits[..., order], (0, 1), value=1.0), query, item)
    torch.testing.assert_close(scores, head.score(queries, items)[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("config", heads())
def test_head_against_plain_loops(config: MixtureConfig) -> None:
    """Logits flattened item-major, or a gate part of another pair, still train, but no released weights fit them."""
    torch.manual_seed(0)
    head = MoLHead(config, 8, 12).eval()
    for parameter in head.parameters():
        parameter.copy_(torch.randn_like(parameter))
    raw_q, raw_x = torch.randn(4, 8), torch.randn(6, 12)
    expected = torch.stack([torch.stack([plain(head, q, x) for x in raw_x]) for q in raw_q])
    queries, items = head.queries(raw_q), head.items(raw_x)
    assert ("gate" in queries, "gate" in items) == (config.query_gate, config.item_gate)
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(head.score(queries, items)[0], expected, **close)
    shared = torch.tensor([[5, -1, 2]])
    scores, gates = head.score(queries, items, shared)
    torch.testing.assert_close(scores[:, [0, 2]], expected[:, [5, 2]], **close)
    assert torch.isneginf(scores[:, 1]).all()
    torch.testing.assert_close(gates.sum(dim=1), torch.ones(4, 3))
    own = torch.tensor([[0, 1], [2, 3], [4, 5], [5, 0]])
    torch.testing.assert_close(head.score(queries, items, own)[0], expected.gather(1, own), **close)
    pairs = head.score_pairs(queries, items, torch.tensor([3, 0, 0]), torch.tensor([1, 4, 0]))
    torch.testing.assert_close(pairs, expected[[3, 0, 0], [1, 4, 0]], **close)
    assert head.score_pairs(queries, items, *[torch.empty(0, dtype=torch.int64)] * 2).shape == (0,)


def test_item_side_is_computed_once() -> None:
    """Work on items that is done anew for every batch of queries is most of the reference's time."""
    head = MoLHead(FULL, 8, 12).eval()
    queries, items = head.queries(torch.randn(2, 8)), head.items(torch.randn(5, 12))
    called = []
    assert head.gate.item is not None
    for part in (head.gate.item, head.item_projection):
        part.register_forward_hook(lambda *_: called.append(1))
    head.score(queries, items)
    head.score_pairs(queries, items, torch.tensor([0]), torch.tensor([1]))
    assert not called


def test_gated_layers() -> None:
    """GELU and SiLU swapped, or the two halves: checkpoints would load and score wrongly."""
    x = torch.randn(3, 4)
    for kind, act in (("geglu", F.gelu), ("swiglu", F.silu)):
        layer = GatedLinear(4, 5, kind)  # type: ignore[arg-type]
        first, second = layer.both.weight.split(5)
        torch.testing.assert_close(layer(x), act(x @ first.T) * (x @ second.T))


def test_user_ids_become_the_last_components() -> None:
    """Row uid % size + 1, as in the released tables, where row 0 is padding; users with one hash share a row."""
    head = MoLHead(MixtureConfig(4, 3, width=4, query_projection="geglu", user_hashes=(5, 7)), 8, 12).eval()
    users = head.users
    assert isinstance(users, HashedUsers)
    ids = torch.tensor([3, 13, 8])
    components = head.queries(torch.randn(3, 8), ids)["components"]
    assert isinstance(components, Tensor) and components.shape == (3, 4, 4)
    torch.testing.assert_close(components[1, 2], F.normalize(users.tables[0].weight[4], dim=0))
    torch.testing.assert_close(components[1, 3], F.normalize(users.tables[1].weight[7], dim=0))
    torch.testing.assert_close(components[0, 2], components[2, 2])
    torch.testing.assert_close(user_l2(users.rows(ids)), users.rows(ids).square().sum() / 3)
    with pytest.raises(ValueError, match="user ids must be given"):
        head.queries(torch.randn(3, 8))


def test_pooling_does_not_see_padding() -> None:
    """Hidden states at padded positions are arbitrary: any weight on them makes a vector depend on its batch."""
    torch.manual_seed(0)
    pooling = ParameterizedPooling(6, 2, 10).eval()
    states, mask = torch.randn(3, 4, 6), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    padded = torch.cat([states, torch.full((3, 5, 6), 1e6)], dim=1)
    pooled = pooling(states, mask)
    torch.testing.assert_close(pooling(padded, F.pad(mask, (0, 5))), pooled)
    torch.testing.assert_close(pooled[2], states[2, 0].repeat(2))
    torch.testing.assert_close(pooling(states[1:2, :2], mask[1:2, :2])[0], pooled[1])


def test_prefix_tokens_stand_before_the_text() -> None:
    """A prefix that shifts the tags, or is cut off with a long text, leaves nothing to pool."""
    tokens = TokenConfig(query_length=12, item_length=12, query_prefix=("[SEP]", "[MASK]"), item_prefix=("[MASK]",))
    text = TextTokenizer(load_tokenizer(BackboneConfig(str(tiny_backbone()))), tokens)
    plain_text = TextTokenizer(text.tokenizer, replace(tokens, query_prefix=(), item_prefix=()))
    mask = text.tokenizer.convert_tokens_to_ids("[MASK]")
    queries = [Query("q", "a boat b", (2, 6)), Query("r", "a boat"), Query("s", "a b c d e f g h i j k l", (6, 7))]
    items = [Item("i", "a", "boat"), Item("j", "a b c d e f g h i j k l", "boat")]
    for encoder, prefix, single in ((text, [text.sep_id, mask], [mask]), (plain_text, [], [])):
        reps = encoder.queries(queries), encoder.items(items, cls=True)
        for (ids, tags), before in zip(((r["ids"], r["tags"]) for r in reps), (prefix, single), strict=True):
            assert isinstance(ids, Ragged) and isinstance(tags, Tensor)
            for row in range(len(ids)):
                sequence = ids.take(torch.tensor([row])).values.tolist()
                assert sequence[: 1 + len(before)] == [encoder.cls_id, *before]
                assert sequence[-1] == encoder.sep_id and len(sequence) <= 12
                assert {sequence[at] for at in tags[row].tolist()} <= set(encoder.tag_ids.values()) - {mask}
    with pytest.raises(ValueError, match="1 more for each token of their prefix"):
        TokenConfig(query_length=9, query_prefix=("[SEP]", "[MASK]"))


def test_mutual_information_of_gates() -> None:
    """A sign error spreads the gates where they should be sharp; the expectation is sum p log(p / q) by hand."""
    rng = np.random.default_rng(0)
    gates = rng.dirichlet(np.ones(4), size=50)
    information = (gates * np.log(gates / gates.mean(axis=0))).sum(axis=1).mean()
    found = mutual_information(torch.from_numpy(gates))
    assert float(found) == pytest.approx(-information)
    assert float(MutualInformation(0.5)(torch.from_numpy(gates))) == pytest.approx(-information / 2)
    used, each = gate_entropies(torch.eye(4))
    assert (float(used), float(each)) == (pytest.approx(np.log(4)), 0)
    assert float(mutual_information(torch.full((3, 4), 0.25))) == pytest.approx(0, abs=1e-6)
    assert float(mutual_information(torch.empty(0, 4))) == 0


def test_dropped_gates_have_finite_gradients() -> None:
    """-p log p has an infinite slope at 0, and dropout puts gates there: one step, and all weights are NaN."""
    torch.manual_seed(0)
    gating = torch.randn(8, 60, requires_grad=True)
    gates = mol_scores(torch.randn(8, 60), gating, dropout=0.5)[1]
    assert (gates == 0).any()
    mutual_information(gates.T).backward()
    assert gating.grad is not None and torch.isfinite(gating.grad).all() and (gating.grad != 0).any()


def test_user_l2_weight() -> None:
    """Summed over the tables, averaged over the users: the paper's 0.1 means nothing otherwise."""
    embeddings = torch.tensor([[[1.0, 2.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    assert float(UserL2(0.1)(embeddings)) == pytest.approx(0.1 * (5 + 9 + 0 + 1) / 2)


def test_training_adds_the_gates_of_the_positives() -> None:
    """Without it, or over all candidates instead of the positives, L_MI has no effect or another one."""
    model = MoL.tiny().eval()
    model.gate_loss = MutualInformation(0.5)
    collection = toy_collection(num_items=6, num_queries=3)
    tokens = model.collate_queries(collection.queries), model.collate_items(collection.items)
    labels = torch.zeros(3, 6)
    for row, relevant in enumerate(collection.judgements):
        labels[row, list(relevant)] = 1
    mask = torch.ones(3, 6, dtype=torch.bool)
    batch = Batch(*tokens, torch.arange(6)[None], Targets(labels, mask), ["a", "b", "c"])
    scores, gates = model.head.score(model.encode_queries(tokens[0]), model.encode_items(tokens[1]))
    own = torch.stack([gates[row, :, labels[row].argmax()] for row in range(3)])
    expected = model.loss(scores, batch.targets) + 0.5 * mutual_information(own)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign]
    torch.testing.assert_close(model.training_loss(batch), expected)
    model.train().training_loss(batch).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


@torch.inference_mode()
def test_text_is_searched_exactly() -> None:
    """Representations read by the searcher must be those that the scorer scores."""
    model, collection = MoL.tiny().eval(), toy_collection()
    corpus = Corpus.of(collection, SimilarityJudge.of(model, collection.items))
    scored, brute, exact = Exact(), BruteForce(), ExactMoL(seeds=5)
    for searcher in (scored, brute, exact):
        searcher.index(corpus)
    one, two, three = (searcher.search(collection.queries, 5) for searcher in (scored, brute, exact))
    np.testing.assert_allclose(one.scores, two.scores, atol=1e-4)
    np.testing.assert_array_equal(two.items, three.items)
    np.testing.assert_array_equal(two.scores, three.scores)
    assert three.certified.all()  # type: ignore[attr-defined]


def test_bad_settings_are_refused() -> None:
    """Each impossible wish gets the reason, not a shape error from deep inside."""
    with pytest.raises(ValueError, match="width 10 does not divide into 4 components"):
        MoLHead(MixtureConfig(4, 4), 10, 12)
    with pytest.raises(ValueError, match="item vector of width 12 does not divide into 4 components of width 2"):
        MoLHead(MixtureConfig(4, 4), 8, 12)
    with pytest.raises(ValueError, match="needs at least one of its own"):
        MixtureConfig(2, 4, user_hashes=(5, 7))
    with pytest.raises(ValueError, match="temperature must be positive"):
        MixtureConfig(temperature=0)
    with pytest.raises(ValueError, match="give width"):
        MixtureConfig(item_projection="linear")
    with pytest.raises(ValueError, match=r"share in \[0, 1\), got 1"):
        MixtureConfig(gate_dropout=1)
    with pytest.raises(ValueError, match="has no user id"):
        MoL(mixture=MixtureConfig(user_hashes=(5,)))
    with pytest.raises(ValueError, match="must not be negative"):
        MutualInformation(-1)
