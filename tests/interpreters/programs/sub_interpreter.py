"""Runs code in a sub-interpreter, which sleeps there. The module's name and its functions changed over the versions."""

CODE = """
import time

def inside():
    print("ready", flush=True)
    time.sleep(1000)

inside()
"""


def run():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    number = interpreters.create()
    if hasattr(interpreters, "exec"):
        interpreters.exec(number, CODE)
    else:
        interpreters.run_string(number, CODE)


def outside():
    run()


outside()
