"""Guards files that appear whole or not at all, under the name they were given."""

import errno
import os

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from aplc.errors import AplcError, ModelError
from aplc.files import atomic_path, atomic_write, messages, new_folder, output_stream


def test_link_in_a_model_folder_is_replaced_and_its_target_stays(tmp_path):
    """A store that many folders link to, as the hub's cache, is never changed."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link) as out:
        out.write(b"new")
    assert (link.read_text(), target.read_text()) == ("new", "old")


def test_link_that_a_user_names_is_followed(tmp_path):
    target, link, dangling = tmp_path / "folder" / "target", tmp_path / "link", tmp_path / "dangling"
    target.parent.mkdir()
    target.write_text("old")
    for source, to in ((link, target), (dangling, tmp_path / "folder" / "new")):
        source.symlink_to(to)
        with output_stream(source) as out:
            out.write(b"new")
        assert (source.is_symlink(), to.is_symlink(), to.read_text()) == (True, False, "new")
    assert sorted(path.name for path in target.parent.iterdir()) == ["new", "target"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe, link, loop = (tmp_path / name for name in ("pipe", "link", "loop"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    refused = [(pipe, "a device or a pipe"), (tmp_path, "a folder"), (link, "a device or a pipe")]
    for write, own in ((atomic_write, []), (output_stream, [(loop, "a link"), ("/dev/null", "a device or a pipe")])):
        for path, kind in refused + own:
            with pytest.raises(AplcError, match=f"is {kind}.* or - for standard output"), write(type(pipe)(path)):
                pass
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert loop.is_symlink()


def test_standard_output_by_another_name_is_refused(tmp_path):
    """Where it is a file, too: replacing it would lose what was printed, or what `>>` is to keep."""
    before = os.dup(1)
    try:
        with (tmp_path / "printed").open("ab") as printed:
            os.dup2(printed.fileno(), 1)
            for name in ("/dev/stdout", tmp_path / "printed"):
                with pytest.raises(AplcError, match="write - instead"), output_stream(type(tmp_path)(name)):
                    pass
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert os.path.islink("/dev/stdout")


def test_only_one_output_goes_to_standard_output(tmp_path):
    dash = type(tmp_path)("-")
    with pytest.raises(AplcError, match="only one output"):
        messages(dash, dash)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("4096 requested and 1022 written"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_disk_names_the_file(tmp_path, error):
    with pytest.raises(OSError, match="No space left on device; make room") as first, atomic_path(tmp_path / "x"):
        raise error
    assert first.value.filename == str(tmp_path / "x")
    (tmp_path / "x").write_text("old")
    with pytest.raises(OSError, match="before is intact; make room"), atomic_path(tmp_path / "x"):
        raise error
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_tensors_that_can_not_be_written_name_the_file(tmp_path):
    with (
        pytest.raises(ModelError, match=rf"{tmp_path}/x: can't be written \(why\)"),
        atomic_path(tmp_path / "x"),
    ):
        raise SafetensorError("why")
    assert not list(tmp_path.iterdir())


def test_failure_leaves_nothing(tmp_path):
    for write in (atomic_write, new_folder):
        with pytest.raises(RuntimeError), write(tmp_path / "x"):
            raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_new_folder_may_hold_folders(tmp_path):
    """As a virtual environment of `bench/peers.py` does."""
    with new_folder(tmp_path / "x") as temporary:
        (temporary / "file").write_text("one")
        (temporary / "folder").mkdir()
        (temporary / "folder" / "file").write_text("two")
    assert (tmp_path / "x" / "file").read_text() == "one"
    assert (tmp_path / "x" / "folder" / "file").read_text() == "two"


def test_folder_that_can_not_be_written_to_is_reported_with_the_name_that_was_given(tmp_path, monkeypatch):
    def refuse(temporary, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(temporary))

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(PermissionError) as found, output_stream(tmp_path / "out.csv"):
        pass
    assert found.value.filename == str(tmp_path / "out.csv")


def test_new_files_and_folders_have_the_permissions_of_any_other_and_no_thread_sees_another_umask(
    tmp_path, monkeypatch
):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("the umask is the whole process'"))
            with atomic_write(tmp_path / "file") as out:
                out.write(b"new")
            with atomic_path(tmp_path / "tensors") as temporary:
                save_file({"a": np.zeros(3)}, temporary)  # which makes a private file
            with new_folder(tmp_path / "folder") as temporary:
                (temporary / "file").write_text("new")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "tensors")} == {0o640}
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_outputs_do_not_replace_what_is_read(tmp_path):
    source, link = tmp_path / "a.json", tmp_path / "link.json"
    source.write_text("[]")
    link.symlink_to(source)
    for output, read in ((source, link), (link, source), (tmp_path / "." / "a.json", source)):
        with pytest.raises(AplcError, match="is mine, and would be replaced"):
            messages(output, reads={read: "mine"})
    messages(tmp_path / "b.json", reads={source: "mine"})
