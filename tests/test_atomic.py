"""Files are the old ones or whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simzoo.core.files import replacing


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Half a shard under its final name would be taken for a finished one; the error comes late, at the flush."""
    path = tmp_path / "new" / "shard"
    with replacing(path) as file:
        file.write(b"old")
    path.with_name(f"shard.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*shard'"), replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in path.parent.iterdir()] == ["shard"]
