//! An extension module in Rust that calls back, out of a closure that the standard library's sort runs, below
//! `catch_unwind`. The few things of Python's stable ABI that it needs are declared here.
#![allow(non_snake_case)]

use std::cell::Cell;
use std::os::raw::{c_char, c_int, c_long, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{addr_of_mut, null_mut};

type Object = *mut c_void;
type Function = unsafe extern "C" fn(Object, Object) -> Object;

#[repr(C)]
pub struct MethodDef {
    name: *const c_char,
    function: Option<Function>,
    flags: c_int,
    doc: *const c_char,
}

#[repr(C)]
pub struct ModuleDef {
    refcount: isize,
    kind: Object,
    init: Object,
    index: isize,
    copy: Object,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut MethodDef,
    slots: Object,
    traverse: Object,
    clear: Object,
    free: Object,
}

extern "C" {
    fn PyModule_Create2(definition: *mut ModuleDef, version: c_int) -> Object;
    fn PyObject_CallObject(function: Object, arguments: Object) -> Object;
    fn PyLong_FromLong(value: c_long) -> Object;
    fn Py_DecRef(object: Object);
}

struct Value {
    number: i32,
}

impl Value {
    #[inline(never)]
    fn key(&self, called: &Cell<bool>, function: Object) -> i32 {
        if !called.replace(true) {
            let result = unsafe { PyObject_CallObject(function, null_mut()) };
            if !result.is_null() {
                unsafe { Py_DecRef(result) };
            }
        }
        self.number
    }
}

#[inline(never)]
fn sorted(function: Object) -> i32 {
    let called = Cell::new(false);
    let mut values: Vec<Value> = (0..30).rev().map(|number| Value { number }).collect();
    values.sort_by_key(|value| value.key(&called, function));
    values[0].number
}

#[no_mangle]
pub unsafe extern "C" fn rust_calls_back(_module: Object, function: Object) -> Object {
    let first = catch_unwind(AssertUnwindSafe(|| sorted(function))).unwrap_or(-1);
    PyLong_FromLong(first as c_long)
}

static mut METHODS: [MethodDef; 2] = [
    MethodDef { name: "calls_back\0".as_ptr().cast(), function: Some(rust_calls_back), flags: 8, doc: null_mut() },
    MethodDef { name: null_mut(), function: None, flags: 0, doc: null_mut() },
];

static mut MODULE: ModuleDef = ModuleDef {
    refcount: 1,
    kind: null_mut(),
    init: null_mut(),
    index: 0,
    copy: null_mut(),
    name: "rust_rungs\0".as_ptr().cast(),
    doc: null_mut(),
    size: -1,
    methods: null_mut(),
    slots: null_mut(),
    traverse: null_mut(),
    clear: null_mut(),
    free: null_mut(),
};

#[no_mangle]
pub unsafe extern "C" fn PyInit_rust_rungs() -> Object {
    let module = addr_of_mut!(MODULE);
    (*module).methods = addr_of_mut!(METHODS).cast();
    PyModule_Create2(module, 3)
}
