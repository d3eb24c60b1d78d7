"""Every recipe is parsed by the real parser and takes a step; misspelt keys are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from simzoo import train
from simzoo.datamodules.readers.wordnet import find_wordnet
from simzoo.datamodules.readers.zeshel import ZESHEL_SPLITS
from simzoo.models.formats import load
from simzoo.models.parts.backbone import MINILM, MINILM_SHA256
from simzoo.models.parts.tiny import tiny_backbone
from tests.layouts import write_blink, write_dstc7, write_msmarco, write_zeshel

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in ROOT.glob("configs/**/*.yaml") if path.parent.name != "search")

SMALL = """
data.batch_size=4 data.max_val_queries=8 trainer.max_epochs=1 trainer.check_val_every_n_epoch=1
trainer.limit_train_batches=2 trainer.limit_val_batches=2 trainer.logger=false trainer.enable_progress_bar=false
trainer.enable_model_summary=false
"""
WORLDS = " data.train_worlds=[verb.weather] data.dev_worlds=[verb.competition] data.max_train_queries=16"


def on_a_small_backbone(recipe: Path) -> str:
    """The recipe with the tiny backbone, or all-MiniLM where two layers or the tiny vocabulary are not enough."""
    text, pin = recipe.read_text(), f"sha256: {MINILM_SHA256}"
    assert text.count(f"name: {MINILM}") == text.count(pin)
    if recipe.stem in ("deformer", "mol", "mol_distilled"):
        return text.replace("google-bert/bert-base-uncased", MINILM)
    text = re.sub("(query|item)_length: .*", r"\1_length: 24", text)
    text = text.replace(pin, "").replace("[384, 384, 384, 384]", "[16, 16]")
    return re.sub(f"name: ({MINILM}|google-bert/bert-base-uncased)", f"name: {tiny_backbone()}", text)


def arguments(recipe: Path, folder: Path, text: str) -> list[str]:
    """The recipe on a few queries, mining (where it mines) by BM25, with its own teacher, writing into ``folder``."""
    if "simzoo.datamodules.next_items.NextItems" in text:
        settings = f"{SMALL} data.path={interactions(folder)} data.layout=recbole data.val_negatives=3"
    elif "simzoo.datamodules.sources.BEIR" in text:
        text = text.replace("bf16-mixed", "32")
        settings = f"{SMALL} data.root={collection(folder)}"
    elif "simzoo.datamodules.distillation.Distillation" in text:
        layers = text.count("768")
        settings = SMALL.replace("data.max_val_queries=8", "trainer.precision=32")
        settings += f" data.records=[{lessons(folder)}]"
        settings += f" model.init_args.q_net.widths=[{','.join(['16'] * layers)}]"
    elif "simzoo.datamodules.sources.WordNet" in text:
        find_wordnet()
        assert "simzoo.retrieval.mining.MineCandidates" in text
        settings = SMALL + WORLDS
    else:
        [write] = [writer for name, writer in WRITERS.items() if f"simzoo.datamodules.sources.{name}" in text]
        write(folder / "data" / recipe.parent.name)
        text = text.replace(": data/", f": {folder}/data/")
        settings = SMALL
    scratch = folder / recipe.name
    checkpointed = text.replace(
        "simzoo.retrieval.first_stages.dense.Dense", "simzoo.retrieval.first_stages.lexical.BM25"
    )
    checkpointed = checkpointed.replace("teacher: checkpoints/", f"teacher: {ROOT}/checkpoints/")
    lines = [line for line in checkpointed.splitlines() if ": checkpoints/" not in line]
    kept = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.strip() == "init_args:" and len(following) - len(following.lstrip()) <= len(line) - len(line.lstrip()):
            continue  # it held the checkpoint only
        kept.append(line.replace("out/", f"{folder}/out/"))
    scratch.write_text("\n".join(kept) + "\n")
    return ["fit", "--config", str(scratch), *(f"--{setting}" for setting in settings.split())]


def worlds(root: Path) -> None:
    """ZESHEL's train and dev worlds."""
    for split in ("train", "val"):
        for world in ZESHEL_SPLITS[split]:
            write_zeshel(root, world, split, queries=4)


WRITERS = {"ZeShEL": worlds, "BLINK": write_blink, "MSMARCO": write_msmarco, "DSTC7": write_dstc7}


def lessons(folder: Path) -> Path:
    """Eight queries with ten items each, in the released layout."""
    path = folder / "lessons.jsonl"
    items = [{"id": f"i{n}", "content": f"text {n}", "score": n / 2, "type": "given"} for n in range(10)]
    records = [{"query": {"id": f"q{n}", "content": f"query {n}"}, "items": items} for n in range(8)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def interactions(folder: Path) -> Path:
    """Twelve users and items with six actions each, in RecBole's layout."""
    path = folder / "small.inter"
    rows = [f"u{user}\ti{(user + step) % 12}\t{1000 * step}\n" for user in range(12) for step in range(6)]
    path.write_text("user_id:token\titem_id:token\ttimestamp:float\n" + "".join(rows))
    return path


def collection(folder: Path) -> Path:
    """Sixteen documents, each with a question, in BEIR's layout."""
    (folder / "qrels").mkdir()
    ids = [f"d{row}" for row in range(16)]
    for name, text in (("corpus", "a text about"), ("queries", "what is")):
        lines = [json.dumps({"_id": one, "title": "", "text": f"{text} {one}"}) for one in ids]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "dev"):
        rows = "".join(f"{one}\t{one}\t1\n" for one in ids)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recipe_takes_a_step_and_releases(recipe: Path, tmp_path: Path) -> None:
    """A recipe that no longer fits the code is found by the first user otherwise."""
    cli = train.main(arguments(recipe, tmp_path, on_a_small_backbone(recipe)))
    assert cli.trainer.global_step == 2
    betas = yaml.safe_load(recipe.read_text())["model"]["init_args"]["optimization"].get("betas", [0.9, 0.999])
    assert [list(group["betas"]) for group in cli.trainer.optimizers[0].param_groups] == [betas, betas]
    [config] = (path for path in tmp_path.glob("out/**/config.json") if path.parent.name != "backbone")
    assert isinstance(load(config.parent), type(cli.model))


def test_a_run_resumes_from_the_command_line(tmp_path: Path) -> None:
    """The command that the docs name for a run that was killed must be one that the parser takes."""
    recipe = ROOT / "configs" / "wordnet" / "demo.yaml"
    options = arguments(recipe, tmp_path, recipe.read_text())
    train.main(options)
    [kept] = tmp_path.glob("out/**/*.ckpt")
    cli = train.main([*options, "--trainer.max_epochs=2", f"--ckpt_path={kept}", "--weights_only=true"])
    assert (cli.trainer.global_step, cli.trainer.current_epoch) == (4, 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.batch_sise=4", "batch_sise"),
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
