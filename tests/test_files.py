"""Guards files that appear whole or not at all, under the name they were given."""

import os

import pytest

from aplc.files import atomic_write, new_folder


def test_link_is_replaced_and_its_target_stays(tmp_path):
    """A store that many folders link to, as the hub's cache, is never changed."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link) as out:
        out.write(b"new")
    assert (link.read_text(), target.read_text()) == ("new", "old")


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, kind in ((pipe, "a device or a pipe"), (tmp_path, "a folder")):
        with pytest.raises(OSError, match=f"is {kind}"), atomic_write(path):
            pass
    assert pipe.is_fifo()


def test_failure_leaves_nothing(tmp_path):
    for write in (atomic_write, new_folder):
        with pytest.raises(RuntimeError), write(tmp_path / "x"):
            raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_new_folder_may_hold_folders(tmp_path):
    """As a virtual environment of `bench/peers.py` does."""
    with new_folder(tmp_path / "x") as aside:
        (aside / "file").write_text("one")
        (aside / "folder").mkdir()
        (aside / "folder" / "file").write_text("two")
    assert (tmp_path / "x" / "file").read_text() == "one"
    assert (tmp_path / "x" / "folder" / "file").read_text() == "two"
