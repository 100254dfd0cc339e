"""Two threads that hold the interpreter's lock for as long as they may, and one that wants it each two milliseconds."""

import threading
import time


def hog():
    while True:
        for n in range(1000):
            n + 1


def victim():
    while True:
        time.sleep(0.002)


for function in (hog, hog, victim):
    threading.Thread(target=function, daemon=True).start()
print("ready")
time.sleep(600)
