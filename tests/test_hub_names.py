"""Names on the Hub wherever a checkpoint or a backbone is named: command lines, cards, loaders of old files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from simzoo.core.hub import file_sha256
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.parts.tiny import tiny_backbone
from tests.hub_client import ROOT, Client, contents
from tests.loopback_hub import Hub
from tests.test_cmc_released import released as cmc
from tests.test_rails_released import NAME, write
from tests.test_rails_released import released as rails
from tests.test_recipes import collection

pytest_plugins = ["tests.hub_client"]
FORMS = ("me/{}@main", "{}", "{}/model.safetensors")


@pytest.mark.parametrize("released", ["tiny-ce", "ml-100k-sasrec"])
def test_the_lines_of_a_published_card_run(
    released: str, hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """On the Hub a card names the repository, not the folder that it was made in: who copies its lines must get it."""
    folder = checkpoint if released == "tiny-ce" else ROOT / "checkpoints" / released
    client.hub("push", folder, f"me/{released}")
    repo = hub.repos[f"me/{released}"]
    card = repo.commits[repo.branches["main"]]["README.md"].decode()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert f'simzoo.load("me/{released}")' in code
    client.run(code, home=tmp_path)
    assert client.printed.strip()


def test_training_and_teaching_take_every_form_of_a_name(
    hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """A recipe whose start weights, teacher, first stage or backbone are others than it names trains another model."""
    (tmp_path / "data").mkdir()
    source = "simzoo.datamodules.sources.BEIR"
    data = [f"--data={source}", f"--data.root={collection(tmp_path / 'data')}"]
    save(DualEncoder.tiny(), tmp_path / "first")
    places = {"first": tmp_path / "first", "start": checkpoint, "backbone": tiny_backbone()}
    for name, folder in places.items():
        hub.add(f"me/{name}", contents(folder))
    for number, form in enumerate(FORMS):
        named = {name: form.format(name if form.startswith("me/") else place) for name, place in places.items()}
        out = tmp_path / f"out-{number}"
        mined, model, lists = "--data.miner", "--model", "simzoo.datamodules.lists"
        words = [
            "fit",
            f"--data.source={source}",
            f"--data.source.root={tmp_path / 'data'}",
            f"--data.lists={lists}.HardNegatives",
            "--data.lists.hard=4",
            "--data.batch_size=8",
            "--trainer.limit_val_batches=0",
        ]
        words += ["--trainer.accelerator=cpu", "--trainer.max_steps=1", "--trainer.logger=false", f"--release={out}"]
        words += ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={out}"]
        words += [f"{model}=simzoo.models.cross_encoder.CrossEncoder", f"{model}.optimization.lr=1e-30"]
        words += [f"{model}.backbone.name={named['backbone']}", f"{model}.backbone.start={named['start']}"]
        words += [f"{model}.tokens.query_length=24", f"{model}.tokens.item_length=24"]
        words += [f"{mined}=simzoo.retrieval.mining.MineCandidates"]
        words += [f"{mined}.teacher=simzoo.retrieval.mining.OfMined", f"{mined}.teacher.checkpoint={named['start']}"]
        words += [f"{mined}.first_stage=simzoo.retrieval.first_stages.dense.Dense", f"{mined}.depth=8"]
        words += [f"{mined}.first_stage.checkpoint={named['first']}", f"{mined}.folder={out / 'mined'}"]
        client.run(f"from simzoo import train; train.main({words!r})")
        taught = ["teach", "--checkpoint", named["start"], *data, "--top", "4", "--output", str(out / "lessons")]
        client.run(f"from simzoo import evaluate; evaluate.main({taught!r})")
    started, known = load_file(tmp_path / "out-0" / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    encoder = [name for name in known if name.startswith("encoder.model.")]
    assert encoder and all(torch.allclose(started[name], known[name], rtol=0, atol=1e-20) for name in encoder)
    (mine,) = (tmp_path / "out-0" / "mined").rglob("*.npz")
    with np.load(mine) as kept:
        texts = [f"a text about d{row}" for row in kept["items"][0]]
        scores = dict(load(checkpoint).rank("what is d0", texts))
        np.testing.assert_allclose(kept["teacher"][0], [scores[row] for row in range(8)], rtol=1e-4)
    for number in (1, 2):  # what every form writes is the same
        for path in (tmp_path / "out-0").rglob("*"):
            if path.suffix in (".npz", ".jsonl", ".safetensors") and path.parent.name != "backbone":
                found = (tmp_path / f"out-{number}").rglob(path.name)
                (same,) = (one for one in found if one.parent.name != "backbone")
                assert same.read_bytes() == path.read_bytes(), path


def test_old_files_load_by_name(hub: Hub, client: Client, tmp_path: Path) -> None:
    """The released models of CMC and RAILS have one pickle and no config.json, which patterns of names leave out."""
    torch.save({"sd": cmc("mean")[0]}, tmp_path / "pytorch_model.bin")
    hub.add("me/cmc", {"pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()})
    hub.add("me/rails", {NAME: write(tmp_path / NAME, rails()).read_bytes()})
    found = client.run(f"""
from simzoo.models.formats import cmc as cmc_released
from simzoo.models.formats import rails as rails_released
cmc = cmc_released.load_released("me/cmc", {str(tiny_backbone())!r}, heads=2, query_length=24, item_length=24)
sizes = rails_released.ReleasedSizes(2, 3, 2, "swiglu", 0.5, output_length=2)
value = [cmc.weights_sha256, rails_released.load_released("me/rails@main", sizes).weights_sha256]
""")
    assert found == [file_sha256(tmp_path / "pytorch_model.bin"), file_sha256(tmp_path / NAME)]
