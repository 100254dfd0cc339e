"""Processes that have ended, as the kernel frees them: each with its exact processor time and the values that
the agent's rules match.

A listing of /proc misses a process that starts and ends between two listings, and a parent that ignores
SIGCHLD gets no account of its children. The BPF program runs once for each process that ends, and costs
nothing else.
"""

from __future__ import annotations

import os
import struct
from importlib import resources
from typing import NamedTuple

from pyprof.collectors.bpf.bpf_object import BpfObject, ProgramRefused, find_member_offset, read_kernel_types
from pyprof.collectors.bpf.ring_buffer_records import RecordRing
from pyprof.collectors.linux import bpf_syscall
from pyprof.collectors.linux.process_cpu_times import TICK_NS
from pyprof.errors import FormatError

RING_SIZE = 1 << 20
"""Size of the ring in bytes, a power of two: room for 10,000 processes."""
_POINT = "sched_process_free"
_FIRST_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first pid namespace (PROC_PID_INIT_INO), whose numbers the program reports."""
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_RECORD = struct.Struct("=QQQQIIIIII16s16s")
_OFFSETS = {
    "tgid_of_task": (("task_struct", "tgid"),),
    "pid_of_task": (("task_struct", "pid"),),
    "flags_of_task": (("task_struct", "flags"),),
    "name_of_task": (("task_struct", "comm"),),
    "start_of_task": (("task_struct", "start_boottime"),),
    "parent_of_task": (("task_struct", "real_parent"),),
    "signal_of_task": (("task_struct", "signal"),),
    "cgroups_of_task": (("task_struct", "cgroups"),),
    "credentials_of_task": (("task_struct", "real_cred"),),
    "run_ns_of_task": (("task_struct", "se"), ("sched_entity", "sum_exec_runtime")),
    "run_ns_of_signal": (("signal_struct", "sum_sched_runtime"),),
    "waited_user_of_signal": (("signal_struct", "cutime"),),
    "waited_kernel_of_signal": (("signal_struct", "cstime"),),
    "uid_of_credentials": (("cred", "uid"),),
}
"""Constants of the BPF program that are offsets in this kernel's structures: name -> (structure, member)
pairs, whose offsets are added.
"""


class ProcessEnd(NamedTuple):
    """A process that has ended.

    Attributes:
        at_ns: Monotonic time at which the kernel freed it, soon after its parent had waited for it.
        start: Start in clock ticks since boot.
        run_ns: Its processor time in nanoseconds, including all of its threads.
        parent: Pid of its parent at the end.
        name: Its name (comm).
        shares_cgroup: True if it was in the control groups of its parent.
        grandparent: Pid of its parent's parent, if that was in the same control groups, else 0.
        eldest: Pid of its farthest ancestor (of twelve) such that all up to it were in the same control groups, else 0.
        waited_ns: Processor time of the children for which it has waited, and of theirs.
    """

    at_ns: int
    start: int
    run_ns: int
    pid: int
    parent: int
    uid: int
    name: str
    parent_name: str
    shares_cgroup: bool
    grandparent: int = 0
    eldest: int = 0
    waited_ns: int = 0


class ProcessEnds:
    """The BPF program that reports ended processes, and the reader of its reports. Not thread-safe.

    Attributes:
        lost: Number of ended processes that were not reported because the ring was full.
    """

    def __init__(self) -> None:
        """Load the BPF program and attach it to the kernel's tracepoint.

        Raises:
            ProgramRefused: The kernel refuses the program, or pids of this process are not those of the machine.
        """
        if os.stat("/proc/self/ns/pid").st_ino != _FIRST_NAMESPACE:
            raise ProgramRefused("This process has its own pid namespace.", "--pid=host")
        self.lost = 0
        data = resources.files("pyprof.collectors.bpf").joinpath("process_ends.o").read_bytes()
        self._object, self._link = BpfObject(data, "process_ends.o"), -1
        try:
            self._set_offsets()
            self._object.set_entries("ring", RING_SIZE)
            self._object.load({f"raw_tp/{_POINT}": bpf_syscall.RAW_TRACEPOINT})
            self._ring = RecordRing(self._object.maps["ring"], RING_SIZE)
            self._link = bpf_syscall.open_raw_tracepoint(self._object.programs["ended"], _POINT)
            if self._link < 0:
                raise ProgramRefused(f"The kernel refuses the tracepoint {_POINT}: {os.strerror(-self._link)}.", "")
        except BaseException:
            self.close()
            raise

    def _set_offsets(self) -> None:
        try:
            types = read_kernel_types()
            for name, members in _OFFSETS.items():
                offset = sum(find_member_offset(types, *member) for member in members)
                self._object.set_constant(name, _U32.pack(offset))
        except (OSError, FormatError) as error:
            raise ProgramRefused(f"This kernel has no type information: {error}.", "") from None

    def read_ends(self) -> list[ProcessEnd]:
        """Return the processes that have ended since the last call."""
        places, until = self._ring.take_records()
        words, found = self._ring.words, []
        for at in places:
            record = words[at : at + _RECORD.size // 8].tobytes()
            at_ns, start_ns, run_ns, waited_ns, pid, parent, uid, shares, grandparent, eldest, name, above = (
                _RECORD.unpack(record)
            )
            about = pid, parent, uid, _text(name), _text(above), shares != 0, grandparent, eldest, waited_ns
            found.append(ProcessEnd(at_ns, start_ns // TICK_NS, run_ns, *about))
        self._ring.release_records(until)
        count = bpf_syscall.lookup_element(self._object.maps["lost"], bytes(4), _U64.size)
        self.lost = _U64.unpack(count)[0] if count is not None else self.lost
        return found

    def close(self) -> None:
        """Remove the BPF program from the kernel."""
        if self._link >= 0:
            os.close(self._link)
        self._object.close()


def _text(name: bytes) -> str:
    return os.fsdecode(name.partition(b"\0")[0])
