"""Files are the old ones or whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from retrieval.atomic import replacing


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Half a shard under its final name would be taken for a finished one."""
    path = tmp_path / "new" / "shard"
    with replacing(path) as file:
        file.write(b"old")
    with pytest.raises(OSError, match=r"No space left on device: '.*shard'"), replacing(path) as file:
        file.write(b"ne")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_bytes() == b"old"
    assert [found.name for found in path.parent.iterdir()] == ["shard"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_with_the_files_name(tmp_path: Path) -> None:
    """The error comes when the buffer is flushed, after the last write seemed to succeed."""
    path = tmp_path / "shard"
    path.with_name(f"shard.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*shard'"), replacing(path) as file:
        file.write(b"new")
    assert not path.exists()
