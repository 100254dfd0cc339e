"""CPython 3.11 that lies about itself: the frames of each thread are wrong in another way. Its threads run on in their
innermost frames, which look at none of it.
"""

import ctypes
import gc
import sys
import threading
import time

FRAME = 24  # of a PyFrameObject: its _PyInterpreterFrame
CODE, PREVIOUS, SIZE = 32, 48, 80  # of that
LENGTH = 16  # of a PyUnicodeObject
kept = []


def put(at, value):
    ctypes.c_uint64.from_address(at).value = value & 2**64 - 1


def inner(ready):
    ready.set()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


def middle(ready):
    inner(ready)


def outer(ready):
    middle(ready)


def copied(address, size):
    copy = ctypes.create_string_buffer(ctypes.string_at(address, size))
    kept.append(copy)
    return ctypes.addressof(copy)


def native(frame):
    kept.append(frame)
    return ctypes.c_uint64.from_address(id(frame) + FRAME).value


def named(length):
    """A code object whose names are that long, as they say."""

    def lie(frames):
        code = frames["middle"].f_code
        size = code.__sizeof__()
        made = copied(id(code), size)
        names = {id(code.co_name), id(code.co_filename), id(code.co_qualname), id(code.co_linetable)}
        for at in range(16, 200, 8):
            if ctypes.c_uint64.from_address(made + at).value in names:
                text = copied(id(code.co_name), 80)
                put(text + LENGTH, length)
                put(made + at, text)
        put(native(frames["middle"]) + CODE, made)

    return lie


def before(address_of):
    return lambda frames: put(native(frames["middle"]) + PREVIOUS, address_of(frames))


def code(address_of):
    return lambda frames: put(native(frames["middle"]) + CODE, address_of(frames))


def chain(frames):
    """Of as many frames as fit into 24 MB, the last of which calls the first."""
    count = 300_000
    block = ctypes.create_string_buffer(ctypes.string_at(native(frames["middle"]), SIZE) * count)
    kept.append(block)
    start = ctypes.addressof(block)
    for at in range(start, start + count * SIZE, SIZE):
        put(at + PREVIOUS, at + SIZE)
    put(start + (count - 1) * SIZE + PREVIOUS, start)
    put(native(frames["inner"]) + PREVIOUS, start)


LIES = [
    before(lambda frames: native(frames["inner"])),
    before(lambda frames: native(frames["middle"])),
    before(lambda frames: native(frames["outer"]) + 3),
    before(lambda frames: 16),
    before(lambda frames: -8),
    code(lambda frames: 4096),
    code(lambda frames: 0xFFFF_8000_0000_0000),
    code(lambda frames: native(frames["middle"])),
    *map(named, (2**30, 2**62, 2**63, -1)),
    chain,
]


def main():
    gc.disable()
    for lie in LIES:
        ready = threading.Event()
        thread = threading.Thread(target=outer, args=(ready,), daemon=True)
        thread.start()
        ready.wait()
        frames = {}
        frame = sys._current_frames()[thread.ident]
        while frame:
            frames[frame.f_code.co_name] = frame
            frame = frame.f_back
        lie(frames)
    print("ready", flush=True)
    time.sleep(60)


main()
