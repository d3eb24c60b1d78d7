"""Top-k search with Mixture-of-Logits beside the reference implementation: time, extra memory, recall.

    python -m benchmarks.mol_topk [--reference DIR] [--shapes 24186:8x4x128 100000:8x8x32 109739:4x4x768]

Items and queries are the synsets and usage examples of WordNet as all-MiniLM-L6-v2 encodes them (computed once, kept
in --cache); beyond their number items are repeated with noise. For each shape a mixture is trained briefly from the
queries' gold synsets, so that gate and components are no random ones. A batch of 32 queries is searched for k = 100.
DIR is a clone of bailuding/rails, whose modules get the same weights: as it is, and with its brute force over chunks
of items, the best of several sizes. Times are medians of paired repeats; extra memory is the process's peak above what
it held.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.records import Collection, Item, Query
from datamodules.wordnet import find_wordnet, load_wordnet
from losses.mixture import MutualInformation, sampled_softmax
from models.mixture import MixtureConfig, MoLHead
from models.similarity import LearnedSimilarity
from retrieval.atomic import replacing
from retrieval.encode import encode_items, encode_queries
from retrieval.mol_topk import BruteForce, CombTopK, ExactMoL, MixtureSearcher, TopKAvg, TopKPerEmbd
from retrieval.scorer import Represented, Scorer
from retrieval.searcher import SearchTask

ENCODER = "checkpoints/wordnet-de"
BATCH, K = 32, 100
NEGATIVES = 1024
CHUNKS = (500, 1000, 2000, 4000, 8000)
Found = tuple[NDArray[np.int64], NDArray[np.float32]]


def vectors(cache: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Items (N, 384), a third of the queries (Q, 384), and each query's gold row (Q,); world by world, resumably."""
    worlds = load_wordnet(find_wordnet())
    model = LearnedSimilarity.from_pretrained(ENCODER)
    parts, start = [], 0
    cache.mkdir(parents=True, exist_ok=True)
    for name, world in worlds.items():
        path = cache / f"{name}.npz"
        if not path.exists():
            items = encode_items(model, world.items)["vector"].numpy()  # type: ignore[union-attr]
            queries = encode_queries(model, world.queries[::3])["vector"].numpy()  # type: ignore[union-attr]
            with replacing(path) as file:
                np.savez(file, items=items, queries=queries, gold=[row for [row] in world.judgements[::3]])
        with np.load(path, allow_pickle=False) as kept:
            parts.append((kept["items"], kept["queries"], kept["gold"] + start))
        start += len(world.items)
    items, queries, gold = (torch.from_numpy(np.concatenate(some)) for some in zip(*parts, strict=True))
    return items, queries, gold.long()


def trained_head(shape: tuple[int, int, int], steps: int, data: tuple[Tensor, Tensor, Tensor]) -> MoLHead:
    """A mixture trained on queries and their gold synsets, against items drawn for the batch."""
    items, queries, gold = data
    torch.manual_seed(0)
    config = MixtureConfig(
        query_components=shape[0],
        item_components=shape[1],
        width=shape[2],
        query_projection="swiglu",
        item_projection="linear",
        query_gate=True,
        item_gate=True,
    )
    head, gate_loss = MoLHead(config, queries.shape[1], items.shape[1]), MutualInformation()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(queries), (64,))
        drawn = torch.cat([gold[rows], torch.randint(len(items), (NEGATIVES,))])
        scores, gates = head.score(head.queries(queries[rows]), head.items(items[drawn]))
        own = torch.arange(64)
        loss = sampled_softmax(scores[own, own], scores[:, 64:], drawn[64:] == gold[rows][:, None])
        loss = loss + gate_loss(gates[own, :, own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval().requires_grad_(False)


def ours(head: MoLHead, items: Tensor, queries: Tensor, searchers: Sequence[MixtureSearcher]) -> None:
    """Prepares the searchers; the item side is computed once."""
    parts = [head.items(chunk) for chunk in torch.split(items, 4096)]
    reps = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}  # type: ignore[misc]
    scorer = Scorer(lambda q, i: np.zeros(len(q)), len(queries), len(items))
    scorer.represented = Represented(SimpleNamespace(head=head, device="cpu"), head.queries(queries), reps)
    collection = Collection(
        "vectors",
        [Item(str(row), "x") for row in range(len(items))],
        [Query(str(row), "x") for row in range(len(queries))],
        [{} for _ in range(len(queries))],
    )
    task = SearchTask(collection, scorer, np.arange(len(queries)), np.empty(0, dtype=np.int64))
    for searcher in searchers:
        searcher.index(task)


def reference(folder: Path, head: MoLHead, width: int) -> Any:
    """The reference's similarity with our weights."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # it compiles two small functions; eager needs no compiler
    sys.path.insert(0, str(folder))
    from rails.similarities.layers import SwiGLU  # type: ignore[import-not-found]
    from rails.similarities.mol import item_embeddings_fns, query_embeddings_fns, similarity_fn  # type: ignore

    own, linear = head.query_projection, torch.nn.Linear
    glu = own[1].both  # type: ignore[index]
    hidden = glu.out_features // 2
    per_query, per_item = own[2].out_features, head.item_projection[1].out_features  # type: ignore[index]
    groups = per_query // head.width, per_item // head.width
    gate = head.gate

    def mlp(inner: int, first: int, bias: bool) -> Callable[[int, int], torch.nn.Module]:
        layers = [torch.nn.Dropout(0.0)] * first
        return lambda i, o: torch.nn.Sequential(*layers, linear(i, inner), torch.nn.SiLU(), linear(inner, o, bias))

    made = similarity_fn.MoLSimilarity(
        query_embedding_dim=width,
        item_embedding_dim=width,
        dot_product_dimension=head.width,
        query_dot_product_groups=groups[0],
        item_dot_product_groups=groups[1],
        temperature=head.temperature,
        dot_product_l2_norm=True,
        query_embeddings_fn=query_embeddings_fns.RecoMoLQueryEmbeddingsFn(
            query_embedding_dim=width,
            query_dot_product_groups=groups[0],
            dot_product_dimension=head.width,
            dot_product_l2_norm=True,
            proj_fn=lambda i, o: torch.nn.Sequential(torch.nn.Dropout(0.0), SwiGLU(i, hidden), linear(hidden, o)),
            eps=1e-6,
            uid_embedding_hash_sizes=[],
            uid_dropout_rate=0.0,
        ),
        item_embeddings_fn=item_embeddings_fns.RecoMoLItemEmbeddingsFn(
            item_embedding_dim=width,
            item_dot_product_groups=groups[1],
            dot_product_dimension=head.width,
            dot_product_l2_norm=True,
            proj_fn=lambda i, o: torch.nn.Sequential(torch.nn.Dropout(0.0), linear(i, o)),
            eps=1e-6,
        ),
        item_proj_fn=None,
        gating_query_only_partial_fn=mlp(gate.hidden, 0, False),
        gating_item_only_partial_fn=mlp(gate.hidden, 1, False),
        gating_qi_partial_fn=mlp(gate.hidden, 1, True),
        gating_combination_type="glu_silu",
        gating_normalization_fn=lambda _: similarity_fn.SoftmaxDropoutCombiner(dropout_rate=0.2, eps=1e-6),
        eps=1e-6,
    )
    theirs = {
        "_query_embeddings_fn._query_emb_proj_module.1._w": glu.weight.T,
        "_query_embeddings_fn._query_emb_proj_module.1._b": glu.bias[None],
        "_query_embeddings_fn._query_emb_proj_module.2": own[2],  # type: ignore[index]
        "_item_embeddings_fn._item_emb_proj_module.1": head.item_projection[1],  # type: ignore[index]
        "_gating_fn._query_only_partial_module.0": gate.query[1],  # type: ignore[index]
        "_gating_fn._query_only_partial_module.2": gate.query[3],  # type: ignore[index]
        "_gating_fn._item_only_partial_module.1": gate.item[1],  # type: ignore[index]
        "_gating_fn._item_only_partial_module.3": gate.item[3],  # type: ignore[index]
        "_gating_fn._qi_partial_module.1": gate.cross_in,
        "_gating_fn._qi_partial_module.3": gate.cross_out,
    }
    state: dict[str, Tensor] = {}
    for name, value in theirs.items():
        if isinstance(value, Tensor):
            state[name] = value.contiguous()
        else:
            state |= {f"{name}.{part}": tensor for part, tensor in value.state_dict().items()}
    made.load_state_dict(state)
    return made.eval().requires_grad_(False)


def reference_methods(folder: Path, head: MoLHead, items: Tensor, queries: Tensor) -> dict[str, Callable[[], Found]]:
    """What the reference offers, each as a function of nothing."""
    module = reference(folder, head, items.shape[1])
    from rails.indexing import mol_top_k  # type: ignore[import-not-found]

    ids = torch.arange(len(items))[None]
    shipped = mol_top_k.MoLBruteForceTopK(module, items[None], ids)
    average = mol_top_k.MoLAvgTopK(module, items[None], ids, 500)
    both = mol_top_k.MoLCombTopK(module, items[None], ids, 200, 5)
    for part in (average, both, both._avg_top_k_module):  # it keeps bfloat16, which this processor may not have
        for name in ("_mol_item_embeddings", "_mol_item_embeddings_t", "_avg_mol_item_embeddings_t"):
            if hasattr(part, name):
                setattr(part, name, getattr(part, name).float())

    def top(scores: Tensor, rows: Tensor) -> Found:
        return rows[:, :K].numpy(), scores[:, :K].numpy()

    def chunked(size: int) -> Found:
        scores = torch.cat([module(queries, chunk[None])[0] for chunk in torch.split(items, size)], dim=1)
        return top(*scores.topk(K, dim=1))

    def best(size: int) -> Callable[[], Found]:
        return lambda: chunked(size)

    methods = {f"reference, brute force, chunks of {size:,}": best(size) for size in CHUNKS}
    methods["reference, TopKAvg500"] = lambda: top(*average(queries, K))
    methods["reference, CombTopK5_200"] = lambda: top(*both(queries, K))
    if len(items) <= 120_000:
        methods["reference, brute force, as shipped"] = lambda: top(*shipped(queries, K))
    return methods


def peak(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and MiB that the process held at most above what it held before."""
    page = os.sysconf("SC_PAGE_SIZE")
    statm = Path("/proc/self/statm")

    def held() -> int:
        return int(statm.read_text().split()[1]) * page

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before, highest, done = held(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.is_set():
            highest = max(highest, held())
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = run()
    finally:
        done.set()
        thread.join()
    return result, max(0, highest - before) / 2**20


def table(shape: tuple[int, int, int], num_items: int, options: argparse.Namespace) -> None:
    """Prints the rows of one shape."""
    items, queries, gold = vectors(options.cache)
    head = trained_head(shape, options.steps, (items, queries, gold))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(items), generator=generator)[:num_items]
    if num_items > len(items):
        more = torch.randint(len(items), (num_items - len(items),), generator=generator)
        noise = 0.02 * torch.randn(len(more), items.shape[1], generator=generator)
        items = torch.cat([items, torch.nn.functional.normalize(items[more] + noise, dim=1)])
    else:
        items = items[rows]
    asked = queries[torch.randperm(len(queries), generator=generator)[:BATCH]]
    named: dict[str, MixtureSearcher] = {
        "BruteForce": BruteForce(),
        "Exact": ExactMoL(),
        "TopKAvg500": TopKAvg(500),
        "TopKPerEmbd50": TopKPerEmbd(50),
        "CombTopK5_200": CombTopK(5, 200),
    }
    shares: dict[str, float] = {}

    def searched(name: str) -> Callable[[], Found]:
        def search() -> Found:
            ranking = named[name].search(np.arange(BATCH), K)
            shares[name] = float(np.mean(ranking.calls)) / num_items
            return ranking.items, ranking.scores

        return search

    with torch.inference_mode():
        ours(head, items, asked, list(named.values()))
        methods = {name: searched(name) for name in named}
        if options.reference is not None:
            methods |= reference_methods(options.reference, head, items, asked)
        found, memory = {}, {}
        for name, method in methods.items():
            found[name], memory[name] = peak(method)
        times: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(options.repeats):
            for name, method in methods.items():
                start = time.perf_counter()
                method()
                times[name].append(1000 * (time.perf_counter() - start))
    exact, scores = found["BruteForce"]
    beside = [name for name in methods if "chunks" in name]
    best = min(beside, key=lambda name: statistics.median(times[name])) if beside else "BruteForce"
    print(f"\n{num_items:,} items, {'x'.join(map(str, shape))}; ratios against: {best}\n", flush=True)
    print("| method | ms a batch | times as fast | extra MiB | recall@100 | largest difference | gates evaluated |")
    print("|---|---|---|---|---|---|---|")
    for name in methods:
        ratio = statistics.median(a / b for a, b in zip(times[best], times[name], strict=True))
        same = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found[name][0], exact, strict=True)])
        apart = np.abs(found[name][1] - scores).max() if same == 1 else float("nan")
        share = f"{100 * shares[name]:.1f} %" if name in shares else ""
        print(
            f"| {name} | {statistics.median(times[name]):.0f} | {ratio:.2f} | {memory[name]:.0f} | {same:.3f} | "
            f"{apart:.1e} | {share} |",
            flush=True,
        )


def main() -> None:
    """Prints a table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=None)
    parser.add_argument("--shapes", nargs="+", default=["24186:8x4x128", "100000:8x8x32", "109739:4x4x768"])
    parser.add_argument("--cache", type=Path, default=Path("out/vectors"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for named in options.shapes:
        count, grid = named.split(":")
        p_q, p_x, width = map(int, grid.split("x"))
        table((p_q, p_x, width), int(count), options)


if __name__ == "__main__":
    main()
