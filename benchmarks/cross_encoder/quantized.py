"""int8 cross-encoders on a CPU: pairs per second beside sentence-transformers at its best, and what the ranking loses.

    python -m benchmarks.cross_encoder.quantized speed [--pairs 256] [--threads 2] [--repeats 7]
    python -m benchmarks.cross_encoder.quantized quality [--beir DIR ...] [--checkpoints DIR ...] [--queries 225]

`speed`: a BERT of MiniLM's size in Hugging Face's layout, loaded by either side; texts of widely varying length with a
mean near 105 tokens a pair. Both sides start from texts. The forms take turns; ratios are medians over the turns, with
the least and the most. sentence-transformers' predict sorts by length; of its batch sizes the best is taken for each
backend. Its ONNX backend, as exported and as its own dynamic int8, runs where optimum-onnx takes the
installed transformers; beside it stands the same runtime with our export, in its own dynamic int8.

`quality`: BM25's best 50 items, ranked anew by each checkpoint in single precision and in int8: nDCG@10 of both, where
there are judgements (of BEIR's layout and of WordNet), the largest difference of a query, and the share of the exact
top 10 that int8 keeps at the top.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import CrossEncoder as Peer

from benchmarks.cross_encoder.speed import BATCH_SIZES, Pairs, mixed_pairs, score_ours, timed
from simzoo.core.records import Collection
from simzoo.datamodules.readers.beir import load_beir
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.models.formats import load, save_onnx, save_sentence_transformer
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.sequence_classifier import SequenceClassifier
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate, split_queries
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searchers.exact import Rerank

BUDGET = 50
TOP = 10
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Form = Callable[[Pairs], Any]


def written(folder: Path) -> Path:
    """A sequence classifier with MiniLM's weights and a new head, in Hugging Face's layout."""
    torch.manual_seed(0)
    save_sentence_transformer(SequenceClassifier(BackboneConfig()).eval(), folder)
    return folder


def peers(folder: Path) -> dict[str, Peer]:
    """sentence-transformers' forms that can be had."""
    found = {"sentence-transformers": Peer(str(folder), device="cpu")}
    try:
        plain = Peer(str(folder), device="cpu", backend="onnx")
    except Exception as error:  # it needs optimum-onnx, which takes some versions of transformers alone
        print(f"without sentence-transformers' ONNX backend: {error}")
        return found
    from sentence_transformers import export_dynamic_quantized_onnx_model

    export_dynamic_quantized_onnx_model(plain, "avx512_vnni", str(folder))
    file = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    found["sentence-transformers, ONNX"] = plain
    found["sentence-transformers, ONNX int8"] = Peer(str(folder), device="cpu", backend="onnx", model_kwargs=file)
    return found


class Runtime:
    """ONNX Runtime by hand: our export in its dynamic int8, texts sorted by length.

    Args:
        model: to export.
        folder: for the files.
        threads: of its products.
    """

    def __init__(self, model: Any, folder: Path, threads: int) -> None:
        import onnx
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        save_onnx(model, folder)
        exported = onnx.load(folder / "pair.onnx")
        del exported.graph.value_info[:]  # shapes of constants that were folded, which the quantizer trips over
        quantize_dynamic(exported, folder / "int8.onnx", weight_type=QuantType.QInt8)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(folder / "int8.onnx", settings, ["CPUExecutionProvider"])
        self._tokenizer = model.text.tokenizer

    def predict(self, pairs: Pairs, batch_size: int) -> Any:
        """Scores (M,)."""
        order = np.argsort([-len(query) - len(item) for query, item in pairs], kind="stable")
        scores = np.empty(len(pairs), dtype=np.float32)
        for rows in np.array_split(order, -(-len(pairs) // batch_size)):
            queries, items = ([pairs[row][side] for row in rows] for side in (0, 1))
            tokens = self._tokenizer(queries, items, padding=True, truncation=True, return_tensors="np")
            inputs = {name: np.asarray(tokens[name], dtype=np.int64) for name in INPUTS}
            scores[rows] = self._session.run(None, inputs)[0]
        return scores


def predicting(peer: Any, some: Pairs) -> tuple[Form, int]:
    """Scoring at the batch size that is fastest on some pairs."""
    taken = {size: timed(partial(peer.predict, some, batch_size=size))[0] for size in BATCH_SIZES}
    best = min(taken, key=taken.__getitem__)
    return lambda pairs: peer.predict(pairs, batch_size=best), best


def speed(options: argparse.Namespace) -> None:
    """Prints the table of speeds."""
    with TemporaryDirectory() as folder:
        model = written(Path(folder))
        exact, rounded = load(model), load(model, quantize="int8")
        several: dict[str, Any] = {
            **peers(model),
            "ONNX Runtime int8": Runtime(exact, model / "runtime", options.threads),
        }
        pairs = mixed_pairs(options.pairs, random.Random(0))
        some = pairs[: max(64, options.pairs // 4)]
        forms: dict[str, Form] = {"ours": partial(score_ours, exact), "ours, int8": partial(score_ours, rounded)}
        for form in forms.values():
            form(some)
        for name, peer in several.items():
            form, size = predicting(peer, some)
            forms[f"{name} (batch {size})"] = form
        taken: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(options.repeats):
            for name, form in forms.items():
                taken[name].append(timed(partial(form, pairs))[0])
    tokens = np.mean(
        [len(ids) for ids in exact.text.tokenizer([q for q, _ in pairs], [i for _, i in pairs])["input_ids"]]
    )
    print(f"{len(pairs)} pairs of {tokens:.0f} tokens on average, {options.threads} threads\n")
    print("| form | pairs/s | ours, int8: times as fast (least, most) |")
    print("|---|---|---|")
    for name, times in taken.items():
        ratios = [one / own for one, own in zip(times, taken["ours, int8"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"| {name} | {len(pairs) / statistics.median(times):.1f} | {spread} |", flush=True)


def collections(folders: list[Path]) -> list[Collection]:
    """Those in BEIR's layout, and WordNet's test worlds."""
    worlds = load_wordnet(find_wordnet(None), only=["noun.event", "verb.communication"])
    return [*(load_beir(folder) for folder in folders), *worlds.values()]


def quality(options: argparse.Namespace) -> None:
    """Prints the table of losses."""
    print("| checkpoint | data | queries | nDCG@10 | in int8 | loss | largest of a query | exact top 10 kept |")
    print("|---|---|---|---|---|---|---|---|")
    models = {path.name: (load(path), load(path, quantize="int8")) for path in options.checkpoints}
    for collection in collections(options.beir):
        rows, _ = split_queries(collection, min(options.queries, len(collection.queries)), 0)
        for name, pair in models.items():
            found = []
            for model in pair:
                corpus = Corpus.of(collection, SimilarityJudge.of(model, collection.items))
                found.append(evaluate(Rerank(BM25(), BUDGET), corpus, collection, rows, TOP, ["nDCG@10"]))
            exact, rounded = (one.values["nDCG@10"] for one in found)
            both = zip(*(one.ranking.items for one in found), strict=True)
            kept = np.mean([len(np.intersect1d(a[a >= 0], b[b >= 0])) / max(1, (a >= 0).sum()) for a, b in both])
            lost = exact - rounded
            print(
                f"| {name} | {collection.name} | {len(rows)} | {exact.mean():.4f} | {rounded.mean():.4f} | "
                f"{lost.mean():+.4f} | {np.abs(lost).max():.3f} | {kept:.3f} |",
                flush=True,
            )


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type={"speed": speed, "quality": quality}.__getitem__)
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--queries", type=int, default=225, help="at most, of each data set")
    parser.add_argument("--beir", type=Path, nargs="*", default=[], help="folders of collections in BEIR's layout")
    checkpoints = [Path("checkpoints/wordnet-cls-ce"), Path("checkpoints/wordnet-emb-ce")]
    parser.add_argument("--checkpoints", type=Path, nargs="+", default=checkpoints)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    options.step(options)


if __name__ == "__main__":
    main()
