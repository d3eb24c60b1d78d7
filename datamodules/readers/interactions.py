"""Who acted on what, and when: readers of SASRec's text, RecBole's atomic files, MovieLens and Amazon reviews."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import DataError
from simzoo.datamodules.readers.json_lines import existing, numbered_lines, read_json_lines, whole_number
from simzoo.datamodules.readers.notes import Notes

Layout = Literal["sasrec", "recbole", "movielens", "amazon"]

REPEATED = "actions of a user on an item seen before, kept"
FEW_USERS = "users with too few actions, dropped"
FEW_ITEMS = "items with too few actions, dropped"
NO_USER = "items whose users were all dropped, dropped"
NO_ACTION = "described items without an action, left out"
REPEATED_ITEM = "items described twice alike, dropped"

LATEST = 2**62

_TYPED = re.compile(r"(\w+):(token|token_seq|float|float_seq)")


@dataclass(frozen=True)
class Interactions:
    """N actions, user after user, each user's in the order of time; equal times in the order of the file.

    Attributes:
        name: of the data set.
        users: (N,) rows of ``user_ids``.
        items: (N,) rows of ``item_ids``.
        times: (N,) seconds; None: only the order is known.
        user_ids: the users' names in the file, in the order of their first action there.
        item_ids: the items' names in the file, in the order of their first action there.
        texts: descriptions of items, by id, where the layout has them.
        notes: what was dropped or is unusual, counted.
    """

    name: str
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    times: NDArray[np.int64] | None
    user_ids: Sequence[str]
    item_ids: Sequence[str]
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(users + 1,): the actions of user u are those from ``offsets[u]`` to ``offsets[u + 1]``."""
        counts = np.bincount(self.users, minlength=len(self.user_ids))
        return np.concatenate([[0], counts.cumsum()])

    def frequent(self, user_actions: int, item_actions: int, unused_items: bool = True) -> Interactions:
        """Without rare items, and then without users who have too few actions left; one pass, counted in the notes.

        Args:
            user_actions: fewest of a user, on items that are kept.
            item_actions: fewest of an item.
            unused_items: an item whose users are all dropped stays in the catalogue.

        Raises:
            DataError: nobody is left.
        """
        per_item = np.bincount(self.items, minlength=len(self.item_ids))
        often = per_item[self.items] >= item_actions
        per_user = np.bincount(self.users[often], minlength=len(self.user_ids))
        active = per_user >= user_actions
        if not active.any():
            raise DataError(
                f"{self.name}: no user has {user_actions} actions on items with {item_actions}; lower min_actions or "
                "min_item_actions"
            )
        kept = often & active[self.users]
        known = per_item >= item_actions
        used = np.bincount(self.items[kept], minlength=len(self.item_ids)) > 0
        dropped = [(FEW_USERS, self.user_ids, active), (FEW_ITEMS, self.item_ids, known)]
        if not unused_items:
            dropped.append((NO_USER, self.item_ids, used | ~known))
            known = known & used
        notes = Notes()
        for reason, names, keep in dropped:
            for row in np.flatnonzero(~keep).tolist():
                notes.drop(reason, names[row])
        return replace(
            self,
            users=(active.cumsum() - 1)[self.users[kept]],
            items=(known.cumsum() - 1)[self.items[kept]],
            times=None if self.times is None else self.times[kept],
            user_ids=[name for name, keep in zip(self.user_ids, active, strict=True) if keep],
            item_ids=[name for name, keep in zip(self.item_ids, known, strict=True) if keep],
            notes={**self.notes, **notes.told(self.name)},
        )


def load_interactions(path: Path | str, layout: Layout) -> Interactions:
    """Read a file, plain or gzipped (.gz).

    Args:
        path: the file; for ``recbole`` the .inter file or its folder, for ``movielens`` also the folder.
        layout: ``sasrec``: lines of `user item`, each user's in the order of time. ``recbole``: atomic files with a
            typed header; the .item file beside it, if there is one, describes the items. ``movielens``: ratings.dat,
            u.data or ratings.csv. ``amazon``: reviews as JSON lines, or csv of user, item, rating and timestamp.

    Raises:
        DataError: the file is missing or empty; or, with file and line, a line has too many or too few fields, an empty
            id, or a time that is no number.
    """
    readers: dict[Layout, Callable[[Path], Interactions]] = {
        "sasrec": _read_sasrec,
        "recbole": _read_recbole,
        "movielens": _read_movielens,
        "amazon": _read_amazon,
    }
    return readers[layout](Path(path))


class Action(NamedTuple):
    """One line."""

    user: str
    item: str
    time: int | None


class _Columns(NamedTuple):
    """Names of the columns, and how many units of time a second has."""

    user: str
    item: str
    time: str
    per_second: int = 1


_HEADERS = (
    _Columns("user_id", "parent_asin", "timestamp", 1000),  # Amazon reviews 2023
    _Columns("reviewerID", "asin", "unixReviewTime"),  # Amazon reviews 2014 and 2018
    _Columns("userId", "movieId", "timestamp"),  # MovieLens 20M and later
    _Columns("user", "item", "timestamp"),
)


def _read_sasrec(path: Path) -> Interactions:
    path = existing(path)
    pairs = (_fields(line, None, 2, path, number) for number, line in _lines(path))
    return _gathered(path, (Action(user, item, None) for user, item in pairs))


def _read_recbole(path: Path) -> Interactions:
    path = existing(path / f"{path.name}.inter" if path.is_dir() else path)
    names, rows = _atomic(path, ("user_id", "item_id"))
    user, item = names.index("user_id"), names.index("item_id")
    time = names.index("timestamp") if "timestamp" in names else None
    actions = (
        Action(fields[user], fields[item], None if time is None else _seconds(fields[time], 1, path, number))
        for number, fields in rows
    )
    found = _gathered(path, actions)
    described = path.with_name(path.name.removesuffix(".gz").removesuffix(".inter") + ".item")
    if not described.is_file() and not described.with_name(described.name + ".gz").is_file():
        return found
    notes = Notes()
    texts = _descriptions(existing(described), notes)
    for unused in sorted(texts.keys() - set(found.item_ids)):
        notes.drop(NO_ACTION, unused)
    return replace(found, texts=texts, notes={**found.notes, **notes.told(found.name)})


def _descriptions(path: Path, notes: Notes) -> dict[str, str]:
    """What an .item file says of each item."""
    names, rows = _atomic(path, ("item_id",))
    item = names.index("item_id")
    texts: dict[str, str] = {}
    for number, fields in rows:
        text = "; ".join(f"{n}: {v}" for n, v in zip(names, fields, strict=True) if n != "item_id" and v)
        if fields[item] not in texts:
            texts[fields[item]] = text
        elif texts[fields[item]] == text:
            notes.drop(REPEATED_ITEM, fields[item])
        else:
            raise DataError(f"item {fields[item]!r} was described before, and otherwise", path, number)
    return texts


def _atomic(path: Path, needed: Sequence[str]) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The column names of an atomic file, and its rows."""
    lines = _lines(path)
    number, first = next(lines)
    typed = [_TYPED.fullmatch(column.strip()) for column in first.split("\t")]
    names = [matched[1] for matched in typed if matched]
    missing = [name for name in needed if name not in names]
    if len(names) < len(typed) or missing or len(set(names)) < len(names):
        raise DataError(
            f"expected a header like 'user_id:token<tab>item_id:token<tab>timestamp:float' with "
            f"{' and '.join(needed)}, each name once, got {first[:80]!r}",
            path,
            number,
        )
    ids = [names.index(name) for name in needed]
    return names, ((n, _fields(line, "\t", len(names), path, n, ids)) for n, line in lines)


def _read_movielens(path: Path) -> Interactions:
    if path.is_dir():
        names = ("ratings.dat", "u.data", "ratings.csv")
        path = next((path / name for name in names if (path / name).is_file()), path / names[0])
    return _read_ratings(existing(path))


def _read_amazon(path: Path) -> Interactions:
    path = existing(path)
    _, first = next(_lines(path))
    return _gathered(path, _reviews(path)) if first.lstrip().startswith("{") else _read_ratings(path)


def _reviews(path: Path) -> Iterator[Action]:
    columns = None
    for record in read_json_lines(path):
        columns = columns or _columns(list(record.fields))
        if columns is None:
            raise record.error(f"expected the keys {_known()}; got {', '.join(map(repr, record.fields))}")
        user, item = record.identifier(columns.user), record.identifier(columns.item)
        time = _kept(record.integer(columns.time) // columns.per_second, record.path, record.line)
        yield Action(user, item, time)


def _read_ratings(path: Path) -> Interactions:
    """User, item, rating and timestamp between "::", tabs or commas; or named by a header line, in any order."""
    lines = _lines(path)
    number, first = next(lines)
    separator = next((s for s in ("::", "\t", ",") if s in first), None)
    names = [name.strip() for name in first.split(separator)]
    columns = _columns(names)
    if columns is not None and len(set(names)) < len(names):
        raise DataError(f"a name is there twice in the header {first[:80]!r}", path, number)
    if columns is None:
        if separator is None or len(names) != 4 or not _is_number(names[3]):
            raise DataError(
                f"expected user, item, rating and timestamp between '::', tabs or commas, or a header with {_known()}; "
                f"got {first[:80]!r}",
                path,
                number,
            )
        lines = chain([(number, first)], lines)
        user, item, time, per_second = 0, 1, 3, 1
    else:
        user, item, time = names.index(columns.user), names.index(columns.item), names.index(columns.time)
        per_second = columns.per_second

    def actions() -> Iterator[Action]:
        for n, line in lines:
            fields = _fields(line, separator, len(names), path, n, (user, item))
            yield Action(fields[user], fields[item], _seconds(fields[time], per_second, path, n))

    return _gathered(path, actions())


def _columns(names: Sequence[str]) -> _Columns | None:
    return next((known for known in _HEADERS if {known.user, known.item, known.time} <= set(names)), None)


def _known() -> str:
    return " or ".join(f"{known.user}, {known.item}, {known.time}" for known in _HEADERS)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    found = numbered_lines(path)
    return chain([next(found)], found)  # a file without a line is refused before it is read


def _fields(
    line: str, separator: str | None, count: int, path: Path, number: int, ids: Sequence[int] = ()
) -> list[str]:
    """The fields of a line; those at ``ids`` must not be empty."""
    fields = [value.strip() for value in line.split(separator)]
    if len(fields) != count or not all(fields[i] for i in ids):
        shown = "spaces" if separator is None else repr(separator)
        raise DataError(f"expected {count} fields between {shown}, ids not empty; got {line[:80]!r}", path, number)
    return fields


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _seconds(text: str, per_second: int, path: Path, number: int) -> int:
    # Whole numbers do not go through float, which would round a time in nanoseconds.
    whole = whole_number(text)
    if whole is not None:
        return _kept(whole // per_second, path, number)
    if not _is_number(text):
        raise DataError(f"expected a timestamp, got {text[:40]!r}", path, number)
    return _kept(int(float(text) // per_second), path, number)


def _kept(time: int, path: str | Path, number: int) -> int:
    """A time whose distance from any other one 64 bits hold."""
    if not -LATEST <= time <= LATEST:
        raise DataError(f"expected a time within {LATEST:,} seconds of 1970, got {time:.3g}", path, number)
    return time


def _gathered(path: Path, actions: Iterable[Action]) -> Interactions:
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    rows, columns, times = array("q"), array("q"), array("q")
    for user, item, time in actions:
        rows.append(users.setdefault(user, len(users)))
        columns.append(items.setdefault(item, len(items)))
        if time is not None:
            times.append(time)
    if not rows:
        raise DataError("has a header, but no actions", path)
    of_user, of_item = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    at = np.array(times, dtype=np.int64) if times else None
    order = np.argsort(of_user, kind="stable") if at is None else np.lexsort((at, of_user))
    repeated = len(rows) - len(np.unique(of_user * len(items) + of_item))
    return Interactions(
        path.resolve().parent.name,
        of_user[order],
        of_item[order],
        None if at is None else at[order],
        list(users),
        list(items),
        notes={REPEATED: repeated} if repeated else {},
    )
