"""Files are the old ones or whole."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from simzoo.core.files import copy_folder, replacing


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Half a shard under its final name would be taken for a finished one; the error comes late, at the flush."""
    path = tmp_path / "new" / "shard"
    with replacing(path) as file:
        file.write(b"old")
    path.with_name(f"shard.{socket.gethostname()}.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*shard'"), replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in path.parent.iterdir()] == ["shard"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_copy_onto_a_full_disk_names_a_file(tmp_path: Path) -> None:
    """shutil says it as a list of Python, of every file: a line of thousands of characters, which nobody reads."""
    for name in ("source/a", "source/b", "source/deep/c", "source/out"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10_000))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "b").symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"^cannot write {tmp_path}/target/b: .*No space left on device"):
        copy_folder(tmp_path / "source", tmp_path / "target", "out")
    assert (tmp_path / "target" / "deep" / "c").read_bytes() == bytes(10_000)
    assert not (tmp_path / "target" / "out").exists()
