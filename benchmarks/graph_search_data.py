"""All of WordNet as a cheap item space with trained q-nets: what benchmarks.graph_search searches in.

An item's vector is the mean of the backbone's input embeddings of its definition's tokens, weighted by idf: seconds
for 117,659 synsets instead of a transformer's minutes to hours. On these vectors a hyperhead is trained on the usage
examples of the training worlds, whose token embeddings it reads, so that q-nets are trained ones. They are no good
retrievers, and no random ones either.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from datamodules.records import Collection, Query
from datamodules.reps import Ragged, Reps
from datamodules.wordnet import TEST_WORLDS, TRAIN_WORLDS, find_wordnet, load_wordnet
from models.backbone import BackboneConfig, load_tokenizer, resolve_backbone
from models.hypencoder import Hyperhead, QNet, QNetConfig
from models.tokens import TextEncoder, TokenConfig

WIDTH, NORM = 384, 4.0  # of a vector; about that of wordnet-de's vectors before they are normalised
QUERIES, NEGATIVES = 24, 128  # of a training step; negatives of the queries' world, and as many of all worlds


@dataclass
class Space:
    """Items, training queries and searched queries.

    Attributes:
        collection: all items; the searched queries, a sample of the test worlds'.
        vectors: (N, WIDTH).
        worlds: by name: first item, number of items, queries and their gold items.
    """

    collection: Collection
    vectors: Tensor
    worlds: dict[str, tuple[int, int, list[Query], Tensor]]
    embeddings: Tensor
    text: TextEncoder

    @classmethod
    def of_wordnet(cls, queries: int) -> Space:
        """Reads WordNet; ``queries`` searched ones of each test world."""
        config = BackboneConfig()
        table = AutoModel.from_pretrained(resolve_backbone(config)).embeddings.word_embeddings.weight.detach()
        embeddings = _scaled(table)
        text = TextEncoder(load_tokenizer(config), TokenConfig(64, 64))
        items, worlds, asked, judged = [], {}, [], []
        for name, world in load_wordnet(find_wordnet(), titles=False).items():
            first = len(items)
            gold = torch.tensor([first + world.relevant(row)[0] for row in range(len(world.queries))])
            worlds[name] = first, len(world.items), world.queries, gold
            items += world.items
            if name in TEST_WORLDS:
                for row in np.random.default_rng(0).permutation(len(world.queries))[:queries]:
                    asked.append(world.queries[row])
                    judged.append({int(gold[row]): 1})
        ids = text.items(items, cls=True)["ids"]
        assert isinstance(ids, Ragged)
        weights = (len(items) / (torch.bincount(ids.values.long(), minlength=len(table)) + 1)).log().clamp_min(0.1)
        rows = torch.repeat_interleave(torch.arange(len(items)), ids.lengths)
        tokens = ids.values.long()
        sums = torch.zeros(len(items), WIDTH).index_add_(0, rows, embeddings[tokens] * weights[tokens, None])
        vectors = _scaled(sums / torch.zeros(len(items)).index_add_(0, rows, weights[tokens])[:, None])
        collection = Collection("WordNet", items, asked, judged)
        return cls(collection, vectors, worlds, embeddings, text)

    def states(self, queries: list[Query]) -> tuple[Tensor, Tensor]:
        """Token embeddings (B, L, WIDTH) and mask (B, L); those of the mention are moved by a fixed vector."""
        tokens = self.text.queries(queries)
        ids, tags = tokens["ids"], tokens["tags"]
        assert isinstance(ids, Ragged) and isinstance(tags, Tensor)
        padded, mask = ids.pad()
        mark = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)) * 3 / WIDTH**0.5
        places = torch.arange(padded.shape[1])
        inside = (places >= tags[:, :1]) & (places <= tags[:, 1:])
        return self.embeddings[padded.long()] + inside[..., None] * mark, mask


def trained_queries(space: Space, depth: int, steps: int, path: Path) -> tuple[QNet, Reps]:
    """The q-nets of the searched queries; training is done once, its result kept in ``path``."""
    net = QNet(QNetConfig((WIDTH,) * depth), WIDTH).eval()
    torch.manual_seed(0)
    head = Hyperhead(WIDTH, net.shapes, depth + 1, "paper")
    if path.exists():
        head.load_state_dict(load_file(path))
    else:
        _train(space, net, head, steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(head.state_dict(), path)
    with torch.inference_mode():
        matrices = head(*space.states(list(space.collection.queries)))
    return net, dict(zip(net.names, matrices, strict=True))


def _train(space: Space, net: QNet, head: Hyperhead, steps: int) -> None:
    rng = np.random.default_rng(0)
    names = [name for name in space.worlds if name in TRAIN_WORLDS]
    sizes = np.array([len(space.worlds[name][2]) for name in names])
    optimizer = torch.optim.AdamW(head.parameters())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 20)
        first, size, queries, gold = space.worlds[names[rng.choice(len(names), p=sizes / sizes.sum())]]
        rows = rng.permutation(len(queries))[:QUERIES]
        drawn = rng.integers(size, size=NEGATIVES) + first, rng.integers(len(space.vectors), size=NEGATIVES)
        candidates = torch.cat([gold[rows], *map(torch.from_numpy, drawn)])
        states = space.states([queries[row] for row in rows])
        scores = net(
            dict(zip(net.names, head(*states), strict=True)), space.vectors[candidates].expand(len(rows), -1, -1)
        )
        own = torch.arange(len(rows))
        again = (candidates == gold[rows][:, None]).index_put_((own, own), torch.tensor(False))
        loss = F.cross_entropy(scores.masked_fill(again, -1e9), own)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()


def _scaled(vectors: Tensor) -> Tensor:
    """Centred, with a mean length of NORM."""
    centred = vectors - vectors.mean(dim=0)
    return centred * (NORM / centred.norm(dim=1).mean())
