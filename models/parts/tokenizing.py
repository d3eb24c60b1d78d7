"""Texts to token ids, once: tags around the mention, truncation, ragged storage."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.models.parts.tokenizer_bounds import usable

__all__ = ["TextTokenizer", "TokenConfig", "Tokenizing"]

log = logging.getLogger(__name__)


@dataclass
class TokenConfig:
    """How a query and an item become token ids (ANNCUR A.1).

    Attributes:
        query_length: most tokens of a query, [CLS] and [SEP] included; truncated around the mention.
        item_length: most tokens of an item, [SEP] included.
        mention_tags: tokens before and after the mention; a query without mention gets the first one before its text.
            None: no tags, the mention is not marked.
        item_tag: token between an item's title and its text. None: a space.
        query_prompt: put before every query, as some backbones want it.
        item_prompt: put before every item.
        query_prefix: tokens between a query's [CLS] and its text, for a model that reads several vectors of it.
        item_prefix: the same for an item; only where it has its own [CLS].
    """

    query_length: int = 128
    item_length: int = 128
    mention_tags: tuple[str, str] | None = ("[unused0]", "[unused1]")
    item_tag: str | None = "[unused2]"
    query_prompt: str = ""
    item_prompt: str = ""
    query_prefix: tuple[str, ...] = ()
    item_prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.query_length < 8 + len(self.query_prefix) or self.item_length < 8 + len(self.item_prefix):
            raise ValueError(
                "query_length and item_length must be at least 8, and 1 more for each token of their prefix; "
                f"got {self.query_length} and {self.item_length}"
            )

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag token in use, once."""
        tags = (*(self.mention_tags or ()), *((self.item_tag,) if self.item_tag else ()))
        return tuple(dict.fromkeys((*tags, *self.query_prefix, *self.item_prefix)))


class Tokenizing:
    """Texts to token ids, and how many were cut; picklable.

    Args:
        tokenizer: the backbone's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.truncated = 0

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens.

        Raises:
            ValueError: a text is none, or the tokenizer fails at it.
        """
        if not texts:
            return []
        with usable(self.tokenizer.name_or_path, texts):
            encoded: list[list[int]] = self.tokenizer(
                texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
            )["input_ids"]
        return encoded

    def count(self, cut: bool, most: str) -> None:
        """Counts a text that was cut; says so for the first one.

        Args:
            cut: whether it was.
            most: what the model takes, for the message.
        """
        if cut:
            if not self.truncated:
                log.warning(
                    "a text is longer than the model takes (%s) and is truncated; further ones are counted without a "
                    "warning",
                    most,
                )
            self.truncated += 1


class TextTokenizer(Tokenizing):
    """Picklable collator: records to ``{"ids": Ragged, "tags": (N, 2) or (N, 1)}``.

    ``tags`` holds the index of the tag tokens in each sequence (0 where the config has none).

    Args:
        tokenizer: the backbone's.
        config: lengths, tags and prompts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: TokenConfig) -> None:
        super().__init__(tokenizer)
        self.config = config
        self._most = f"{config.query_length} query, {config.item_length} item tokens"
        self.cls_id, self.sep_id = _special(tokenizer, "cls"), _special(tokenizer, "sep")
        self.tag_ids = {tag: _tag_id(tokenizer, tag) for tag in config.tags}
        self._query_start = [self.cls_id, *(self.tag_ids[tag] for tag in config.query_prefix)]
        self._item_start = [self.cls_id, *(self.tag_ids[tag] for tag in config.item_prefix)]

    def queries(self, queries: Sequence[Query]) -> Reps:
        """[CLS] left [Ms] mention [Me] right [SEP], or [CLS] [Ms] text [SEP] without a mention."""
        spans = [query.mention if self.config.mention_tags else None for query in queries]
        prompt = self.config.query_prompt
        # One call each: a fast tokenizer is fast on lists. A query without mention is all "right".
        # The prompt goes with the text behind it: a tokenizer may join them.
        left = self.ids([prompt + q.text[: s[0]] if s else "" for q, s in zip(queries, spans, strict=True)])
        mention = self.ids([q.text[s[0] : s[1]] if s else "" for q, s in zip(queries, spans, strict=True)])
        right = self.ids([q.text[s[1] :] if s else prompt + q.text for q, s in zip(queries, spans, strict=True)])
        ids, tags = [], []
        for parts in zip(left, mention, right, strict=True):
            sequence, tag = self._query(*parts)
            ids.append(sequence)
            tags.append(tag)
        return {"ids": Ragged.of(ids), "tags": torch.tensor(tags, dtype=torch.int64).view(-1, 2)}

    def items(self, items: Sequence[Item], cls: bool) -> Reps:
        """title [ENT] text [SEP], with its own [CLS] and prefix in front if ``cls``."""
        prompt, tag = self.config.item_prompt, self.config.item_tag
        start = self._item_start if cls else []
        if tag is None:
            titles: list[list[int]] = [[] for _ in items]
            texts = self.ids([prompt + f"{item.title} {item.text}".strip() for item in items])
            middle: list[int] = []
        else:
            titles = self.ids([prompt + item.title for item in items])
            texts = self.ids([item.text for item in items])
            middle = [self.tag_ids[tag]]
        room = self.config.item_length - len(start) - len(middle) - 1
        ids, tags = [], []
        for title, text in zip(titles, texts, strict=True):
            title = title[: room // 2]
            body = text[: room - len(title)]
            self.count(len(body) < len(text), self._most)
            ids.append([*start, *title, *middle, *body, self.sep_id])
            tags.append(len(start) + len(title) if tag else 0)
        return {"ids": Ragged.of(ids), "tags": torch.tensor(tags, dtype=torch.int64).view(-1, 1)}

    def _query(self, left: list[int], mention: list[int], right: list[int]) -> tuple[list[int], tuple[int, int]]:
        marked, start = self.config.mention_tags, self._query_start
        room = self.config.query_length - len(start)
        if not marked:
            room -= 1
            text = [*left, *right]
            self.count(len(text) > room, self._most)
            return [*start, *text[:room], self.sep_id], (0, 0)
        opening, closing = (self.tag_ids[tag] for tag in marked)
        if not mention:
            room -= 2
            text = [*left, *right]
            self.count(len(text) > room, self._most)
            return [*start, opening, *text[:room], self.sep_id], (len(start), len(start))
        room -= 3
        full = len(left) + len(mention) + len(right)
        self.count(full > room, self._most)
        mention = mention[:room]
        room -= len(mention)
        # Half the room on each side; what one side does not need goes to the other.
        before = min(len(left), max(room // 2, room - len(right)))
        left = left[len(left) - before :]
        right = right[: room - before]
        at = len(start) + len(left)
        tags = at, at + 1 + len(mention)
        return [*start, *left, opening, *mention, closing, *right, self.sep_id], tags


def _special(tokenizer: PreTrainedTokenizerBase, kind: str) -> int:
    token_id = getattr(tokenizer, f"{kind}_token_id")
    if token_id is None:
        raise ValueError(f"the backbone's tokenizer has no {kind} token; an encoder such as BERT is needed")
    return int(token_id)


def _tag_id(tokenizer: PreTrainedTokenizerBase, tag: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(tag)
    if not isinstance(token_id, int) or token_id == tokenizer.unk_token_id:
        raise ValueError(
            f"tag {tag!r} is not in the backbone's vocabulary; choose tokens that are (BERT: [unused0] to [unused99])"
        )
    return token_id
