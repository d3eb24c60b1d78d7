"""WordNet's texts: glosses taken apart into definition and examples, and words found by Morphy's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Gloss:
    """A gloss taken apart; ``repaired`` tells that its quotes did not pair up."""

    definition: str
    examples: tuple[str, ...]
    repaired: bool = False


# A quoted stretch straight after one of these words is part of the definition: in the phrase "make strides".
_QUOTING = re.compile(r"\b(?:phrase|expression|word|term|as|or|than|of|like)\s*$")
_TALK_ABOUT = re.compile(r"\s+(?:is|means)\s")  # "lang syne" is Scottish: a remark on the words, no use of them
_REMARK = re.compile(r"\([`a-z][^)]*\)")  # (`plenty' is nonstandard), unlike (Matthew 7:12) or -Mark Twain


def split_gloss(gloss: str) -> Gloss:
    """Take a gloss apart into its definition and its examples.

    An example is a quoted stretch outside brackets, unless the words around it talk about it (`in the phrase "make
    strides"`, `"lang syne" is Scottish`): then it belongs to the definition. Attributions after an example are left
    out of both; bracketed remarks after an example (`(`alright' is nonstandard)`) join the definition. A quotation
    followed or interrupted by its speaker (`"It is hard," he said, "but true"`) is one example.
    """
    gloss = gloss.strip()
    if '"' not in gloss:
        return Gloss(_without_joint(gloss), ())
    repaired = gloss.count('"') % 2 == 1
    parts = (_pair_quotes(gloss) if repaired else gloss).split('"')
    definition, examples, speech = parts[0], list[str](), ""
    for quoted, outside in zip(parts[1::2], parts[2::2], strict=True):
        in_brackets = definition.count("(") > definition.count(")")
        if in_brackets or _TALK_ABOUT.match(outside) or (not examples and not speech and _names(definition)):
            definition += f'"{quoted}"{outside}'
        elif quoted.endswith(",") and re.match(r"\s+\w", outside):
            speech += f'"{quoted}"{outside}'
        else:
            examples.append(speech + f'"{quoted}"' if speech else quoted)
            speech = ""
            if remarks := _REMARK.findall(outside):
                definition = "; ".join([_without_joint(definition), *remarks])
    if speech:
        examples.append(speech)
    texts = tuple(text for text in (example.strip(" ;") for example in examples) if text)
    return Gloss(_without_joint(definition), texts, repaired)


def _without_joint(definition: str) -> str:
    """A definition without what joins it to the examples that follow it."""
    for joint in ("", "e.g.", " as in"):
        definition = definition.removesuffix(joint).rstrip(" ;:,")
    return definition


def _names(definition: str) -> bool:
    return bool(_QUOTING.search(definition)) and not definition.rstrip().endswith("as in")


def _pair_quotes(gloss: str) -> str:
    """The gloss with its missing quote put where the semicolons say that an example begins or ends."""
    gloss = re.sub(r'(\w)"(m|s|d|ll|re|ve)\b', r"\1'\2", gloss)  # I"m
    gloss = re.sub(r'(\w)"(\w)', r'\1"; "\2', gloss)  # into the car"women carrying
    pieces = [piece.strip() for piece in re.split(r';\s*(?=")|(?<=");\s*', gloss)]
    paired = []
    for position, piece in enumerate(pieces):
        if piece.count('"') % 2 == 0:
            paired.append(piece)
        elif piece.startswith('"'):
            paired.append(piece.rstrip(":'") + '"')
        elif position or ";" in piece:
            head, _, tail = piece.rpartition(";")
            paired.append(f'{head}; "{tail.strip()}' if head else f'"{piece}')
        else:
            paired.append(piece.replace('"', ""))
    return "; ".join(paired)


Exceptions = Mapping[str, Sequence[str]]
"""An exception list: inflected form -> base forms."""

# Morphy's rules of detachment: (ending, what replaces it), by part of speech.
_ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
_WORD = re.compile(r"[^\W_]+")


def base_forms(word: str, pos: str, exceptions: Exceptions) -> frozenset[str]:
    """What a lower-case word may be a form of, itself included, by Morphy's rules for a part of speech (n, v, a, r).

    As in Morphy, the rules of detachment apply only to words that the exception list does not name, never to nouns
    in -ss, and through a noun's -ful (boxesful -> boxful).
    """
    if listed := exceptions.get(word):
        return frozenset((word, *listed))
    stem, tail = (word[:-3], "ful") if pos == "n" and word.endswith("ful") else (word, "")
    if pos == "n" and not tail and (word.endswith("ss") or len(word) <= 2):
        return frozenset((word,))
    bases = (stem[: len(stem) - len(old)] + new + tail for old, new in _ENDINGS[pos] if stem.endswith(old))
    return frozenset((word, *(base for base in bases if base)))


class MentionFinder:
    """Finds a synset's lemmas in its examples; remembers the base forms of every word it has met.

    Args:
        exceptions: The exception lists by part of speech ("n", "v", "a", "r").
    """

    def __init__(self, exceptions: Mapping[str, Exceptions]) -> None:
        self._exceptions = exceptions
        self._bases: dict[tuple[str, str], frozenset[str]] = {}
        self._inflected: dict[tuple[str, str], list[str]] = {}
        for pos, table in exceptions.items():
            for form, bases in table.items():
                if len(_WORD.findall(form)) > 1:
                    for base in bases:
                        self._inflected.setdefault((base, pos), []).append(form)

    def find(self, text: str, lemmas: Sequence[str], pos: str) -> tuple[tuple[int, int], str] | None:
        """The first mention of any lemma: its character span [start, end) in the text, and the lemma.

        Of lemmas that begin at the same place the one with the most characters is taken. Case is ignored. Every word
        of a collocation may be inflected; its words may be joined by a space or a hyphen, whichever the lemma has.

        Args:
            text: The example.
            lemmas: Lower-case lemmas, words joined by "_" as in WordNet's index.
            pos: "n", "v", "a" or "r".
        """
        words = list(_WORD.finditer(text))
        bases = [self._base_forms(word[0].lower(), pos) for word in words]
        best: tuple[int, int, str] | None = None
        for lemma in lemmas:
            for form in (lemma, *self._inflected.get((lemma, pos), ())):
                span = self._first(text, words, bases, form)
                if span and (best is None or (span[0], -span[1]) < (best[0], -best[1])):
                    best = (*span, lemma)
        return None if best is None else ((best[0], best[1]), best[2])

    def _first(
        self, text: str, words: Sequence[re.Match[str]], bases: Sequence[frozenset[str]], lemma: str
    ) -> tuple[int, int] | None:
        targets, gaps = _split(lemma)
        last = len(targets) - 1
        for first in range(len(words) - last if targets else 0):
            if targets[0] in bases[first] and all(
                targets[i + 1] in bases[first + i + 1]
                and _joint(text[words[first + i].end() : words[first + i + 1].start()]) == gaps[i]
                for i in range(last)
            ):
                return words[first].start(), words[first + last].end()
        return None

    def _base_forms(self, word: str, pos: str) -> frozenset[str]:
        forms = self._bases.get((word, pos))
        if forms is None:
            forms = self._bases[word, pos] = base_forms(word, pos, self._exceptions[pos])
        return forms


@lru_cache(maxsize=4096)
def _split(lemma: str) -> tuple[list[str], list[str]]:
    """A lemma's words and what joins them."""
    found = list(_WORD.finditer(lemma))
    return [word[0] for word in found], [_joint(lemma[a.end() : b.start()]) for a, b in pairwise(found)]


def _joint(between: str) -> str:
    """What joins two words, with spaces, hyphens and underscores as one and full stops left out ("A.D." = "A. D.")."""
    return re.sub(r"[\s_-]+", " ", between.replace(".", " ")).strip(" ")
