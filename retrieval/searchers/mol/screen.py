"""Upper bounds of Mixture-of-Logits' scores from products of whole numbers: a quarter of the bytes, and less time."""

from __future__ import annotations

import torch
from torch import Tensor

from simzoo.core.int8 import ZERO, Int8Matrix, rounded
from simzoo.retrieval.searchers.mol.index import CHUNK, Block, MixtureIndex

__all__ = ["Screen"]


class Screen:
    """Bounds of the largest logit of a pair, from rounded components.

    The product of two components differs from that of the rounded ones by no more than |x - x'| |q| + |x'| |q - q'|,
    all of which is known. An item's components share a step, and a query's, so that the largest product of a pair is
    found among whole numbers. It holds a quarter of the components' bytes.

    Args:
        index: of the items.
    """

    def __init__(self, index: MixtureIndex) -> None:
        self._index = index
        parts = [self._of_items(chunk.float()) for chunk in torch.split(index.items, CHUNK)]
        self._values, self._steps, self._apart, self._length = (
            torch.cat(column) for column in zip(*parts, strict=True)
        )

    @staticmethod
    def _of_items(items: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of (C, P, d): whole numbers (C P, d), steps, largest |x - x'| and largest |x'|, (C,) each."""
        values, steps = rounded(items.flatten(1))
        near = ((values.float() - ZERO) * steps).view(items.shape)
        apart, length = ((part.norm(dim=2).amax(dim=1)) for part in (items - near, near))
        return values.view(-1, items.shape[2]), steps[:, 0], apart, length

    def of(self, block: Block) -> BlockScreen:
        """The bounds of a block's queries."""
        return BlockScreen(self, block)


class BlockScreen:
    """Bounds for the b queries of a block.

    Args:
        screen: of the items.
        block: of queries.
    """

    def __init__(self, screen: Screen, block: Block) -> None:
        values, steps, self._apart, _ = Screen._of_items(block.components)
        by_component = values.view(len(block), -1, values.shape[1]).transpose(0, 1).flatten(0, 1)
        # Queries last: their largest products are then found side by side.
        self._matrix = Int8Matrix(by_component, steps.repeat(len(by_component) // len(block)))
        self._length = block.components.norm(dim=2).amax(dim=1)
        self._screen, self._queries = screen, len(block)

    def __call__(self, start: int, stop: int) -> Tensor:
        """(b, C) what no logit of a query with the items from ``start`` to ``stop`` exceeds."""
        screen, parts = self._screen, self._screen._index.item_components
        products = self._matrix(screen._values[start * parts : stop * parts])
        largest = products.view(stop - start, -1, self._queries).amax(dim=1)
        bounds = largest.mul_(screen._steps[start:stop, None])
        bounds.addcmul_(screen._apart[start:stop, None], self._length)
        bounds.addcmul_(screen._length[start:stop, None], self._apart)
        found: Tensor = bounds.T + screen._index.rounding
        return found
