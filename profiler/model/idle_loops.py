"""The loops in which threads wait for work, as the functions between a thread's root and such a wait.

A stack is idle only if all of its functions are in one row of this table, or start each thread. A request always adds a
function that no row has, so its waits never count as idle. Do not add functions that call handlers of requests, such as
those named `handle`.
"""

from __future__ import annotations

STARTS = frozenset({
    *("<module>", "_run_module_as_main", "_run_code", "run_path", "_run_module_code"),
    *("_bootstrap", "_bootstrap_inner", "main", "_main", "cli"),
})  # fmt: skip
"""Functions that start a program or a thread and that no request calls."""

_RUNNERS = (
    *("threading.py:run", "asyncio/runners.py:run", "asyncio/base_events.py:run_until_complete"),
    *("asyncio/base_events.py:run_forever",),
)
_QUEUE = ("queue.py:get", "threading.py:wait")
_GUNICORN = (
    *("gunicorn/app/wsgiapp.py:run", "gunicorn/app/base.py:run", "gunicorn/arbiter.py:run"),
    *("gunicorn/arbiter.py:manage_workers", "gunicorn/arbiter.py:spawn_workers", "gunicorn/arbiter.py:spawn_worker"),
    *("gunicorn/arbiter.py:reload", "gunicorn/arbiter.py:start"),
    *("gunicorn/workers/base.py:init_process", "gunicorn/workers/gthread.py:init_process"),
    *("selectors.py:select",),
)

PYTHON = (
    frozenset({*_RUNNERS, *_QUEUE, "concurrent/futures/thread.py:_worker"}),
    frozenset({
        *_RUNNERS, "asyncio/base_events.py:_run_once", "selectors.py:select", "gunicorn/ctl/server.py:_run_loop",
        "uvicorn/server.py:run", "uvicorn/main.py:run", "uvicorn/main.py:main", "uvicorn/_compat.py:asyncio_run",
        "click/core.py:__call__", "click/core.py:main", "click/core.py:invoke",
    }),
    frozenset({
        *_GUNICORN, "gunicorn/arbiter.py:sleep", "gunicorn/arbiter.py:wait_for_signals",
        "gunicorn/workers/sync.py:run", "gunicorn/workers/sync.py:run_for_one", "gunicorn/workers/sync.py:wait",
        "gunicorn/workers/sync.py:run_for_multiple", "gunicorn/workers/gthread.py:run",
        "gunicorn/workers/gthread.py:wait_for_and_dispatch_events",
    }),
    frozenset({"threading.py:run", "socketserver.py:serve_forever", "selectors.py:select"}),
    frozenset({
        "multiprocessing/process.py:run", "multiprocessing/pool.py:worker", "multiprocessing/queues.py:get",
        "multiprocessing/connection.py:recv_bytes", "multiprocessing/connection.py:_recv_bytes",
        "multiprocessing/connection.py:_recv", "concurrent/futures/process.py:_process_worker",
    }),
    frozenset({"threading.py:run", "logging/handlers.py:_monitor", "logging/handlers.py:dequeue", *_QUEUE}),
    frozenset({
        "threading.py:run", "waitress/task.py:handler_thread", "threading.py:wait", "waitress/wasyncore.py:loop",
        "waitress/wasyncore.py:poll", "waitress/server.py:run",
    }),
)  # fmt: skip
"""Functions of each idle loop of Python: the end of the file's path, and the last part of the name."""

PYTHON_ROOTS = frozenset({"threading.py:_bootstrap", "multiprocessing/process.py:_bootstrap"})
"""First Python function of a thread or of a forked child. Frames outside of it belong to the parent."""

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
    }),
    frozenset({"epoll_dispatch", "event_base_loop", "event_base_dispatch"}),
    frozenset({"epoll_poll", "ev_run"}),
)  # fmt: skip
"""Functions of each idle loop in native programs and libraries, without arguments."""
