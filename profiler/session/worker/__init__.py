"""The process boundary: the sampler on one side, everything that parses what is foreign on the other.

answers       What the worker answers, as bytes, and back in the sampler
asking        How the worker asks the keeper
channel       One end of a socket between two processes of ours: whole messages, with descriptors
errands       A worker without a recording: it looks at something foreign once, and answers with values
file_symbols  What files say of interpreters, asked by the sampler and read in the worker, on a channel of its own
hurry         The worker is out of time: what it computes ends, wherever it is, and it goes on with what it has
idle          What the worker does while nobody waits for it comes after everything else on the machine
keeper        A process that has the rights which the worker gives up, and parses nothing
last_chains   The last chains that were sent from one process to another
link          The sampler's end of the socket to the worker: messages, answers, and the end of the worker
messages      The sampler's messages to the worker
process       The worker process: how it is started, how it is ended
sampling      The sampler's half of a recording: the collector runs here, what it finds goes to the worker
sandbox       What the worker gives up before it parses anything
service       The worker's loop: batches are unwound and interned, windows named, whatever the sampler asks for
share         The worker's share of the processors: less than others', more once somebody waits for its end
wire          Messages of the sampler's as bytes, and back in the worker
"""
