"""Local variables of all kinds, some of which look secret; sleeps in the function that has them."""

import time


class Thing:
    pass


def function(number, password, *rest, **more):
    cell = [1, "two", 3.5, None, True]
    settings = {"api_key": "in a dict", "size": 2}
    big, negative, data, one, empty = 10**40, -7, b"bytes", (1,), ()
    thing, text, loop = Thing(), "ünï" * 50, []
    loop.append(loop)
    long, broken, address = "x" * (1 << 24), "\ud800", "postgres://user:hunter2@host:5432/db"
    pair, line, port = ("password", "hunter2"), b"API_TOKEN=hunter2 rest", "http://localhost:8080/a=b"

    def inner():
        return cell

    print("ready", flush=True)
    time.sleep(1000)
    return (
        number,
        password,
        rest,
        more,
        settings,
        big,
        negative,
        data,
        one,
        empty,
        thing,
        text,
        inner,
        long,
        broken,
        pair,
        line,
        address,
        port,
    )


function(1, "hunter" + "2", 4, 5, key="value")
