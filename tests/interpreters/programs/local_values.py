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

    def inner():
        return cell

    print("ready", flush=True)
    time.sleep(1000)
    return number, password, rest, more, settings, big, negative, data, one, empty, thing, text, inner


function(1, "hunter" + "2", 4, 5, key="value")
