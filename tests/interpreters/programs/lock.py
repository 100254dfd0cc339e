"""Two threads: one computes in C with the GIL, the other in C without it. Prints "ready", runs until it is killed."""

import threading

import c_rungs


def with_lock():
    while True:
        c_rungs.burns_with_lock(1e5)


def without_lock():
    while True:
        c_rungs.burns_without_lock(1e6)


threading.Thread(target=with_lock, name="with", daemon=True).start()
print("ready", flush=True)
without_lock()
