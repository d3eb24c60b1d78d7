"""Token layouts, pinned by hand-made ids; packing; backbones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simzoo.core.records import DataError, Item, Query
from simzoo.core.reps import Ragged, concat, num_rows, take
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.parts.backbone import BackboneConfig, Encoder, LoRA, load_tokenizer, resolve_backbone
from simzoo.models.parts.packing import buckets, in_buckets, join_pairs
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.models.sequence_classifier import SequenceClassifier


@pytest.fixture(scope="module")
def backbone() -> BackboneConfig:
    return BackboneConfig(name=str(tiny_backbone()))


def words(text: TextTokenizer, reps: dict[str, object], row: int = 0) -> list[str]:
    ids = reps["ids"]
    assert isinstance(ids, Ragged)
    found: list[str] = text.tokenizer.convert_ids_to_tokens(ids.take(torch.tensor([row])).values.tolist())
    return found


def test_mention_layout(backbone: BackboneConfig) -> None:
    """[CLS] left [Ms] mention [Me] right [SEP]: a tag at the wrong place trains on the wrong word."""
    text = TextTokenizer(load_tokenizer(backbone), TokenConfig())
    reps = text.queries([Query("q", "the river boat bank", (10, 14)), Query("p", "river bank")])
    assert words(text, reps)[4:] == ["river", "[unused0]", "boat", "[unused1]", "bank", "[SEP]"]
    assert words(text, reps, 1) == ["[CLS]", "[unused0]", "river", "bank", "[SEP]"]
    first = words(text, reps)
    assert reps["tags"].tolist() == [[first.index("[unused0]"), first.index("[unused1]")], [1, 1]]


def test_item_layout(backbone: BackboneConfig) -> None:
    """title [ENT] description [SEP]: the item vector is the state at [ENT]."""
    text = TextTokenizer(load_tokenizer(backbone), TokenConfig())
    reps = text.items([Item("i", "river bank", "boat"), Item("j", "bank")], cls=False)
    assert words(text, reps) == ["boat", "[unused2]", "river", "bank", "[SEP]"]
    assert words(text, reps, 1) == ["[unused2]", "bank", "[SEP]"]
    assert reps["tags"].tolist() == [[1], [0]]
    assert words(text, text.items([Item("i", "river", "boat")], cls=True))[0] == "[CLS]"


def test_no_tags_and_prompts(backbone: BackboneConfig) -> None:
    """A plain encoder must see what it was trained on: prompt, text, nothing else."""
    config = TokenConfig(mention_tags=None, item_tag=None, query_prompt="boat ")
    text = TextTokenizer(load_tokenizer(backbone), config)
    reps = text.queries([Query("q", "the river bank", (4, 9))])
    assert [w for w in words(text, reps) if len(w) > 3] == ["[CLS]", "boat", "river", "bank", "[SEP]"]
    assert words(text, text.items([Item("i", "river", "bank")], cls=True)) == ["[CLS]", "bank", "river", "[SEP]"]


@given(st.integers(0, 30), st.integers(1, 30), st.integers(0, 30), st.integers(8, 40))
def test_truncation_keeps_the_mention(left: int, mention: int, right: int, length: int) -> None:
    """A long context must be cut around the mention, never the mention away, and never past the limit."""
    text = TextTokenizer(load_tokenizer(BackboneConfig(name=str(tiny_backbone()))), TokenConfig(query_length=length))
    before, middle = "river " * left, " ".join(["boat"] * mention)
    query = Query("q", before + middle + " bank" * right, (len(before), len(before) + len(middle)))
    found = words(text, text.queries([query]))
    assert len(found) <= length
    assert found.count("boat") == min(mention, length - 4)
    whole = left + mention + right + 4
    assert len(found) == min(whole, length)
    assert text.truncated == int(whole > length)
    if whole > length and mention <= length - 4:
        assert (
            abs(found.count("river") - found.count("bank")) <= 1
            or found.count("river") == left
            or found.count("bank") == right
        )


def test_ragged_round_trip() -> None:
    """Rows out of order, empty rows, repeated rows."""
    ragged = Ragged.of([[1, 2, 3], [], [4], [5, 6]])
    taken = ragged.take(torch.tensor([3, 1, 0, 3]))
    assert taken.values.tolist() == [5, 6, 1, 2, 3, 5, 6]
    padded, mask = taken.pad()
    assert padded.tolist() == [[5, 6, 0], [0, 0, 0], [1, 2, 3], [5, 6, 0]]
    assert mask.sum(dim=1).tolist() == [2, 0, 3, 2]
    joined = concat([{"a": ragged, "b": torch.arange(4)}, take({"a": ragged, "b": torch.arange(4)}, torch.tensor([2]))])
    assert num_rows(joined) == 5
    assert joined["a"].take(torch.tensor([4])).values.tolist() == [4]
    with pytest.raises(ValueError, match="first dimension"):
        num_rows({"a": ragged, "b": torch.arange(3)})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_buckets_cover_everything_within_budget(lengths: list[int], tokens: int) -> None:
    """Each row exactly once; padded size within the budget unless a single row exceeds it."""
    parts = list(buckets(torch.tensor(lengths), tokens))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    for part in parts:
        sizes = torch.tensor(lengths)[part]
        assert len(part) == 1 or len(part) * int(sizes.max()) <= tokens


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.sampled_from([(), (2,)]))
def test_what_is_read_in_buckets_comes_back_in_order(lengths: list[int], tokens: int, shape: tuple[int, ...]) -> None:
    """A value must go back to its own row, not to where the order of length had it; in the type that was read."""
    values = torch.arange(len(lengths) * 2, dtype=torch.float64).view(-1, 2)[:, : shape[0] if shape else 1]
    values = values if shape else values[:, 0]
    read = in_buckets(torch.tensor(lengths, dtype=torch.int64), tokens, lambda rows: values[rows], shape)
    assert read.tolist() == values.tolist()
    assert read.dtype == (torch.float64 if lengths else torch.float32) and read.shape == values.shape


@pytest.mark.parametrize("tokens", [None, 40])
@pytest.mark.parametrize("kind", [CrossEncoder, SequenceClassifier])
def test_pairs_are_scored_as_their_bucket_alone(
    kind: type[CrossEncoder] | type[SequenceClassifier], tokens: int | None
) -> None:
    """The last bit of a score depends on what is padded together: the shared loop must not change the batches."""
    torch.manual_seed(0)
    similarity = kind.tiny().eval()
    words = [f"{'river boat ' * (row % 3)}bank" for row in range(12)]
    queries = similarity.collate_queries([Query(str(row), word) for row, word in enumerate(words)])
    items = similarity.collate_items([Item(str(row), word) for row, word in enumerate(reversed(words))])
    left, right = (reps["ids"] for reps in (queries, items))
    assert isinstance(left, Ragged) and isinstance(right, Ragged)
    asked, offered = torch.randint(12, (2, 60))
    added = similarity.text.template.added if isinstance(similarity, SequenceClassifier) else 0
    lengths = left.lengths[asked] + right.lengths[offered] + added
    expected = torch.zeros(60)
    with torch.no_grad():
        for bucket in buckets(lengths, tokens or 1024):
            similarity.tokens_per_batch = 10**6
            expected[bucket] = similarity.score_pairs(queries, items, asked[bucket], offered[bucket])
        similarity.tokens_per_batch = tokens
        assert torch.equal(similarity.score_pairs(queries, items, asked, offered), expected)


@given(st.data())
def test_join_pairs_is_concatenation(data: st.DataObject) -> None:
    """The one-pass join against Python lists."""
    row = st.lists(st.integers(1, 99), min_size=1, max_size=6)
    left = data.draw(st.lists(row, min_size=1, max_size=4))
    right = data.draw(st.lists(row, min_size=1, max_size=4))
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, len(left) - 1), st.integers(0, len(right) - 1)), min_size=1, max_size=6)
    )
    a, b = (torch.tensor(rows) for rows in zip(*pairs, strict=True))
    ids, mask, second = join_pairs(Ragged.of(left), Ragged.of(right), a, b)
    for i, (x, y) in enumerate(pairs):
        joined = left[x] + right[y]
        assert ids[i][mask[i]].tolist() == joined
        assert ids[i][~mask[i]].eq(0).all()
        assert second[i][mask[i]].tolist() == [0] * len(left[x]) + [1] * len(right[y])


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
def test_last_layer_at_the_read_positions(backbone: BackboneConfig, lora: LoRA | None) -> None:
    """The short cut through the last layer must give what the library's own forward gives."""
    encoder = Encoder(BackboneConfig(name=backbone.name, lora=lora)).eval()
    for name, parameter in encoder.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([9, 5, 7])[:, None]
    types = (torch.arange(9) > 3).long().expand(3, 9)
    positions = torch.arange(9).expand(3, 9) + 7 * types
    read = torch.tensor([[0, 4], [2, 2], [6, 1]])
    with torch.inference_mode():
        whole = encoder(ids, mask, types, positions)
        short = encoder.states_at(ids, mask, read, types, positions)
        expected = whole.gather(1, read[..., None].expand(-1, -1, whole.shape[-1]))
        torch.testing.assert_close(short, expected, atol=1e-5, rtol=1e-5)
        encoder.merge()
        torch.testing.assert_close(encoder.states_at(ids, mask, read, types, positions), expected, atol=1e-4, rtol=1e-4)


def test_fixed_layout_equals_padding_in_the_middle(backbone: BackboneConfig) -> None:
    """The released ANNCUR layout, with its pads mid-sequence, against our computation without them."""
    config = TokenConfig(query_length=16, item_length=16)
    model = CrossEncoder(backbone, config, item_position="fixed").eval()
    query = model.collate_queries([Query("q", "the river boat bank", (10, 14))])
    item = model.collate_items([Item("i", "river bank", "boat")])
    left, right = query["ids"], item["ids"]
    assert isinstance(left, Ragged) and isinstance(right, Ragged)
    ids = torch.zeros(1, 32, dtype=torch.int64)
    ids[0, : len(left.values)] = left.values
    ids[0, 16 : 16 + len(right.values)] = right.values
    types = ((torch.arange(32) >= 16) & (ids != 0)).long()
    with torch.inference_mode():
        hidden = model.encoder(ids, ids != 0, types)[0]
        expected = hidden[query["tags"][0]].mean(dim=0) @ hidden[16 + item["tags"][0, 0]]
        torch.testing.assert_close(model.score(query, item)[0, 0], expected, atol=1e-5, rtol=1e-5)
        packed = CrossEncoder(backbone, config, item_position="after_query").eval()
        assert (packed.score(query, item)[0, 0] - expected).abs() > 1e-3


def test_backbone_is_found_and_checked(tmp_path: Path, backbone: BackboneConfig) -> None:
    """A model file that is not the pinned one must not be scored with."""
    assert (resolve_backbone(BackboneConfig()) / "model.safetensors").is_file()
    with pytest.raises(ValueError, match=r"sha256 .* expected abc"):
        resolve_backbone(BackboneConfig(name=backbone.name, sha256="abc"))
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        resolve_backbone(BackboneConfig(name=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        resolve_backbone(BackboneConfig(name="nobody/no-such-model"))


def test_bad_settings_are_named(backbone: BackboneConfig) -> None:
    """A setting that cannot work must be refused before training starts."""
    tokenizer = load_tokenizer(backbone)
    with pytest.raises(ValueError, match=r"\[nope\].*vocabulary"):
        TextTokenizer(tokenizer, TokenConfig(item_tag="[nope]"))
    with pytest.raises(ValueError, match="at least 8"):
        TokenConfig(query_length=4)
    with pytest.raises(ValueError, match="takes at most 64"):
        CrossEncoder(backbone, TokenConfig(query_length=40, item_length=40))
    with pytest.raises(ValueError, match="reads the states at the tags"):
        CrossEncoder(backbone, TokenConfig(query_length=16, item_length=16, item_tag=None))
    with pytest.raises(DataError, match="lies outside its 4 characters"):
        Query("q", "boat", (2, 9))
    with pytest.raises(DataError, match="empty"):
        Query("q", "  ")
