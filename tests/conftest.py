"""What all tests share: no network unless it is asked for, and the markers `gpu`, `network`, `shared`."""

from __future__ import annotations

import os
from pathlib import Path

NETWORK = os.environ.get("SIMZOO_NETWORK") == "1"

# Both are read when transformers, huggingface_hub or tokenizers are first imported, so they are set before that.
if not NETWORK:
    os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# hypothesis fails an example that takes longer than 0.2 s, which a busy machine does.
settings.register_profile("simzoo", parent=settings(), deadline=None)
settings.load_profile("simzoo")

# Read when triton is first imported: without a GPU kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """A folder that is named but missing is a mistake, not a skip."""
    if (named := os.environ.get("SIMZOO_DATA")) and not Path(named).is_dir():
        raise pytest.UsageError(
            f"SIMZOO_DATA names {named!r}, which is no folder; unset it or name the data sets' folder"
        )


def _reasons_to_skip() -> dict[str, str]:
    reasons = {}
    if not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device"
    if not NETWORK:
        reasons["network"] = "talks to the Hugging Face Hub; set SIMZOO_NETWORK=1 to run it"
    if not os.environ.get("SIMZOO_DATA"):
        reasons["shared"] = "needs data sets; let SIMZOO_DATA name a folder that holds them"
    return reasons


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips, with the reason, what this machine cannot run."""
    for marker, reason in _reasons_to_skip().items():
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets, for tests marked `shared`: each of its folders has BEIR's layout."""
    if not (folder := os.environ.get("SIMZOO_DATA")):
        pytest.fail("the fixture shared_data is only for tests marked `shared`: add @pytest.mark.shared")
    return Path(folder)
