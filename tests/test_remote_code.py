"""A folder in transformers' layout that brings code of its own is refused, and nobody is asked whether to run it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoProcessor, dynamic_module_utils

from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save, save_sentence_transformer
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.pretrained import readable
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig

ROOT = Path(__file__).parents[1]
CODE = "import os\nopen(os.environ['SIMZOO_RAN'], 'w')\n\nclass Evil:\n    pass\n"
KINDS = ("Config", "Model", "Processor", "ModelForImageClassification", "ModelForSequenceClassification")
AUTO_MAP: dict[str, Any] = {f"Auto{kind}": "evil.Evil" for kind in KINDS}
TOKENIZER_MAP = {**AUTO_MAP, "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
NEEDS_CODE = r"its (configuration|tokenizer|weights) cannot be read, or needs code of its own, which is not run"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once a folder's code has run; whoever is asked says yes."""
    monkeypatch.setenv("SIMZOO_RAN", str(tmp_path / "ran"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    return tmp_path / "ran"


def folder(place: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    shutil.copytree(tiny_backbone(), place)
    (place / "evil.py").write_text(CODE)
    for name, changes in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        found = json.loads((place / name).read_text()) | changes
        (place / name).write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return place


EVIL = {"model_type": "evil", "architectures": ["EvilForSequenceClassification"], "auto_map": AUTO_MAP}


def pairs(place: Path, **tokenizer: Any) -> Path:
    """A cross-encoder of sentence-transformers with a model type of its own."""
    folder(place, EVIL, tokenizer)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (place / "modules.json").write_text(json.dumps(modules))
    return place


def vectors(place: Path, **tokenizer: Any) -> Path:
    """An encoder of sentence-transformers with a model type of its own."""
    folder(place, {**EVIL, "architectures": ["EvilModel"]}, tokenizer)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    described = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (place / "modules.json").write_text(json.dumps(described))
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    return place


@pytest.mark.parametrize("make", [pairs, vectors])
@pytest.mark.parametrize("tokenizer", [{}, {"auto_map": TOKENIZER_MAP}, {"tokenizer_class": None}])
def test_a_model_type_with_code_is_refused(
    make: Callable[..., Path], tokenizer: dict[str, Any], ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers asks "run the custom code? [y/N]" where it is not told, and a script's input may say yes."""
    place = make(tmp_path / "m", **tokenizer)
    with pytest.raises(ValueError, match=NEEDS_CODE) as refused:
        load(place)
    assert not ran.exists() and sys.stdin.read() == "y\n" * 9, "somebody was asked"
    assert len(str(refused.value).splitlines()) == 1 and "[y/N]" not in capsys.readouterr().out


def test_the_command_line_refuses_in_one_line(ran: Path, tmp_path: Path) -> None:
    """A traceback, or a question, of a library tells nobody what is wrong with the folder."""
    place, out = pairs(tmp_path / "m"), str(tmp_path / "out")
    command = [sys.executable, "-m", "simzoo", "hub", "convert", str(place), out]
    done = subprocess.run(command, cwd=ROOT, input="y\n" * 9, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and not ran.exists() and "[y/N]" not in done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if "which is not run" in line] == [done.stderr.splitlines()[-1]]


@pytest.mark.parametrize(
    "named", ["AutoProcessor", "AutoModelForImageClassification", "AutoModel", "AutoTokenizer", "__file__"]
)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_none_is_refused(named: str, file: str, ran: Path, tmp_path: Path) -> None:
    """A tokenizer's class may be any name in transformers, whose loader is then called without trust_remote_code."""
    own = {"tokenizer_class": named} if file == "tokenizer_config.json" else {"tokenizer_class": None}
    config = {"tokenizer_class": named, "auto_map": AUTO_MAP} if file == "config.json" else {"auto_map": AUTO_MAP}
    place = folder(tmp_path / "m", config, {**own, "auto_map": AUTO_MAP})
    with pytest.raises(ValueError, match=rf"{file}: tokenizer_class '{named}' is no tokenizer"):
        CrossEncoder(BackboneConfig(str(place)), TokenConfig(24, 24))
    assert not ran.exists() and sys.stdin.read() == "y\n" * 9


def test_nobody_is_asked_where_transformers_calls_itself(ran: Path, tmp_path: Path) -> None:
    """A call inside the library does not know that the one around it was told to trust nothing."""
    place = folder(tmp_path / "m", {"auto_map": AUTO_MAP}, {"auto_map": AUTO_MAP})
    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    with pytest.raises(ValueError, match=NEEDS_CODE), readable("m", "tokenizer"):
        AutoProcessor.from_pretrained(place)
    assert not ran.exists() and sys.stdin.read() == "y\n" * 9
    assert before == dynamic_module_utils.TIME_OUT_REMOTE_CODE > 0, "other users of transformers are asked as before"


def test_names_of_code_are_not_passed_on(ran: Path, tmp_path: Path) -> None:
    """A known model may name code that it does not need: an export asked for it, and a saved copy named it again."""
    place = folder(
        tmp_path / "m",
        {"auto_map": AUTO_MAP, "processor_class": "Evil"},
        {"auto_map": TOKENIZER_MAP, "processor_class": "AutoProcessor"},
    )
    model = DualEncoder(BackboneConfig(str(place)), TokenConfig(24, 24))
    save_sentence_transformer(model, tmp_path / "theirs")
    save(model, tmp_path / "ours")
    assert not ran.exists() and sys.stdin.read() == "y\n" * 9
    written = [path for name in ("theirs", "ours") for path in (tmp_path / name).rglob("*.json")]
    assert len(written) > 6
    assert [path for path in written if "evil" in path.read_text().lower() or "auto_map" in path.read_text()] == []
