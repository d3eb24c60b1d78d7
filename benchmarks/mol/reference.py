"""The RAILS authors' Mixture-of-Logits (bailuding/rails, a clone in a folder that the user names) with our weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.models.parts.mixture import MoLHead

K = 100
CHUNKS = (1000, 2000, 4000)
CHUNKED = "reference, brute force, chunks of"
RowsAndScores = tuple[NDArray[np.int64], NDArray[np.float32]]


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


def reference_methods(
    folder: Path, head: MoLHead, items: Tensor, queries: Tensor
) -> dict[str, Callable[[], RowsAndScores]]:
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

    def top(scores: Tensor, rows: Tensor) -> RowsAndScores:
        return rows[:, :K].numpy(), scores[:, :K].numpy()

    def chunked(size: int) -> RowsAndScores:
        scores = torch.cat([module(queries, chunk[None])[0] for chunk in torch.split(items, size)], dim=1)
        return top(*scores.topk(K, dim=1))

    def best(size: int) -> Callable[[], RowsAndScores]:
        return lambda: chunked(size)

    methods = {f"{CHUNKED} {size:,}": best(size) for size in CHUNKS}
    methods["reference, TopKAvg500"] = lambda: top(*average(queries, K))
    methods["reference, CombTopK5_200"] = lambda: top(*both(queries, K))
    if len(items) <= 120_000:
        methods["reference, brute force, as shipped"] = lambda: top(*shipped(queries, K))
    return methods
