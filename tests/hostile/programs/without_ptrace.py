"""without_ptrace.py COMMAND...: runs it under a filter that refuses ptrace(2), as that of a container may (x86-64)."""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
PTRACE = 101
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM

code = [(LOAD, 0, 0, 0), (EQUALS, 0, 1, PTRACE), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
instructions = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in code))


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


program = Program(len(code), ctypes.addressof(instructions))
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
