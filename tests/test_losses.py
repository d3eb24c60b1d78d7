"""Losses against hand-made numbers and independent formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simzoo.losses import (
    BinaryCrossEntropy,
    InBatchCrossEntropy,
    KLToRetriever,
    Loss,
    MarginMSE,
    MatchLoss,
    OtherPositivesCrossEntropy,
    PairLoss,
    SoftmaxCrossEntropy,
    SquaredError,
    SumOfLosses,
    Targets,
    check_needs,
)
from simzoo.losses.ranking import in_batch_cross_entropy, match, pair, softmax_cross_entropy
from simzoo.models.similarity import inner_products

SCORES = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 3.0]])
ALL = torch.ones(2, 3, dtype=torch.bool)


def test_softmax_cross_entropy_is_torchs() -> None:
    """The plain case must be the textbook loss."""
    labels = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    expected = torch.nn.functional.cross_entropy(SCORES, torch.tensor([0, 2]))
    torch.testing.assert_close(softmax_cross_entropy(SCORES, labels, ALL), expected)


def test_rows_without_a_positive_count_nothing() -> None:
    """A query whose gold was filtered out must not pull the mean towards zero."""
    labels = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    expected = torch.nn.functional.cross_entropy(SCORES[:1], torch.tensor([0]))
    torch.testing.assert_close(softmax_cross_entropy(SCORES, labels, ALL), expected)


def test_masked_candidates_change_nothing() -> None:
    """Padding and false negatives must not enter the denominator, whatever their score."""
    labels = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    wild = SCORES.clone()
    wild[:, 2] = torch.tensor([-math.inf, 1e4])
    labels_full, scores_full = labels[:, :2], SCORES[:, :2]
    for loss in (softmax_cross_entropy, in_batch_cross_entropy):
        torch.testing.assert_close(loss(wild, labels, mask), loss(scores_full, labels_full, ALL[:, :2]))


def test_in_batch_positives_do_not_compete() -> None:
    """Two positives of one query: pushing one above the other is not the task."""
    scores = torch.tensor([[3.0, 1.0, 0.0]])
    labels = torch.tensor([[1.0, 1.0, 0.0]])
    expected = (math.log(1 + math.exp(-3)) + math.log(1 + math.exp(-1))) / 2
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert in_batch_cross_entropy(scores, labels, mask).item() == pytest.approx(expected)


def test_match_is_zero_gradient_at_the_teacher() -> None:
    """L_match must be least where the student's distribution is the teacher's, also shifted by a constant."""
    teacher = torch.tensor([[1.0, -2.0, 0.3], [0.0, math.nan, 2.0]])
    student = (torch.nan_to_num(teacher, nan=7.0) + 5.0).requires_grad_()
    match(student, teacher, ALL).backward()
    assert student.grad is not None
    torch.testing.assert_close(student.grad, torch.zeros_like(student), atol=1e-6, rtol=0)


def test_match_by_hand() -> None:
    """The cross-entropy of two known distributions."""
    value = match(torch.zeros(1, 2), torch.tensor([[0.0, math.log(3)]]), ALL[:1, :2])
    assert value.item() == pytest.approx(math.log(2))
    value = match(torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.0, math.log(3)]]), ALL[:1, :2])
    assert value.item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


def test_pair_by_hand() -> None:
    """[1, 0] against softmax of (top_j, hard_j), j by j."""
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2
    assert pair(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="as many hard negatives"):
        pair(torch.zeros(1, 2), torch.zeros(1, 3))


def test_pair_module_splits_by_the_teacher() -> None:
    """Teacher-scored candidates are the top items, the others the hard negatives, in order."""
    scores = torch.tensor([[2.0, 0.0, 0.0, 1.0]])
    teacher = torch.tensor([[5.0, 4.0, math.nan, math.nan]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    value = PairLoss()(scores, Targets(torch.zeros(1, 4), mask, teacher))
    torch.testing.assert_close(value, pair(scores[:, :2], scores[:, 2:]))
    with pytest.raises(ValueError, match="as many"):
        PairLoss()(scores, Targets(torch.zeros(1, 4), mask, torch.tensor([[5.0, 4.0, 1.0, math.nan]])))


@pytest.mark.parametrize("module", [MatchLoss, PairLoss])
def test_a_teacher_is_asked_for(module: type[MatchLoss]) -> None:
    """Distillation without teacher scores must say so, not train on nothing."""
    with pytest.raises(ValueError, match="teacher"):
        module()(SCORES, Targets(torch.zeros(2, 3), ALL))


@pytest.mark.parametrize("module", [SoftmaxCrossEntropy, InBatchCrossEntropy, MatchLoss, PairLoss])
def test_temperature_is_checked(module: type[SoftmaxCrossEntropy]) -> None:
    """A temperature of 0 divides by zero; a negative one learns the opposite."""
    with pytest.raises(ValueError, match="positive"):
        module(temperature=0.0)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=8), st.floats(-50, 50))
def test_losses_ignore_a_constant(values: list[float], shift: float) -> None:
    """Softmax losses see differences only; the shift must not change them (overflow would)."""
    scores = torch.tensor([values], dtype=torch.float64)
    labels = torch.zeros_like(scores)
    labels[0, 0] = 1
    mask = torch.ones_like(scores, dtype=torch.bool)
    for loss in (softmax_cross_entropy, in_batch_cross_entropy):
        torch.testing.assert_close(loss(scores + shift, labels, mask), loss(scores, labels, mask), atol=1e-9, rtol=1e-9)


def test_kl_to_the_retriever_by_hand() -> None:
    """Its direction, its temperature, and what the retriever did not find."""
    scores = torch.tensor([[1.0, 0.0, 9.0], [2.0, 1.0, 0.0]])
    retriever = torch.tensor([[0.2, 0.1, math.nan], [0.5, 0.5, 0.5]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    targets = Targets(torch.zeros(2, 3), mask, retriever=retriever)
    for reverse in (False, True):
        rows = []
        for p, r in ((scores[0, :2], retriever[0, :2] / 0.1), (scores[1, :2], retriever[1, :2] / 0.1)):
            p, r = (r.softmax(0), p.softmax(0)) if reverse else (p.softmax(0), r.softmax(0))
            rows.append((p * (p / r).log()).sum())
        torch.testing.assert_close(KLToRetriever(0.1, reverse)(scores, targets), torch.stack(rows).mean())
    scores.requires_grad_()
    KLToRetriever()(scores, targets).backward()
    assert scores.grad is not None and scores.grad.isfinite().all() and scores.grad[0, 2] == 0
    with pytest.raises(ValueError, match="KLToRetriever needs a retriever's scores"):
        KLToRetriever()(scores, Targets(torch.zeros(2, 3), mask))


HALF = [torch.bfloat16, torch.float16]


def module_inputs(dtype: torch.dtype) -> tuple[torch.Tensor, Targets]:
    """Scores (6, 9) in half precision with everything a loss may need; some candidates do not count."""
    rng = torch.Generator().manual_seed(0)
    scores = (8 * torch.randn(6, 9, generator=rng)).to(dtype)
    labels = torch.zeros(6, 9)
    labels[:, 0] = 1
    mask = torch.rand(6, 9, generator=rng) > 0.2
    mask[:, :2] = True
    others = torch.arange(9).expand(6, 9) >= 5
    teacher, retriever = torch.randn(2, 6, 9, generator=rng)
    return scores, Targets(labels, mask, teacher, others, retriever, batch_log_q=-torch.rand(6, 9, generator=rng))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "loss",
    [
        SoftmaxCrossEntropy(0.05),
        InBatchCrossEntropy(0.05, corrected=True),
        OtherPositivesCrossEntropy(0.05),
        BinaryCrossEntropy(),
        MatchLoss(),
        MarginMSE(),
        KLToRetriever(0.05, temperature=0.05),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_half_precision_scores_have_the_gradients_of_full_ones(loss: Loss, dtype: torch.dtype) -> None:
    """Computed in bf16 the gradients were off by 1.8 %; in fp16 the masked scores overflowed, and nothing trained."""
    scores, targets = module_inputs(dtype)
    exact = scores.float().requires_grad_()
    expected = loss(exact, targets)
    expected.backward()
    half = scores.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(half, targets)
    found.backward()
    assert found.dtype == torch.float32 and half.grad is not None and exact.grad is not None
    torch.testing.assert_close(found, expected)
    # The gradient itself comes back in the scores' type.
    torch.testing.assert_close(half.grad, exact.grad.to(dtype), rtol=1e-2, atol=1e-6)


def test_training_in_bf16_scores_vectors_in_full() -> None:
    """A product of two vectors is the score itself: rounded to bf16, close candidates become equal."""
    queries, items = torch.randn(4, 32, requires_grad=True), torch.randn(6, 32)
    exact = inner_products({"vector": queries}, {"vector": items}, None)
    with torch.autocast("cpu", torch.bfloat16):
        found = inner_products({"vector": queries}, {"vector": items}, None)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact)


def test_what_a_loss_needs_is_refused_by_name() -> None:
    """A loss over targets that the lists do not hold fails after hours of mining, or trains on nothing."""
    losses = SumOfLosses([MarginMSE(), SoftmaxCrossEntropy(), InBatchCrossEntropy(corrected=True)])
    assert losses.needs == {"teacher", "batch_log_q"}
    check_needs(losses, {"teacher", "batch_log_q"}, "X")
    with pytest.raises(ValueError, match=r"MarginMSE needs a teacher's scores\. X cannot give that"):
        check_needs(losses, {"batch_log_q"}, "X")
    with pytest.raises(ValueError, match=r"PairLoss needs a teacher's top items and as many hard .* and a teacher's"):
        check_needs(PairLoss(), frozenset(), "X")


@pytest.mark.parametrize(
    "loss",
    [
        SoftmaxCrossEntropy(),
        SoftmaxCrossEntropy(corrected=False),
        InBatchCrossEntropy(corrected=True),
        OtherPositivesCrossEntropy(),
        BinaryCrossEntropy(),
        MatchLoss(),
        PairLoss(),
        MarginMSE(),
        SquaredError(),
        KLToRetriever(),
        SumOfLosses([MarginMSE(), SumOfLosses([SoftmaxCrossEntropy(), MatchLoss()], [0.5, 2.0])], [3.0, 0.25]),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_loss_is_the_mean_of_as_many_terms_as_it_says(loss: Loss) -> None:
    """A wrong count weighs the shares of a batch wrongly that several ranks train on, and no run would show it."""
    generator = torch.Generator().manual_seed(1)
    rows, width = 9, 6
    mask = torch.rand(rows, width, generator=generator) > 0.2
    mask[3] = False  # a row that does not count, as a rank without queries has one
    labels = (torch.rand(rows, width, generator=generator) > 0.7) * torch.randint(1, 3, (rows, width)).float()
    teacher = torch.randn(rows, width, generator=generator)
    teacher[:, 3:] = torch.nan
    if isinstance(loss, PairLoss):
        mask = torch.ones(rows, width, dtype=torch.bool)
        mask[3] = False
    retriever = torch.randn(rows, width, generator=generator)
    log_q = torch.rand(rows, width, generator=generator).log()
    log_q[5] = -torch.inf
    others = torch.rand(rows, width, generator=generator) > 0.5
    targets = Targets(labels, mask, teacher, others, retriever, log_q, log_q.clone())
    scores = torch.randn(rows, width, generator=generator)

    def part(place: slice) -> Targets:
        return Targets(**{name: value[place] for name, value in vars(targets).items()})

    for one in loss.parts():
        _, mean = one
        places = slice(0, 4), slice(4, rows)
        counts = [mean.count(part(place)) for place in places]
        shares = [count * mean(scores[place], part(place)) for count, place in zip(counts, places, strict=True)]
        torch.testing.assert_close(sum(shares) / sum(counts), mean(scores, targets))
    whole = sum(weight * mean(scores, targets) for weight, mean in loss.parts())
    torch.testing.assert_close(whole, loss(scores, targets))
