"""Pairs of texts as any tokenizer of transformers puts them: its own template, its own way to cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.models.parts.tokenizing import Tokenizing


@dataclass(frozen=True)
class PairTemplate:
    """What a tokenizer puts around the texts of a pair, and the segments of all that.

    Attributes:
        around: token ids before the query, between the texts and after the item.
        segments: of these, in the same order.
        sides: segments of the query's and of the item's tokens.
    """

    around: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    segments: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    sides: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, name: str) -> PairTemplate:
        """The tokenizer's own.

        Args:
            tokenizer: a fast one.
            name: of the backbone, for messages.

        Raises:
            ValueError: it has none that can be told from an example.
        """
        if not tokenizer.is_fast:
            raise ValueError(f"backbone {name!r}: its tokenizer has no fast form, which is needed to read its template")
        encoded = tokenizer("a", "a")
        ids, sides = encoded["input_ids"], encoded.sequence_ids()
        types = encoded.get("token_type_ids", [0] * len(ids))
        first, second = ([place for place, side in enumerate(sides) if side == which] for which in (0, 1))
        if not first or not second or first[-1] > second[0]:
            raise ValueError(f"backbone {name!r}: its tokenizer makes {encoded.tokens()} of two texts, expected both")
        spans = slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, len(ids))
        before, between, after = (tuple(ids[span]) for span in spans)
        kinds = tuple(types[spans[0]]), tuple(types[spans[1]]), tuple(types[spans[2]])
        return cls((before, between, after), kinds, (types[first[0]], types[second[0]]))

    @property
    def added(self) -> int:
        """Tokens besides those of the texts."""
        return sum(map(len, self.around))


def longest_first(query: Tensor, item: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """How many tokens are left of each text of a pair: the longer one is cut first, as by transformers.

    Args:
        query: (P,) tokens of the query.
        item: (P,) tokens of the item.
        room: for both.

    Returns:
        (P,) and (P,).
    """
    short, long = torch.minimum(query, item), torch.maximum(query, item)
    long = torch.minimum(long, torch.maximum(short, room - short))
    both = short + long > room
    short, long = short.where(~both, room // 2), long.where(~both, room // 2 + room % 2)
    return short.where(query <= item, long), long.where(query <= item, short)


def templated(
    template: PairTemplate, query: tuple[Ragged, Tensor, Tensor], item: tuple[Ragged, Tensor, Tensor], pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs in a tokenizer's template, in one pass without a loop over pairs.

    Args:
        template: the tokenizer's.
        query: token ids, the rows (B,) to take of them, and how many tokens (B,) of each.
        item: the same.
        pad: token id of the padding.

    Returns:
        ids (B, L), mask (B, L) bool, segments (B, L) int64.
    """
    device = query[0].values.device
    specials = [torch.tensor(ids, device=device) for ids in template.around]
    kinds = [torch.tensor(kind, device=device) for kind in template.segments]
    zero = torch.zeros_like(query[1])
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor | int]] = [
        (specials[0], zero, zero + len(specials[0]), kinds[0]),
        (query[0].values, query[0].offsets[query[1]], query[2], template.sides[0]),
        (specials[1], zero, zero + len(specials[1]), kinds[1]),
        (item[0].values, item[0].offsets[item[1]], item[2], template.sides[1]),
        (specials[2], zero, zero + len(specials[2]), kinds[2]),
    ]
    total = query[2] + item[2] + template.added
    places = torch.arange(int(total.max()), device=device)[None, :]
    ids = torch.full((len(total), places.shape[1]), pad, dtype=torch.int64, device=device)
    segments = torch.zeros_like(ids)
    start = zero
    for values, offsets, lengths, kind in parts:
        if len(values):
            inside = (places >= start[:, None]) & (places < (start + lengths)[:, None])
            index = (offsets[:, None] + places - start[:, None]).clamp(0, len(values) - 1)
            ids = torch.where(inside, values[index].long(), ids)
            segments = torch.where(inside, kind if isinstance(kind, int) else kind[index], segments)
        start = start + lengths
    return ids, places < total[:, None], segments


class PairTokenizer(Tokenizing):
    """Picklable collator: records to ``{"ids": Ragged}``, without the template's tokens.

    Args:
        tokenizer: the backbone's.
        name: of the backbone, for messages.
        max_length: most tokens of a pair, the template's included.
        mention_marks: put before and after a query's mention, as text; None: the mention is not marked.
        query_prompt: put before every query, as text.

    Raises:
        ValueError: the tokenizer's template cannot be told, or leaves too little room.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        max_length: int,
        mention_marks: tuple[str, str] | None,
        query_prompt: str,
    ) -> None:
        super().__init__(tokenizer)
        self.template = PairTemplate.of(tokenizer, name)
        self.room = max_length - self.template.added
        if self.room < 8:
            raise ValueError(
                f"backbone {name!r}: max_length {max_length} leaves {self.room} tokens for the texts of a pair, "
                "expected at least 8"
            )
        if tokenizer.truncation_side != "right":
            raise ValueError(f"backbone {name!r}: its tokenizer cuts texts on the left, which is not supported")
        self.mention_marks, self.query_prompt = mention_marks, query_prompt

    def queries(self, queries: Sequence[Query]) -> Reps:
        """``ids`` (B, ragged), at most as many as a pair has room for."""
        return self._cut([self.query_prompt + self._marked(query) for query in queries])

    def items(self, items: Sequence[Item]) -> Reps:
        """``ids`` (M, ragged) of title and text, at most as many as a pair has room for."""
        return self._cut([f"{item.title} {item.text}".strip() for item in items])

    def _marked(self, query: Query) -> str:
        if query.mention is None or self.mention_marks is None:
            return query.text
        (start, end), (before, after) = query.mention, self.mention_marks
        return f"{query.text[:start]}{before}{query.text[start:end]}{after}{query.text[end:]}"

    def _cut(self, texts: list[str]) -> Reps:
        found = self.ids(texts)
        for ids in found:
            self.count(len(ids) > self.room, f"{self.room} tokens of a pair")
        return {"ids": Ragged.of([ids[: self.room] for ids in found])}
