"""Samples of live processes, taken by short stops with ptrace(2).

collector                        A collector that samples live processes by ptrace
compiled_sampling_rounds         Rounds of samples by the compiled sampling loop, and the conversion of their results
deep_stack                       Stacks that are longer than what a stop may copy
native_sampling_data             The data that the compiled sampling loop gets for its rounds, and access to the frames
                                 that it has read
running_threads                  The threads that have a processor or were displaced by the sampler
sampled_process                  One sampled process: its threads and which of them are sampled, its address spaces, its
                                 end
sampled_processes                The processes that are sampled by stops, their threads, and a record of those that
                                 ended
sampled_thread                   One thread of a target: its /proc files, its sleep, its share of a processor, and the
                                 size of its stack copies
sampling_loop                    Rounds of samples of a process's threads, and the sampling of one thread
sampling_schedule_and_wall_time  The times at which stops sample threads, and the wall-clock time that these samples
                                 stand for
stack_copy                       The copy of a thread's stack, of a goroutine's stack, and of the memory with an
                                 interpreter's frames
thread_stop                      One stop of one thread: SEIZE, INTERRUPT, read registers and stack, DETACH
"""
