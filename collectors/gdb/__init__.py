"""Samples of a target behind a stub of the GDB remote serial protocol.

collector        A collector for a target behind a stub: gdbserver, qemu, OpenOCD, J-Link
connection       The connection to a stub
memory           The target's memory through a stub: few, large reads, each page requested once
modules          The mappings of a stub's target
non_stop         Threads that stop one by one (GDB manual, "Remote Non-Stop")
packets          Packets of the GDB remote serial protocol as bytes (GDB manual, "Overview" of the remote protocol)
register_layout  The registers of a stub's target
remote_mappings  The address spaces of a stub's target over time, read from time to time
remote_serial    One connection to a stub: requests and their replies, acknowledgements, notifications, time limits
run_control      Stopping and resuming through a stub
stub             The requests to a stub as methods, and a parser of its XML by events: nothing is fetched
target_files     The files of a stub's target on this machine
threads          One thread of a target: its /proc files, its sleep, its use of a processor, its stop
"""
