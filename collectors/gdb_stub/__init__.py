"""Samples of a target behind a GDB stub, that is, a server of the GDB remote serial protocol such as
gdbserver.

collector              A collector for a target behind a stub of the GDB remote serial protocol, and its connection to
                       the stub
remote_serial          The GDB remote serial protocol: its packets, and one connection with requests and replies
run_control            Stopping and resuming a target through a stub, all threads at once or one by one
stub_requests          The requests to a stub as methods, and the target's memory through a stub
target_modules         The modules of a stub's target: its mappings over time, and the local files that belong to them
threads_and_registers  The threads of a stub's target, and the layout of their registers in packets
"""
