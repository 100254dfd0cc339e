"""Waits of idle threads: pools that wait for work, event loops, processes that supervise others.

A wait is idle if all functions between the root of its thread and the system call belong to one known loop that waits
for work (PYTHON, NATIVE). It is also idle if the waiting function is `main`, which no request runs, or if a thread's
own function repeatedly reads from a queue. Every other wait is shown: a truncated stack; a wait for a processor, for
the GIL or in uninterruptible sleep; a function of no known loop.

A request always adds a function that no loop lists, so its waits never count as idle. Do not add functions that call
handlers of requests, such as those named `handle`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import base_name
from pyprof.model.analysis.function_costs import START_UP
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.integer_array_operations import distinct
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile


@dataclass(frozen=True, slots=True)
class IdleLoop:
    """A loop of a well-known library in which a thread waits for work, such as that of a thread pool. It is recognized
    by the functions on the stack.

    Attributes:
        entries: Functions that enter the loop.
        inner: Functions that only an entry calls.
    """

    entries: frozenset[str]
    inner: frozenset[str]


def _loop(entries: str, inner: str) -> IdleLoop:
    return IdleLoop(frozenset(entries.split()), frozenset(inner.split()))


STARTS = frozenset({
    *("<module>", "_run_module_as_main", "_run_code", "run_path", "_run_module_code"),
    *("_bootstrap", "_bootstrap_inner", "main", "_main", "cli"),
    *("run", "run_app", "run_server", "serve", "serve_forever", "start", "start_server"),
})  # fmt: skip
"""Names of functions, in any file, that start a program or its loop."""

LAUNCHERS = frozenset({
    "celery/__main__.py:main", "celery/bin/base.py:caller", "celery/bin/worker.py:worker",
    "cheroot/server.py:safe_start", "click/core.py:__call__", "click/core.py:invoke", "click/decorators.py:new_func",
    "django/core/management/__init__.py:execute", "django/core/management/__init__.py:execute_from_command_line",
    "django/core/management/base.py:execute", "django/core/management/base.py:run_from_argv",
    "django/core/management/commands/runserver.py:execute", "django/core/management/commands/runserver.py:handle",
    "django/core/management/commands/runserver.py:inner_run", "django/utils/autoreload.py:run_with_reloader",
    "django/utils/autoreload.py:start_django", "django/utils/autoreload.py:wrapper", "flask/cli.py:run_command",
    "gunicorn/arbiter.py:manage_workers", "gunicorn/arbiter.py:reload", "gunicorn/arbiter.py:spawn_worker",
    "gunicorn/arbiter.py:spawn_workers", "gunicorn/ctl/server.py:_run_loop", "gunicorn/workers/base.py:init_process",
    "gunicorn/workers/gthread.py:init_process", "multiprocessing/forkserver.py:main",
    "multiprocessing/spawn.py:spawn_main", "uvicorn/_compat.py:asyncio_run",
    "uvicorn/_subprocess.py:subprocess_started", "uvicorn/supervisors/multiprocess.py:target",
    "uvicorn/workers.py:init_process", "uvicorn_worker/_workers.py:init_process",
    "werkzeug/_reloader.py:run_with_reloader", "werkzeug/serving.py:run_simple",
})  # fmt: skip
"""Functions of frameworks that start a program's loop. None of them runs inside of a request."""

_WAIT = "threading.py:wait"
_READ = "multiprocessing/connection.py:recv_bytes multiprocessing/connection.py:_recv_bytes"
_RECEIVE = f"{_READ} multiprocessing/connection.py:recv multiprocessing/connection.py:_recv"
_SELECT = "multiprocessing/connection.py:wait selectors.py:select"

PYTHON = (
    _loop("concurrent/futures/thread.py:_worker", f"queue.py:get {_WAIT}"),
    _loop("anyio/_backends/_asyncio.py:run", f"queue.py:get {_WAIT}"),
    _loop(
        "asyncio/runners.py:run asyncio/base_events.py:run_until_complete asyncio/base_events.py:run_forever",
        "asyncio/base_events.py:_run_once selectors.py:select",
    ),
    _loop(
        "gunicorn/arbiter.py:run gunicorn/workers/sync.py:run gunicorn/workers/gthread.py:run",
        "gunicorn/arbiter.py:sleep gunicorn/arbiter.py:wait_for_signals gunicorn/workers/sync.py:run_for_one "
        "gunicorn/workers/sync.py:run_for_multiple gunicorn/workers/sync.py:wait "
        "gunicorn/workers/gthread.py:wait_for_and_dispatch_events selectors.py:select",
    ),
    _loop("socketserver.py:serve_forever", "selectors.py:select"),
    _loop(
        "multiprocessing/pool.py:worker multiprocessing/pool.py:_handle_tasks multiprocessing/pool.py:_handle_results "
        "multiprocessing/pool.py:_handle_workers multiprocessing/queues.py:_feed "
        "concurrent/futures/process.py:_process_worker concurrent/futures/process.py:run "
        "multiprocessing/resource_tracker.py:main multiprocessing/forkserver.py:main "
        "multiprocessing/resource_sharer.py:_serve multiprocessing/managers.py:serve_forever",
        f"multiprocessing/queues.py:get multiprocessing/synchronize.py:__enter__ {_RECEIVE} {_SELECT} {_WAIT} "
        "multiprocessing/pool.py:_wait_for_updates concurrent/futures/process.py:wait_result_broken_or_wakeup",
    ),
    _loop(
        "billiard/pool.py:__call__ billiard/pool.py:run celery/utils/timer2.py:run",
        "billiard/pool.py:workloop billiard/pool.py:receive billiard/pool.py:_recv billiard/queues.py:get_payload "
        "billiard/pool.py:body billiard/pool.py:_process_result billiard/pool.py:_poll_result "
        "billiard/synchronize.py:__enter__ billiard/connection.py:recv_bytes billiard/connection.py:_recv_bytes "
        "billiard/connection.py:_recv billiard/connection.py:poll billiard/connection.py:_poll "
        f"billiard/connection.py:wait queue.py:get {_WAIT}",
    ),
    _loop(
        "celery/worker/loops.py:asynloop celery/worker/loops.py:synloop",
        "celery/worker/loops.py:_loop_cycle kombu/asynchronous/hub.py:create_loop kombu/utils/eventio.py:poll "
        "kombu/utils/eventio.py:_poll kombu/connection.py:drain_events kombu/transport/virtual/base.py:drain_events",
    ),
    _loop("logging/handlers.py:_monitor", f"logging/handlers.py:dequeue queue.py:get {_WAIT}"),
    _loop("waitress/task.py:handler_thread", _WAIT),
    _loop(
        "waitress/server.py:run",
        "waitress/wasyncore.py:loop waitress/wasyncore.py:poll waitress/wasyncore.py:poll2",
    ),
    _loop(
        "cheroot/workers/threadpool.py:run",
        f"cheroot/workers/threadpool.py:_process_connections_until_interrupted queue.py:get {_WAIT}",
    ),
    _loop(
        "cheroot/server.py:serve",
        "cheroot/connections.py:run cheroot/connections.py:_run cheroot/connections.py:select selectors.py:select",
    ),
    _loop(
        "uvicorn/supervisors/multiprocess.py:run uvicorn/supervisors/multiprocess.py:always_pong "
        "uvicorn/supervisors/basereload.py:run",
        f"uvicorn/supervisors/multiprocess.py:pong uvicorn/supervisors/basereload.py:__next__ "
        f"uvicorn/supervisors/basereload.py:pause {_RECEIVE} {_WAIT}",
    ),
    _loop(
        "werkzeug/_reloader.py:run django/utils/autoreload.py:run",
        "django/utils/autoreload.py:run_loop django/utils/autoreload.py:tick",
    ),
    _loop(
        "werkzeug/_reloader.py:restart_with_reloader django/utils/autoreload.py:restart_with_reloader",
        "subprocess.py:call subprocess.py:run subprocess.py:communicate subprocess.py:wait subprocess.py:_wait "
        "subprocess.py:_try_wait",
    ),
)  # fmt: skip
"""Idle loops of Python programs. A function is written as the last part of its file's path and the last part of its
name ("queue.py:get").
"""

HUBS = frozenset({"gevent/hub.py:run"})
"""The Python function that runs gevent's event loop in a separate greenlet. Its stack is idle if no other Python
function is on it.
"""

PYTHON_ROOTS = HUBS | {
    "threading.py:_bootstrap", "multiprocessing/process.py:_bootstrap", "billiard/process.py:_bootstrap",
}  # fmt: skip
"""First Python functions of a thread, of a forked child or of a greenlet. Frames outside of them on the stack belong to
the parent.
"""

TOKIO_WAITS = (
    *("::park", "::park_timeout", "::park_internal", "::park_condvar", "::park_driver", "::turn"),
    "tokio::runtime::blocking::pool::Inner::run",
)
"""Ends of the names of the innermost functions of tokio in a thread that waits for work."""

TOKIO_CRATES = ("tokio::", "mio::", "parking_lot::", "parking_lot_core::", "std::", "core::", "alloc::")
"""Prefixes of the functions of tokio, and of those between it and the system call."""

NATIVE = (
    frozenset({
        "ngx_epoll_process_events", "ngx_process_events_and_timers", "ngx_worker_process_cycle", "ngx_spawn_process",
        "ngx_start_worker_processes", "ngx_master_process_cycle", "ngx_single_process_cycle",
        "ngx_cache_manager_process_cycle", "ngx_start_cache_manager_processes",
    }),
    frozenset({"aeApiPoll", "aeProcessEvents", "aeMain"}),
    frozenset({"bioProcessBackgroundJobs"}),
    frozenset({"background_thread_entry", "background_thread_sleep", "background_work_sleep_once"}),
    frozenset({"uv__io_poll", "uv_run"}),
    frozenset({
        "uv__io_poll", "uv_run", "node::Start", "node::SpinEventLoop", "node::SpinEventLoopInternal",
        "node::NodeMainInstance::Run", "node::StartInternal",
        "node::WorkerThreadsTaskRunner::DelayedTaskScheduler::Run",
        "node::WorkerThreadsTaskRunner::DelayedTaskScheduler::Start 'lambda'",
    }),
    frozenset({
        "worker", "uv_cond_wait", "node::{anonymous}::PlatformWorkerThread", "uv_sem_wait", "uv__sem_wait",
        "node::inspector::{anonymous}::StartIoThreadMain",
    }),
    frozenset({"epoll_dispatch", "event_base_loop", "event_base_dispatch"}),
    frozenset({"epoll_poll", "ev_run"}),
    frozenset({
        "runtime.mcall", "runtime.mstart", "runtime.mstart0", "runtime.mstart1", "runtime.park_m", "runtime.goexit0",
        "runtime.schedule", "runtime.findRunnable", "runtime.findrunnable", "runtime.stopm", "runtime.mPark",
        "runtime.notesleep", "runtime.notetsleep", "runtime.notetsleep_internal", "runtime.futexsleep",
        "runtime.futex", "runtime.netpoll", "runtime.epollwait", "internal/runtime/syscall.EpollWait",
        "internal/runtime/syscall.Syscall6", "runtime.sysmon", "runtime.usleep", "runtime.templateThread",
        "runtime.stoplockedm",
    }),
    frozenset({"JLI_Launch", "ContinueInNewThread", "CallJavaMainInNewThread"}),
    frozenset({
        "thread_native_entry", "Thread::call_run", "GangWorker::run", "GangWorker::loop", "WorkerThread::run",
        "AbstractGangWorker::run", "PosixSemaphore::wait", "Semaphore::wait", "JavaThread::run",
        "JavaThread::thread_main_inner", "CompileBroker::compiler_thread_loop", "CompileQueue::get", "Monitor::wait",
        "Monitor::wait_without_safepoint_check", "os::PlatformMonitor::wait", "PlatformMonitor::wait",
        "NotificationThread::notification_thread_entry", "ServiceThread::service_thread_entry",
        "MonitorDeflationThread::monitor_deflation_thread_entry", "WatcherThread::run", "WatcherThread::sleep",
        "VMThread::run", "VMThread::loop", "VMThread::wait_for_vm_operations", "VMThread::wait_for_operation",
        "NMethodSweeper::sweeper_loop", "ConcurrentGCThread::run", "G1ServiceThread::sleep_before_next_cycle",
        "G1ServiceThread::run_service", "G1ServiceThread::wait_for_task", "G1ConcurrentRefineThread::run_service",
        "G1ConcurrentRefineThread::wait_for_completed_buffers", "G1ConcurrentMarkThread::run_service",
        "G1ConcurrentMarkThread::wait_for_next_cycle", "signal_thread_entry", "os::signal_wait", "thread_entry",
        "JavaCalls::call_virtual", "JavaCalls::call_helper", "call_stub", "StubRoutines", "Interpreter",
        "java.lang.Thread.run", "java.lang.Thread.runWith", "jdk.internal.misc.InnocuousThread.run",
        "jdk.internal.ref.CleanerImpl.run", "java.lang.ref.Finalizer$FinalizerThread.run",
        "java.lang.ref.Reference$ReferenceHandler.run", "java.lang.ref.Reference.processPendingReferences",
        "java.lang.ref.Reference.waitForReferencePendingList", "java.lang.ref.ReferenceQueue.remove",
        "java.lang.ref.ReferenceQueue.remove0", "java.lang.ref.ReferenceQueue.await",
        "java.lang.ref.NativeReferenceQueue.await", "JVM_WaitForReferencePendingList", "java.lang.Object.wait",
        "java.lang.Object.wait0", "JVM_MonitorWait", "ObjectSynchronizer::wait", "ObjectMonitor::wait",
        "os::PlatformEvent::park", "PlatformEvent::park", "PlatformEvent::park_nanos", "Unsafe_Park", "Parker::park",
        "jdk.internal.misc.Unsafe.park", "java.util.concurrent.locks.", "java.util.concurrent.ForkJoinWorkerThread.run",
        "java.util.concurrent.ForkJoinPool.runWorker", "java.util.concurrent.ForkJoinPool.awaitWork",
        "java.util.concurrent.ForkJoinPool.managedBlock", "java.util.concurrent.ForkJoinPool.unmanagedBlock",
        "java.util.concurrent.ThreadPoolExecutor$Worker.run", "java.util.concurrent.ThreadPoolExecutor.runWorker",
        "java.util.concurrent.ThreadPoolExecutor.getTask", "java.util.concurrent.LinkedBlockingQueue.",
        "java.util.concurrent.ArrayBlockingQueue.", "java.util.concurrent.SynchronousQueue.",
        "java.util.concurrent.ScheduledThreadPoolExecutor$DelayedWorkQueue.",
        "java.util.concurrent.LinkedTransferQueue.",
        "org.apache.tomcat.util.threads.", "org.apache.tomcat.util.net.NioEndpoint$Poller.run", "sun.nio.ch.",
        "io.netty.util.", "io.netty.channel.nio.NioEventLoop.run", "io.netty.channel.nio.NioEventLoop.select",
    }),
)  # fmt: skip
"""Functions, without arguments, of each idle loop in native programs, in libraries and in Java. A name that ends with a
dot is a prefix.
"""


Mask = npt.NDArray[np.bool_]

MODES = frozenset({"offcpu", "lock"})
"""Modes of recording whose idle waits are hidden unless the user asks for them."""
_EVENT_CALLS = frozenset(
    f"{call}]"
    for call in (
        *("epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4"),
        *("rt_sigtimedwait", "rt_sigsuspend", "pause"),
    )
)
_SLEEPS = ("[sleeping", "[blocked", "[woken")
_READY = "[waiting for a processor"
"""Prefix of the marker for the wait of a thread that was woken and waits for a processor.

In a recording of waits for locks, this wait after one for a queue is no contention.
"""
_MAIN_CALLERS = frozenset({"__libc_start_call_main", "__libc_start_main", "__libc_start_main_impl"})
_INTERPRETER = ("python", "libpython")
_QUEUE_MODULE = "_queue."
"""Prefix of the names of the files that contain queue.SimpleQueue. Of its functions only get() waits, so a stripped
file is enough to recognize the wait.
"""
_WAITING_MODULES = (
    *_INTERPRETER,
    _QUEUE_MODULE,
    "corecext.",
    "select.",
    "_socket.",
    "_multiprocessing.",
    "_posixsubprocess.",
)
"""Prefixes of the files, besides the C library, whose native functions Python's idle loops call to wait."""
_LIBRARIES = (
    "libc.so",
    "libstdc++.so",
    "libc++.so",
    "libc-",
    "libpthread",
    "ld-linux",
    "ld-musl",
    "libc.musl",
    "[vdso]",
)
_CPP_THREAD = ("std::", "execute_native_thread_routine", "__gthread_")
"""Prefixes of the functions of libstdc++ between a thread's root, its own function and the C library."""
_LAMBDA = " 'lambda'"
"""End of the name of a lambda in C++ or of a function inside it."""
_GO_ROOTS = frozenset({"runtime.mcall", "runtime.mstart"})
"""Outermost functions of Go's scheduler, which runs on separate stacks."""
_CONDITIONS = frozenset(
    {"pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait", "pthread_cond_wait_common"}
)
_PROGRAM = (FrameKind.NATIVE, FrameKind.INLINE, FrameKind.INTERPRETER)
_BEFORE_OWN = frozenset({"threading.py:_bootstrap_inner", "threading.py:run", "multiprocessing/process.py:run"})
"""Python functions of the standard library between the root of a thread and the thread's own function."""
_QUEUES = frozenset({"queue.py:get", "multiprocessing/queues.py:get", "multiprocessing/connection.py:recv"})
_IN_QUEUES = frozenset({
    *("threading.py:wait", "multiprocessing/synchronize.py:__enter__", "multiprocessing/connection.py:recv_bytes"),
    *("multiprocessing/connection.py:_recv_bytes", "multiprocessing/connection.py:_recv"),
})  # fmt: skip
_SIMPLE_QUEUE = "_queue_SimpleQueue_get"
_MAX_NAMES = 3
"""Maximum number of functions in the note about hidden waits."""
_WHOLE = 0.75
"""Share of a recording's time above which a thread's wait counts as lasting for all of it. It is below 1 because
sampling may begin late on a busy machine.
"""
_NOT_FOR_WORK = ("pthread_cond_", "pthread_mutex_", "take_gil", "lll_lock_wait")
"""Prefixes of native functions in which a thread waits for the GIL or a mutex, and not for work."""


def without_idle(profile: Profile) -> Profile:
    """Return the profile without the waits of idle threads, and with a note about what is hidden.

    A profile of another kind of time is returned unchanged. So is one of off-CPU time that has only idle waits. Waits
    for locks are hidden even then: an idle queue is no contention.
    """
    if not _hides_waits(profile):
        return profile
    idle, whole = _find_idle_waits(profile)
    if not idle.any():
        return profile
    if idle.all() and profile.value_types[-1].type != "lock":
        note = make_note("only_idle")
        return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, note)))
    threads = len(distinct(profile.thread[idle]))
    found = selected(profile, ~idle)
    notes = [make_note("idle_hidden", threads=threads, seconds=_seconds(profile, idle))]
    if whole.any():
        functions = _own_functions(profile, whole)
        notes.append(make_note("idle_whole", seconds=_seconds(profile, whole), functions=functions))
    return replace(found, summary=replace(found.summary, notes=(*found.summary.notes, *notes)))


def hidden_waits(profile: Profile) -> Mask:
    """Return a mask (n,) of the samples that reports leave out unless the user asks for idle waits.

    These are the waits of idle threads (see idle_waits()) in a recording of off-CPU time or of waits for locks. In all
    other recordings none is hidden.
    """
    return idle_waits(profile) if _hides_waits(profile) else np.zeros(len(profile.stack), np.bool_)


def _hides_waits(profile: Profile) -> bool:
    return profile.value_types[-1].type in MODES


def _seconds(profile: Profile, rows: Mask) -> float:
    return int(profile.values[rows, -1].sum()) / 1e9


def _own_functions(profile: Profile, rows: Mask) -> str:
    """Return the names of the functions in which the threads of these samples run, as text for a note. The ones with
    most samples are first.
    """
    names: Counter[str] = Counter()
    for leaf, count in zip(*np.unique(profile.stack[rows], return_counts=True), strict=True):
        names[_own_function(profile, profile.path(int(leaf)))] += int(count)
    shown = [name for name, _ in names.most_common(_MAX_NAMES)]
    return ", ".join([*shown, "…"] if len(names) > len(shown) else shown)


def _own_function(profile: Profile, path: list[Frame]) -> str:
    python = [frame for frame in path if frame.kind == FrameKind.INTERPRETER]
    own = [frame for frame in python if not _fits(_key(frame), PYTHON_ROOTS | _BEFORE_OWN)]
    if own:
        return own[0].lines[0].function if own[0].lines else own[0].title
    program = (frame for frame in path if frame.kind in _PROGRAM and not _is_library(profile, frame))
    native = [name for frame in program for name in _names(frame) if not name.startswith(_CPP_THREAD)]
    return native[-1] if native else path[0].title


class _Wait(enum.Enum):
    """The result of examining the wait at the end of a stack."""

    SHOWN = enum.auto()
    IDLE = enum.auto()
    CONSUMER = enum.auto()
    """A wait of a thread's own function for a queue. It is idle if the thread later returns to this wait."""


def idle_waits(profile: Profile) -> Mask:
    """Return a mask (n,) of the samples in which an idle thread waits for work."""
    return _find_idle_waits(profile)[0]


def _find_idle_waits(profile: Profile) -> tuple[Mask, Mask]:
    """Return which samples are waits of idle threads, and which of these are of threads that wait for a queue during
    the whole recording, both of shape (n,).
    """
    leaves = distinct(profile.stack)
    is_lock = profile.value_types[-1].type == "lock"
    kinds, functions = [], []
    for leaf in leaves.tolist():
        path = profile.path(leaf)
        kind, names = _kind(profile, path, is_lock), _functions(profile, path)
        wait = next((frame.title for frame in path if frame.kind == FrameKind.KERNEL), "")
        is_other = kind is not _Wait.CONSUMER and not wait.startswith(_READY)  # another wait of the same function
        kinds.append(kind)
        functions.append((*names, wait) if names and is_other else names)
    at = np.searchsorted(leaves, profile.stack)
    idle: Mask = np.array([kind is _Wait.IDLE for kind in kinds], np.bool_)[at]
    whole: Mask = np.zeros(len(idle), np.bool_)
    if _Wait.CONSUMER in kinds:
        consumer = np.array([kind is _Wait.CONSUMER for kind in kinds], np.bool_)
        numbers = {names: number for number, names in enumerate(dict.fromkeys(functions), 1)}
        chain = np.array([numbers[names] if names else 0 for names in functions], np.int64)
        returns, whole = _consumers_waits(profile, consumer[at], chain[at])
        idle |= returns | whole
    return idle, whole


def _consumers_waits(profile: Profile, consumer: Mask, chain: npt.NDArray[np.int64]) -> tuple[Mask, Mask]:
    """Return two masks (n,) of waits for a queue: those of threads that return to the same queue, and those of threads
    that only wait.

    A thread waits for work if it does something else and then waits for the same queue again. It also does if it waits
    there during the whole recording. A thread that serves one request, and waits for a queue once, does neither.

    Args:
        consumer: Which samples are waits of a thread's own function for a queue, shape (n,).
        chain: Number of each sample's sequence of functions, 0 if none is known, shape (n,).
    """
    returns, whole = np.zeros(len(consumer), np.bool_), np.zeros(len(consumer), np.bool_)
    of_consumers = np.flatnonzero(np.isin(profile.thread, profile.thread[consumer]))
    of_consumers = of_consumers[np.lexsort((profile.time_ns[of_consumers], profile.thread[of_consumers]))]
    for rows in np.split(of_consumers, np.flatnonzero(np.diff(profile.thread[of_consumers])) + 1):
        for each in distinct(chain[rows[consumer[rows]]]):
            waits = np.flatnonzero((chain[rows] == each) & consumer[rows])
            between = chain[rows[waits[0] : waits[-1]]]
            returns[rows[waits]] = np.any((between != each) & (between != 0))
            whole[rows[waits]] = int(profile.values[rows[waits], -1].sum()) >= _WHOLE * profile.duration_ns
    return returns, whole


def _functions(profile: Profile, path: list[Frame]) -> tuple[str, ...]:
    """Return the names of the functions on a stack by which its idle loop is recognized: those of an interpreter, or
    those of a native program without its C library.
    """
    found = tuple(_key(frame) for frame in path if frame.kind == FrameKind.INTERPRETER)
    native = (frame for frame in path if frame.kind in _PROGRAM and not _is_library(profile, frame))
    return found or tuple(name for frame in native for name in _names(frame))


def _kind(profile: Profile, path: list[Frame], is_lock: bool) -> _Wait:
    """Return what the wait at the end of a stack is: the wait of an idle thread, a wait for a queue, or another one.
    Frames inside the wait are those of the thread that ended it, and do not count.
    """
    frames: list[Frame] = []
    for frame in path:
        if frame.kind == FrameKind.MARKER and (frame.mark is None or frame.mark.kind is not MarkKind.LOCK):
            return _Wait.SHOWN
        if frame.kind == FrameKind.MARKER and frame.title == "[GIL]":
            return _Wait.SHOWN
        if frame.kind == FrameKind.KERNEL and frame.title.startswith("["):
            asleep = frame.title.startswith(_SLEEPS) or (is_lock and frame.title.startswith(_READY))
            return _kind_of_sleep(profile, frames, frame.title, is_lock) if asleep else _Wait.SHOWN
        if frame.kind in _PROGRAM:
            frames.append(frame)
    return _Wait.SHOWN


def _kind_of_sleep(profile: Profile, frames: list[Frame], wait: str, is_lock: bool) -> _Wait:
    last = next((at for at in range(len(frames) - 1, -1, -1) if frames[at].kind == FrameKind.INTERPRETER), -1)
    if last < 0:
        return _native_kind(profile, frames, wait, is_lock)
    inner = frames[last + 1 :]
    if not all(_is_library(profile, frame) or _is_from(profile, frame, _WAITING_MODULES) for frame in inner):
        return _Wait.SHOWN
    if any(name.lstrip("_").startswith(_NOT_FOR_WORK) for frame in inner for name in _names(frame)):
        return _Wait.SHOWN
    keys = [_key(frame) if frame.kind == FrameKind.INTERPRETER else "" for frame in frames[: last + 1]]
    root = max((at for at, key in enumerate(keys) if _fits(key, PYTHON_ROOTS)), default=-1)
    for frame in (frame for frame in frames[root + 1 : last] if frame.kind != FrameKind.INTERPRETER):
        if any(name not in START_UP and name != "main" for name in _names(frame)) and not (
            _is_from(profile, frame, _INTERPRETER)
        ):
            return _Wait.SHOWN
    rest = [key for key in keys[root + 1 :] if key]
    if _is_python_loop(rest) or (not rest and root >= 0 and _fits(keys[root], HUBS)):
        return _Wait.IDLE
    if root < 0:
        return _Wait.SHOWN
    calls = [key for key in rest if not _fits(key, _BEFORE_OWN)][1:]
    if calls:
        is_queue = _fits(calls[0], _QUEUES) and all(_fits(key, _IN_QUEUES) for key in calls[1:])
    else:
        is_queue = any(_SIMPLE_QUEUE in _names(frame) or _is_from(profile, frame, (_QUEUE_MODULE,)) for frame in inner)
    # A thread whose own function waits for a condition, an event or a queue holds nothing, so this is no lock.
    if is_lock and (is_queue or (calls and all(_fits(key, {"threading.py:wait"}) for key in calls))):
        return _Wait.IDLE
    return _Wait.CONSUMER if is_queue else _Wait.SHOWN


def _is_python_loop(keys: list[str]) -> bool:
    """Return True if the stack begins with functions of Python that start a program or a thread, followed by functions
    of one loop only.
    """
    for at, key in enumerate(keys):
        for loop in PYTHON:
            if _fits(key, loop.entries) and all(_fits(each, loop.entries | loop.inner) for each in keys[at + 1 :]):
                return True
        if key.rpartition(":")[2] not in STARTS and not _fits(key, LAUNCHERS):
            return False
    return False


def _native_kind(profile: Profile, frames: list[Frame], wait: str, is_lock: bool) -> _Wait:
    if len(frames) > 1 and _names(frames[1])[0] in _MAIN_CALLERS:
        frames = frames[1:]  # _start of a stripped program
    inner = [frame for frame in frames if _is_library(profile, frame)]
    rest: list[str] = []
    has_lines = True  # without lines, functions that the compiler inlined are unknown
    caller = ""
    for frame in frames:
        names = _names(frame)
        if not _is_library(profile, frame):
            own = ["main", *names[1:]] if caller in _MAIN_CALLERS else names
            kept = [
                name for name in own if name not in START_UP and not name.removeprefix("void ").startswith(_CPP_THREAD)
            ]
            has_lines &= not kept or any(line.line for line in frame.lines)
            rest += kept
        caller = names[-1]
    if not rest or not any(name in START_UP or name in _GO_ROOTS for name in _names(frames[0])):
        return _Wait.SHOWN
    if any(all(name == "main" or _is_in(name, loop) for name in rest) and _is_in(rest[-1], loop) for loop in NATIVE):
        return _Wait.IDLE
    if _is_tokio_loop(rest):
        return _Wait.IDLE
    if rest == ["main"]:
        return _Wait.IDLE if wait.endswith(tuple(_EVENT_CALLS)) else _Wait.SHOWN
    conditions = any(name.lstrip("_") in _CONDITIONS for frame in inner for name in _names(frame))
    own = [name for name in rest if not name.endswith(_LAMBDA)] or rest[:1]
    if len(own) > 1 or not conditions or not any(n == "start_thread" for f in inner for n in _names(f)):
        return _Wait.SHOWN
    # A thread whose own function waits for a condition holds nothing, so this is no lock.
    if is_lock:
        return _Wait.IDLE
    return _Wait.CONSUMER if has_lines else _Wait.SHOWN


def _is_tokio_loop(names: list[str]) -> bool:
    """Return True if tokio waits for work, and no function of a request calls it."""
    names = [name.lstrip("<&") for name in names]
    own = [name for name in names if name.startswith("tokio::")]
    return (
        bool(own)
        and own[-1].endswith(TOKIO_WAITS)
        and all(name == "main" or name.endswith("::main") or name.startswith(TOKIO_CRATES) for name in names)
    )


def _is_library(profile: Profile, frame: Frame) -> bool:
    return _is_from(profile, frame, _LIBRARIES)


def _is_from(profile: Profile, frame: Frame, beginnings: tuple[str, ...]) -> bool:
    """Return True if the name of a frame's module begins with one of these prefixes."""
    return frame.module >= 0 and base_name(profile.modules[frame.module].path).startswith(beginnings)


def _names(frame: Frame) -> list[str]:
    """Return the functions of a native frame, outermost first, without their arguments."""
    names = [line.function or line.system_name for line in reversed(frame.lines)] or [frame.title]
    return [_without_arguments(name) for name in names]


def _without_arguments(name: str) -> str:
    if name.startswith("("):
        return name
    function = name.replace("(anonymous namespace)", "{anonymous}").partition("(")[0].removesuffix(".abi0")
    return f"{function}{_LAMBDA}" if "'lambda" in name or "{lambda" in name else function


def _is_in(name: str, loop: frozenset[str]) -> bool:
    if name in loop:
        return True
    parts = name.split(".")
    return any(".".join([*parts[:at], ""]) in loop for at in range(len(parts) - 1, 1, -1))


def _key(frame: Frame) -> str:
    line = frame.lines[0] if frame.lines else None
    return f"{line.file or ''}:{line.function.rpartition('.')[2]}" if line else f":{frame.title}"


def _fits(key: str, names: Iterable[str]) -> bool:
    """Return True if a file and function (such as "queue.py:get") is one of the names, in any folder. An empty key fits
    nothing.
    """
    return any(not name or key == name or key.endswith("/" + name) for name in names)
