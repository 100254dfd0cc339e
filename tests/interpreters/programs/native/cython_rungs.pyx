# cython: language_level=3
"""An extension module in Cython that calls back: a def, a cdef, a method of a cdef class, a generator."""


cdef object typed(object function, int depth):
    if depth:
        return typed(function, depth - 1)
    return function()  # typed calls


def calls_back(function):
    return typed(function, 1)  # calls_back calls


cdef class Holder:
    cdef object function

    def __init__(self, function):
        self.function = function

    cpdef object call(self):
        return self.function()  # call calls


def by_method(function):
    return Holder(function).call()  # by_method calls


def produced(function):
    yield function()  # produced calls


def by_generator(function):
    for value in produced(function):  # by_generator calls
        return value
