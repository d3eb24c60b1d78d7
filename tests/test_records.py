"""Rules that hold for records and collections wherever they come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simzoo.core.records import Collection, DataError, History, Item, Query, hide_titles, sample_together

ITEMS = [Item("d0", "one", "a"), Item("d1", "two", "b")]


def collection(size: int) -> Collection:
    return Collection("c", ITEMS, [Query(f"q{n}", "text") for n in range(size)], [{n % 2: 1} for n in range(size)])


@pytest.mark.parametrize("count", [0, -1])
def test_a_sample_of_no_queries_is_refused(count: int) -> None:
    """Training on none of them ends at once, and releases a model that never learned."""
    for sampled in (lambda: collection(4).sample(count), lambda: sample_together([collection(4)], count, 0)):
        with pytest.raises(DataError, match=f"a sample of {count} queries was asked for; ask for at least 1"):
            sampled()


def test_a_small_sample_of_many_collections_is_not_empty() -> None:
    """A share of each would round to nothing."""
    found = sample_together([collection(3), collection(5), *[collection(4)] * 20], 1, 0)
    assert [len(part.queries) for part in found] == [0, 1] + [0] * 20
    found = sample_together([collection(30), collection(10)], 8, 0)
    assert [len(part.queries) for part in found] == [6, 2]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_titles_are_hidden_from_a_share(share: float) -> None:
    """No share at all is a share too, unlike a sample of no queries."""
    parts = hide_titles(collection(8), share, seed=1)
    hidden = [part for part in parts if not any(item.title for item in part.items)]
    assert sum(len(part.queries) for part in hidden) == 8 * share
    assert sum(len(part.queries) for part in parts) == 8


LONE = "a\ud83d"


def test_half_a_character_is_refused() -> None:
    """Python holds it, but no file, no hash and no tokenizer does: the traceback would come hours later."""
    for make in (
        lambda: Query("q", LONE),
        lambda: Query(LONE, "text"),
        lambda: Item("d", LONE),
        lambda: Item("d", "text", LONE),
        lambda: Item(LONE, "text"),
        lambda: History.of("u", [LONE]),
    ):
        with pytest.raises(DataError, match="half of a character") as caught:
            make()
        str(caught.value).encode()
    assert Item("d", "\U0001f600").text.encode()


def test_rows_of_queries_that_are_items() -> None:
    """A row of another collection would bar another item."""
    held = replace(collection(3), own={0: 1, 2: 0})
    assert [held.seen(row) for row in range(3)] == [[1], [], [0]]
    assert held.with_queries([2, 1]).own == {0: 0}
    assert held.fingerprint != collection(3).fingerprint
    for own in ({3: 0}, {0: 2}, {0: -1}):
        with pytest.raises(DataError, match="own names an unknown query or item row"):
            replace(collection(3), own=own)
