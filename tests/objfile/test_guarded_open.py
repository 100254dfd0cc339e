"""Tests of opening paths that another process chose: where they may lead, and with whose access rights."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from pyprof.objfile.untrusted_file_access import Rights, find_file, open_file, read_file, rights_below

OTHER = Rights(uid=os.geteuid() + 4711, groups=frozenset({os.getegid() + 4711}))


def content(root: Path | str, name: str, rights: Rights | None = None) -> bytes:
    return read_file(str(root), name, 1 << 20, rights)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a root folder with a file, next to a file outside of it."""
    (tmp_path / "outside").write_bytes(b"outside")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "file").write_bytes(b"inside")
    return root


@pytest.mark.parametrize(
    "name",
    ["/folder/file", "folder//./file", "../../folder/file", "folder/../folder/file"],
)
def test_names_of_a_file_below_the_root_lead_to_it(root: Path, name: str) -> None:
    assert content(root, name) == b"inside"


@pytest.mark.parametrize("target", ["/folder/file", "../../../folder/file", "folder/file"])
def test_links_start_at_the_root_and_stay_below_it(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    (root / "way").symlink_to("/folder/..")
    assert content(root, "link") == content(root, "/way/link") == b"inside"
    (root / "folder" / "deep").symlink_to("/folder/file")
    assert content(root, "folder/deep") == b"inside"


@pytest.mark.parametrize("target", ["/outside", "../outside", "{outside}", "/folder/../../outside"])
def test_no_link_leads_out_of_the_root(root: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(outside=root.parent / "outside"))
    with pytest.raises(FileNotFoundError):
        content(root, "/link")
    (root / "up").symlink_to("..")
    with pytest.raises(FileNotFoundError):
        content(root, "/up/outside")


def test_last_link_is_not_followed_where_a_plain_file_is_meant(root: Path) -> None:
    (root / "link").symlink_to("folder/file")
    (root / "way").symlink_to("folder")
    os.close(find_file(str(root), "way/file", follow=False))
    with pytest.raises(OSError, match="symbolic links"):
        find_file(str(root), "link", follow=False)


@pytest.mark.parametrize(
    "name", ["/proc/self/environ", "/proc/version", "/proc/self/root/etc/passwd", "/sys/kernel/mm"]
)
def test_what_the_kernel_makes_up_is_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(name)
    for known in (name, str(tmp_path / "link")):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            content("/", known)


def test_links_of_proc_are_not_followed_from_inside(tmp_path: Path) -> None:
    """Open /proc/self/fd/N, which the kernel resolves by inode and so leads anywhere."""
    (tmp_path / "secret").write_bytes(b"secret")
    with (tmp_path / "secret").open("rb") as file:
        assert content(tmp_path, "secret") == b"secret"
        with pytest.raises(OSError, match="symbolic links"):
            content("/", f"/proc/self/fd/{file.fileno()}")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "nothing"])
def test_path_that_is_no_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    with pytest.raises(OSError, match="No such file" if kind == "nothing" else "not a regular file"):
        content("/", str(path))
    if kind == "pipe":  # with a reader, the open of a writer would succeed
        with pytest.raises(OSError, match="No such device"):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def test_circles_and_endless_names_end(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "grows").symlink_to("grows/" * 100)
    before = os.listdir("/proc/self/fd")
    for name in ("a", "grows", "folder/../" * 1000 + "folder/file", "folder\0", "\udc80" * 5000):
        with pytest.raises(OSError, match=r"\w"):
            content(root, name)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(("mode", "readable"), [(0o604, True), (0o640, False), (0o600, False), (0o770, False)])
def test_file_is_read_for_a_process_that_may_read_it(root: Path, mode: int, readable: bool) -> None:
    path = root / "folder" / "file"
    path.chmod(mode)
    ours = Rights(os.geteuid(), frozenset({os.getegid()}))
    group = Rights(OTHER.uid, frozenset({path.stat().st_gid}))
    assert content(root, "folder/file", ours) == b"inside"
    assert content(root, "folder/file", Rights(everything=True)) == b"inside"
    assert allowed(root, OTHER) == readable
    assert allowed(root, group) == bool(mode & 0o040)


def allowed(root: Path, rights: Rights) -> bool:
    try:
        return content(root, "folder/file", rights) == b"inside"
    except PermissionError:
        return False


def test_folder_that_the_process_may_not_enter_hides_its_files(root: Path) -> None:
    assert allowed(root, OTHER)
    (root / "folder").chmod(0o700)
    assert not allowed(root, OTHER)
    (root / "folder").chmod(0o701)
    assert allowed(root, OTHER)
    (root / "way").symlink_to("folder/file")
    (root / "folder").chmod(0o700)
    with pytest.raises(PermissionError):
        content(root, "way", OTHER)


def test_access_list_that_may_refuse_refuses(root: Path) -> None:
    """Set a POSIX ACL of user::rw-, user:4712:---, group::r--, mask::r--, other::r--."""
    entries = [(1, 6, 0xFFFFFFFF), (2, 0, 4712), (4, 4, 0xFFFFFFFF), (0x10, 4, 0xFFFFFFFF), (0x20, 4, 0xFFFFFFFF)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    path = root / "folder" / "file"
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError:
        return  # the file system has no ACLs
    assert path.stat().st_mode & 0o777 == 0o644
    assert not allowed(root, OTHER)
    assert allowed(root, Rights(os.geteuid()))


def test_our_own_rights_need_no_second_check() -> None:
    assert rights_below("/") is None
    own = rights_below(f"/proc/{os.getpid()}/root")
    assert own == (None if os.geteuid() else Rights(0, frozenset({os.getegid(), *os.getgroups()}), True))


def test_ended_process_has_no_rights() -> None:
    assert rights_below("/proc/999999999/root") == (None if os.geteuid() else Rights())


def test_no_more_is_read_than_asked_for(root: Path) -> None:
    before = os.listdir("/proc/self/fd")
    assert read_file(str(root), "folder/file", 3) == b"ins"
    assert os.listdir("/proc/self/fd") == before
    fd = open_file(str(root), "folder/file")
    assert os.read(fd, 100) == b"inside"
    os.close(fd)
