"""The function that opens the collector that uses a program in the kernel, with stops where that is not enough."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

from pyprof.collectors.base import Collector, CollectorRefused, SampleSource
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.stop_candidates import NO_STOPS, stops_of
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.sampled_arch import KNOWN_MACHINES, MACHINE, NARROW, PERF_ARCHES, WIDE
from pyprof.collectors.perf.ring import list_online_cpus
from pyprof.collectors.targets.collector_request import CollectorTarget, Request
from pyprof.errors import FormatError, NoSuchProcess, PyprofError, UnsupportedArchitecture
from pyprof.options import CollectOptions
from pyprof.records import replace
from pyprof.window_flush_protocol import FlushProtocol

if TYPE_CHECKING:
    from pyprof.collectors.bpf.sample_source import BpfSource

_SLEEPER_HZ = 1000.0
"""Rate in Hz of the collector that reads sleeping threads. The first read waits for its first sampling time."""
_CAP_SYS_ADMIN = 21
_NEEDED = {"CAP_BPF": 39, "CAP_PERFMON": 38}
_MIN_KERNEL = (5, 19)
_FIRST_USER_NAMESPACE, _FIRST_PID_NAMESPACE = 0xEFFFFFFD, 0xEFFFFFFC
"""Inodes of the kernel's initial namespaces (include/linux/proc_ns.h)."""


def can(target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
    """Return an error if the BPF collector cannot be used because of the architecture, the kernel, namespaces or
    rights, else None.
    """
    refusal = _refusal()
    if refusal is not None:
        return refusal
    try:
        if target.pid and procfs.read_arch(target.pid) not in (WIDE, NARROW):
            return UnsupportedArchitecture(f"it runs {procfs.read_arch(target.pid).name} code")
    except ProcessLookupError:
        return NoSuchProcess(f"there is no process {target.pid}", "list processes with: ps -e")
    return None


def _refusal() -> PyprofError | None:
    """Return an error if the BPF collector cannot sample any process, else None."""
    if MACHINE not in PERF_ARCHES:
        return UnsupportedArchitecture(f"the program in the kernel is made for {KNOWN_MACHINES}")
    release = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    if release < _MIN_KERNEL:
        return CollectorRefused("programs in the kernel need Linux 5.19 or later", "")
    if not _is_in("user", _FIRST_USER_NAMESPACE):
        text = "programs in the kernel (BPF) need rights outside of this user namespace"
        return CollectorRefused(text, "run pyprof outside of it, or in a container without one")
    if not _is_in("pid", _FIRST_PID_NAMESPACE):
        text = "programs in the kernel (BPF) do not know the process ids of this pid namespace"
        return CollectorRefused(text, "run pyprof outside of it, or: docker run --pid=host …")
    lacks = _lacks()
    if lacks:
        text = f"programs in the kernel (BPF) need root, or CAP_BPF and CAP_PERFMON: pyprof lacks {' and '.join(lacks)}"
        return CollectorRefused(text, "sudo pyprof …")
    return None


def _is_in(kind: str, inode: int) -> bool:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino == inode
    except OSError:  # a kernel without such namespaces
        return True


def _lacks() -> list[str]:
    """Return the capabilities that this process lacks for the BPF collector."""
    caps = int(procfs.read_thread_status(os.getpid())["CapEff"], 16)
    return [name for name, bit in _NEEDED.items() if not (caps >> bit | caps >> _CAP_SYS_ADMIN) & 1]


def in_its_place(request: Request, collector: Collector) -> Collector:
    """Return a collector that reports why it replaces the BPF program in the kernel, if that program was wanted."""
    interpreters = request.interpreters
    if request.by_name or interpreters is None:
        return collector
    why = can(request.target, request.options)
    if why is None:
        return collector
    from pyprof.collectors.hybrid.without_program import WithoutProgram

    pids = request.selection.pids if request.options.kernel else ()  # no chain is read in that case
    certain = request.selection.everything or any(interpreters.needs_stops(pid) != "" for pid in pids)
    return WithoutProgram(collector, why, certain)


def open(request: Request) -> Collector:
    """Open the collector that uses the BPF program in the kernel.

    Raises:
        CollectorRefused: The kernel refuses the program.
        PyprofError: Any error of PerfCollector.
    """
    refusal = _refusal()
    if refusal is not None:
        raise refusal
    return opened(request, request.selection.pids, request.launched, "")


def opened(request: Request, pids: tuple[int, ...], launched: bool, why: str) -> Collector:
    """Open the BPF collector for some processes.

    Args:
        request: The request to open a collector.
        pids: The processes.
        launched: True if the program has not started yet.
        why: A sentence with the reason for which the collector samples them.
    """
    from pyprof.collectors.bpf.collector import BpfCollector
    from pyprof.collectors.bpf.sample_source import BpfSource
    from pyprof.collectors.bpf.sampler import BpfSampler, KernelTargets, choose_ring_size

    selection, options = request.with_processes(pids), request.options
    watched = KernelTargets(
        rate_hz=options.rate_hz if options.running else 0.0,
        everything=selection.everything,
        follow=options.subprocesses,
        waits=options.idle,
        runnable=options.running,
        kernel=options.kernel,
        wakers=options.wakers,
        locks=options.locks,
        seeks=not options.idle or _seeks(request, pids),
        tasks=request.interpreters is not None and request.interpreters.follow_tasks,
    )
    processors = list_online_cpus()
    sampler = BpfSampler(watched, choose_ring_size(watched, len(processors)), processors)
    bpf: BpfCollector
    try:
        reader = request.interpreters.kernel_reader if request.interpreters else None
        least_ns = round(1e9 * options.min_block_s)
        source = BpfSource(sampler, request.diagnostics, request.ids.next_id, reader, least_ns)
        of_both = (source, pids[0], options, request.diagnostics, request.ids, selection, launched)
        if options.idle:
            from pyprof.collectors.bpf.wait_collector import BpfWaitCollector

            bpf = BpfWaitCollector(*of_both, lambda pids: _from_outside(request, pids))
        else:
            bpf = BpfCollector(*of_both, why)
    except BaseException:
        sampler.close()
        raise
    by_depth = not options.idle and not options.kernel and options.stack_size > NO_STOPS
    look = partial(_without_stops, source) if options.kernel else source.find_interpreter
    return HybridCollector(bpf, partial(stops_of, request), ByImage(look), by_depth, launched)


def _seeks(request: Request, pids: tuple[int, ...]) -> bool:
    """Return True if a process has interpreter evaluator calls that wait on stacks outside any chain (greenlets).

    If waits are recorded, the search for such calls makes the program in the kernel so long that loading it takes 0.2 s
    more. So it is done only if necessary.
    """
    if request.interpreters is None:
        return False
    for pid in pids:
        with contextlib.suppress(OSError, FormatError):
            reader = request.interpreters.kernel_reader(pid)
            reader.inspect_process(
                procfs.read_address_space(pid, request.ids.next_id(), generation=0), procfs.list_tasks(pid)
            )
            found = reader.offsets()
            if found is not None and found[1].seeks:
                return True
    return False


def _without_stops(source: BpfSource, pid: int) -> str | None:
    """Return the result of BpfSource.find_interpreter, without reasons for stops: samples by stops would lack the
    kernel's frames.
    """
    return None if source.find_interpreter(pid) is None else ""


def _from_outside(request: Request, pids: list[int]) -> SampleSource:
    """Open a collector that reads the stacks of sleeping threads and stops none of them."""
    from pyprof.collectors.ptrace.opening import by_stops

    options = replace(request.options, rate_hz=_SLEEPER_HZ, flush_s=0.0, handover=FlushProtocol())
    asleep = replace(options, running=False, stop_sleepers=False, subprocesses=False)
    return by_stops(replace(request, options=asleep), tuple(pids))
