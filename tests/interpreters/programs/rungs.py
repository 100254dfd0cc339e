"""A program that knows its own stack: rungs in an order that a number gives, each of which calls the next one through
something native: a module of the standard library, an extension in C, C++, Rust or Cython, numpy, the interpreter.

usage: rungs.py SEED COUNT sleep|spin|c_spin|released [thread]. Output: one JSON line {"stack": [[name, file, line], …]
innermost first, "through": [[rung, [name or module of a native frame through which it calls, …]], …]}; then the
innermost function sleeps or runs in this very line. SIGUSR1 makes faulthandler write all stacks to standard output.

usage: rungs.py SEED COUNT busy [THREADS]. Runs through COUNT rungs at a time in ever other orders until it is killed.
Output: one JSON line {"calls": [[caller, callee], …] of the functions of this file, "through": {rung: as above},
"makers": [qualified name of a function whose call makes a generator or a coroutine, …]}.
"""

import asyncio
import bisect
import collections
import contextlib
import csv
import ctypes
import faulthandler
import functools
import gc
import heapq
import importlib
import inspect
import io
import itertools
import json
import pickle
import random
import re
import signal
import sqlite3
import sys
import threading
import time
import weakref
from xml.parsers import expat

RUNGS = {}
"""Name -> (function, what stands between it and the function that it has called)."""


def rung(*through):
    def add(function):
        RUNGS[function.__name__] = (function, through)
        return function

    return add


def module(name):
    """An extension, None where it is not to be had."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@rung()
def by_call(rest):
    def inside():
        return rest()

    return inside()


@rung("module:ffi")
def by_ctypes(rest):
    def inside(value):
        rest()
        return value

    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(inside)(3)


@rung("module:ffi", "qsort")
def by_qsort(rest):
    called = []

    def inside(a, b):
        if not called:
            called.append(1)
            rest()
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(), ctypes.c_size_t(2), ctypes.c_size_t(4), kind(inside))


@rung("")
def by_reduce(rest):
    def inside(a, b):
        return rest() and a

    return functools.reduce(inside, [1, 2])


@rung("")
def by_sorted(rest):
    def inside(value):
        rest()
        return value

    return sorted([1], key=inside)


@rung("")
def by_json_default(rest):
    def inside(value):
        rest()
        return 1

    return json.dumps({"a": [object()]}, default=inside)


@rung("")
def by_json_object_hook(rest):
    def inside(found):
        rest()
        return found

    return json.loads('[{"a": 1}]', object_hook=inside)


@rung("")
def by_map_and_filter(rest):
    def inside(value):
        return rest()

    return list(filter(None, map(inside, [1])))


@rung("")
def by_list_of_generator(rest):
    def inside():
        yield rest()

    return list(inside())


@rung()
def by_yield_from(rest):
    def inside():
        yield rest()

    def between():
        yield from inside()

    for _ in between():
        break


@rung("")
def by_throw(rest):
    def inside():
        try:
            yield 1
        except KeyError:
            rest()
            yield 2

    running = inside()
    next(running)
    running.throw(KeyError("thrown"))


@rung()
def by_generator_closed(rest):
    def inside():
        try:
            yield 1
        finally:
            rest()

    running = inside()
    next(running)
    running.close()


@rung()
def by_decorated(rest):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @decorate
    @functools.lru_cache(maxsize=1)
    @decorate
    def inside():
        return rest()

    return inside()


@rung()
def by_recursion(rest):
    def inside(depth):
        return inside(depth - 1) if depth else rest()

    return inside(40)


@rung()
def by_except(rest):
    def inside():
        try:
            raise ValueError("in flight")
        except ValueError:
            rest()

    return inside()


@rung()
def by_finally(rest):
    def inside():
        try:
            raise ValueError("in flight")
        finally:
            rest()

    with contextlib.suppress(ValueError):
        inside()


@rung()
def by_exit(rest):
    class Manager:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            inside()
            return True

    def inside():
        rest()

    with Manager():
        raise ValueError("in flight")


@rung()
def by_class(rest):
    class Made:
        def __init__(self):
            inside()

    def inside():
        rest()

    return Made()


@rung("")
def by_metaclass(rest):
    class Meta(type):
        def __new__(cls, *args):
            inside()
            return super().__new__(cls, *args)

    def inside():
        rest()

    return Meta("Made", (), {})


@rung()
def by_property(rest):
    class Made:
        @property
        def value(self):
            return inside()

        def __getattr__(self, name):
            return self.value

    def inside():
        return rest()

    return Made().missing


@rung("")
def by_del(rest):
    class Made:
        def __del__(self):
            inside()

    def inside():
        rest()

    Made()


@rung("")
def by_weakref(rest):
    class Made:
        pass

    def inside(reference):
        rest()

    made = Made()
    kept = weakref.ref(made, inside)
    del made
    return kept


@rung("")
def by_equal_keys(rest):
    class Key:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return inside()

    def inside():
        rest()
        return True

    return {Key(): 1}[Key()]


@rung("")
def by_comparison(rest):
    class Value:
        def __lt__(self, other):
            inside()
            return True

    def inside():
        rest()

    heapq.heappush([Value()], Value())


@rung()
def by_bisect(rest):
    class Value:
        def __lt__(self, other):
            inside()
            return True

    def inside():
        rest()

    bisect.bisect_left([Value()], Value())


@rung("")
def by_re_sub(rest):
    def inside(match):
        rest()
        return ""

    return re.sub("a", inside, "xax")


@rung("")
def by_groupby(rest):
    def inside(value):
        return rest()

    return [key for key, _ in itertools.groupby([1], key=inside)]


@rung("")
def by_default_factory(rest):
    def inside():
        return rest()

    return collections.defaultdict(inside)["missing"]


@rung("")
def by_format(rest):
    class Made:
        def __format__(self, spec):
            return str(inside())

        def __repr__(self):
            return f"{self:x}"

    def inside():
        return rest()

    return f"{Made()!r}"


@rung("")
def by_print(rest):
    class File:
        def write(self, text):
            inside()

    def inside():
        rest()

    print("text", file=File(), end="")


@rung("")
def by_raw_io(rest):
    class Raw(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            inside()
            return 0

    def inside():
        rest()

    return io.BufferedReader(Raw()).read(10)


@rung("")
def by_csv(rest):
    def inside():
        rest()
        yield "a,b"

    return list(csv.reader(inside()))


@rung("")
def by_pickle(rest):
    class Made:
        def __reduce__(self):
            inside()
            return int, ()

    def inside():
        rest()

    return pickle.dumps(Made())


@rung("")
def by_expat(rest):
    def inside(name, attributes):
        rest()

    parser = expat.ParserCreate()
    parser.StartElementHandler = inside
    parser.Parse("<a/>", True)


@rung("module:sqlite3")
def by_sqlite(rest):
    def inside(value):
        rest()
        return value

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("inside", 1, inside)
        return connection.execute("select inside(1)").fetchall()


@rung()
def by_exec(rest):
    names = {"rest": rest}
    exec(compile("def inside():\n\n    return rest()\n\ninside()\n", "/nowhere/made.py", "exec"), names)


@rung("")
def by_eval(rest):
    def inside():
        return rest()

    return eval("[0 for _ in [1] if inside()]", {"inside": inside})


@rung()
def by_gc(rest):
    called = []

    class Made:
        def __del__(self):
            inside()

    def inside():
        if not called:
            called.append(1)
            rest()

    made = Made()
    made.itself = made
    del made
    gc.collect()
    inside()  # a collection within another one collects nothing


@rung()
def by_signal_handler(rest):
    if threading.current_thread() is not threading.main_thread():
        return rest()

    def inside(number, frame):
        rest()

    signal.signal(signal.SIGUSR2, inside)
    signal.raise_signal(signal.SIGUSR2)


@rung()
def by_profile_function(rest):
    def inside(frame, event, argument):
        sys.setprofile(None)
        rest()

    sys.setprofile(inside)
    len("")


@rung()
def by_await(rest):
    class Awaited:
        def __await__(self):
            return iterator()

    def iterator():
        yield inside()

    def inside():
        return rest()

    async def outer():
        async with manager():
            async for value in values():
                await value

    async def values():
        yield Awaited()

    @contextlib.asynccontextmanager
    async def manager():
        yield

    with contextlib.suppress(StopIteration):
        outer().send(None)


@rung()
def by_asyncio(rest):
    def inside():
        return rest()

    async def task():
        return inside()

    async def outer():
        await asyncio.gather(asyncio.ensure_future(task()))

    if asyncio._get_running_loop() is not None:
        return inside()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(outer())
    finally:
        loop.close()


C = module("c_rungs")
if C:

    @rung("c_calls_back", "c_inner", "c_inner", "c_inner")
    def by_c(rest):
        def inside():
            return rest()

        return C.calls_back(inside)

    @rung("c_releases_and_calls_back", "c_inner")
    def by_c_that_releases(rest):
        def inside():
            return rest()

        return C.releases_and_calls_back(inside)


CC = module("cc_rungs")
if CC:

    @rung("rungs::calls_back", "rungs::caught", "rungs::Direct<long>::call")
    def by_cc(rest):
        def inside():
            return rest()

        return CC.calls_back(inside)

    @rung("rungs::sorts")
    def by_cc_sort(rest):
        def inside():
            return rest()

        return CC.sorts(inside)


RUST = module("rust_rungs")
if RUST:

    @rung("rust_calls_back", "rust_rungs::sorted", "rust_rungs::Value::key")
    def by_rust(rest):
        def inside():
            return rest()

        return RUST.calls_back(inside)


CYTHON = module("cython_rungs")
if CYTHON:

    @rung("calls_back", "typed")
    def by_cython(rest):
        def inside():
            return rest()

        return CYTHON.calls_back(inside)

    @rung("by_method", "call")
    def by_cython_method(rest):
        def inside():
            return rest()

        return CYTHON.by_method(inside)

    @rung("by_generator", "__Pyx_Generator_Next", "generator")
    def by_cython_generator(rest):
        def inside():
            return rest()

        return CYTHON.by_generator(inside)


def number_rungs(np):
    @rung("module:umath")
    def by_numpy_ufunc(rest):
        def inside(value):
            return rest()

        return np.frompyfunc(inside, 1, 1)(np.zeros(1))

    @rung("module:umath")
    def by_numpy_vectorize(rest):
        def inside(value):
            rest()
            return value

        return np.vectorize(inside, otypes=[float])(np.zeros(1))

    @rung()
    def by_numpy_along_axis(rest):
        called = []

        def inside(row):
            if not called:
                called.append(1)
                rest()
            return row.sum()

        return np.apply_along_axis(inside, 0, np.zeros((2, 1)))

    @rung("module:umath")
    def by_numpy_object_array(rest):
        class Value:
            def __add__(self, other):
                inside()
                return self

        def inside():
            rest()

        return np.array([Value()], dtype=object) + 1


def walked():
    """The stack of the caller's caller, and what stands between the rungs."""
    stack, through, frame = [], [], sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        stack.append([name, code.co_filename, frame.f_lineno])
        if name in RUNGS:
            through.append([name, RUNGS[name][1]])
        frame = frame.f_back
    return {"stack": stack, "through": through}


def say():
    print(json.dumps(walked()), flush=True)
    return 1000


def sleep():
    time.sleep(say())


def spin():
    # fmt: off
    say() ; exec("while True: pass")  # noqa: E702
    # fmt: on


def c_spin():
    say(), C.spins()


def released():
    say(), C.burns_without_lock(1e18)


def compute():
    return sum(n * n for n in range(60))


def climb(names, end):
    """Call the first rung, which calls the others, and at last `end`."""
    if not names:
        return end()
    return RUNGS[names[0]][0](functools.partial(climb, names[1:], end))


def busy(seed, count):
    generator = random.Random(seed)
    gc.disable()  # garbage is collected where the program says so
    while True:
        climb(generator.sample(sorted(RUNGS), count), compute)


def ladder(seed, count, end):
    climb(random.Random(seed).choices(sorted(RUNGS), k=count), end)


def learn_calls():
    """Which function of this file calls which, found out by running through each rung once."""
    calls = set()

    def in_this_file(frame):
        while frame is not None and frame.f_code.co_filename != __file__:
            frame = frame.f_back
        return frame

    def called(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == __file__:
            caller = in_this_file(frame.f_back)
            calls.add((caller.f_code.co_name if caller else "", frame.f_code.co_name))

    for name in RUNGS:
        if name != "by_profile_function":
            sys.setprofile(called)
            climb([name], compute)
    sys.setprofile(None)
    gc.collect()
    for name in ("by_profile_function", "by_signal_handler"):  # not all of theirs were seen
        calls |= {("climb", name), (name, "climb"), (name, "inside"), ("inside", "climb")}
    return sorted(
        calls
        | {("by_gc", "inside"), ("by_asyncio", "values"), ("busy", "climb"), ("main", "busy"), ("<module>", "main")}
    )


def makers(code):
    """Functions whose call runs on a frame of their own until it has made what they are. Python before 3.11 has no such
    frame, and no qualified names of code.
    """
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            if inner.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
                yield getattr(inner, "co_qualname", "")
            yield from makers(inner)


def main():
    seed, count, how, *rest = sys.argv[1:]
    seed, count = int(seed), int(count)
    if how == "busy":
        through = {name: claims for name, (_, claims) in RUNGS.items()}
        made = sorted(makers(sys._getframe(1).f_code))
        print(json.dumps({"calls": learn_calls(), "through": through, "makers": made}), flush=True)
        for nth in range(int(rest[0]) if rest else 0):
            threading.Thread(target=busy, args=(nth, count), daemon=True).start()
        busy(seed, count)
    end = {"sleep": sleep, "spin": spin, "c_spin": c_spin, "released": released}[how]
    if rest:
        thread = threading.Thread(target=ladder, args=(seed, count, end), name="Rungs")
        thread.start()
        thread.join()
    else:
        ladder(seed, count, end)


if __name__ == "__main__":
    numbers = module("numpy")
    if numbers:
        number_rungs(numbers)
    sys.setrecursionlimit(20000)
    faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=True)
    main()
