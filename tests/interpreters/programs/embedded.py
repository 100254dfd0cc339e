"""What embeds.c runs: Python that C calls, which calls C, which calls Python; it writes its stack down and sleeps."""

import ctypes
import json
import sys
import time


def say():
    stack, frame = [], sys._getframe(1)
    while frame is not None:
        stack.append([frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    print(json.dumps(stack), flush=True)
    return 1000


def called(value):
    time.sleep(say())
    return value


def in_thread():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    ctypes.CDLL(None).embedder_calls_back(kind(called))
