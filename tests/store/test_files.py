"""Files of the lab are regular ones, written whole or not at all; results go where a user has pointed them."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from adjointlab.store import files
from adjointlab.store.outputs import is_replaceable, named_twice, write_results

pytestmark = pytest.mark.mpi_skip


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_none_but_regular_files_are_opened(tmp_path: Path) -> None:
    regular, link, pipe = (tmp_path / name for name in ("regular", "link", "pipe"))
    regular.write_bytes(b"text")
    link.symlink_to(regular)
    os.mkfifo(pipe)
    assert files.read_file(regular) == b"text"
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for path in (link, pipe, tmp_path):
        with pytest.raises(OSError, match=str(path)) as error:
            files.open_file(path, os.O_RDONLY)
        assert error.value.errno == (errno.ELOOP if path == link else errno.EINVAL)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0, 0o666)])
def test_a_file_has_the_permissions_that_the_umask_leaves_and_no_child_inherits_it(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        file = files.open_file(tmp_path / "made", os.O_WRONLY | os.O_CREAT)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "made") == mode
    assert not os.get_inheritable(file)
    os.close(file)


@pytest.mark.parametrize("failures", [0, 1, 21])
def test_a_folder_that_goes_is_made_again(tmp_path: Path, failures: int) -> None:
    path, calls = tmp_path / "a" / "b" / "file", list[bool]()

    def make() -> str:
        calls.append(path.parent.is_dir())
        if len(calls) <= failures:
            path.parent.rmdir()
            raise FileNotFoundError
        return "made"

    if failures == 21:
        with pytest.raises(FileNotFoundError):
            files.in_folder(path, make)
        # It is made for each of twenty calls, and the last call is as it finds things.
        assert calls == [True] * 20 + [False]
    else:
        assert files.in_folder(path, make) == "made"
        assert calls == [True] * (failures + 1)


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Python lists folders by another function, and raises nothing"
)
def test_a_folder_that_goes_while_it_is_listed_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    listed = os.scandir

    def gone_by_then(path: str | Path = ".") -> object:
        folder.rmdir()
        return listed(path)

    assert files.paths_in(folder, "*.json") == []
    folder.mkdir()
    monkeypatch.setattr(os, "scandir", gone_by_then)
    assert files.paths_in(folder, "*.json") == []
    assert not folder.exists()


def test_relative_paths_count_from_a_folder_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with files.working_directory(there):
        assert Path.cwd() == there
    assert Path.cwd() == here
    with files.working_directory(tmp_path / "gone"):
        assert Path.cwd() == here
    with files.working_directory(there):
        here.rmdir()
    assert Path.cwd() == there
    there.rmdir()
    with files.working_directory(tmp_path):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == tmp_path


def test_a_file_is_replaced_and_a_link_to_it_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    files.write_atomically(target, b"one")
    link.symlink_to(target)
    files.write_atomically(link, b"two")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"one", b"two", False)
    with pytest.raises(FileExistsError, match="is not a file, and is left as it is"):
        files.write_atomically(tmp_path, b"three")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


def test_results_go_through_a_link_and_keep_the_permissions(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"a longer text")
    target.chmod(0o604)
    link.symlink_to(target)
    node = target.stat().st_ino
    files.overwrite(link, b"text")
    assert (target.read_bytes(), mode_of(target), link.is_symlink()) == (b"text", 0o604, True)
    assert target.stat().st_ino != node
    files.overwrite(tmp_path / "new", b"text")
    assert (tmp_path / "new").read_bytes() == b"text"


def test_results_in_a_private_file_are_private_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace, modes = tmp_path / "file", os.replace, list[int]()
    path.touch(0o600)

    def seen(source: Path, target: Path) -> None:
        modes.append(mode_of(source))
        replace(source, target)
        modes.append(mode_of(target))

    monkeypatch.setattr(os, "replace", seen)
    files.overwrite(path, b"text")
    assert modes == [0o600, 0o600]
    assert path.read_bytes() == b"text"


def test_a_file_in_a_folder_that_may_not_be_written_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, data: bytes, mode: int) -> None:
        raise PermissionError

    path = tmp_path / "file"
    path.write_bytes(b"a longer text")
    monkeypatch.setattr(files, "write_atomically", refused)
    files.overwrite(path, b"text")
    assert path.read_bytes() == b"text"


def test_results_go_into_a_pipe(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    files.overwrite(pipe, b"text")
    reader.join()
    assert got == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("standard", [1, 2])
def test_results_are_added_to_what_is_printed_into_the_same_file(tmp_path: Path, standard: int) -> None:
    path, kept = tmp_path / "file", os.dup(standard)
    printed = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(printed, standard)
        os.write(standard, b"printed, ")
        files.overwrite(path, b"text, ")
        os.write(standard, b"printed")
    finally:
        os.dup2(kept, standard)
        os.close(printed)
        os.close(kept)
    assert path.read_bytes() == b"printed, text, printed"


def test_the_reason_is_told_where_results_cannot_be_written(tmp_path: Path) -> None:
    assert write_results(tmp_path / "file", "a\ud800") == ""
    assert (tmp_path / "file").read_bytes() == b"a\\ud800"
    target = tmp_path / "gone" / "file"
    assert (
        write_results(target, "") == f"the results cannot be written to {target}: No such file or directory"
    )


def test_two_options_may_name_one_device_and_no_file_twice(tmp_path: Path) -> None:
    file, link = str(tmp_path / "file"), tmp_path / "link"
    link.symlink_to(file)
    one = [("--json", file), ("--html", str(tmp_path / "other"))]
    assert named_twice(one) == ""
    assert named_twice([*one, ("--junit", str(link))]) == (
        f"--json and --junit both name {link}; each needs a separate file"
    )
    assert named_twice([("--json", os.devnull), ("--html", os.devnull)]) == ""
    assert [is_replaceable(path) for path in (file, str(tmp_path), os.devnull)] == [True, False, False]
    Path(file).touch()
    assert is_replaceable(file)


def test_what_is_no_text_is_escaped() -> None:
    assert files.encodable("a\udc80é") == "a\\udc80é"
    assert files.printable("aé b") == "aé b"
    assert files.printable("a\x1b[1m\n\u202eb\ud800", keep="\n") == "a\\x1b[1m\n\\u202eb\\ud800"
    assert files.printable("a\tb") == "a\\tb"
