"""What lies at a path of ours is what belongs there, or is set aside."""

import errno
import os

import pytest

from embcompare import folders
from embcompare.folders import clear_way, damaged, held_now, misplaced, own_folder, remove, set_aside, size, sweep


def lay(path, what):
    """Put something of each kind at ``path``."""
    if what == "folder":
        path.mkdir()
        (path / "inside").write_text("x")
    elif what == "file":
        path.write_text("x")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "dangling link":
        path.symlink_to(path.parent / "nowhere")
    elif what == "link to itself":
        path.symlink_to(path)
    elif what == "link to a file":
        (path.parent / "elsewhere.file").write_text("x")
        path.symlink_to(path.parent / "elsewhere.file")
    elif what == "link to a folder":
        (path.parent / "elsewhere.folder").mkdir()
        path.symlink_to(path.parent / "elsewhere.folder")
    return path


KINDS = ("folder", "file", "pipe", "dangling link", "link to itself", "link to a file", "link to a folder")


@pytest.mark.parametrize("wanted", ["file", "folder"])
@pytest.mark.parametrize("what", ["nothing", *KINDS])
def test_what_is_of_the_wrong_kind_is_told(tmp_path, wanted, what):
    reason = misplaced(lay(tmp_path / "x", what), wanted)
    assert bool(reason) == (what not in ("nothing", wanted, f"link to a {wanted}"))
    assert not reason or reason.endswith(f"lies where its {wanted} belongs")
    if what == "link to itself":
        with pytest.raises(OSError, match="symbolic links"):
            misplaced(tmp_path / "x" / "y", wanted)
    else:
        assert misplaced(tmp_path / "x" / "y", wanted) == ""


@pytest.mark.parametrize("what", ["folder", "pipe", "dangling link", "link to itself", "link to a folder"])
def test_it_is_set_aside_as_it_is_and_what_it_links_to_stays(tmp_path, what, caplog):
    path = lay(tmp_path / "x", what)
    assert clear_way(path, "file", tmp_path).endswith("lies where its file belongs")
    assert not os.path.lexists(path)
    moved = tmp_path / "damaged" / "x"
    assert os.path.lexists(moved)
    assert moved.is_symlink() == ("link" in what)
    assert "was moved to" in caplog.text
    assert what != "link to a folder" or (tmp_path / "elsewhere.folder").is_dir()
    assert clear_way(path, "file", tmp_path) == ""


def test_few_things_stay_aside_and_one_of_the_same_name_gives_way(tmp_path):
    for number in range(20):
        set_aside(lay(tmp_path / f"x{number}", "folder"), tmp_path)
    assert len(damaged(tmp_path)) == 8
    for what in ("file", "folder", "file"):
        set_aside(lay(tmp_path / "same", what), tmp_path)
    assert (tmp_path / "damaged" / "same").is_file()


def test_where_things_are_set_aside_may_itself_be_of_the_wrong_kind(tmp_path):
    (tmp_path / "damaged").write_text("not ours")
    set_aside(lay(tmp_path / "x", "folder"), tmp_path)
    assert (tmp_path / "damaged" / "x").is_dir()
    assert sorted(path.read_text() for path in damaged(tmp_path) if path.is_file()) == ["not ours"]


def test_a_folder_of_ours_is_made_whatever_lies_there_except_a_link_to_a_disk_that_is_not_there(tmp_path):
    assert own_folder(tmp_path / "new", tmp_path) == ""
    assert own_folder(lay(tmp_path / "taken", "file"), tmp_path) == "a file lies where its folder belongs"
    assert (tmp_path / "taken").is_dir()
    link = lay(tmp_path / "link", "link to a folder")
    assert own_folder(link, tmp_path) == ""
    assert link.is_symlink()
    with pytest.raises(OSError, match="it is a link to a folder that is not there") as caught:
        own_folder(lay(tmp_path / "gone", "dangling link"), tmp_path)
    assert caught.value.errno == errno.ENOENT
    assert (tmp_path / "gone").is_symlink()


def test_removing_takes_anything_and_follows_no_link(tmp_path):
    for number, what in enumerate(KINDS):
        path = lay(tmp_path / f"{number}", what)
        remove(path)
        assert not os.path.lexists(path)
    assert (tmp_path / "elsewhere.folder").is_dir()
    remove(tmp_path / "never there")
    remove(tmp_path / "elsewhere.file" / "below a file")


def test_sizes_are_of_all_within_and_no_link_is_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert size(tmp_path / "a") == size(tmp_path / "a" / "b") == 5
    assert size(tmp_path / "loop") < 4096
    assert size(tmp_path / "none") == 0


def test_a_lock_that_is_a_folder_is_set_aside_and_a_held_one_is_not_taken(tmp_path):
    path = lay(tmp_path / "x.lock", "folder")
    with held_now(path, tmp_path) as held:
        assert held
        with held_now(path, tmp_path) as again:
            assert not again
    assert not path.exists()
    assert (tmp_path / "damaged" / "x.lock").is_dir()


def test_a_leftover_that_is_a_folder_is_swept_too(tmp_path):
    path = lay(tmp_path / f".embcompare.{folders.host()}.999999999.00.tmp", "folder")
    sweep(tmp_path)
    assert not path.exists()
