"""numpy, standing still in a function that it calls for each element."""

import threading
import time

import numpy as np


def element(value):
    time.sleep(1000)
    return value


def rows(array):
    return np.apply_along_axis(lambda row: np.frompyfunc(element, 1, 1)(row), 0, array)


threading.Thread(target=rows, args=(np.zeros((2, 2)),), daemon=True).start()
np.vectorize(element, otypes=[float])(np.zeros(2))
