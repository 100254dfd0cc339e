"""Tests that idle threads are hidden and waits inside of a request are shown, and that the recording contains both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.collectors.combined.planner import collect_facts
from pyprof.collectors.sampling_source_plan import BPF, find_refusal
from pyprof.options import CollectOptions
from pyprof.recording.reader import load_recording
from tests.cli.support import pyprof, python
from tests.support import build, missing, need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

SERVICE = """
import asyncio, queue, threading, time
from concurrent.futures import ThreadPoolExecutor

lock, barrier = threading.Lock(), threading.Barrier(4)

def nap_in_request():
    time.sleep(600)

def lock_in_request():
    with lock:
        pass

def consume():
    while True:
        work.get()
        item_in_request()

def item_in_request():
    time.sleep(0.1)

async def produce():
    while True:
        work.put(1)
        await asyncio.sleep(0.2)

work = queue.Queue()

def main():
    lock.acquire()
    threading.Thread(target=consume, daemon=True).start()
    pool = ThreadPoolExecutor(4)
    list(pool.map(lambda _: barrier.wait(), range(4)))
    pool.submit(nap_in_request)
    pool.submit(lock_in_request)
    print(flush=True)
    asyncio.run(produce())

main()
"""
"""A program in which two pool threads serve requests. Two others, a queue and the event loop wait for work."""
SERVER = """
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static __attribute__((noinline)) void query(void) { pthread_mutex_lock(&lock); }
static void *serve(void *_) { query(); return _; }
static void *consume(void *_) {
    pthread_mutex_lock(&queue);
    for (;;) pthread_cond_wait(&filled, &queue);
    return _;
}
int main(void) {
    pthread_t threads[2];
    struct epoll_event event;
    pthread_mutex_lock(&lock);
    pthread_create(&threads[0], 0, serve, 0);
    pthread_create(&threads[1], 0, consume, 0);
    puts(""), fflush(stdout);
    for (int fd = epoll_create1(0);;) epoll_wait(fd, &event, 1, -1);
}
"""


def sleeping(text: str) -> list[str]:
    """Return the stacks that sleep in a system call, without those that wait for the GIL.

    On a busy machine a thread may sleep between two samples only. Then its time has no stack, and is marked so.
    """
    others = ("pthread_cond_timedwait", "[not sampled")
    return [line for line in text.splitlines() if "[sleeping: " in line and not any(each in line for each in others)]


def record(pid: int, folder: Path, *options: str) -> tuple[str, str]:
    """Record a process, and return its collapsed stacks and the terminal's output.

    The recording is stored as all.pyprof.
    """
    out = folder / "shown.collapsed"
    done = pyprof(
        *("record", "-p", str(pid), "-d", "1", "-o", str(out), "--save", str(folder / "all.pyprof"), *options)
    )
    assert done.returncode == 0, done.stderr
    return out.read_text(), " ".join(done.stderr.split())


@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_pool_and_event_loop_are_hidden_and_requests_are_shown(collector: str, tmp_path: Path) -> None:
    with python(SERVICE) as target:
        shown, said = record(target.pid, tmp_path, "--mode", "offcpu", "--collector", collector)
    stacks = sleeping(shown)
    assert stacks
    assert all("in_request" in stack for stack in stacks), stacks
    assert {name for name in ("nap_in_request", "lock_in_request") if name in shown} == {
        *("nap_in_request", "lock_in_request"),
    }
    found = re.search(r"idle: 4 threads, ([\d.]+) s hidden; --idle shows them", said)
    assert found
    everything = pyprof("report", str(tmp_path / "all.pyprof"), "-f", "collapsed", "--idle").stdout
    assert {name for name in ("_run_once", "SimpleQueue", "in_request") if name in everything} >= {
        *("_run_once", "in_request"),
    }
    assert load_recording(tmp_path / "all.pyprof").total / 1e9 > float(found[1])
    assert sleeping(pyprof("report", str(tmp_path / "all.pyprof"), "-f", "collapsed").stdout) == stacks


def test_idle_threads_are_shown_on_request(tmp_path: Path) -> None:
    with python(SERVICE) as target:
        shown, said = record(target.pid, tmp_path, "--mode", "offcpu", "--idle")
    assert "_run_once" in shown
    assert "hidden" not in said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("gcc")
    source = tmp_path_factory.mktemp("server") / "server.c"
    source.write_text(SERVER)
    return build(source, source.with_suffix(""), "-O1", "-g", "-pthread")


@pytest.mark.parametrize("mode", ["offcpu", "lock"])
def test_native_server_shows_the_mutex_of_its_request(mode: str, server: Path, tmp_path: Path) -> None:
    if mode == "lock":
        options = CollectOptions()
        if find_refusal(BPF, collect_facts((0,), options), options) is not None:
            missing("needs BPF")
    with subprocess.Popen([server], stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout
        target.stdout.readline()
        shown, said = record(target.pid, tmp_path, "--mode", mode)
        target.kill()
    names = {name for name in ("query", "consume", "epoll_wait") if any(name in stack for stack in sleeping(shown))}
    assert names == {"query"}
    assert ("idle: 1 thread, " if mode == "lock" else "idle: 2 threads, ") in said


def test_what_only_waits_for_work_is_shown(tmp_path: Path) -> None:
    program = "import asyncio; print(flush=True); asyncio.run(asyncio.sleep(600))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout
        target.stdout.readline()
        shown, said = record(target.pid, tmp_path, "--mode", "offcpu", "--collector", "ptrace")
        target.kill()
    assert "[sleeping: " in shown
    assert "s hidden" in said or "only waits for work" in said
