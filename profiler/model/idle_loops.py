"""The loops in which threads wait for work, as the functions between a thread's root and such a wait.

A stack is idle only if it consists of functions that start a program or a thread, and then of one loop. A request
always adds a function that this module does not list, so its waits never count as idle. Do not add functions that call
handlers of requests, such as those named `handle`.
"""

from __future__ import annotations

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class IdleLoop:
    """A loop that waits for work.

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
"""Idle loops of Python. Functions are the end of the file's path, and the last part of the name."""

HUBS = frozenset({"gevent/hub.py:run"})
"""The only Python function of a greenlet that waits for events. It calls nothing but the native loop."""

PYTHON_ROOTS = HUBS | {
    "threading.py:_bootstrap", "multiprocessing/process.py:_bootstrap", "billiard/process.py:_bootstrap",
}  # fmt: skip
"""First Python function of a thread, of a forked child or of a greenlet. Frames outside of it belong to the parent."""

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
