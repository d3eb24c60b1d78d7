"""WordNet's glosses and Morphy's rules, on real glosses taken apart by hand and on what WordNet's own program finds."""

from __future__ import annotations

import pytest

from simzoo.datamodules.readers.wordnet_text import MentionFinder, base_forms, split_gloss

GLOSSES = [
    # (gloss, definition, examples): real ones, taken apart by hand
    ("the body of a ship; not of a plane", "the body of a ship; not of a plane", ()),
    (
        'an exchange; or a trade; "they made a swap"; "a fair; square deal"',
        "an exchange; or a trade",
        ("they made a swap", "a fair; square deal"),
    ),
    ('prolix; "by being so verbal"- Shakespeare; "a verbal man"', "prolix", ("by being so verbal", "a verbal man")),
    ('a stage; "All the world\'s a stage"--Shakespeare', "a stage", ("All the world's a stage",)),
    ('happen; "These things befell" (Santayana)', "happen", ("These things befell",)),
    ('carry out; "deliver an attack", "deliver a blow"', "carry out", ("deliver an attack", "deliver a blow")),
    ('impossible to evade:"inescapable conclusion"', "impossible to evade", ("inescapable conclusion",)),
    ('(of a ball) "a ball out of play is dead"', "(of a ball)", ("a ball out of play is dead",)),
    ('not moved; e.g. "frozen prices"; "fixed incomes"', "not moved", ("frozen prices", "fixed incomes")),
    ('a reward as in "carrot and stick"; "the carrot"', "a reward", ("carrot and stick", "the carrot")),
    (
        'progress (in the phrase "make strides"); "big strides"',
        'progress (in the phrase "make strides")',
        ("big strides",),
    ),
    ('a demand in the phrase "the call of duty"', 'a demand in the phrase "the call of duty"', ()),
    ('long past; "long ago"; "lang syne" is Scottish', 'long past; "lang syne" is Scottish', ("long ago",)),
    ('enough; "I had enough"; (`plenty\' is nonstandard)', "enough; (`plenty' is nonstandard)", ("I had enough",)),
    ('dryly; "I know that," he said dryly', "dryly", ('"I know that," he said dryly',)),
    (
        'go on; "I know it\'s hard," he continued, "but there is no choice"; "carry on"',
        "go on",
        ('"I know it\'s hard," he continued, "but there is no choice"', "carry on"),
    ),
    ('of secretion; " a secretory cell"', "of secretion", ("a secretory cell",)),
]
REPAIRS = [
    ('a notice; "an obituary notice"; "a notice of sale', "a notice", ("an obituary notice", "a notice of sale")),
    ('close in; darkness enclosed him"', "close in", ("darkness enclosed him",)),
    ('slight; "a thin plot"; a fragile claim"; "thin air"', "slight", ("a thin plot", "a fragile claim", "thin air")),
    ('having toes; "long-toed; "five-toed"', "having toes", ("long-toed", "five-toed")),
    ('take sides; "Who sides?"; "I"m siding with you"', "take sides", ("Who sides?", "I'm siding with you")),
    ('goods; "into the car"women with shopping"', "goods", ("into the car", "women with shopping")),
    ('a post office"', "a post office", ()),
    ("with wood; \"a wood-burning stove'", "with wood", ("a wood-burning stove",)),
]


@pytest.mark.parametrize(("gloss", "definition", "examples"), GLOSSES + REPAIRS)
def test_gloss_is_taken_apart(gloss: str, definition: str, examples: tuple[str, ...]) -> None:
    """An example left in the definition gives the answer away; a cut at a wrong semicolon makes half texts."""
    found = split_gloss(gloss)
    assert (found.definition, found.examples) == (definition, examples)
    assert found.repaired == (gloss.count('"') % 2 == 1)


EXCEPTIONS = {
    "n": {"axes": ["ax", "axis"], "aides-de-camp": ["aide-de-camp"]},
    "v": {"went": ["go"], "sat": ["sit"]},
    "a": {"better": ["good", "well"]},
    "r": {"better": ["well"]},
}


@pytest.mark.parametrize(
    ("word", "pos", "bases"),
    [
        # what `wn WORD -over` finds, and so what must be among the base forms
        ("boxesful", "n", {"boxful"}),
        ("axes", "n", {"ax", "axis"}),
        ("women", "n", {"woman"}),
        ("churches", "n", {"church"}),
        ("ladies", "n", {"lady"}),
        ("glass", "n", {"glass"}),
        ("went", "v", {"go"}),
        ("baking", "v", {"bake"}),
        ("carries", "v", {"carry"}),
        ("wider", "a", {"wide"}),
        ("better", "a", {"good", "well"}),
    ],
)
def test_base_forms(word: str, pos: str, bases: set[str]) -> None:
    """A missing rule drops queries without a word: whole inflections would be absent from the data."""
    assert bases <= base_forms(word, pos, EXCEPTIONS[pos])


def test_base_forms_stop_where_morphy_stops() -> None:
    """Endings cut from words that have none would mark the wrong word: glass is no plural, went is listed."""
    assert base_forms("glass", "n", EXCEPTIONS["n"]) == {"glass"}
    assert base_forms("is", "n", EXCEPTIONS["n"]) == {"is"}
    assert base_forms("went", "v", EXCEPTIONS["v"]) == {"went", "go"}
    assert base_forms("sooner", "r", EXCEPTIONS["r"]) == {"sooner"}


@pytest.mark.parametrize(
    ("text", "lemmas", "pos", "marked", "lemma"),
    [
        ("the cat sat on the category", ["cat"], "n", "the [cat] sat on the category", "cat"),
        ("category and cats", ["cat"], "n", "category and [cats]", "cat"),
        ("Dogs and a dog", ["dog"], "n", "[Dogs] and a dog", "dog"),
        ("a dog and a cat", ["cat", "dog"], "n", "a [dog] and a cat", "dog"),
        ("pass the gravy boat", ["gravy", "gravy_boat"], "n", "pass the [gravy boat]", "gravy_boat"),
        ("a gravy-boat", ["gravy_boat"], "n", "a [gravy-boat]", "gravy_boat"),
        ("commercial  grade beef", ["commercial-grade"], "a", "[commercial  grade] beef", "commercial-grade"),
        ("the gravy, boat and all", ["gravy_boat", "boat"], "n", "the gravy, [boat] and all", "boat"),
        ("she went away early", ["go_away"], "v", "she [went away] early", "go_away"),
        ("two Aides-de-Camp came", ["aide-de-camp"], "n", "two [Aides-de-Camp] came", "aide-de-camp"),
        ("at six o'clock", ["o'clock"], "r", "at six [o'clock]", "o'clock"),
        ("the dog's bowl", ["dog"], "n", "the [dog]'s bowl", "dog"),
    ],
)
def test_mention(text: str, lemmas: list[str], pos: str, marked: str, lemma: str) -> None:
    """A span that is off by one, inside another word, or on a later occurrence trains on the wrong word."""
    found = MentionFinder(EXCEPTIONS).find(text, lemmas, pos)
    assert found is not None
    (start, end), by = found
    assert (f"{text[:start]}[{text[start:end]}]{text[end:]}", by) == (marked, lemma)


@pytest.mark.parametrize(
    ("text", "lemmas", "pos"),
    [("his shot bounced", ["basketball_shot"], "n"), ("she looked it up", ["look_up"], "v"), ("...", ["cat"], "n")],
)
def test_no_mention(text: str, lemmas: list[str], pos: str) -> None:
    """A guess where the lemma is absent would be a wrong label that nobody sees."""
    assert MentionFinder(EXCEPTIONS).find(text, lemmas, pos) is None
