"""Matrix factorizations: row-wise Adam, training on sampled entries, what AXN and Dense make of the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from simzoo import train
from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.score_entries import EntryLists, MatrixEntries, ScoredPairs
from simzoo.datamodules.sources import BEIR, Source, Split
from simzoo.losses import SquaredError, Targets
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.inductive_factorization import InductiveMatrixFactorization
from simzoo.models.matrix_factorization import MatrixFactorization
from simzoo.models.parts.row_adam import RowAdam
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.pair_sampling import QueriesToItems
from simzoo.retrieval.results.metrics import topk_recall
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.sparse_matrix import build_sparse_matrix


def stepped(optimizer: torch.optim.Optimizer, table: torch.nn.Parameter, rows: list[int], seed: int) -> None:
    optimizer.zero_grad()
    wanted = torch.randn(len(rows), table.shape[1], generator=torch.Generator().manual_seed(seed))
    F.mse_loss(
        F.embedding(torch.tensor(rows, dtype=torch.int64), table, sparse=True), wanted, reduction="sum"
    ).backward()
    optimizer.step()


STEPS = [[3, 9], [3, 3, 50], [9], [], [50, 7, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9], [50]]


def test_row_adam_is_sparse_adam() -> None:
    """Moments that end up at other rows still lower the loss; torch.optim.SparseAdam is the oracle."""
    start = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    mine, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    ours, oracle = (
        RowAdam([mine], lr=0.1, betas=(0.8, 0.95)),
        torch.optim.SparseAdam([theirs], lr=0.1, betas=(0.8, 0.95)),
    )
    for number, rows in enumerate(STEPS):
        stepped(ours, mine, rows, number)
        stepped(oracle, theirs, rows, number)
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_row_adam_changes_and_keeps_touched_rows_alone() -> None:
    """Five million rows with moments for each do not fit; decay on rows that a step does not touch is dense work."""
    table = torch.nn.Parameter(torch.ones(1000, 4))
    optimizer = RowAdam([table], lr=0.1, weight_decay=0.5)
    for number, rows in enumerate(STEPS):
        before = table.detach().clone()
        stepped(optimizer, table, rows, number)
        changed = (table != before).any(dim=1).nonzero()[:, 0].tolist()
        assert changed == sorted(set(rows))
    state, touched = optimizer.state[table], {row for rows in STEPS for row in rows}
    assert state["rows"] == len(touched)
    assert len(state["mean"]) <= 1.5 * len(touched) and len(state["square"]) <= 1.5 * len(touched)
    assert set((state["place"] >= 0).nonzero()[:, 0].tolist()) == touched


def test_row_adam_goes_on_from_its_saved_state(tmp_path: Path) -> None:
    """Places of rows that come back as floats, or not at all, mix up moments after the first resume."""
    table = torch.nn.Parameter(torch.randn(60, 4))
    optimizer = RowAdam([table], lr=0.1)
    for number, rows in enumerate(STEPS[:5]):
        stepped(optimizer, table, rows, number)
    torch.save(optimizer.state_dict(), tmp_path / "state")
    other = torch.nn.Parameter(table.detach().clone())
    resumed = RowAdam([other], lr=0.5)
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for number, rows in enumerate(STEPS[5:], start=5):
        stepped(optimizer, table, rows, number)
        stepped(resumed, other, rows, number)
    assert torch.equal(table, other)


def test_row_adam_refuses_dense_gradients() -> None:
    """A dense gradient would touch every row without a word."""
    table = torch.nn.Parameter(torch.ones(3, 2))
    table.sum().backward()
    with pytest.raises(TypeError, match="sparse"):
        RowAdam([table]).step()


def test_squared_error_counts_scored_entries_alone() -> None:
    """A padded or unscored entry that counts pulls vectors towards a score that nobody gave."""
    scores = torch.tensor([[1.0, 2.0, 9.0], [0.0, -torch.inf, 5.0]], requires_grad=True)
    teacher = torch.tensor([[2.0, 4.0, torch.nan], [0.5, torch.nan, 7.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss = SquaredError()(scores, Targets(torch.zeros(2, 3), mask, teacher))
    assert loss.item() == pytest.approx((1 + 4 + 0.25) / 3)
    loss.backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


class LowRank(Source):
    """Queries without a word of the items: only scores say what belongs together."""

    def read(self, split: Split) -> list[Collection]:
        items = [Item(f"i{row}", "an item") for row in range(200)]
        return [Collection("low rank", items, [Query(f"q{row}", "a query") for row in range(140)], [{}] * 140)]


@pytest.fixture(scope="module")
def problem() -> tuple[Collection, np.ndarray[Any, np.dtype[np.float32]]]:
    """140 queries and 200 items, scores of rank 3 with noise of a tenth of their deviation."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(140, 3)) @ rng.normal(size=(3, 200)) / 3**0.5
    return LowRank().read("test")[0], (scores + 0.1 * rng.normal(size=scores.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(
    problem: tuple[Collection, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, MatrixFactorization]:
    """A factorization of 100 queries' scores with 40 items each, by the real command line."""
    folder = tmp_path_factory.mktemp("mf")
    data, (collection, scores) = folder / "data", problem
    (data / "qrels").mkdir(parents=True)
    for name, records in (("corpus", collection.items), ("queries", collection.queries)):
        lines = [json.dumps({"_id": one.id, "text": one.text}) for one in records]
        (data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = "".join(f"{query.id}\ti0\t1\n" for query in collection.queries)
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    [read] = BEIR(data).collections("test")
    judge = MatrixJudge(scores, [query.id for query in collection.queries])
    asked = list(read.queries[:100])
    sampling = QueriesToItems(0, 40)
    build_sparse_matrix(Corpus(read.items, judge), asked, sampling, folder / "entries", read.fingerprint, "made up")
    recipe = {
        "seed_everything": 1,
        "model": {
            "class_path": "MatrixFactorization",
            "init_args": {
                "width": 4,
                "optimization": {
                    "lr": 0.1,
                    "betas": [0.9, 0.99],
                    "weight_decay": 0.0,
                    "warmup": 0.0,
                    "schedule": "constant_with_warmup",
                },
            },
        },
        "data": {
            "source": {
                "class_path": "ScoredPairs",
                "init_args": {
                    "data": {"class_path": "BEIR", "init_args": {"root": str(data)}},
                    "matrix": str(folder / "entries"),
                },
            },
            "lists": {"class_path": "MatrixEntries"},
            "batch_size": 10,
        },
        "trainer": {
            "max_epochs": 20,
            "check_val_every_n_epoch": 20,
            "accelerator": "cpu",
            "enable_progress_bar": False,
        },
        "output": str(folder / "out"),
        "monitor": "val/mrr",
        "resume_every": 100,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    train.main(["fit", "--config", str(folder / "recipe.yaml")])
    model = load(folder / "out" / "release")
    assert isinstance(model, MatrixFactorization)
    return folder, model


def recall(model: MatrixFactorization, problem: tuple[Collection, Any], k: int = 10) -> float:
    """AXN's Top-10-Recall at 30 of 200 calls, on the 40 queries that were not trained on."""
    collection, scores = problem
    queries = collection.queries[100:]
    corpus = Corpus(collection.items, MatrixJudge(scores, [query.id for query in collection.queries]))
    searcher = AXN(Dense.of(model), Random(), budget=30, rounds=3)
    searcher.index(corpus)
    return float(topk_recall(searcher.search(queries, k).items, scores[100:], k).mean())


def test_a_trained_factorization_finds_what_random_vectors_do_not(
    problem: tuple[Collection, Any], trained: tuple[Path, MatrixFactorization]
) -> None:
    """Vectors that were trained, saved and loaded, but stand at other items, search like random ones."""
    ids = [item.id for item in problem[0].items]
    chance = MatrixFactorization(ids, ["q0"], 4).eval()
    assert recall(chance, problem) < 0.4
    assert recall(trained[1], problem) > 0.8


@torch.inference_mode()
def test_held_out_entries_are_predicted(
    problem: tuple[Collection, Any], trained: tuple[Path, MatrixFactorization]
) -> None:
    """A factorization that remembers its entries and predicts no other one has learned nothing of the items."""
    collection, scores = problem
    model = trained[1]
    reps = model.encode_queries(model.collate_queries(collection.queries[:100]))
    predicted = model.score(reps, model.encode_items(model.collate_items(collection.items))).numpy()
    unseen = np.ones((100, 200), dtype=bool)
    for row, items in enumerate(ScoredPairs(BEIR(trained[0] / "data"), trained[0] / "entries").collection.candidates):
        unseen[row, list(items)] = False
    assert unseen.sum() == 100 * 160
    assert np.corrcoef(predicted[unseen], scores[:100][unseen])[0, 1] > 0.9


def test_new_queries_have_the_mean_vector_and_new_items_none(
    problem: tuple[Collection, Any], trained: tuple[Path, MatrixFactorization]
) -> None:
    """A query that was not trained on and gets another's row is answered with another's items."""
    model = trained[1]
    vectors = model.encode_queries(model.collate_queries([Query("new", "a query"), Query("q3", "a query")]))["vector"]
    assert isinstance(vectors, torch.Tensor)
    torch.testing.assert_close(vectors, torch.stack([model.query_vectors.mean(dim=0), model.query_vectors[3]]))
    with pytest.raises(DataError, match=r"'new'.*not among the 200"):
        model.collate_items([problem[0].items[0], Item("new", "text")])


def test_a_run_goes_on_with_the_same_bytes_and_no_other_rows(
    problem: tuple[Collection, Any], trained: tuple[Path, MatrixFactorization], tmp_path: Path
) -> None:
    """Moments that are lost on the way change every later step; rows of other items score nonsense."""
    folder = trained[0]
    words = ["fit", "--config", str(folder / "recipe.yaml"), "--trainer.max_epochs", "2", "--resume_every", "4"]
    train.main([*words, "--output", str(tmp_path / "whole")])
    train.main([*words, "--output", str(tmp_path / "half"), "--trainer.max_steps", "14"])
    train.main([*words, "--output", str(tmp_path / "half"), "--ckpt_path", "last"])
    released = [(tmp_path / name / "release" / "model.safetensors").read_bytes() for name in ("whole", "half")]
    assert released[0] == released[1]
    other = MatrixFactorization([f"i{row}" for row in range(199, -1, -1)], [f"q{row}" for row in range(100)], 4)
    state = load(tmp_path / "half" / "release").trained_state()
    with pytest.raises(ValueError, match="rows of others"):
        other.on_load_checkpoint({"state_dict": state, "class": "MatrixFactorization", "optimizer_states": []})


def test_entries_are_trained_on_or_held_out(trained: tuple[Path, MatrixFactorization]) -> None:
    """An entry in both is validated on after it was trained on; one in neither was paid for in vain."""
    folder, model = trained
    collection = ScoredPairs(BEIR(folder / "data"), folder / "entries").collection
    lists = MatrixEntries(entries=7, held_out=0.2)
    seen: list[set[tuple[str, int]]] = []
    for part in (lists.part(collection, model, 0, set()), lists.validation(collection, model, 0, 64)):
        assert isinstance(part, EntryLists)
        found = []
        for start in range(0, len(part), 8):
            batch = part.batch(range(start, min(start + 8, len(part))), 0)
            assert batch.targets.teacher is not None
            real = batch.targets.mask
            assert torch.equal(real, batch.candidates >= 0) and torch.equal(real, batch.targets.teacher.isfinite())
            rows = batch.items["row"]
            assert isinstance(rows, torch.Tensor)
            for place, name in enumerate(batch.query_ids):
                items = rows[batch.candidates[place][real[place]]].tolist()
                found += [(name, item) for item in items]
                row = int(name[1:])
                wanted = dict(zip(collection.candidates[row], collection.scores[row], strict=True))
                assert [wanted[item] for item in items] == batch.targets.teacher[place][real[place]].tolist()
        assert len(found) == len(set(found))
        seen.append(set(found))
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 4000 and 600 < len(seen[1]) < 1000


def test_data_that_changed_since_is_refused(trained: tuple[Path, MatrixFactorization], tmp_path: Path) -> None:
    """Rows of a matrix over other items would train each vector on another item's scores."""
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for path in (trained[0] / "data").rglob("*.*"):
        (data / path.relative_to(trained[0] / "data")).write_bytes(path.read_bytes())
    (data / "corpus.jsonl").write_text((data / "corpus.jsonl").read_text().replace("an item", "the item", 1))
    with pytest.raises(DataError, match="other data"):
        _ = ScoredPairs(BEIR(data), trained[0] / "entries").item_ids


def test_vectors_to_start_from(tmp_path: Path) -> None:
    """A factorization that starts elsewhere than at the dual encoder loses what the dual encoder knew."""
    vectors = {name: np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) for name in ("items", "queries")}
    for name, values in vectors.items():
        np.save(tmp_path / f"{name}.npy", values)
    ids = ["a", "b", "c"]
    model = MatrixFactorization(ids, ids, start=tmp_path)
    assert np.array_equal(model.item_vectors.detach().numpy(), vectors["items"])
    assert np.array_equal(model.query_vectors.detach().numpy(), vectors["queries"])
    with pytest.raises(DataError, match=r"expected \(2, d\)"):
        MatrixFactorization(ids[:2], ids, start=tmp_path)
    with pytest.raises(DataError, match="no vectors"):
        MatrixFactorization(ids, ids, start=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="more than once"):
        MatrixFactorization(["a", "a"], ids)
    with pytest.raises(ValueError, match="ScoredPairs"):
        MatrixFactorization()


@torch.inference_mode()
def test_an_inductive_factorization_starts_at_the_dual_encoder(tmp_path: Path) -> None:
    """A skip connection that starts open, or a dual encoder that is not the named one, generalises poorly (A.2.2)."""
    dual = DualEncoder.tiny().eval()
    texts = [Item("a", "a boat"), Item("b", "river bank")]
    wanted = dual.encode_items(dual.collate_items(texts))["vector"]
    model = InductiveMatrixFactorization(dual.arguments["backbone"], dual.arguments["tokens"]).eval()
    found = model.encode_items(model.collate_items(texts))["vector"]
    assert isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor)
    share = 1 / (1 + np.exp(5.0))
    network = model.item_network
    inner = network.out(F.gelu(network.hidden(wanted)))
    torch.testing.assert_close(found, share * inner + (1 - share) * wanted)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert all(name.startswith(("query_network.", "item_network.")) for name in trained)
    assert not model.train().query_encoder.training


@torch.inference_mode()
def test_queries_may_be_encoded_by_the_dual_encoder(tmp_path: Path) -> None:
    """RNR over MF_TRNS takes the dual encoder's vector of a new query (A.4); the mean vector answers all alike."""
    dual = DualEncoder.tiny().eval()
    save(dual, tmp_path / "dual")
    items = [Item(f"i{row}", text) for row, text in enumerate(["a boat", "river bank", "money", "a small bank"])]
    factors = MatrixFactorization([item.id for item in items], ["q"], 16).eval()
    save(factors, tmp_path / "factors")
    queries = [Query("new", "boat"), Query("other", "the money")]
    wanted = dual.encode_queries(dual.collate_queries(queries))["vector"] @ factors.item_vectors.T  # type: ignore[operator]
    dense = Dense(tmp_path / "factors", queries=tmp_path / "dual")
    searcher = Rerank(dense, budget=4)
    searcher.index(Corpus(items, MatrixJudge(np.zeros((2, 4), dtype=np.float32), ["new", "other"])))
    np.testing.assert_allclose(
        np.sort(dense.search(queries, 4)[1])[:, ::-1], wanted.sort(descending=True)[0], atol=1e-6
    )
    with pytest.raises(ValueError, match="goes with a checkpoint"):
        Dense(queries=tmp_path / "dual")
    save(MatrixFactorization([item.id for item in items], ["q"], 8), tmp_path / "narrow")
    narrow = Dense(tmp_path / "narrow", queries=tmp_path / "dual")
    narrow.index(Corpus(items))
    with pytest.raises(ValueError, match="one space"):
        narrow.search(queries, 2)
