"""A signal handler on a stack of its own that runs Python: outside() is interrupted in a C function, inside() sleeps.

Output: one JSON line, the names of all functions, innermost first. Runs on Python 3.8 and later, on x86-64 and AArch64.
"""

import ctypes
import json
import signal
import time

SIZE = 1 << 18
libc = ctypes.CDLL(None)


class Stack(ctypes.Structure):
    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class Action(ctypes.Structure):
    """As glibc has it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


SA_ONSTACK = 0x08000000


def inside(number):
    print(json.dumps(["inside", "interrupted", "outside", "<module>"]), flush=True)
    time.sleep(1000)


def interrupted():
    libc.raise_(signal.SIGUSR1)


def outside():
    interrupted()


libc.raise_ = libc["raise"]
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int)(inside)
room = ctypes.create_string_buffer(SIZE)
other = Stack(ctypes.addressof(room), 0, SIZE)
action = Action(ctypes.cast(CALLBACK, ctypes.c_void_p), (ctypes.c_ulong * 16)(), SA_ONSTACK, None)
if libc.sigaltstack(ctypes.byref(other), None) or libc.sigaction(int(signal.SIGUSR1), ctypes.byref(action), None):
    raise OSError("no stack of its own")
outside()
