/* An extension module in C that calls back, burns time with the lock and without it, and drops references. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define OWN __attribute__((noinline))

static volatile unsigned long sink;

OWN static PyObject *c_inner(PyObject *function, int depth)
{
    PyObject *result = depth ? c_inner(function, depth - 1) : PyObject_CallFunctionObjArgs(function, NULL);
    sink += depth;
    return result;
}

OWN PyObject *c_calls_back(PyObject *self, PyObject *function)
{
    volatile char room[3000]; /* a frame larger than a page's part */
    room[0] = 1;
    PyObject *result = c_inner(function, 2);
    sink += room[0];
    return result;
}

/* the lock is given up and taken again around the callback, as GUI and database modules do */
OWN PyObject *c_releases_and_calls_back(PyObject *self, PyObject *function)
{
    PyObject *result;
    Py_BEGIN_ALLOW_THREADS
    PyGILState_STATE state = PyGILState_Ensure();
    result = c_inner(function, 0);
    PyGILState_Release(state);
    Py_END_ALLOW_THREADS
    sink++;
    return result;
}

OWN static void burn(double rounds)
{
    for (double n = 0; n < rounds; n++)
        sink += (unsigned long)n;
}

OWN PyObject *c_burns_with_lock(PyObject *self, PyObject *rounds)
{
    burn(PyFloat_AsDouble(rounds));
    Py_RETURN_NONE;
}

OWN PyObject *c_burns_without_lock(PyObject *self, PyObject *rounds)
{
    double many = PyFloat_AsDouble(rounds);
    Py_BEGIN_ALLOW_THREADS
    burn(many);
    Py_END_ALLOW_THREADS
    sink++;
    Py_RETURN_NONE;
}

/* never returns: the Python stack stays what it is while the thread runs */
OWN PyObject *c_spins(PyObject *self, PyObject *unused)
{
    for (;;)
        sink++;
}

static PyMethodDef methods[] = {
    {"calls_back", c_calls_back, METH_O, NULL},
    {"releases_and_calls_back", c_releases_and_calls_back, METH_O, NULL},
    {"burns_with_lock", c_burns_with_lock, METH_O, NULL},
    {"burns_without_lock", c_burns_without_lock, METH_O, NULL},
    {"spins", c_spins, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "c_rungs", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_c_rungs(void)
{
    return PyModule_Create(&module);
}
