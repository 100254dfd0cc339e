"""Tests of output files: names, checks before recording, and rescue elsewhere if the destination disappears."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from pyprof.cli import output_files
from pyprof.errors import OutputError
from pyprof.exporters import output_file
from tests.cli.support import BUSY, PYPROF, python
from tests.collapsed import sampled
from tests.support import missing, need

pytestmark = pytest.mark.system


def _writing(data: bytes) -> Callable[[BinaryIO], None]:
    def write(out: BinaryIO) -> None:
        out.write(data)

    return write


_profile = _writing(b"profile")


def test_marks_in_a_file_name_are_replaced() -> None:
    name = output_files.Names(12, "a/b c", 0, 3).expand("%n-%p-%i-100%%-%x.html")
    assert name == "a_b_c-12-3-100%-%x.html"


def test_missing_folder_is_refused_before_recording(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a directory"):
        output_files.check_writable(str(tmp_path / "no" / "a.html"))


def test_directory_as_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a directory"):
        output_files.check_writable(str(tmp_path))


def test_check_leaves_nothing_behind(tmp_path: Path) -> None:
    output_files.check_writable(str(tmp_path / "a.html"))
    assert os.listdir(tmp_path) == []


def test_output_that_cannot_be_written_is_offered_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with pytest.raises(OutputError) as caught:
        output_files.write(str(tmp_path / "gone" / "a.html"), _profile)
    (other,) = elsewhere.iterdir()
    assert other.read_bytes() == b"profile"
    assert other.name.endswith("a.html")
    assert str(other) in caught.value.message


def test_full_disk_without_temporary_folder_and_home_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.delenv("HOME")
    with pytest.raises(OutputError, match="the profile is in /dev/shm/") as caught:
        output_files.write(str(tmp_path / "gone" / "a.html"), _profile)
    other = Path(caught.value.hint.split()[1])
    assert other.read_bytes() == b"profile"
    other.unlink()


def test_offer_elsewhere_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_bytes(b"of another recording")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError):
        output_files.write(str(tmp_path / "gone" / "a.html"), _profile)
    assert (tmp_path / "a.html").read_bytes() == b"of another recording"


def test_name_that_no_file_can_have_is_refused_before_recording(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="File name too long"):
        output_files.check_writable(str(tmp_path / ("a" * 300)))


def test_longest_name_of_a_file_is_written(tmp_path: Path) -> None:
    target = str(tmp_path / ("a" * 255))
    output_files.check_writable(target)
    assert output_files.write(target, _profile) == target
    assert os.listdir(tmp_path) == ["a" * 255]


def test_long_process_name_leaves_room_in_the_file_name() -> None:
    assert len(output_files.Names(1 << 22, "n" * 255, 0, 3).expand("pyprof-%n-%p-%t-%i.speedscope.json")) < 128


def test_output_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        output_files.write(str(tmp_path / "a.html"), _profile)
    finally:
        os.umask(before)
    assert (tmp_path / "a.html").stat().st_mode & 0o777 == 0o640


def test_full_disk_keeps_the_old_file_and_offers_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write to /dev/full, where every write fails with ENOSPC."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match="No space left"):
        output_files.write("/dev/full", _profile)
    (other,) = tmp_path.iterdir()
    assert other.read_bytes() == b"profile"


def test_writer_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_bytes(b"old")

    def fail(out: object) -> None:
        raise ValueError("exporter")

    with pytest.raises(ValueError, match="exporter"):
        output_files.write(str(target), fail)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.html"]


def written(path: Path | str, data: bytes = b"profile") -> None:
    output_files.check_writable(str(path))
    assert output_files.write(str(path), _writing(data)) == str(path)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o400])
def test_mode_of_a_file_of_ours_stays(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(b"old")
    path.chmod(mode)
    if not os.access(path, os.W_OK):
        with pytest.raises(OutputError, match="permission denied"):
            output_files.check_writable(str(path))
        return
    written(path)
    assert path.read_bytes() == b"profile"
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("mode", "after"), [(0o600, 0o600), (0o666, 0o640)])
def test_file_of_another_user_makes_ours_no_wider(mode: int, after: int, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("needs root: a file of another user")
    path = tmp_path / "a.html"
    path.write_bytes(b"theirs")
    path.chmod(mode)
    os.chown(path, 65534, 65534)
    before = os.umask(0o027)
    try:
        written(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == after
    assert path.stat().st_uid == 0


@pytest.mark.parametrize("target", ["file", "/dev/null", "pipe", "missing"])
def test_link_is_replaced_and_what_it_leads_to_stays(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "a.html"
    link.symlink_to(target)
    written(link)
    assert not link.is_symlink()
    assert link.read_bytes() == b"profile"
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert (tmp_path / "pipe").is_fifo()
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_output_that_is_no_file_is_refused_before_recording(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path = Path("/dev/urandom")
    with pytest.raises(OutputError, match=f"is a {kind}, not a file") as caught:
        output_files.check_writable(str(path))
    assert caught.value.hint.endswith(f"-o - > {path}")


def test_file_planted_while_recording_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a pipe in the place of the output, which would block open(2) until a reader comes."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = tmp_path / "a.html"
    output_files.check_writable(str(path))
    os.mkfifo(path)
    with pytest.raises(OutputError, match="is a pipe"):
        output_files.write(str(path), _profile)
    (other,) = (tmp_path / "tmp").iterdir()
    assert other.read_bytes() == b"profile"
    assert other.stat().st_mode & 0o777 == 0o600


def test_name_of_another_user_in_a_shared_folder_is_refused_before_recording(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("needs root: a folder of another user")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "a.html").write_bytes(b"theirs")
    (folder / "a.html").chmod(0o666)
    check = f"from pyprof.cli.output_files import check_writable; check_writable({str(folder / 'a.html')!r})"
    for parent in (tmp_path, *list(tmp_path.parents)[:-2]):  # all folders below /tmp
        parent.chmod(0o755)
    switch = [need("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c"]
    done = subprocess.run([*switch, check], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert "cannot be written: permission denied" in done.stderr
    written(folder / "a.html")


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_streams_are_written_in_place_by_their_names(name: str, tmp_path: Path) -> None:
    """Append to standard output that is a file with content."""
    code = f"from pyprof.cli import output_files; output_files.check_writable({name!r}); "
    code += f"output_files.write({name!r}, lambda out: out.write(b'profile') and None)"
    with (tmp_path / "out").open("wb") as out:
        out.write(b"before ")
        out.flush()
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == b"before profile"


def test_substituted_process_of_a_shell_is_written_to(tmp_path: Path) -> None:
    code = "import sys; from pyprof.cli import output_files; name = sys.argv[1]; output_files.check_writable(name); "
    code += "output_files.write(name, lambda out: out.write(b'profile') and None)"
    script = f'{sys.executable} -c "$0" >(cat > {tmp_path / "out"}); wait $!'
    subprocess.run([need("bash"), "-c", script, code], check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == b"profile"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Return a folder of another user."""
    if os.geteuid() != 0:
        missing("needs root: a folder of another user")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    return tmp_path / "theirs"


def test_link_of_another_user_in_place_of_a_folder_leads_to_its_own_only(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "a.html").write_bytes(b"precious")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    for name, text in (("all", "../ours"), ("there", str(tmp_path / "ours")), ("again", "all/.")):
        (theirs / name).symlink_to(text)
        os.lchown(theirs / name, 65534, 65534)
        with pytest.raises(OutputError, match="it is a symbolic link of another user"):
            output_files.write(str(theirs / name / "a.html"), _profile)
    assert (tmp_path / "ours" / "a.html").read_bytes() == b"precious"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3
    (theirs / "mine").symlink_to(".")
    os.lchown(theirs / "mine", 65534, 65534)
    output_files.write(str(theirs / "mine" / "a.html"), _profile)
    assert (theirs / "a.html").read_bytes() == b"profile"


def test_links_of_ours_and_of_proc_are_followed_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    output_files.write(f"{tmp_path}/link/../link/./a.html", _profile)
    assert (tmp_path / "real" / "a.html").read_bytes() == b"profile"
    output_files.write(f"/proc/self/root{tmp_path}/link/b.html", _profile)
    assert (tmp_path / "real" / "b.html").read_bytes() == b"profile"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OutputError, match="symbolic links"):
        output_files.write(f"{tmp_path}/round/a.html", _profile)


def test_names_of_a_folder_are_ours_where_nobody_else_gives_them(tmp_path: Path, theirs: Path) -> None:
    path = str(tmp_path / "a.pyprof")
    for mode, ours in ((0o755, True), (0o777, False)):
        tmp_path.chmod(mode)
        assert output_file.is_private(path) == ours
    assert not output_file.is_private(str(theirs / "a.pyprof"))
    assert output_file.is_private("/tmp/a.pyprof") == (Path("/proc/sys/fs/protected_symlinks").read_text() != "0\n")


def test_descriptor_that_is_not_open_is_refused_before_recording() -> None:
    with pytest.raises(OutputError, match="Bad file descriptor"):
        output_files.check_writable("/dev/fd/987654")


def test_outputs_go_to_programs_that_the_shell_has_started(tmp_path: Path) -> None:
    """Write to -o >(gzip > FILE), which is a file descriptor that pyprof inherits."""
    with python(BUSY) as target:
        outputs = " ".join(f"{option} >(cat > {tmp_path}/{name})" for option, name in (("-o", "a"), ("--summary", "b")))
        for seconds in ("0.3", "3", "27"):  # until the target had a processor, on a busy machine
            command = shlex.join([*PYPROF, "record", "-p", str(target.pid), "-d", seconds, "-f", "collapsed"])
            # cat reads until pyprof and the process substitutions have ended
            script = f"{{ {command} {outputs} ; }} 2>&1 | cat"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=200, check=False)
            if sampled((tmp_path / "a").read_text()):
                break
    assert "cannot be written" not in done.stdout
    assert "_start" in {frames[0] for frames, _ in sampled((tmp_path / "a").read_text())}
    assert (tmp_path / "b").read_text().startswith("{")
