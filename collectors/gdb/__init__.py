"""Samples of a target behind a stub of the GDB remote serial protocol.

collector  A collector for a target behind a stub: gdbserver, qemu, OpenOCD, J-Link
connect    The connection to a stub
control    Stopping and resuming through a stub
files      The files of a stub's target on this machine
link       One connection to a stub: requests and their replies, acknowledgements, notifications, time limits
memory     The target's memory through a stub: few, large reads, each page requested once
modules    The mappings of a stub's target
non_stop   Threads that stop one by one (GDB manual, "Remote Non-Stop")
packets    Packets of the GDB remote serial protocol as bytes (GDB manual, "Overview" of the remote protocol)
spaces     The address spaces of a stub's target over time, read from time to time
stub       The requests to a stub as methods: features, objects, memory, registers, threads, files
target     The registers of a stub's target
threads    The threads of a stub's target
xml        A parser of XML from a stub, by events: no tree, no entities, nothing fetched
"""
