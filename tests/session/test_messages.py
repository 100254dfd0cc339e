"""Tests of messages between sampler and worker: any size, file descriptors, and responses that contain values only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.linux.process_sandbox import create_memory_file
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import FrameKind, Profile
from pyprof.model.sample_batch import OuterStack
from pyprof.model.summary import Summary
from pyprof.model.unwind_result import Trust
from pyprof.session.worker import message_channel, response_codec
from pyprof.session.worker.message_channel import Channel, Closed, Received
from pyprof.session.worker.message_codec import Packer, SamplerCalls, Unpacker
from pyprof.session.worker.messages import Response
from pyprof.session.worker.response_codec import BatchTaken, Done, RequestFailed, ResponseRefused, SamplerCall
from tests.exporters.profiles import golden
from tests.session.support import stacks
from tests.support import missing, need


def test_message_of_any_size_arrives_with_its_descriptors(tmp_path: Path) -> None:
    ours, theirs = Channel.pair()
    (tmp_path / "sent").write_text("through the socket")
    with open(tmp_path / "sent", "rb") as file:
        for sizes in ([0], [5, 0, 3], [1 << 14], [1 << 20, 7, 1 << 22], [1] * 600):
            parts = [os.urandom(size) for size in sizes]
            ours.send(parts, [file.fileno()])
            received = theirs.receive(5)
            assert received is not None
            assert [bytes(part) for part in received.parts] == parts
            (fd,) = received.fds
            assert os.pread(fd, 7, 0) == b"through"
            os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    assert theirs.receive(0) is None
    ours.close()
    with pytest.raises(Closed):
        theirs.receive(5)
    with pytest.raises(Closed):
        theirs.send([b"nobody listens"])
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_full_channel_holds_nobody_up_and_descriptors_end_with_the_program() -> None:
    ours, theirs = Channel.pair()
    while ours.try_send([b"a notice"], [0]):
        pass
    received = theirs.receive(0)
    assert received is not None
    assert not os.get_inheritable(*received.fds)
    os.close(*received.fds)
    ours.close()
    theirs.close()


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


@pytest.mark.parametrize("value", [_Harmful(), Channel, os.getpid, np.array([_Harmful()], object)])
def test_answer_that_names_code_is_refused(value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    with pytest.raises(ResponseRefused):
        response_codec.unpacked_profile((data,))
    with pytest.raises(ResponseRefused):
        response_codec.unpack([memoryview(data)])


def test_value_that_is_no_profile_is_refused() -> None:
    with pytest.raises(ResponseRefused):
        response_codec.unpacked_profile((pickle.dumps(Summary()),))


def test_profile_whose_enumerations_pickle_by_name_comes_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send enumerations as CPython 3.11.0 to 3.11.3 pickle them, through a call of getattr."""
    for kind in (FrameKind, Trust):
        monkeypatch.setattr(kind, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    found = golden()
    assert b"getattr" in pickle.dumps(found)
    assert stacks(response_codec.unpacked_profile(response_codec.packed_value(found))) == stacks(found)


@given(st.lists(st.binary(max_size=64), min_size=1, max_size=4))
def test_answers_of_chance_are_refused_or_taken(parts: list[bytes]) -> None:
    with contextlib.suppress(ResponseRefused):
        response_codec.unpack([memoryview(part) for part in parts])


@pytest.mark.parametrize(
    "answer",
    [
        Done(3, (1, 1 << 60), (b"a", b"bc")),
        Done(4, None, (b"a",)),
        RequestFailed(0, "ValueError", "no", "hint", "trace"),
        SamplerCall("read", 7, 1 << 63, 4096),
    ],
)
def test_answers_come_as_they_were_sent(answer: response_codec.Answer) -> None:
    found = response_codec.unpack([memoryview(part) for part in response_codec.pack(answer)])
    if isinstance(found, Done):
        found = Done(found.number, found.functions, tuple(bytes(part) for part in found.data))
    assert found == answer


def test_columns_of_feedback_come_as_they_were_sent() -> None:
    sent = BatchTaken(5, np.array([1, 2], np.uint64), np.array([0, 9], np.uint64), np.array([True, False]), True, 7)
    found = response_codec.unpack([memoryview(part) for part in response_codec.pack(sent)])
    assert isinstance(found, BatchTaken)
    assert (found.number, found.look, found.took_ns) == (5, True, 7)
    for name in ("top", "missing", "stop"):
        assert np.array_equal(getattr(found, name), getattr(sent, name))


def test_rows_that_are_one_in_memory_are_sent_once() -> None:
    values = np.broadcast_to(np.array([1, 7], np.int64), (100_000, 2))
    sent = replace(golden(), values=values)
    parts = response_codec.packed_value(sent)
    assert sum(map(len, parts)) < 100_000
    found = response_codec.unpacked_profile(parts)
    assert found.values.strides == values.strides
    assert np.array_equal(found.values, values)
    for few in (values[:0], np.broadcast_to(np.array([[1], [7]]), (2, 3)), np.array([[3, 4], [5, 6]])):
        again = response_codec.unpacked_profile(response_codec.packed_value(replace(sent, values=few)))
        assert np.array_equal(again.values, few)


@pytest.mark.parametrize(
    ("row", "count"), [((1, 2), 1 << 27), ((1, 2), -1), ((1.5,), 3), (((1, 2),), 3), ((1 << 64,), 3)]
)
def test_rows_that_cannot_be_are_refused(row: tuple[object, ...], count: int) -> None:
    class Made:
        def __reduce__(self) -> tuple[Any, ...]:
            return response_codec.all_alike, (row, count)

    with pytest.raises(ResponseRefused):
        response_codec.unpacked_value([pickle.dumps(Made())], Profile)


def sent_file(file: int, seals: int = 0) -> Received | None:
    """Return what is received for a message whose parts are in this file."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = Channel(theirs)
    with ours:
        if seals:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        head = struct.pack("<QII", 16, 1, 1)
        socket.send_fds(ours, [head], [file])
        try:
            return end.receive(5)
        finally:
            end.close()


@contextlib.contextmanager
def memory(data: bytes) -> Iterator[int]:
    file = os.memfd_create("sent", os.MFD_ALLOW_SEALING)
    try:
        os.write(file, data)
        yield file
    finally:
        os.close(file)


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
ONE_PART = struct.pack("<QQ", 3, 0) + b"abc".ljust(16)


@pytest.mark.parametrize("seals", [SEALS, SEALS & ~fcntl.F_SEAL_SHRINK, SEALS & ~fcntl.F_SEAL_WRITE, 0])
def test_file_that_its_sender_changes_later_is_what_it_was(seals: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with memory(ONE_PART) as file:
        found = sent_file(file, seals)
        with contextlib.suppress(PermissionError):
            os.pwrite(file, bytes(len(ONE_PART)), 0)
        with contextlib.suppress(PermissionError):
            os.ftruncate(file, 0)
        assert found is not None
        assert [bytes(part) for part in found.parts] == [b"abc"]
    del found
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seals", [SEALS, 0])
def test_file_that_is_too_short_is_refused(seals: int) -> None:
    with memory(ONE_PART[:-1]) as file, pytest.raises(Closed, match="cut off"):
        sent_file(file, seals)


def test_what_is_no_memory_file_is_not_read(tmp_path: Path) -> None:
    """Refuse other files, because a read may block forever."""
    path = tmp_path / "part"
    path.write_bytes(ONE_PART)
    reading, writing = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    for file in (reading, os.open(path, os.O_RDONLY)):
        with pytest.raises(Closed, match="no memory file"):
            sent_file(file)
        os.close(file)
    os.close(writing)
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_message_that_the_kernel_does_not_seal_comes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a file that cannot be sealed, because a process has a writable mapping of it."""
    held: list[mmap.mmap] = []

    def mapped(name: str, sealing: bool) -> int:
        file = create_memory_file(name, sealing)
        os.ftruncate(file, 1 << 21)
        held.append(mmap.mmap(file, 1 << 21))
        return file

    monkeypatch.setattr(message_channel, "create_memory_file", mapped)
    ours, theirs = Channel.pair()
    ours.send([bytes(1 << 20), b"abc"])
    received = theirs.receive(5)
    assert received is not None
    held[0][:] = b"x" * (1 << 21)
    assert [bytes(part) for part in received.parts] == [bytes(1 << 20), b"abc"]
    ours.close()
    theirs.close()


def test_memory_of_a_message_is_given_back_when_nobody_looks_at_it() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:pyprof")

    gc.collect()  # what earlier tests of this process have left
    before = mapped()
    ours, theirs = Channel.pair()
    ours.send([bytes(1 << 20), b"abc"])
    received = theirs.receive(5)
    assert received is not None
    part = received.parts[1]
    assert part.readonly
    del received
    assert (mapped(), bytes(part)) == (before + 1, b"abc")
    del part
    assert mapped() == before
    ours.close()
    theirs.close()


def test_outer_part_of_a_stack_does_not_keep_its_message() -> None:
    outer = OuterStack(0x1000, np.arange(1 << 16, dtype=np.uint64), 7)
    parts, _ = Packer(lambda known: None).pack(Response(outer))
    received = [np.frombuffer(bytes(part), np.uint8) for part in parts]
    alive = [weakref.ref(part) for part in received]
    found = Unpacker(cast(SamplerCalls, None)).unpack(Received(tuple(part.data for part in received), ()))
    assert isinstance(found, Response)
    assert isinstance(found.value, OuterStack)
    assert np.array_equal(found.value.words, outer.words)
    assert not found.value.words.flags.writeable
    del received
    assert [each() for each in alive] == [None] * len(alive)
    assert len(alive) >= 2


_STRICT = """
echo 2 > /proc/sys/vm/memfd_noexec || echo "this kernel refuses nothing"
exec "$0" -c 'if 1:
    import sys
    from pyprof.collectors.linux.process_sandbox import create_memory_file
    from pyprof.session.worker.message_channel import Channel
    ours, theirs = Channel.pair()
    ours.send([bytes(1 << 20)])
    print(len(theirs.receive(5).parts[0]), create_memory_file("plain") > 2)'
"""


@pytest.mark.system
def test_host_that_allows_no_memory_to_become_a_program_is_obeyed() -> None:
    """Set vm.memfd_noexec, which is separate for each pid namespace."""
    shell = [need("unshare"), "--pid", "--fork", "--mount-proc", "sh", "-c", _STRICT, sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in done.stderr:
        missing("needs root: unshare --pid")
    assert done.stdout.splitlines()[-1:] == ["1048576 True"], done.stderr


def test_kernels_before_6_3_have_memory_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.memfd_create
    flags: list[int] = []

    def refusing(name: str, asked: int) -> int:
        flags.append(asked)
        if asked & 8:
            raise OSError(errno.EINVAL, "MFD_NOEXEC_SEAL")
        return create(name, asked)

    monkeypatch.setattr(os, "memfd_create", refusing)
    fd = create_memory_file("old", sealing=True)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
    assert flags == [os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | 8, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING]
