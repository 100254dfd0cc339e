"""Functions whose code objects are alike to the last pointer, one after the other at the same place; runs until killed.

Function f_N of the file "file_N.py" calls helper_K, K being N modulo 7: a frame that has the name of an earlier one is
found out. usage: alike.py [LINE]: they all begin in this one.
"""

import sys

ROUNDS = 20000
LINE = int(*sys.argv[1:])


def helper(n):
    total = 0
    for i in range(n):
        total += i
    return total


def called(helper, n):
    return helper(n)


def named(function, name, line, file):
    names = {"co_name": name, "co_firstlineno": line, "co_filename": file}
    if hasattr(function.__code__, "co_qualname"):
        names["co_qualname"] = name
    return type(function)(function.__code__.replace(**names), {"range": range})


HELPERS = [named(helper, f"helper_{k}", 1, __file__) for k in range(7)]


def main():
    number = 100
    print("ready", flush=True)
    while True:
        number = 100 + (number - 99) % 900
        function = named(called, f"f_{number}", LINE or number, f"/nowhere/file_{number}.py")
        function(HELPERS[number % 7], ROUNDS)
        del function


if __name__ == "__main__":
    main()
