"""Every recipe is parsed and composed as it stands, one of each composition is fitted; misspelt keys are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoTokenizer, BertConfig, BertModel

from simzoo import train
from simzoo.core.recipes import read_recipe
from simzoo.datamodules.readers.wordnet import find_wordnet
from simzoo.datamodules.readers.zeshel import ZESHEL_SPLITS
from simzoo.datamodules.sources import WordNet
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load, save
from simzoo.models.parts.backbone import MINILM
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.pair_sampling import QueriesToItems
from simzoo.retrieval.sparse_matrix import build_sparse_matrix
from tests.layouts import write_blink, write_dstc7, write_msmarco, write_zeshel

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in ROOT.glob("configs/**/*.yaml") if path.parent.name not in ("base", "search"))
NAMES = [str(path.relative_to(ROOT / "configs")) for path in RECIPES]


def short(node: Any) -> str:
    """The class that a recipe names: as a text, or as a mapping with settings."""
    return "none" if node is None else str(node if isinstance(node, str) else node["class_path"])


def settings(node: Any) -> dict[str, Any]:
    """What a recipe sets of an object."""
    found: dict[str, Any] = node.get("init_args", {}) if isinstance(node, dict) else {}
    return found


def composition(recipe: Path) -> tuple[str, ...]:
    """What tells a recipe's parts from another's: the classes of model, source, lists, miner, teacher and losses."""
    found = read_recipe(recipe)
    data, model = found["data"], found["model"]
    lists, loss = data["lists"], model["init_args"]["loss"]
    miner = settings(data.get("miner"))
    inner, losses = settings(lists).get("lists"), settings(loss).get("losses", [loss])
    parts = [model, data["source"], lists, inner, miner.get("first_stage"), miner.get("teacher"), *losses]
    return tuple(short(part) for part in parts)


FITTED = list({composition(path): path for path in reversed(RECIPES)}.values())[::-1]


def lessons(path: Path, size: int = 10, first: str = "given") -> None:
    """Eight queries with so many items each, in the released layout; the type of the first one is told."""
    items = [{"id": f"i{n}", "content": f"text {n}", "score": n / 2, "type": "given"} for n in range(size)]
    items[0]["type"] = first
    records = [{"query": {"id": f"q{n}", "content": f"query {n}"}, "items": items} for n in range(8)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


HEADS = {"recbole": "user_id:token\titem_id:token\ttimestamp:float\n", "movielens": "", "amazon": "", "sasrec": ""}
ROWS: dict[str, Callable[[int, int, int], str]] = {
    "recbole": lambda user, item, time: f"u{user}\ti{item}\t{time}\n",
    "movielens": lambda user, item, time: f"{user}::{item}::5::{time}\n",
    "amazon": lambda user, item, time: f"u{user},i{item},5.0,{time}\n",
    "sasrec": lambda user, item, time: f"{user} {item}\n",
}


def interactions(path: Path, layout: str) -> None:
    """Twelve users and items with eight actions each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [ROWS[layout](user, (user + step) % 12, 1000 * step + 1) for user in range(1, 13) for step in range(8)]
    if path.suffix == ".csv" and layout == "movielens":
        lines = ["userId,movieId,rating,timestamp\n", *(line.replace("::", ",") for line in lines)]
    path.write_text(HEADS[layout] + "".join(lines))


def collection(folder: Path) -> Path:
    """Sixteen documents, each with a question, in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    ids = [f"d{row}" for row in range(16)]
    for name, text in (("corpus", "a text about"), ("queries", "what is")):
        lines = [json.dumps({"_id": one, "title": "", "text": f"{text} {one}"}) for one in ids]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "dev"):
        rows = "".join(f"{one}\t{one}\t1\n" for one in ids)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


def pairs(path: Path) -> None:
    """Eighty pairs."""
    rows = [{"query": f"what is {n}", "positive": f"a text about {n}"} for n in range(80)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def entries(folder: Path) -> None:
    """Made-up scores of twelve queries of noun.event with six items each, and vectors to start from."""
    [event] = WordNet(world="noun.event", titles=False).collections("test")
    queries, rng = event.queries[:12], np.random.default_rng(0)
    judge = MatrixJudge(rng.normal(size=(12, len(event.items))), [query.id for query in queries])
    corpus = Corpus(event.items, judge)
    build_sparse_matrix(corpus, queries, QueriesToItems(0, 6), folder, event.fingerprint, "made up")
    for name, count in (("items", len(event.items)), ("queries", 12)):
        np.save(folder / f"{name}.npy", rng.normal(size=(count, 16)).astype(np.float32))


def backbone(folder: Path) -> None:
    """A BERT of the width of bert-base with one layer and random weights, with its vocabulary."""
    AutoTokenizer.from_pretrained(train_tokenizer()).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(num_hidden_layers=1, intermediate_size=64)).save_pretrained(folder)


def train_tokenizer() -> Path:
    """Folder of the backbone that is at hand, which has bert-base's vocabulary."""
    from simzoo.models.parts.backbone import packaged

    found = packaged(MINILM)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what recipes name: checkpoints, data in every layout, a stand-in for bert-base."""
    folder = tmp_path_factory.mktemp("place")
    find_wordnet()
    (folder / "checkpoints").symlink_to(ROOT / "checkpoints")
    backbone(folder / "google-bert" / "bert-base-uncased")
    save(CrossEncoder.tiny(), folder / "teacher")
    data = folder / "data"
    write_blink(data / "blink")
    write_dstc7(data / "dstc7")
    write_msmarco(data / "msmarco")
    lessons(data / "msmarco" / "train.jsonl")
    collection(data / "msmarco" / "validation")
    lessons(folder / "out" / "lessons-wordnet" / "a.jsonl", 36, "positive")
    collection(data / "nq320k")
    pairs(data / "pairs.jsonl")
    for split in ("train", "val"):
        for world in ZESHEL_SPLITS[split]:
            write_zeshel(data / "zeshel", world, split, queries=4)
    entries(folder / "out" / "noun.event-entries")
    for recipe in RECIPES:
        source = read_recipe(recipe)["data"]["source"]
        if short(source) == "NextItems":
            interactions(folder / source["init_args"]["path"], source["init_args"]["layout"])
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_every_recipe_is_composed_as_it_stands(recipe: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that was renamed, an option that is gone, lists that do not fit the loss: seen when the GPU is rented."""
    monkeypatch.chdir(place)
    cli = train.main([f"--config={recipe}"], run=False)
    found = read_recipe(recipe)
    assert type(cli.model).__name__ == short(found["model"])
    assert type(cli.datamodule.lists).__name__ == short(found["data"]["lists"])
    cli.datamodule.trainer = cli.trainer
    cli.trainer.strategy._lightning_module = cli.model
    cli.datamodule.setup("fit")
    kept = list(cli.trainer.checkpoint_callbacks)
    assert [keeper.filename for keeper in kept] == [
        name for name, key in (("best", "monitor"), ("resume", "resume_every")) if key in found
    ]
    assert {str(Path(keeper.dirpath).relative_to(place)) for keeper in kept} == {f"{found['output']}/checkpoints"}


def test_a_recipe_is_its_own_settings_over_those_of_its_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base that is dropped, or wins over the recipe, or hands a class another's settings, trains something else."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "ground.yaml").write_text("trainer: {max_epochs: 7, gradient_clip_val: 0.5}\n")
    (tmp_path / "shared" / "family.yaml").write_text(
        "base: ground.yaml\n"
        "trainer: {max_epochs: 5}\n"
        "data:\n  batch_size: 3\n"
        "  miner: {class_path: MineCandidates, init_args: {depth: 9, first_stage: BM25}}\n"
        "  lists: {class_path: HardNegatives, init_args: {hard: 2}}\n"
    )
    (tmp_path / "own.yaml").write_text(
        "base: shared/family.yaml\n"
        "model: {class_path: NextItem}\n"
        "data:\n  source: WordNet\n"
        "  miner: {init_args: {depth: 4}}\n"
        "  lists: {class_path: RandomNegatives, init_args: {negatives: 1}}\n"
    )
    with pytest.raises(SystemExit):
        train.main(["fit", "--config", str(tmp_path / "own.yaml"), "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["trainer"]["max_epochs"], printed["trainer"]["gradient_clip_val"]) == (5, 0.5)
    data = printed["data"]
    assert (data["batch_size"], settings(data["miner"])["depth"]) == (3, 4)
    assert settings(data["miner"])["first_stage"]["class_path"].endswith("BM25")
    assert data["lists"]["class_path"].endswith("RandomNegatives") and settings(data["lists"])["negatives"] == 1
    assert "base" not in printed, "the printed configuration is whole: it is read back elsewhere"


@pytest.mark.parametrize(
    ("base", "message"),
    [("nosuch.yaml", "expected a recipe at"), ("own.yaml", "a base of itself"), ("list.yaml", "got list")],
)
def test_a_base_that_is_none_is_refused_in_one_line(
    base: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a recipe that trains with defaults, or a command that never ends."""
    (tmp_path / "list.yaml").write_text("[1]\n")
    (tmp_path / "own.yaml").write_text(f"base: {base}\nmodel: {{class_path: NextItem}}\n")
    with pytest.raises(SystemExit):
        train.main(["fit", "--config", str(tmp_path / "own.yaml"), "--print_config"])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and base in line


SMALL: dict[str, Any] = {
    "trainer": {
        "max_epochs": 1,
        "max_steps": -1,
        "check_val_every_n_epoch": 1,
        "val_check_interval": 1.0,
        "limit_train_batches": 2,
        "limit_val_batches": 2,
        "precision": "32",
        "devices": 1,
        "strategy": "auto",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    },
    "data": {"batch_size": 4, "max_val_queries": 4, "val_depth": 8},
}
REAL = ("Deformer", "DeFormer", "MoL")
"""Models for which two layers, or the tiny vocabulary, are not enough."""


def overlay(recipe: Path, folder: Path) -> list[str]:
    """The recipe and a file over it: a small backbone and teacher, few queries, mining (where it mines) by BM25."""
    found = read_recipe(recipe)
    model, data, own = found["model"], found["data"], json.loads(json.dumps(SMALL))
    changes: dict[str, Any] = {}
    if "backbone" in model["init_args"]:
        changes["backbone"] = {**model["init_args"]["backbone"], "name": MINILM, "start": None}
        if short(model) not in REAL:
            changes["backbone"] |= {"name": str(tiny_backbone()), "sha256": None}
            if "tokens" in model["init_args"]:
                changes["tokens"] = {**model["init_args"]["tokens"], "query_length": 24, "item_length": 24}
    if "q_net" in model["init_args"]:
        changes["q_net"] = {**model["init_args"]["q_net"], "widths": [16, 16]}
    own["model"] = {"class_path": model["class_path"], "init_args": changes}
    if short(data["source"]) == "WordNet":
        worlds = {"train_worlds": ["verb.weather"], "dev_worlds": ["verb.competition"]}
        own["data"] |= {"source": {"class_path": "WordNet", "init_args": worlds}, "max_train_queries": 16}
    if short(data["lists"]) == "NextItemLists":
        sampled = {**settings(data["lists"]), "val_negatives": 3}
        own["data"]["lists"] = {"class_path": "NextItemLists", "init_args": sampled}
    if "miner" in data:
        mining: dict[str, Any] = {"folder": None}
        if short(settings(data["miner"]).get("first_stage")) == "Dense":
            mining["first_stage"] = "BM25"
        if "teacher" in settings(data["miner"]):
            teacher = short(settings(data["miner"])["teacher"])
            mining["teacher"] = {"class_path": teacher, "init_args": {"checkpoint": "teacher"}}
        own["data"]["miner"] = {"class_path": short(data["miner"]), "init_args": mining}
    if data.get("val_depth", 8) is None:  # all items
        del own["data"]["val_depth"]
    own["output"], own["release"] = str(folder / "out"), None
    (folder / "overlay.yaml").write_text(yaml.safe_dump(own))
    return ["fit", "--config", str(recipe), "--config", str(folder / "overlay.yaml")]


RUN = {"wordnet", "ml-100k", "amazon-games", "pairs"}
"""Folders with recipes that were run, or are to be run on data of one's own."""


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_recipe_that_was_never_run_says_so_in_its_first_line(recipe: Path) -> None:
    """Who rents eight GPUs for a week takes a file in configs/ for one that has worked."""
    said = recipe.read_text().startswith("# Never run to its end with this code")
    assert said or recipe.parent.name in RUN


def test_ms_marco_is_trained_as_the_paper_says() -> None:
    """Hypencoder §4.2: 64 a device on two, 6,000 steps of warm-up, R-precision every 50,000 of 800,000 steps."""
    paths = (ROOT / "configs" / "msmarco").glob("*.yaml")
    found = {path.stem: read_recipe(path) for path in paths if path.stem != "cmc"}
    assert set(found) == {"be_base", *(f"hypencoder_{layers}_layer" for layers in (2, 4, 6, 8))}
    for name, recipe in found.items():
        trainer, optimization = recipe["trainer"], recipe["model"]["init_args"]["optimization"]
        assert (recipe["data"]["batch_size"], trainer["devices"]) == (64, 2)
        assert optimization["warmup"] * trainer["max_steps"] == 6000
        assert (trainer["max_steps"], trainer["val_check_interval"]) == (800_000, 50_000)
        assert (recipe["monitor"], recipe["data"]["val_depth"]) == ("val/r_precision", None)
        assert optimization["schedule"] == ("linear" if name == "be_base" else "constant_with_warmup")
        assert recipe["model"]["init_args"]["shared"] is (name != "be_base")


@pytest.mark.parametrize("recipe", FITTED, ids=[str(path.relative_to(ROOT / "configs")) for path in FITTED])
def test_each_composition_is_fitted(recipe: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that parses and then fails after an hour of mining, in its first step or its first validation."""
    monkeypatch.chdir(place)
    cli = train.main(overlay(recipe, tmp_path))
    assert cli.trainer.global_step == 2
    betas = read_recipe(recipe)["model"]["init_args"]["optimization"].get("betas", [0.9, 0.999])
    assert [list(group["betas"]) for group in cli.trainer.optimizers[0].param_groups] == [betas, betas]
    assert isinstance(load(tmp_path / "out" / "release"), type(cli.model))
    shutil.rmtree(tmp_path)


def test_a_run_resumes_from_the_command_line(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the docs name for a run that was killed must be one that the parser takes."""
    monkeypatch.chdir(place)
    options = [*overlay(ROOT / "configs" / "wordnet" / "demo.yaml", tmp_path), "--resume_every=1"]
    train.main(options)
    kept = tmp_path / "out" / "checkpoints" / "resume.ckpt"
    cli = train.main([*options, "--trainer.max_epochs=2", f"--ckpt_path={kept}", "--weights_only=true"])
    assert (cli.trainer.global_step, cli.trainer.current_epoch) == (4, 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.batch_sise=4", "batch_sise"),
        ("--data.lists.hrad=4", "hrad"),
        ("--data.source.titels=false", "titels"),
        ("--model.optimization.lrr=1", "lrr"),
        ("--trainer.max_epoch=3", "max_epoch"),
        ("--model.scoring=sum", "sum"),
    ],
)
def test_misspelt_keys_are_refused_by_name(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that is silently ignored ruins a week of training."""
    recipe = ROOT / "configs" / "wordnet" / "emb_cross_encoder.yaml"
    with pytest.raises(SystemExit):
        train.main(["fit", "--config", str(recipe), option, "--print_config"])
    assert message in capsys.readouterr().err
