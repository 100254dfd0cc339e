// An extension module in C++ that calls back: a virtual method, a template, std::function, std::sort's comparison,
// an exception that is thrown through and caught.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <vector>

namespace rungs {

struct Caller {
    virtual ~Caller() = default;
    virtual PyObject *call(PyObject *function) = 0;
};

template <typename Result>
struct Direct : Caller {
    __attribute__((noinline)) PyObject *call(PyObject *function) override
    {
        PyObject *result = PyObject_CallFunctionObjArgs(function, nullptr);
        if (result == nullptr)
            throw std::runtime_error("python");
        return result;
    }
};

__attribute__((noinline)) PyObject *caught(const std::function<PyObject *()> &work)
{
    try {
        return work();
    } catch (const std::runtime_error &) {
        return nullptr;
    }
}

__attribute__((noinline)) PyObject *calls_back(PyObject *, PyObject *function)
{
    static Direct<long> direct;
    Caller *volatile caller = &direct;
    return caught([&] { return caller->call(function); });
}

__attribute__((noinline)) PyObject *sorts(PyObject *, PyObject *function)
{
    std::vector<int> values{2, 1};
    bool called = false;
    std::sort(values.begin(), values.end(), [&](int a, int b) {
        if (!called) {
            called = true;
            PyObject *result = PyObject_CallFunctionObjArgs(function, nullptr);
            Py_XDECREF(result);
        }
        return a < b;
    });
    return PyLong_FromLong(values[0]);
}

}  // namespace rungs

static PyMethodDef methods[] = {
    {"calls_back", rungs::calls_back, METH_O, nullptr},
    {"sorts", rungs::sorts, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "cc_rungs", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_cc_rungs()
{
    return PyModule_Create(&module);
}
