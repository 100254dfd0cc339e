"""Samples of a target behind a stub of the GDB remote serial protocol.

collector  Samples of a target behind a stub of the GDB remote serial protocol: gdbserver, qemu, OpenOCD, J-Link
connect    Connects to a stub
control    Stopping and resuming through a stub
files      Where the files of a stub's target are on this machine
link       One connection to a stub: requests and their replies, acknowledgements, notifications, time limits
memory     The target's memory through a stub: few, large reads, each page asked for once
modules    What is mapped where in a stub's target, as mappings
non_stop   Threads that stop one by one (GDB manual, "Remote Non-Stop")
packets    Packets of the GDB remote serial protocol as bytes (GDB manual, "Overview" of the remote protocol)
spaces     The address spaces of a stub's target over time: looked at now and then, for a tenth of the time at most
stub       What a stub is asked, as methods: features, objects, memory, registers, threads, files
target     The registers of a stub's target
threads    The threads of a stub's target
xml        XML from a stub, by events: no tree, no entities, nothing fetched
"""
