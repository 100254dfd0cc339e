"""Checks whether a process can be sampled: the kernel's settings, the rights of pyprof, the state of the process.

The checks attach to no process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from pyprof.collectors.linux import procfs
from pyprof.errors import (
    AccessDenied,
    FormatError,
    NoSuchProcess,
    NotTraceable,
    PyprofError,
    UnsupportedArchitecture,
)
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import ARCHES, find_arch, native_arches
from pyprof.problem_counters import Finding

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_SYS_PTRACE = 19
CAP_NET_ADMIN = 12
CAP_PERFMON = 38
CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class _Refusal(Finding):
    """A finding of a check that prevents the sampling of a process. `error` is the class of the PyprofError
    that reports the finding.
    """

    error: type[PyprofError] = PyprofError


class _Traced(_Refusal):
    """The finding that another process traces the target. It prevents ptrace stops, but no other way of sampling."""


def _fatal(error: type[PyprofError], text: str, hint: str = "") -> Finding:
    return _Refusal(False, text, hint, True, error)


def check_target(pid: int) -> None:
    """Check that ptrace may stop a process for samples. The hint of an error says what the user can do.

    Raises:
        NoSuchProcess: There is no such process.
        NotTraceable: The process cannot be traced.
        UnsupportedArchitecture: The process's architecture is not supported.
        AccessDenied: The kernel does not permit stops.
    """
    for finding in _target_findings(pid):
        if isinstance(finding, _Refusal):
            raise finding.error(finding.text, finding.hint)


def check_readable(pid: int) -> None:
    """Check that a process may be read. It raises the same errors as check_target(), except that another
    tracer is no obstacle.
    """
    for finding in _target_findings(pid):
        if isinstance(finding, _Refusal) and not isinstance(finding, _Traced):
            raise finding.error(finding.text, finding.hint)


def target_findings(pid: int) -> list[Finding]:
    """Return the findings of all checks whether a process can be sampled."""
    return list(_target_findings(pid))


def machine_findings() -> list[Finding]:
    """Return the findings of all checks that concern any process: what the kernel and the rights of pyprof permit."""
    return list(_machine_findings())


def has_capability(bit: int) -> bool:
    """Return True if a capability (capabilities(7)) of this process is effective."""
    return bool(int(procfs.read_thread_status(os.getpid()).get("CapEff", "0"), 16) >> bit & 1)


def _reads_all_files() -> bool:
    return has_capability(CAP_DAC_READ_SEARCH) or has_capability(CAP_DAC_OVERRIDE)


def _sysctl(name: str) -> int | None:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _machine_findings() -> Iterator[Finding]:
    system = os.uname()
    if sys.platform != "linux" or not native_arches(system.machine):
        known = ", ".join(sorted({machine for arch in ARCHES.values() for machine in arch.kernel.machines}))
        text = f"this machine runs {system.sysname} on {system.machine}; live sampling knows Linux on {known}"
        yield _fatal(UnsupportedArchitecture, text)
        return
    yield Finding(True, f"Linux {system.release} on {system.machine}")
    status = procfs.read_thread_status(os.getpid())
    capable = has_capability(CAP_SYS_PTRACE)
    yield _foreign(capable)
    yield _yama(capable)
    if status.get("Seccomp", "0") != "0":
        yield Finding(False, "seccomp filters the system calls of pyprof: ptrace and process_vm_readv may be refused",
                      "docker run --cap-add=SYS_PTRACE --security-opt seccomp=unconfined …")  # fmt: skip
    else:
        yield Finding(True, "seccomp: no filter, all system calls are allowed")
    yield _namespaces()
    yield _perf()
    yield _connector()


def _foreign(capable: bool) -> Finding:
    """Return a finding that says whether processes of other users may be read."""
    if capable and _reads_all_files():
        return Finding(True, "CAP_SYS_PTRACE: yes")
    text = "yes, but without CAP_DAC_READ_SEARCH" if capable else "no,"
    hint = "sudo pyprof …, or: sudo setcap cap_sys_ptrace,cap_dac_read_search+ep PYTHON"
    return Finding(False, f"CAP_SYS_PTRACE: {text} only processes of this user can be sampled", hint)


def _yama(capable: bool) -> Finding:
    scope = _sysctl("kernel/yama/ptrace_scope")
    if scope is None or scope == 0:
        missing = "this kernel has no such limit"
        return Finding(True, f"kernel.yama.ptrace_scope: {missing if scope is None else '0, no limit'}")
    if scope >= 3:
        return _fatal(AccessDenied, "kernel.yama.ptrace_scope is 3: nobody may trace, until the next boot",
                      "set kernel.yama.ptrace_scope = 0 in /etc/sysctl.d and reboot")  # fmt: skip
    if capable:
        return Finding(True, f"kernel.yama.ptrace_scope: {scope}, and pyprof has CAP_SYS_PTRACE")
    text = "only children of pyprof can be sampled" if scope == 1 else "only with CAP_SYS_PTRACE"
    return Finding(False, f"kernel.yama.ptrace_scope is {scope}: {text}", "sudo sysctl kernel.yama.ptrace_scope=0")


_OUR_NAMESPACES = "our namespaces and of those inside them"


def _namespaces() -> Finding:
    apart = []
    for kind in ("pid", "user", "mnt"):
        try:
            if os.readlink(f"/proc/self/ns/{kind}") != os.readlink(f"/proc/1/ns/{kind}"):
                apart.append(kind)
        except OSError:
            return Finding(True, f"namespaces: processes of {_OUR_NAMESPACES} can be recorded")
    if not apart:
        return Finding(True, "namespaces: those of process 1")
    own = ", ".join(apart)
    if "pid" not in apart:
        return Finding(True, f"namespaces: pyprof's own ({own}); processes of {_OUR_NAMESPACES} can be recorded")
    return Finding(False, f"namespaces: pyprof's own ({own}); processes outside of this pid namespace cannot "
        "be recorded",
                   "pyprof on the host, or: docker run --pid=host …")  # fmt: skip


def _perf() -> Finding:
    paranoid = _sysctl("kernel/perf_event_paranoid")
    if paranoid is None:
        return Finding(False, "perf_events: not in this kernel; every sample is a short stop")
    capable = has_capability(CAP_PERFMON) or has_capability(CAP_SYS_ADMIN)
    text = f"kernel.perf_event_paranoid: {paranoid}"
    if paranoid > 2 and not capable:
        return Finding(False, f"{text}: perf_events only with CAP_PERFMON", "sudo sysctl kernel.perf_event_paranoid=2")
    return Finding(True, text + (", and pyprof has CAP_PERFMON" if capable else ""))


def _connector() -> Finding:
    if has_capability(CAP_NET_ADMIN):
        return Finding(True, "CAP_NET_ADMIN: yes, --subprocesses hears of every child")
    return Finding(False, "CAP_NET_ADMIN: no, --subprocesses finds children by polling",
                   "sudo pyprof …, where children live only for milliseconds")  # fmt: skip


def _target_findings(pid: int) -> Iterator[Finding]:
    try:
        directory = procfs.ProcDir(pid)
    except OSError:
        yield _fatal(NoSuchProcess, f"there is no process {pid}", "ps -e lists the processes")
        return
    try:
        yield from _look(pid, directory)
    except ProcessLookupError:
        yield _fatal(NoSuchProcess, f"process {pid} ended while it was looked at")
    except FormatError as error:
        yield _fatal(NotTraceable, f"/proc of process {pid} is not what the kernel writes: {error}")
    finally:
        directory.close()


def _look(pid: int, directory: procfs.ProcDir) -> Iterator[Finding]:
    stat, status = directory.stat(), directory.status()
    yield Finding(True, f"process {pid} is {stat.comm!r}, {status.get('Threads', '?')} threads, "
                        f"{status.get('State', '?')}")  # fmt: skip
    tgid = status.get("Tgid", str(pid))
    if pid == os.getpid():
        yield _fatal(NotTraceable, "that is the profiler itself", "give the process id of another process")
        return
    if tgid != str(pid):
        if tgid == str(os.getpid()):
            yield _fatal(NotTraceable, f"{pid} is a thread of the profiler itself")
        else:
            yield _fatal(NotTraceable, f"{pid} is a thread of process {tgid}", f"-p {tgid}")
        return
    if stat.is_kernel_thread:
        yield _fatal(NotTraceable, f"process {pid} ({stat.comm}) is a kernel thread", "it has no stack in user space")
        return
    if stat.is_zombie and directory.thread_count() <= 1:
        parent = f"{stat.ppid} ({procfs.read_name(stat.ppid)})"
        yield _fatal(NotTraceable, f"process {pid} ({stat.comm}) is a zombie: it has ended, its parent {parent} has "
                                   "not collected it")  # fmt: skip
        return
    tracers = _tracers(pid, directory)
    for tracer in tracers[:1]:
        name = procfs.read_name(tracer)
        text = f"process {pid} is traced already, by process {tracer} ({name}): it cannot be stopped for samples"
        yield _Traced(False, text, f"end {name} first: kill {tracer}", True, NotTraceable)
    yield from _rights(pid, directory, status)


def _tracers(pid: int, directory: procfs.ProcDir) -> list[int]:
    """Return the pids of the tracers of a process's threads. The result is empty if one of its threads is not
    traced, because that thread can be sampled.
    """
    found: set[int] = set()
    for tid in directory.threads():
        try:
            found.add(int(procfs.parse_status(directory.read(f"task/{tid}/status")).get("TracerPid", "0")))
        except ProcessLookupError:
            continue
    return sorted(found) if found and 0 not in found else []


def _rights(pid: int, directory: procfs.ProcDir, status: dict[str, str]) -> Iterator[Finding]:
    try:
        directory.read("syscall")
        maps = directory.maps()
    except PermissionError:
        yield _denied(pid, status)
        return
    except OSError as error:
        yield _fatal(NotTraceable, f"process {pid} cannot be looked at: {error.strerror}")
        return
    if not maps:
        yield _fatal(NotTraceable, f"process {pid} has no memory of its own: it is ending or not yet begun")
        return
    yield Finding(True, "pyprof may read its registers and memory")
    yield _architecture(pid, directory)


def _architecture(pid: int, directory: procfs.ProcDir) -> Finding:
    try:
        head = procfs.read_program_head(directory)
    except ProcessLookupError:
        return Finding(False, "its program file is gone")
    except OSError as error:
        return Finding(False, f"its program file cannot be read: {error.strerror}")
    found = procfs.parse_elf_arch(head)
    if found is None:
        return Finding(False, "its program file is no ELF file")
    machine, bits, _ = found
    arch, native = find_arch(*found), native_arches(os.uname().machine)
    if arch in native:
        return Finding(True, f"it runs {arch.name} code")
    what = f"{arch.name} code ({bits} bits)" if arch else f"{bits}-bit code of machine {machine}"
    knows = ", ".join(each.name for each in native)
    return _fatal(UnsupportedArchitecture, f"process {pid} runs {what}; live sampling knows {knows} here")


def _denied(pid: int, status: dict[str, str]) -> Finding:
    """Return the finding why the kernel does not let a process be traced, as far as /proc shows the reason."""
    uids = status.get("Uid", "").split()
    ours = str(os.geteuid())
    scope = _sysctl("kernel/yama/ptrace_scope")
    root = os.geteuid() == 0
    python = os.path.realpath(sys.executable)
    if root and not has_capability(CAP_SYS_PTRACE):
        text = f"process {pid} may not be traced: pyprof runs as root without CAP_SYS_PTRACE, as in a container"
        return _fatal(AccessDenied, text, "docker run --cap-add=SYS_PTRACE … (podman: the same)")
    others = [uid for uid in uids if uid != ours]
    if others and not root:
        text = f"process {pid} belongs to user {others[0]}, pyprof runs as user {ours}"
        if has_capability(CAP_SYS_PTRACE) and not _reads_all_files():
            text += " with CAP_SYS_PTRACE and without CAP_DAC_READ_SEARCH: its files in /proc are its user's alone"
        both = f"sudo setcap cap_sys_ptrace,cap_dac_read_search+ep {python}"
        return _fatal(AccessDenied, text, f"sudo pyprof …, or once: {both}")
    if scope and not root:
        text = f"process {pid} may not be traced: kernel.yama.ptrace_scope is {scope}"
        setcap = f"sudo setcap cap_sys_ptrace+ep {python}"
        return _fatal(AccessDenied, text, f"sudo sysctl kernel.yama.ptrace_scope=0, or: {setcap}")
    if status.get("Seccomp", "0") != "0" or procfs.read_thread_status(os.getpid()).get("Seccomp", "0") != "0":
        text = f"process {pid} may not be traced: a seccomp filter or a container's rules refuse it"
        return _fatal(AccessDenied, text, "docker run --cap-add=SYS_PTRACE --security-opt seccomp=unconfined …")
    text = f"process {pid} may not be traced: it has more rights than we have, or forbids it (prctl PR_SET_DUMPABLE)"
    return _fatal(AccessDenied, text, "sudo pyprof …")
