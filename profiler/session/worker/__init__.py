"""The process boundary: the sampler on one side, the worker that parses all untrusted data on the other.

deadline             Deadlines in the worker: signals that interrupt its computation
file_broker          The file broker: a process that keeps the rights which the worker gives up, and parses no files
file_broker_client   Client of the file broker: an Opener in the worker that forwards each call over a channel
interpreter_symbols  Interpreter symbols of object files: requested by the sampler, read in a thread of the worker
message_channel      One end of a socket between two processes of pyprof: whole messages, with file descriptors
message_codec        Codec for the sampler's messages to the worker
messages             Messages from the sampler to the worker
response_codec       Codec for the worker's responses to the sampler
sampler_loop         The sampler's half of a recording: it runs the collector and sends batches to the worker
sandbox              The rights and system calls that the worker gives up before it parses files
worker_client        The sampler's clients of a worker: for a recording, and for one-shot tasks
worker_loop          The worker's main loop: unwind batches, resolve names, serve requests
worker_process       The start and the end of the worker process
"""
