"""Files are written all at once, and nothing else is: no link is followed, and no permission is given away."""

import os
import stat
from pathlib import Path

import pytest

import guardwrap
from guardwrap.support.files import write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_size_and_what_it_holds(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", [b"12", b"3"]) == 3
    assert write_whole(tmp_path / "a", iter([b"4"])) == 1
    assert (tmp_path / "a").read_bytes() == b"4"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_the_umask_or_of_the_file_before(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "new", [b"1"])
        assert mode(tmp_path / "new") == 0o666 & ~mask
        (tmp_path / "old").write_bytes(b"0")
        (tmp_path / "old").chmod(0o640)
        write_whole(tmp_path / "old", [b"1"])
        assert mode(tmp_path / "old") == 0o640
    finally:
        os.umask(before)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the name of the new file could be guessed: what is there already is not opened."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".a.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", [b"1"])
    assert victim.read_bytes() == b"precious"
    (tmp_path / "a").symlink_to(victim)
    monkeypatch.undo()
    write_whole(tmp_path / "a", [b"1"])
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"1"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt()])
def test_what_was_there_stays_and_nothing_is_left(tmp_path: Path, error: BaseException) -> None:
    def content():
        yield b"half"
        raise error

    (tmp_path / "a").write_bytes(b"whole")
    with pytest.raises(type(error)):
        write_whole(tmp_path / "a", content())
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a"]


def test_names_as_long_as_a_file_system_takes(tmp_path: Path) -> None:
    assert write_whole(tmp_path / ("a" * 255), [b"1"]) == 1


def test_no_module_opens_a_file_beside_another_by_itself() -> None:
    """All that replace files do so here; a second way would have the same faults again."""
    package = Path(guardwrap.__file__).parent
    marks = (".replace(path)", "os.replace(", "mkstemp", "NamedTemporaryFile")
    found = [path.name for path in package.rglob("*.py") if any(mark in path.read_text() for mark in marks)]
    assert found == ["files.py"]
