"""Lists that are drawn by a score: the probabilities, and what a cross-entropy learns with and without them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.candidates import Candidates, Listed
from simzoo.datamodules.lists import HardNegatives, InBatch, OtherPositives, RandomNegatives
from simzoo.datamodules.lists.negatives import LEFT_OUT
from simzoo.datamodules.sampling import Inclusion, batch_probability, draw, drawn_probability
from simzoo.losses import InBatchCrossEntropy, SoftmaxCrossEntropy, Targets
from simzoo.losses.ranking import softmax_cross_entropy
from simzoo.models.dual_encoder import DualEncoder
from tests.test_candidates import connected
from tests.toy import toy, toy_collection

Floats = NDArray[np.float64]


def learned(scores: torch.Tensor, labels: torch.Tensor, log_q: torch.Tensor | None, weights: torch.Tensor) -> Any:
    """The item scores (N,) that weighted lists teach: rows of ``scores`` are indices of items, -1 for none."""
    free = torch.zeros(int(scores.max()) + 1, dtype=torch.float64, requires_grad=True)
    mask = scores >= 0
    optimizer = torch.optim.LBFGS([free], lr=1, max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        given = free[scores.clamp_min(0)]
        shifted = given if log_q is None else given - log_q
        log_p = shifted.masked_fill(~mask, -torch.inf).log_softmax(dim=1)
        loss = -(weights * log_p[labels > 0]).sum() / weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(5):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return free.detach().numpy()


def softmax(scores: Floats) -> Floats:
    found: Floats = np.exp(scores - scores.max())
    return found / found.sum()


def test_the_correction_is_exact_by_enumeration() -> None:
    """A formula that is nearly right teaches scores that are nearly right, which no other test would see.

    Every list of 5 items with 2 draws is enumerated, with the density of kappa on a grid; what is learned is compared
    with the truth.
    """
    truth, retriever, count = np.array([1.2, 0.3, -0.5, 0.0, 0.8]), np.array([2.0, -1.0, 0.5, 1.0, 0.0]), 2
    p, weight = softmax(truth), np.exp(retriever)
    grid = np.linspace(-5, 12, 1201)
    rows, log_qs, masses = [], [], []
    for gold in range(5):
        others = [item for item in range(5) if item != gold]
        for drawn in itertools.combinations(others, count):
            left = math.log(sum(weight[item] for item in others if item not in drawn))
            # The largest of independent Gumbel variables is one at the log of their weights' sum.
            density = np.exp(-(grid - left) - np.exp(-(grid - left))) * (grid[1] - grid[0])
            # Of each item of the list, P(its Gumbel variable > kappa), for every kappa of the grid.
            above = np.stack([1 - np.exp(-np.exp(retriever[item] - grid)) for item in (gold, *drawn)], axis=1)
            rows += [[gold, *drawn]] * len(grid)
            log_qs.append(np.log(np.stack([drawn_probability(retriever[[gold, *drawn]], kappa) for kappa in grid])))
            masses.append(p[gold] * density * above[:, 1:].prod(axis=1))
    mass = np.concatenate(masses)
    assert mass.sum() == pytest.approx(1, abs=1e-6)  # the lists are all there are
    items = torch.tensor(rows)
    labels = torch.zeros(items.shape)
    labels[:, 0] = 1
    keep = torch.from_numpy(mass > 1e-14)
    weights, log_q = torch.from_numpy(mass)[keep], torch.from_numpy(np.concatenate(log_qs))[keep]
    found = softmax(learned(items[keep], labels[keep], log_q, weights))
    np.testing.assert_allclose(found, p, atol=1e-6)
    wrong = softmax(learned(items[keep], labels[keep], None, weights))
    assert np.abs(wrong - p).max() > 0.05


def test_draws_are_by_softmax_without_replacement() -> None:
    """Against the probabilities of ordered samples, enumerated; and kappa's estimate is unbiased over the draws."""
    scores, count, times = np.array([1.5, 0.7, 0.0, -0.4]), 2, 40_000
    weights = np.exp(scores)
    expected = np.zeros(4)
    for first, second in itertools.permutations(range(4), 2):
        chance = weights[first] / weights.sum() * weights[second] / (weights.sum() - weights[first])
        expected[[first, second]] += chance
    rng = np.random.default_rng(0)
    counts, estimates = np.zeros(4), np.zeros(4)
    for _ in range(times):
        places, kappa = draw(scores, count, 0, rng)
        counts[places] += 1
        estimates[places] += 1 / drawn_probability(scores[places], kappa)
    np.testing.assert_allclose(counts / times, expected, atol=0.01)
    np.testing.assert_allclose(estimates / times, 1, atol=0.03)


def test_edges_of_a_draw() -> None:
    """A pool that is used up holds everything with certainty; one that is not drawn from holds the fixed ones only."""
    rng = np.random.default_rng(0)
    places, kappa = draw(np.zeros(3), 5, 0, rng)
    assert sorted(places) == [0, 1, 2] and drawn_probability(np.zeros(3), kappa).tolist() == [1, 1, 1]
    places, kappa = draw(np.zeros(6), 2, 2, rng)
    assert places.tolist() == [0, 1] and drawn_probability(np.zeros(6), kappa).tolist() == [0] * 6
    inclusion = Inclusion(np.array([7, 3]), np.array([0.5, 1.0]), 0.2)
    np.testing.assert_allclose(inclusion.of(np.array([[3, 7], [4, 7]])), [[1.0, 0.6], [0.2, 0.6]])


def lists(
    p: Floats, retriever: Floats, hard: int, random: int, times: int, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sampled lists: items (T, 1 + K), the gold one first; log pi of each; the retriever's scores."""
    size = len(p)
    items, log_q = [], []
    for gold in rng.choice(size, times, p=p):
        pool = np.array(sorted(set(range(size)) - {gold}, key=lambda item: -retriever[item]))
        places, kappa = draw(retriever[pool], hard, 0, rng)
        taken = pool[places]
        rest = np.setdiff1d(pool, taken)
        extra = rng.choice(rest, random, replace=False)
        row = np.array([gold, *taken, *extra])
        items.append(row)
        every = np.arange(size)
        log_q.append(np.log(Inclusion(every, drawn_probability(retriever, kappa), random / len(rest)).of(row)))
    found = torch.from_numpy(np.stack(items))
    return found, torch.from_numpy(np.stack(log_q)), torch.from_numpy(retriever[np.stack(items)])


def test_a_model_trained_on_sampled_lists_is_calibrated() -> None:
    """The first simulation: 30 items, 6 draws, 4 by score and 2 at random; the error is that of the probabilities.

    The largest error of a probability over the items: uncorrected 0.068, with the retriever's score taken off, which
    is wrong for the random ones, 0.121, with log pi 0.008 (what the sample of 8,000 lists leaves).
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=30) * 1.5
    retriever = truth + rng.normal(size=30)
    p = softmax(truth)
    items, log_q, scores = lists(p, retriever, 4, 2, 8_000, rng)
    labels = torch.zeros(items.shape)
    labels[:, 0] = 1
    weights = torch.ones(len(items), dtype=torch.float64)
    errors = {}
    for name, taken_off in {"none": None, "score": scores, "log pi": log_q}.items():
        errors[name] = np.abs(softmax(learned(items, labels, taken_off, weights)) - p).max()
    assert errors["log pi"] < 0.02 and min(errors["none"], errors["score"]) > 3 * errors["log pi"]


def test_without_correction_a_model_learns_to_subtract_the_retriever() -> None:
    """The second simulation: 6 draws by score, none at random.

    Correlations with the truth and with the retriever: without correction -0.33 and -0.85, with it 0.989 and 0.71, the
    truth's own with the retriever being 0.74.
    """
    rng = np.random.default_rng(1)
    truth = rng.normal(size=30)
    retriever = 2 * (truth + 0.75 * rng.normal(size=30))
    items, log_q, _ = lists(softmax(truth), retriever, 6, 0, 8_000, rng)
    labels = torch.zeros(items.shape)
    labels[:, 0] = 1
    weights = torch.ones(len(items), dtype=torch.float64)
    found = {}
    for name, taken_off in {"without": None, "with": log_q}.items():
        scores = learned(items, labels, taken_off, weights)
        found[name] = np.corrcoef(scores, truth)[0, 1], np.corrcoef(scores, retriever)[0, 1]
    known = np.corrcoef(truth, retriever)[0, 1]
    assert found["with"][0] > 0.98 and found["with"][1] == pytest.approx(known, abs=0.05)
    assert found["without"][0] < 0 and found["without"][1] < -0.5


def test_the_losses_subtract_it_and_leave_out_what_could_not_be_drawn() -> None:
    """By hand; a relevant item with probability 0 must not become a score of infinity."""
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 3.0]])
    labels = torch.tensor([[1.0, 0, 0], [1.0, 0, 0]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    log_q = torch.tensor([[0.5, 0.1, 1.0], [0.0, 0.2, 1.0]]).log()
    expected = -((scores[0] / 0.5 - log_q[0]).log_softmax(0)[0])
    targets = Targets(labels, mask, log_q=log_q, batch_log_q=log_q)
    scores.requires_grad_()
    loss = SoftmaxCrossEntropy(0.5)(scores, targets)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert scores.grad is not None and scores.grad.isfinite().all() and not scores.grad[1].any()
    plain = softmax_cross_entropy(scores / 0.5, labels, mask)
    torch.testing.assert_close(SoftmaxCrossEntropy(0.5, corrected=False)(scores, targets), plain)
    torch.testing.assert_close(InBatchCrossEntropy(0.5, corrected=True)(scores, targets), expected)
    torch.testing.assert_close(InBatchCrossEntropy(0.5)(scores, targets), plain)  # one positive a row: the same loss
    with pytest.raises(ValueError, match="needs the log of each item's probability to be in the batch"):
        InBatchCrossEntropy(corrected=True)(scores, Targets(labels, mask))


def found(gold_in: bool, scores: Floats) -> Candidates:
    """Of the first toy collection: ten items a query, the relevant one among them or not, with all scores known."""
    collection = toy_collection("a")
    golds = np.array([collection.relevant(row) for row in range(24)])
    rows = np.stack([np.setdiff1d(np.arange(40), gold)[:10] for gold in golds])
    if gold_in:
        rows[:, 3] = golds[:, 0]
    values = np.tile(scores.astype(np.float32), (24, 1))
    beyond = values[:, [3]] if gold_in else values[:, [-1]] - 1
    return Candidates(rows, values, np.full(24, np.inf, np.float32), gold=Listed(golds, beyond))


@pytest.mark.parametrize(("gold_in", "random"), [(True, 0), (True, 2), (False, 2), (False, 0)])
def test_lists_give_the_log_of_each_probability(gold_in: bool, random: int, tmp_path: Path) -> None:
    """The loss takes off what the list says: against how often draws of the same list bring an item."""
    scores, count = np.linspace(1.0, 0.0, 10), 3
    data = toy(HardNegatives(hard=count, random=random, temperature=0.4))
    connected(data, tmp_path, DualEncoder.tiny())
    data.set_candidates("train", [found(gold_in, scores)] * 2)
    part: Any = data.part("train", 0)
    pool = np.delete(np.arange(10), 3) if gold_in else np.arange(10)
    weights, rows = np.exp(scores / 0.4), data.collections("train")[0].relevant(0)
    batches = [part.batch([0], epoch) for epoch in range(1500)]
    counts, estimates = np.zeros(40), np.zeros(40)
    for epoch in range(1500):
        drawn = part.lists.draw(part, 0, np.random.default_rng([data.seed, epoch, 0]))
        log_q = np.log(drawn.inclusion.of(drawn.rows))
        np.testing.assert_allclose(batches[epoch].targets.log_q[0], log_q, rtol=1e-5)
        counts[drawn.rows] += 1
        estimates[drawn.rows] += 1 / np.exp(log_q)
        assert drawn.rows[0] in rows
    mined = part.mined().items[0]
    # 1 / pi of a negative, where it was drawn, is 1 in the mean: to first order in b, which random draws bring in.
    hard = mined[pool]
    assert np.average(estimates[hard] / 1500, weights=weights[pool]) == pytest.approx(1, abs=0.08)
    log_q_gold = np.array([float(batch.targets.log_q[0, 0]) for batch in batches])
    if gold_in:
        # It exceeds what 3 draws of the 9 others left exactly if it is among 4 draws of all 10: enumerated.
        expected = 0.0
        for order in itertools.permutations(range(10), count + 1):
            left = weights.sum() - np.concatenate([[0], weights[list(order)].cumsum()[:-1]])
            expected += float((weights[list(order)] / left).prod()) * (3 in order)
        b = random / (40 - 1 - count)
        assert np.exp(log_q_gold).mean() == pytest.approx(expected + (1 - expected) * b, abs=0.01)
    elif random:
        np.testing.assert_allclose(log_q_gold, math.log(random / (40 - 1 - count)), rtol=1e-5)
    else:
        assert (log_q_gold == -math.inf).all()
        assert SoftmaxCrossEntropy()(torch.zeros(1, 4), batches[0].targets) == 0
        assert data.counts[LEFT_OUT] >= 24  # of the first collection all


def test_a_relevant_item_that_was_missed_stands_where_its_score_puts_it(tmp_path: Path) -> None:
    """An approximate index misses items that it would have drawn: with probability 0 their lists would be lost."""
    mined = found(False, np.linspace(1.0, 0.0, 10))
    assert mined.gold is not None
    mined.gold.scores[:] = 0.95  # between the first and the second
    data = toy(HardNegatives(hard=3, depth=4, temperature=0.4))
    connected(data, tmp_path, DualEncoder.tiny())
    data.set_candidates("train", [mined] * 2)
    part: Any = data.part("train", 0)
    drawn = part.lists.draw(part, 0, np.random.default_rng(0))
    first, gold = drawn.inclusion.of(np.array([part.mined().items[0, 0], drawn.rows[0]]))
    assert 0 < gold < first
    mined.gold.scores[:] = 0.5  # behind the fourth: beyond the depth
    drawn = part.lists.draw(part, 0, np.random.default_rng(0))
    assert drawn.inclusion.of(drawn.rows[:1]).tolist() == [0.0]


def test_a_batch_holds_an_item_with_its_share_of_the_others() -> None:
    """Q = 1 - (1 - p)^(B - 1), against batches drawn at random."""
    rng = np.random.default_rng(0)
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = rng.choice(4, size=(20_000, 7), p=shares)
    present = np.stack([(drawn == item).any(axis=1) for item in range(4)]).mean(axis=1)
    np.testing.assert_allclose(batch_probability(shares, 8), present, atol=0.01)
    assert batch_probability(shares, 1).tolist() == [0] * 4
    assert batch_probability(np.array([1.0]), 3).tolist() == [1]


def test_in_batch_lists_give_log_q(tmp_path: Path) -> None:
    """Popular items are in every batch: without the log of it they are pushed down, with another item's up."""
    for shared, positives in ((InBatch(RandomNegatives(0)), True), (OtherPositives(RandomNegatives(2)), False)):
        data = toy(shared, batch_size=6)
        model = DualEncoder.tiny()
        model.loss = InBatchCrossEntropy(corrected=True)
        connected(data, tmp_path, model)
        part: Any = data.part("train", 0)
        batch = part.batch(list(range(6)), 0)
        golds = [gold for row in range(24) for gold in data.collections("train")[0].relevant(row)]
        expected = 1 - (1 - np.bincount(golds, minlength=40) / 24) ** 5
        log_q = batch.targets.batch_log_q.exp().numpy()
        for row in range(6):
            gold = data.collections("train")[0].relevant(row)[0]
            place = int(batch.targets.labels[row].argmax())
            assert log_q[row, place] == pytest.approx(expected[gold], rel=1e-5)
        if positives:
            assert batch.candidates.shape[0] == 1 and len(np.unique(log_q, axis=0)) == 1
