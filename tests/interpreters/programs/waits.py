"""Threads that know where and how long they waited: as tests/programs/c_waits.c, which see."""

import asyncio
import queue
import socketserver
import sys
import threading
import time

ns_of = {}
items = queue.Queue()


def place(function):
    def timed(*arguments):
        began = time.monotonic_ns()
        function(*arguments)
        ns, times = ns_of.get(function.__name__, (0, 0))
        ns_of[function.__name__] = ns + time.monotonic_ns() - began, times + 1

    return timed


@place
def nap_long():
    time.sleep(0.03)


@place
def nap_short():
    time.sleep(0.002)


@place
def wait_item():
    items.get()


@place
def wait_event(event):
    event.wait(0.015)


def naps():
    while True:
        nap_short()
        nap_long()


def reads():
    while True:
        wait_item()


def ticks():
    while True:
        time.sleep(0.005)
        items.put(1)


def events():
    event = threading.Event()
    while True:
        wait_event(event)


async def beat():
    while True:
        await asyncio.sleep(0.01)


def loops():
    asyncio.run(beat())


def serves():
    socketserver.TCPServer(("127.0.0.1", 0), None).serve_forever()


for name in sys.argv[1:]:
    threading.Thread(target=globals()[name], daemon=True, name=name).start()
print("ready", flush=True)
for _ in sys.stdin:
    for name, (ns, times) in list(ns_of.items()):
        print(name, ns, times)
    print("end", flush=True)
