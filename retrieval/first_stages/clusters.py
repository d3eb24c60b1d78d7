"""k-means in two levels: the centroids of inverted lists, and the list of each vector.

One level compares every vector with every centroid: at five million vectors and 4 sqrt(N) lists that is most of what
building an index costs. Two levels compare it with about sqrt(L) groups and with the centroids of a few of them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.progress import progress

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

ROUNDS = 10  # of k-means
TRAINING = 64  # vectors a centroid that k-means sees
ONE_LEVEL = 256  # centroids up to which there is one group
REFINED = 3  # rounds of k-means over all centroids, after those of each group
NEAR = 8  # groups whose centroids a vector is compared with
BLOCK = 65_536  # vectors assigned at once
PRODUCTS = 1 << 22  # held at once


class Clusters:
    """L centroids of length 1 in G groups.

    Args:
        groups: (G, d) centroids of the groups.
        centroids: (L, d), those of a group behind each other.
        begins: (G + 1,) where the centroids of each group begin.
    """

    def __init__(self, groups: Tensor, centroids: Tensor, begins: list[int]) -> None:
        self._groups = groups
        self._centroids = centroids
        self._begins = begins

    @property
    def centroids(self) -> Floats:
        """(L, d)."""
        found: Floats = self._centroids.cpu().numpy()
        return found

    @classmethod
    def of(cls, vectors: Floats, count: int) -> Self:
        """Learns ``count`` centroids from vectors (M, d), M at least as many; on a GPU where there is one."""
        random = torch.Generator().manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        every = torch.from_numpy(np.array(vectors, dtype=np.float32)).to(device)
        number = 1 if count <= ONE_LEVEL else round(math.sqrt(count))
        if number == 1:
            centroids = _kmeans(every, count, random)
            return cls(centroids.mean(dim=0, keepdim=True), centroids, [0, count])
        few = torch.randperm(len(every), generator=random)[: 4 * TRAINING * number].sort().values.to(device)
        groups = _kmeans(every[few], number, random)
        owners = _nearest(every, groups)[1]
        order = torch.argsort(owners, stable=True)
        ends = torch.bincount(owners, minlength=number).cumsum(0).tolist()
        shares = [end * count // len(every) for end in ends]  # by the number of vectors, and at most as many
        parts, row, begins = [], 0, [0, *shares]
        for group in progress(range(number), "k-means, groups"):
            end = ends[group]
            if shares[group] > begins[group]:
                parts.append(_kmeans(every[order[row:end]], shares[group] - begins[group], random))
            row = end
        found = cls(groups, torch.cat(parts), begins)
        for _ in progress(range(REFINED), "k-means, rounds over all"):
            found = found._refined(every, random)
        return found

    def _refined(self, vectors: Tensor, random: torch.Generator) -> Self:
        """One more round of k-means, across the borders of the groups."""
        owners = torch.cat([self._assigned(some) for some in torch.split(vectors, BLOCK)])
        centroids = _means(vectors, owners, len(self._centroids), random)
        sizes = [stop - start for start, stop in pairwise(self._begins)]
        own = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(vectors.device)
        sums = torch.zeros_like(self._groups).index_add_(0, own, centroids)
        return type(self)(torch.nn.functional.normalize(sums), centroids, self._begins)

    def assign(self, vectors: Floats) -> Rows:
        """(M,) the centroid with the largest inner product with each of vectors (M, d), among those of the 8 groups
        whose own centroids have the largest.
        """
        found = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(vectors), BLOCK):
            some = torch.from_numpy(np.array(vectors[start : start + BLOCK], dtype=np.float32))
            found.append(self._assigned(some.to(self._groups.device)).cpu().numpy())
        return np.concatenate(found)

    def _assigned(self, every: Tensor) -> Tensor:
        if len(self._groups) == 1:
            return _nearest(every, self._centroids)[1]
        near = torch.cat([(some @ self._groups.T).topk(NEAR, dim=1).indices for some in torch.split(every, BLOCK // 8)])
        order = torch.argsort(near.flatten(), stable=True)
        ends = torch.bincount(near.flatten(), minlength=len(self._groups)).cumsum(0).tolist()
        rows = order // near.shape[1]
        best = every.new_full((len(every),), -torch.inf)
        found = torch.zeros(len(every), dtype=torch.int64, device=every.device)
        start = 0
        for group, end in enumerate(ends):
            first, last = self._begins[group], self._begins[group + 1]
            if end > start and last > first:
                mine = rows[start:end]
                products, places = _nearest(every[mine], self._centroids[first:last])
                better = products > best[mine]
                best[mine[better]] = products[better]
                found[mine[better]] = places[better] + first
            start = end
        return found


def _nearest(vectors: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The largest inner product (M,) of each vector, and the centroid (M,) that it is with."""
    size = max(1, PRODUCTS // len(centroids))
    found = [(some @ centroids.T).max(dim=1) for some in torch.split(vectors, size)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def _kmeans(vectors: Tensor, count: int, random: torch.Generator) -> Tensor:
    """(count, d) centroids of length 1; one that loses all its vectors is put on one of them at random."""
    chosen = torch.randperm(len(vectors), generator=random)[:count].to(vectors.device)
    centroids = torch.nn.functional.normalize(vectors[chosen])
    for _ in range(ROUNDS if len(vectors) > count else 0):
        owners = _nearest(vectors, centroids)[1]
        centroids = _means(vectors, owners, count, random)
    return centroids


def _means(vectors: Tensor, owners: Tensor, count: int, random: torch.Generator) -> Tensor:
    """(count, d) the directions of the vectors (M, d) of each owner (M,); a random one's for an owner of none."""
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, owners, vectors)
    empty = torch.bincount(owners, minlength=count) == 0
    if empty.any():
        others = torch.randint(len(vectors), (int(empty.sum()),), generator=random).to(vectors.device)
        sums[empty] = vectors[others]
    return torch.nn.functional.normalize(sums)
