"""Tests of idle waits: a wait with a function of a request on its stack is never idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.idle_waits import LAUNCHERS, NATIVE, PYTHON, STARTS, idle_waits, without_idle
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.unwind_result import StackEnd, Trust
from tests.exporters.profiles import golden

MODULES = (
    *("/usr/lib/libc.so.6", "/srv/server", "/usr/bin/python3.11", "/usr/lib/_queue.cpython-311.so"),
    "/venv/lib/gevent/libev/corecext.cpython-311.so",
)
LIBC, SERVER, PYTHON_PROGRAM, QUEUE, LIBEV = range(len(MODULES))
SLEEPS, EPOLL = "[sleeping: futex]", "[sleeping: epoll_wait]"


def native(name: str, module: int = SERVER) -> Frame:
    return Frame(FrameKind.NATIVE, 1, 1, 1, module, (Line(name, name),), Trust.FP, name)


def python(name: str, file: str) -> Frame:
    return Frame(FrameKind.INTERPRETER, 0, 0, 0, -1, (Line(name, name, 0, file),), Trust.FP, name)


def library(*names: str) -> list[Frame]:
    return [native(name, LIBC) for name in names]


def lined(name: str) -> Frame:
    """Return a native frame with a line, as debug information gives it."""
    return replace(native(name), lines=(Line(name, name, 0, "/srv/pool.cpp", 7),))


def wait(title: str) -> Frame:
    return Frame(FrameKind.KERNEL, 0, 0, 0, -1, (Line(title, title),), Trust.KERNEL, title)


def marker(mark: Mark) -> Frame:
    return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, mark.title, mark)


def waits(*stacks: list[Frame], kind: str = "offcpu") -> Profile:
    """Return a profile with one second in each stack, each of which has a separate thread."""
    frames = [frame for stack in stacks for frame in stack]
    parent, leaves = [-1], []
    for stack in stacks:
        last = 0
        for _ in stack:
            parent.append(last)
            last = len(parent) - 1
        leaves.append(last)
    count = len(stacks)
    return replace(
        golden(),
        value_types=(ValueType("samples", "count"), ValueType(kind, "nanoseconds")),
        frames=tuple(frames),
        parent=np.array(parent, np.int32),
        frame=np.arange(-1, len(frames), dtype=np.int32),
        modules=tuple(ModuleInfo(path, "", 0, 1, 0, True, False) for path in MODULES),
        threads=tuple(ThreadInfo(1, tid + 1, f"thread {tid}", "server") for tid in range(count)),
        time_ns=np.full(count, golden().start_ns, np.int64),
        stack=np.array(leaves, np.int32),
        thread=np.arange(count, dtype=np.int32),
        values=np.tile(np.array([1, 10**9], np.int64), (count, 1)),
        state=None,
        cpu=None,
    )


THREAD = [
    *library("clone3", "start_thread"),
    python("Thread._bootstrap", "/usr/lib/python3.11/threading.py"),
    python("Thread._bootstrap_inner", "/usr/lib/python3.11/threading.py"),
    python("Thread.run", "/usr/lib/python3.11/threading.py"),
]
POOL = [
    *THREAD,
    python("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py"),
    native("_queue_SimpleQueue_get", QUEUE),
    *library("__new_sem_wait_slow64"),
    wait(SLEEPS),
]
PROGRAM = library("_start", "__libc_start_main", "__libc_start_call_main")
ASYNCIO = [
    *PROGRAM,
    python("<module>", "/srv/app.py"),
    python("main", "/srv/app.py"),
    python("run", "/usr/lib/python3.11/asyncio/runners.py"),
    python("BaseEventLoop.run_forever", "/usr/lib/python3.11/asyncio/base_events.py"),
    python("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py"),
    python("EpollSelector.select", "/usr/lib/python3.11/selectors.py"),
    native("epoll_wait", LIBC),
    wait(EPOLL),
]
ARBITER = [
    *PROGRAM,
    python("<module>", "/venv/bin/gunicorn"),
    python("run", "/venv/lib/python3.11/site-packages/gunicorn/app/wsgiapp.py"),
    python("Arbiter.run", "/venv/lib/python3.11/site-packages/gunicorn/arbiter.py"),
    python("Arbiter.wait_for_signals", "/venv/lib/python3.11/site-packages/gunicorn/arbiter.py"),
    native("_queue_SimpleQueue_get", QUEUE),
    wait(SLEEPS),
]
SERVER_LOOP = [*PROGRAM, native("main"), native("epoll_wait", LIBC), wait(EPOLL)]
STRIPPED = [*PROGRAM, native("server!0x1234"), native("epoll_wait", LIBC), wait(EPOLL)]
REDIS = [
    *PROGRAM,
    *map(native, ("main", "aeMain", "aeProcessEvents", "aeApiPoll")),
    native("epoll_wait", LIBC),
    wait(EPOLL),
]
AIOHTTP = [
    *PROGRAM,
    python("<module>", "/srv/app.py"),
    python("run_app", "/venv/lib/python3.11/site-packages/aiohttp/web.py"),
    python("BaseEventLoop.run_until_complete", "/usr/lib/python3.11/asyncio/base_events.py"),
    *ASYNCIO[-5:],
]
FLASK = [
    *PROGRAM,
    python("<module>", "/venv/bin/flask"),
    python("main", "/venv/lib/python3.11/site-packages/flask/cli.py"),
    python("Command.main", "/venv/lib/python3.11/site-packages/click/core.py"),
    python("Command.invoke", "/venv/lib/python3.11/site-packages/click/core.py"),
    python("run_command", "/venv/lib/python3.11/site-packages/flask/cli.py"),
    python("run_simple", "/venv/lib/python3.11/site-packages/werkzeug/serving.py"),
    python("BaseWSGIServer.serve_forever", "/venv/lib/python3.11/site-packages/werkzeug/serving.py"),
    python("BaseServer.serve_forever", "/usr/lib/python3.11/socketserver.py"),
    python("_PollLikeSelector.select", "/usr/lib/python3.11/selectors.py"),
    native("poll", LIBC),
    wait("[sleeping: poll]"),
]
POOL_RESULTS = [
    *THREAD,
    python("Pool._handle_results", "/usr/lib/python3.11/multiprocessing/pool.py"),
    python("_ConnectionBase.recv", "/usr/lib/python3.11/multiprocessing/connection.py"),
    python("Connection._recv_bytes", "/usr/lib/python3.11/multiprocessing/connection.py"),
    native("read", LIBC),
    wait("[sleeping: read]"),
]
NODE = [*library("clone3", "start_thread"), *map(native, ("worker", "uv_cond_wait")), wait(SLEEPS)]
GO = [*map(native, ("runtime.mcall", "runtime.park_m", "runtime.schedule", "runtime.findRunnable"))]
GO += [*map(native, ("runtime.mPark", "runtime.notesleep", "runtime.futexsleep", "runtime.futex.abi0")), wait(SLEEPS)]
JAVA = [
    *library("clone3", "start_thread"),
    *map(native, ("thread_native_entry", "Thread::call_run", "JavaThread::thread_main_inner", "thread_entry")),
    *map(native, ("JavaCalls::call_virtual", "JavaCalls::call_helper", "call_stub", "java.lang.Thread.run")),
    native("java.util.concurrent.ThreadPoolExecutor$Worker.run"),
    native("java.util.concurrent.ThreadPoolExecutor.runWorker"),
    native("java.util.concurrent.ThreadPoolExecutor.getTask"),
    native("java.util.concurrent.LinkedBlockingQueue.take"),
    *map(native, ("jdk.internal.misc.Unsafe.park", "Unsafe_Park", "Parker::park")),
    *library("pthread_cond_wait"),
    wait(SLEEPS),
]
GEVENT = [
    *PROGRAM,
    python("<module>", "/srv/app.py"),
    python("view_that_slept_first", "/srv/views.py"),
    native("greenlet::UserGreenlet::inner_bootstrap"),
    python("Hub.run", "/venv/lib/python3.11/site-packages/gevent/hub.py"),
    *(native(name, LIBEV) for name in ("gevent.libev.corecext.loop.run", "ev_run", "epoll_poll")),
    native("epoll_wait", LIBC),
    wait(EPOLL),
]
RUST_THREAD = [
    *library("clone3", "start_thread"),
    native("<std::sys::thread::unix::Thread>::new::thread_start"),
    native("core::ops::function::FnOnce::call_once{{vtable.shim}}"),
    native("std::sys::backtrace::__rust_begin_short_backtrace"),
    native("tokio::runtime::blocking::pool::Inner::run"),
]
CONDVAR = native("<std::sys::sync::condvar::futex::Condvar>::wait")
WORKER = "tokio::runtime::scheduler::multi_thread::"
TOKIO = [
    *RUST_THREAD,
    native("tokio::runtime::task::core::Core<T,S>::poll"),
    *(native(f"{WORKER}{name}") for name in ("worker::run", "worker::Context::run", "worker::Context::park_timeout")),
    native(f"{WORKER}park::Parker::park"),
]
TOKIO_DRIVER = [*TOKIO, *map(native, ("tokio::runtime::io::Driver::turn", "mio::poll::Poll::poll"))]
TOKIO_MAIN = [
    *PROGRAM,
    *map(native, ("main", "std::rt::lang_start", "app::main", "tokio::runtime::runtime::Runtime::block_on")),
    native("tokio::runtime::park::Inner::park"),
]
IDLE = {
    "pool": POOL,
    "gevent": GEVENT,
    "tokio worker": [*TOKIO, CONDVAR, *library("syscall"), wait(SLEEPS)],
    "tokio driver": [*TOKIO_DRIVER, *library("epoll_wait"), wait(EPOLL)],
    "tokio blocking pool": [*RUST_THREAD, CONDVAR, *library("syscall"), wait(SLEEPS)],
    "tokio main": [*TOKIO_MAIN, CONDVAR, *library("syscall"), wait(SLEEPS)],
    "asyncio": ASYNCIO,
    "arbiter": ARBITER,
    "server": SERVER_LOOP,
    "stripped": STRIPPED,
    "redis": REDIS,
    "aiohttp": AIOHTTP,
    "flask": FLASK,
    "node": NODE,
    "Go": GO,
    "Java": JAVA,
    "pool of processes": POOL_RESULTS,
}
CONSUMER = [
    *THREAD,
    python("consume", "/srv/app.py"),
    python("Queue.get", "/usr/lib/python3.11/queue.py"),
    python("Condition.wait", "/usr/lib/python3.11/threading.py"),
    wait(SLEEPS),
]
SIMPLE_CONSUMER = [*CONSUMER[:-3], *POOL[-3:]]
STRIPPED_CONSUMER = [*CONSUMER[:-3], native("_queue.cpython-311.so!0x2880", QUEUE), *POOL[-2:]]
OWN_CLASS = [*THREAD[:-1], python("Consumer.run", "/srv/app.py"), *CONSUMER[-3:]]
OF_PROCESSES = [*CONSUMER[:-3], python("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py"), wait(SLEEPS)]
NATIVE_THREAD = [*library("clone3", "start_thread"), native("execute_native_thread_routine")]
NATIVE_CONSUMER = [
    *NATIVE_THREAD,
    lined("Pool::Pool(int)::{lambda()#1}::operator()() const"),
    lined("Pool::work"),
    lined("std::condition_variable::wait"),
    *library("pthread_cond_wait"),
    wait(SLEEPS),
]
CONSUMERS = {
    "queue": CONSUMER,
    "simple": SIMPLE_CONSUMER,
    "stripped": STRIPPED_CONSUMER,
    "class": OWN_CLASS,
    "processes": OF_PROCESSES,
    "native": NATIVE_CONSUMER,
}
TICKER = [*CONSUMER[:-3], *[python("Event.wait", "/usr/lib/python3.11/threading.py")] * 2, wait(SLEEPS)]
IN_LOOPS = (
    {name.rpartition(":")[2] for loop in PYTHON for name in loop.entries | loop.inner}
    | {name.rpartition(":")[2] for name in LAUNCHERS}
    | {name for loop in NATIVE for name in loop}
    | STARTS
)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True).filter(lambda name: name not in IN_LOOPS)


@pytest.mark.parametrize("stack", IDLE.values(), ids=IDLE)
def test_wait_of_a_known_loop_is_idle(stack: list[Frame]) -> None:
    assert idle_waits(waits(stack)).tolist() == [True]


@given(st.sampled_from(list(IDLE.values())), st.data(), NAMES, st.booleans(), st.sampled_from(["offcpu", "lock"]))
def test_wait_with_a_function_of_a_request_on_its_stack_is_never_idle(
    stack: list[Frame], data: st.DataObject, name: str, is_python: bool, kind: str
) -> None:
    roots = [at + 1 for at, frame in enumerate(stack) if frame.title in {"Thread._bootstrap", "Hub.run"}]
    place = data.draw(st.integers(max([*roots, len(PROGRAM) - (stack[0].title != "_start")]), len(stack) - 1))
    request = python(f"views.{name}", "/srv/views.py") if is_python else native(name)
    if not is_python and place == len(PROGRAM) and stack[place].kind == FrameKind.NATIVE:
        place += 1  # the program's first function counts as main under any name
    assert idle_waits(waits([*stack[:place], request, *stack[place:]], kind=kind)).tolist() == [False]


def test_function_that_is_inlined_into_main_shows_the_wait() -> None:
    names = ("query", "main")  # from leaf to root
    main = replace(native("main"), lines=tuple(Line(name, name) for name in names))
    assert idle_waits(waits([*PROGRAM, main, *SERVER_LOOP[-2:]])).tolist() == [False]


@pytest.mark.parametrize(
    "stack",
    [
        [*POOL[:-2], *library("pthread_cond_timedwait"), wait(SLEEPS)],
        [*POOL[:-1], wait("[waiting for a processor]")],
        [*POOL[:-1], wait("[uninterruptible sleep: read]")],
        [marker(Mark(MarkKind.CUT, StackEnd.NO_RULE)), *POOL],
        [*PROGRAM, native("main"), native("poll", LIBC), wait("[sleeping: poll]")],
        [*PROGRAM, native("main"), native("nanosleep", LIBC), wait("[sleeping: clock_nanosleep]")],
        [wait("[blocked: waits too short or too many for stacks]")],
        [native("epoll_wait", LIBC), wait(EPOLL)],
        [*RUST_THREAD, native("tokio::runtime::task::core::Core<T,S>::poll"), *library("nanosleep"), wait(SLEEPS)],
        [*TOKIO_MAIN[:-1], native("query"), TOKIO_MAIN[-1], CONDVAR, *library("syscall"), wait(SLEEPS)],
    ],
    ids=["GIL", "processor", "disk", "cut", "client", "nap", "sum", "no root", "task of tokio", "block_on in a call"],
)
def test_wait_that_may_not_be_for_work_is_shown(stack: list[Frame]) -> None:
    assert idle_waits(waits(stack)).tolist() == [False]


def of_one_thread(stacks: list[list[Frame]], duration_ns: int) -> Profile:
    """Return a profile of one thread that has one second in each of these stacks, one after another."""
    profile = waits(*stacks)
    return replace(
        profile,
        time_ns=profile.start_ns + np.arange(len(stacks), dtype=np.int64) * 10**9,
        thread=np.zeros(len(stacks), np.int32),
        summary=replace(profile.summary, duration_s=duration_ns / 1e9),
        duration_ns=duration_ns,
    )


def in_request(stack: list[Frame]) -> list[Frame]:
    """Return the stack of a request that a consumer serves."""
    own = next(at for at, frame in enumerate(stack) if frame.title in {"consume", "Consumer.run", "Pool::work"})
    handler = lined("query") if stack[own].kind == FrameKind.NATIVE else python("query", "/srv/views.py")
    return [*stack[: own + 1], handler, wait(SLEEPS)]


@pytest.mark.parametrize("stack", CONSUMERS.values(), ids=CONSUMERS)
def test_queue_that_a_thread_reads_again_after_it_did_something_else_is_idle(stack: list[Frame]) -> None:
    found = of_one_thread([stack, in_request(stack), stack], 60 * 10**9)
    assert idle_waits(found).tolist() == [True, False, True]


def test_simple_queue_that_a_function_reads_again_after_it_slept_by_itself_is_idle() -> None:
    asleep = [*SIMPLE_CONSUMER[:-3], *library("clock_nanosleep"), wait("[sleeping: clock_nanosleep]")]
    woken = [*SIMPLE_CONSUMER[:-1], wait("[waiting for a processor]")]
    found = of_one_thread([SIMPLE_CONSUMER, asleep, SIMPLE_CONSUMER], 60 * 10**9)
    assert idle_waits(found).tolist() == [True, False, True]
    found = of_one_thread([SIMPLE_CONSUMER, woken, SIMPLE_CONSUMER], 60 * 10**9)
    assert idle_waits(found).tolist() == [False] * 3


@pytest.mark.parametrize("stack", CONSUMERS.values(), ids=CONSUMERS)
def test_queue_that_a_thread_waits_for_during_the_whole_recording_is_idle(stack: list[Frame]) -> None:
    assert idle_waits(of_one_thread([stack] * 4, 4 * 10**9)).tolist() == [True] * 4


@pytest.mark.parametrize("stack", CONSUMERS.values(), ids=CONSUMERS)
def test_queue_that_the_thread_of_one_request_waits_for_once_is_shown(stack: list[Frame]) -> None:
    found = of_one_thread([stack, stack, in_request(stack), in_request(stack)], 8 * 10**9)
    assert idle_waits(found).tolist() == [False] * 4


def test_event_of_a_threads_own_function_is_shown() -> None:
    assert idle_waits(of_one_thread([TICKER, in_request(TICKER), TICKER], 3 * 10**9)).tolist() == [False] * 3


def test_condition_of_a_native_function_without_lines_is_shown() -> None:
    stack = [*NATIVE_CONSUMER[:3], native("consume"), *NATIVE_CONSUMER[-2:]]
    assert idle_waits(of_one_thread([stack] * 4, 4 * 10**9)).tolist() == [False] * 4


@pytest.mark.parametrize("stack", [*CONSUMERS.values(), TICKER], ids=[*CONSUMERS, "event"])
def test_queue_or_event_of_a_threads_own_function_is_no_lock(stack: list[Frame]) -> None:
    located = [marker(Mark(MarkKind.LOCK, name="lock 0x10")), *stack]
    assert idle_waits(waits(located, kind="lock")).tolist() == [True]


def test_thread_that_work_woke_does_not_wait_for_a_lock() -> None:
    woken = [marker(Mark(MarkKind.LOCK, name="lock 0x10")), *POOL[:-1], wait("[waiting for a processor]")]
    assert idle_waits(waits(woken, kind="lock")).tolist() == [True]
    assert idle_waits(waits(woken)).tolist() == [False]


def test_mutex_and_gil_are_locks() -> None:
    mutex = [*library("clone3", "start_thread"), native("work"), *library("pthread_mutex_lock"), wait(SLEEPS)]
    gil = [marker(Mark(MarkKind.LOCK, name="GIL")), *POOL]
    request = [*CONSUMER[:-3], python("checkout", "/srv/pool.py"), *CONSUMER[-3:]]
    assert idle_waits(waits(mutex, gil, request, kind="lock")).tolist() == [False] * 3


def test_hidden_waits_are_named_with_their_sum() -> None:
    request = [*POOL[:-3], python("view", "/srv/views.py"), wait(SLEEPS)]
    found = without_idle(waits(POOL, ASYNCIO, request))
    assert (len(found.stack), found.total) == (1, 10**9)
    assert found.summary.notes[-1].text == "idle: 2 threads, 2.0 s hidden; --idle shows them"


def test_functions_that_wait_for_a_queue_all_the_time_are_named_with_their_time() -> None:
    found = waits(CONSUMER, NATIVE_CONSUMER, POOL, in_request(CONSUMER))
    shown = without_idle(replace(found, duration_ns=10**9))
    assert shown.summary.notes[-2:] == (
        make_note("idle_hidden", threads=3, seconds=3.0),
        make_note("idle_whole", seconds=2.0, functions="consume, Pool::work"),
    )


def test_idle_waits_are_shown_where_there_is_nothing_else_and_in_other_kinds_of_time() -> None:
    found = without_idle(waits(POOL, ASYNCIO))
    assert len(found.stack) == 2
    assert found.summary.notes[-1].reason == "only_idle"
    no_contention = without_idle(waits(POOL, CONSUMER, kind="lock"))
    assert len(no_contention.stack) == 0
    assert no_contention.summary.notes[-1].reason == "idle_hidden"
    for kind in ("wall", "cpu"):
        other = waits(POOL, CONSUMER, kind=kind)
        assert without_idle(other) is other
