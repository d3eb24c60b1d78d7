"""Readers of interactions, the split by leaving the last actions out, and the batches made of them."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from simzoo.core.records import DataError, History
from simzoo.core.reps import Ragged, Reps
from simzoo.datamodules.next_items import NO_NEXT, NextItemLists, NextItems, leave_one_out, outside
from simzoo.datamodules.readers.interactions import (
    FEW_ITEMS,
    FEW_USERS,
    NO_ACTION,
    NO_USER,
    REPEATED,
    REPEATED_ITEM,
    Layout,
    load_interactions,
)

# The same actions in every layout: (user, item, seconds), out of order in time, two at the same second.
ACTIONS = [("u", "b", 20), ("v", "x", 5), ("u", "a", 10), ("u", "c", 20), ("v", "a", 6)]


def told(found: Any) -> dict[str, list[str]]:
    """Items by user, in order."""
    return {
        user: [found.item_ids[row] for row in found.items[start:stop]]
        for user, start, stop in zip(found.user_ids, found.offsets, found.offsets[1:], strict=False)
    }


@pytest.mark.parametrize(
    ("layout", "name", "header", "line"),
    [
        ("movielens", "ratings.dat", "", "%(user)s::%(item)s::5::%(time)d"),
        ("movielens", "u.data", "", "%(user)s\t%(item)s\t5\t%(time)d"),
        ("movielens", "ratings.csv", "userId,movieId,rating,timestamp\n", "%(user)s,%(item)s,5,%(time)d"),
        ("recbole", "a.inter", "item_id:token\tuser_id:token\ttimestamp:float\n", "%(item)s\t%(user)s\t%(time)d.0"),
        ("amazon", "r.json", "", '{"asin": "%(item)s", "reviewerID": "%(user)s", "unixReviewTime": %(time)d}'),
        ("amazon", "r.jsonl", "", '{"user_id": "%(user)s", "parent_asin": "%(item)s", "timestamp": %(time)d123}'),
        ("amazon", "r.csv", "", "%(user)s,%(item)s,5.0,%(time)d"),
    ],
)
def test_layouts_agree(layout: Layout, name: str, header: str, line: str, tmp_path: Path) -> None:
    """A swapped column, milliseconds taken for seconds or an unsorted user trains without an error."""
    lines = [line % {"user": user, "item": item, "time": time} + "\n" for user, item, time in ACTIONS]
    (tmp_path / name).write_text(header + "".join(lines))
    found = load_interactions(tmp_path / name, layout)
    assert told(found) == {"u": ["a", "b", "c"], "v": ["x", "a"]}
    assert found.times is not None
    assert found.times.tolist() == [10, 20, 20, 5, 6]


def test_sasrec_text_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    """The file's order is the only time that there is; sorting by item would invent another."""
    with gzip.open(tmp_path / "toy.txt.gz", "wt") as stream:
        stream.write("1 9\n1 3\n2 3\n1 9\n\n2 4\n")
    found = load_interactions(tmp_path / "toy.txt", "sasrec")
    assert told(found) == {"1": ["9", "3", "9"], "2": ["3", "4"]}
    assert found.times is None
    assert found.notes == {REPEATED: 1}


def test_recbole_folder_describes_its_items(tmp_path: Path) -> None:
    """Titles looked up by row instead of by id would describe other items."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "toy.inter").write_text("user_id:token\titem_id:token\nu\tb\nu\ta\n")
    (folder / "toy.item").write_text("item_id:token\ttitle:token_seq\tyear:token\na\tAlien\t1979\nz\tZ\t\nb\tBambi\t\n")
    found = load_interactions(folder, "recbole")
    assert found.texts == {"a": "title: Alien; year: 1979", "b": "title: Bambi", "z": "title: Z"}
    assert found.notes == {NO_ACTION: 1}
    assert found.times is None


@pytest.mark.parametrize(
    ("layout", "text", "message"),
    [
        ("sasrec", "1 2\n1 2 3\n", r"data:2: expected 2 fields between spaces, .* got '1 2 3'"),
        ("sasrec", "\n \n", r"data: holds blank lines only"),
        ("sasrec", "", r"data: is empty"),
        ("movielens", "1::2::5::9\n1::2::5\n", r"data:2: expected 4 fields between '::'"),
        ("movielens", "1\t2\t5\t9\n1\t\t5\t9\n", r"data:2: expected 4 fields between '\\t', ids not empty"),
        ("movielens", "1::2::5::9\n1::2::5::soon\n", r"data:2: expected a timestamp, got 'soon'"),
        ("movielens", "1::2::5::nan\n", r"data:1: expected user, item, rating and timestamp"),
        ("movielens", "1 2 5 9\n", r"data:1: expected user, item, rating and timestamp between"),
        ("recbole", "user_id\titem_id\n1\t2\n", r"data:1: expected a header like 'user_id:token"),
        ("recbole", "user_id:token\trating:float\n1\t2\n", r"data:1: expected a header .* user_id and item_id"),
        ("recbole", "user_id:token\titem_id:token\n", r"data: has a header, but no actions"),
        ("recbole", "user_id:token\titem_id:token\tuser_id:token\n1\t2\t3\n", r"data:1: .* each name once"),
        ("recbole", f"user_id:token\titem_id:token\ttimestamp:float\n1\t2\t{2**63}\n", r"data:2: expected a time"),
        ("movielens", f"1::2::5::9\n1::2::5::{2**63}\n", r"data:2: expected a time within .* seconds of 1970"),
        ("movielens", f"1::2::5::9\n1::2::5::{'9' * 5000}\n", r"data:2: expected a time"),
        ("movielens", "1::2::5::9\n1::2::5::-1e300\n", r"data:2: expected a time within .* got -1e\+300"),
        ("movielens", "userId,movieId,rating,timestamp,userId\n1,2,5,9,3\n", r"data:1: a name is there twice"),
        ("amazon", f'{{"asin": "a", "reviewerID": "u", "unixReviewTime": {10**400}}}\n', r"data:1: .* at most 64 bits"),
        ("amazon", f'{{"asin": "a", "reviewerID": "u", "unixReviewTime": {2**63 - 1}}}\n', r"data:1: expected a time"),
        ("recbole", "rating:float\tuser_id:token\titem_id:token\n3\t\t1\n", r"data:2: .* ids not empty"),
        ("recbole", "user_id:token\titem_id:token\ttimestamp:float\n1\t2\tinf\n", r"data:2: expected a timestamp"),
        ("amazon", '{"asin": "a", "reviewerID": "u", "unixReviewTime": "x"}\n', r"data:1: expected a whole number"),
        ("amazon", '{"asin": "a", "reviewerID": "u", "unixReviewTime": 1}\n{"a":\n', r"data:2: broken JSON"),
        ("amazon", '{"who": "u"}\n', r"data:1: expected the keys user_id, parent_asin, timestamp or .* got 'who'"),
        ("amazon", "user,thing,rating,when\nu,a,5,1\n", r"data:1: expected user, item, rating and timestamp"),
    ],
)  # fmt: skip
def test_bad_line_is_named(layout: Layout, text: str, message: str, tmp_path: Path) -> None:
    """A line that is skipped or half read gives a smaller or wrong data set without a word."""
    (tmp_path / "data").write_text(text)
    with pytest.raises(DataError, match=message):
        load_interactions(tmp_path / "data", layout)


@pytest.mark.parametrize(
    ("layout", "name", "header", "line"),
    [
        ("sasrec", "a.txt", "", "%s %s"),
        ("movielens", "u.data", "", "%s\t%s\t5\t1"),
        ("movielens", "ratings.csv", "userId,movieId,rating,timestamp\n", "%s,%s,5,1"),
        ("recbole", "a.inter", "user_id:token\titem_id:token\n", "%s\t%s"),
        ("amazon", "r.jsonl", "", '{"reviewerID": "%s", "asin": "%s", "unixReviewTime": 1}'),
    ],
)
def test_a_byte_order_mark_makes_no_second_user(
    layout: Layout, name: str, header: str, line: str, tmp_path: Path
) -> None:
    """Windows writes one: the first user would be another one than in the lines that follow."""
    lines = [line % pair + "\r\n" for pair in (("u", "a"), ("u", "b"), ("v", "a"))]
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (header + "".join(lines)).encode())
    assert told(load_interactions(tmp_path / name, layout)) == {"u": ["a", "b"], "v": ["a"]}


def test_items_that_recbole_describes_twice(tmp_path: Path) -> None:
    """The last description would win, and an item be another one than its actions are about."""
    path = tmp_path / "toy.inter"
    path.write_text("user_id:token\titem_id:token\nu\tb\nu\ta\n")
    described = tmp_path / "toy.item.gz"
    text = "item_id:token\ttitle:token_seq\na\tAlien\nb\tBambi\na\tAlien\n"
    described.write_bytes(gzip.compress(text.encode()))
    found = load_interactions(path, "recbole")
    assert found.texts == {"a": "title: Alien", "b": "title: Bambi"}
    assert found.notes == {REPEATED_ITEM: 1}
    described.write_bytes(gzip.compress((text + "b\tB\n").encode()))
    with pytest.raises(DataError, match=r"toy\.item\.gz:5: item 'b' was described before, and otherwise"):
        load_interactions(path, "recbole")


def write(folder: Path, sequences: dict[str, str]) -> Path:
    path = folder / "toy.txt"
    path.write_text("".join(f"{user} {item}\n" for user, items in sequences.items() for item in items))
    return path


def test_leave_one_out_by_hand(tmp_path: Path) -> None:
    """A test item that is trained on, or a split by position in the file, makes every figure too good."""
    path = write(tmp_path, {"p": "abcde", "q": "cab", "r": "ab", "s": "dacb"})
    kept = load_interactions(path, "sasrec").frequent(3, 1)
    assert kept.notes == {FEW_USERS: 1}
    shown: dict[str, list[tuple[str, str, str]]] = {}
    for split in ("train", "dev", "test"):
        found = leave_one_out(kept, split)  # type: ignore[arg-type]
        assert [item.id for item in found.items] == ["a", "b", "c", "d", "e"]
        shown[split] = [
            (query.id, "".join(query.items), found.items[found.relevant(row)[0]].id)
            for row, query in enumerate(found.queries)
            if isinstance(query, History)
        ]
    assert shown["train"] == [("p", "ab", "c"), ("s", "d", "a")]
    assert shown["dev"] == [("p", "abc", "d"), ("q", "c", "a"), ("s", "da", "c")]
    assert shown["test"] == [("p", "abcd", "e"), ("q", "ca", "b"), ("s", "dac", "b")]
    assert leave_one_out(kept, "train").notes == {FEW_USERS: 1, NO_NEXT: 1}


def test_without_holding_out_all_but_the_last_action_is_trained_on(tmp_path: Path) -> None:
    """A comparison with figures of RAILS's authors in which we train on one action less per user is none."""
    path = write(tmp_path, {"p": "abcde", "q": "cab"})
    source = NextItems(path, "sasrec", min_actions=3, hold_out=False)
    shown = {}
    for split in ("train", "dev", "test"):
        [found] = source.collections(split)  # type: ignore[arg-type]
        shown[split] = [
            ("".join(query.items), found.items[found.relevant(row)[0]].id)
            for row, query in enumerate(found.queries)
            if isinstance(query, History)
        ]
    assert shown["train"] == [("abc", "d"), ("c", "a")]
    assert shown["dev"] == shown["test"] == [("abcd", "e"), ("ca", "b")]


def test_items_of_dropped_users_leave_the_catalogue_on_request(tmp_path: Path) -> None:
    """Negatives that nobody can have chosen make ranks look better; an old row makes an item another one."""
    path = write(tmp_path, {"r": "xz", "p": "abc", "q": "cab", "s": "yx"})
    assert NextItems(path, "sasrec", min_actions=3).item_ids == ["x", "z", "a", "b", "c", "y"]
    fewer = NextItems(path, "sasrec", min_actions=3, unused_items=False).interactions
    assert fewer.item_ids == ["a", "b", "c"]
    assert told(fewer) == {"p": ["a", "b", "c"], "q": ["c", "a", "b"]}
    assert fewer.notes == {FEW_USERS: 2, NO_USER: 3}


def test_rare_items_and_users_are_dropped_and_counted(tmp_path: Path) -> None:
    """Rows must be numbered anew: an item that keeps its old row is another item."""
    path = write(tmp_path, {"p": "xabc", "q": "abcz", "r": "acbx", "s": "yay"})
    kept = load_interactions(path, "sasrec").frequent(3, 2)
    assert told(kept) == {
        "p": ["x", "a", "b", "c"],
        "q": ["a", "b", "c"],
        "r": ["a", "c", "b", "x"],
        "s": ["y", "a", "y"],
    }
    assert kept.notes == {REPEATED: 1, FEW_ITEMS: 1}
    with pytest.raises(DataError, match="no user has 9 actions on items with 1"):
        load_interactions(path, "sasrec").frequent(9, 1)
    with pytest.raises(ValueError, match="min_actions must be at least 3"):
        NextItems(path, "sasrec", min_actions=2)
    with pytest.raises(DataError, match="history of user 'u' is empty"):
        History.of("u", [])


class Rows:
    """A model's part in making batches: ids to rows, the last four actions."""

    def collate_queries(self, queries: list[History]) -> Reps:
        return {"ids": Ragged.of([["abcdefgh".index(i) + 1 for i in q.items[-4:]] for q in queries])}

    def collate_items(self, items: Any) -> Reps:
        return {"row": torch.tensor(["abcdefgh".index(item.id) + 1 for item in items])}


def lists(path: Path, split: Any, **settings: Any) -> Any:
    [collection], made = NextItems(path, "sasrec", min_actions=3).collections(split), NextItemLists(**settings)
    return made.part(collection, Rows()) if split == "train" else made.validation(collection, Rows())


SEQUENCES = {"p": "abcdefgh", "q": "bacda", "r": "hgfe"}


def test_every_position_has_its_next_item(tmp_path: Path) -> None:
    """Targets off by one teach the model to repeat its input, with a wonderful loss."""
    made = lists(write(tmp_path, SEQUENCES), "train", negatives=6)
    batch = made.batch([0, 1, 2], epoch=0)
    inputs = batch.queries["ids"]
    assert inputs.take(torch.tensor([0])).values.tolist() == [2, 3, 4, 5]  # the last four of abcde, before f
    rows = batch.items["row"][batch.candidates]
    assert rows[:, 0].tolist() == [3, 4, 5, 6, 1, 3, 7]
    assert batch.every_position
    assert batch.targets.labels.sum(dim=1).tolist() == [1] * 7
    assert batch.targets.labels[:, 0].tolist() == [1] * 7
    assert not (rows[:, 1:] == rows[:, :1]).any()
    again, other = made.batch([0, 1, 2], epoch=0), made.batch([0, 1, 2], epoch=1)
    assert torch.equal(again.candidates, batch.candidates)
    assert not torch.equal(other.candidates, batch.candidates)


@pytest.mark.parametrize("sampling", ["position", "batch", "all"])
@pytest.mark.parametrize("avoid_seen", [False, True])
def test_negatives_are_uniform_and_allowed(sampling: Any, avoid_seen: bool, tmp_path: Path) -> None:
    """A negative that is the next item, or never drawn, biases what is learned."""
    settings = {"sampling": sampling, "avoid_seen": avoid_seen, "negatives": 3}
    made = lists(write(tmp_path, SEQUENCES), "train", **settings)
    drawn: Counter[int] = Counter()
    for epoch in range(400):
        batch = made.batch([1], epoch)  # b a -> a c
        rows = batch.items["row"][batch.candidates]
        if batch.shared is not None:
            rows = torch.cat([rows, batch.items["row"][batch.shared].expand(2, -1)], dim=1)
        positive = batch.targets.labels > 0
        assert rows[positive].tolist() == [1, 3]
        drawn.update(rows[batch.targets.mask & ~positive].tolist())
    banned = {1, 2, 3} if avoid_seen else set()
    assert set(drawn) == set(range(1, 9)) - banned
    if avoid_seen or sampling == "all":
        counts = [count for item, count in drawn.items() if item not in (1, 3)]
        assert max(counts) < 1.2 * min(counts)


def test_complement_by_brute_force() -> None:
    """An off-by-one in the shift, or another user's list, would draw a seen item, rarely."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        banned = [np.unique(rng.integers(12, size=rng.integers(11))) for _ in range(4)]
        for user, rows in enumerate(banned):
            allowed = np.setdiff1d(np.arange(12), rows)
            drawn = np.arange(len(allowed))
            np.testing.assert_array_equal(outside(banned, drawn, np.full_like(drawn, user)), allowed)


def test_seen_items_are_masked_in_evaluation(tmp_path: Path) -> None:
    """Seen items rank first with any model that knows the user: unmasked they hide what is to be found."""
    path = write(tmp_path, {**SEQUENCES, "p": "abcdefg"})
    batch = lists(path, "test").batch([1, 2], epoch=0)
    assert batch.candidates.tolist() == [list(range(8))]
    assert not batch.every_position
    # q saw b, a, c, d and then a again: the next item counts although it was seen.
    assert batch.targets.mask.int().tolist() == [[1, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch.targets.labels.argmax(dim=1).tolist() == [0, 4]
    dev = lists(path, "dev").batch([1], epoch=0)
    assert dev.targets.mask.int().tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]
    with pytest.raises(DataError, match=r"user 'p' has not seen 0 of the 8 items; ranking the next item .* at least 1"):
        lists(write(tmp_path, SEQUENCES), "test")


def test_sampled_protocol(tmp_path: Path) -> None:
    """Negatives that change from epoch to epoch, repeat, or were seen make figures that nobody can compare."""
    path = write(tmp_path, {**SEQUENCES, "p": "abcd"})
    made = lists(path, "test", val_negatives=3)
    batch = made.batch([0, 1, 2], epoch=0)
    rows = batch.items["row"][batch.candidates]
    assert rows[:, 0].tolist() == [4, 1, 5]
    for row, seen in zip(rows.tolist(), [{1, 2, 3, 4}, {1, 2, 3, 4}, {5, 6, 7, 8}], strict=True):
        assert len(set(row)) == 4 and not set(row[1:]) & seen
    assert torch.equal(made.batch([2, 1], epoch=7).items["row"][made.batch([2, 1], epoch=7).candidates], rows[[2, 1]])
    with pytest.raises(DataError, match=r"user 'p' has not seen 4 of the 8 items; .* at least 5"):
        lists(path, "test", val_negatives=5)


@pytest.mark.shared
def test_amazon_games(shared_data: Path) -> None:
    """The published counts of the SASRec authors' file: 31,013 users, 23,715 items, 287,107 actions."""
    found = load_interactions(shared_data / "amazon-games" / "Video.txt", "sasrec")
    assert (len(found.user_ids), len(found.item_ids), len(found.items)) == (31_013, 23_715, 287_107)
    assert found.frequent(3, 1).notes == {FEW_USERS: 112}


def test_users_without_enough_actions_are_named(tmp_path: Path) -> None:
    """Data of short histories would otherwise end in an empty loader, far from its cause."""
    path = write(tmp_path, {"p": "ab", "q": "cd"})
    with pytest.raises(DataError, match="no user has 3 actions on items with 1; lower min_actions or min_item_actions"):
        lists(path, "test")
