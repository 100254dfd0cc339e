"""The loop that ties collector, unwinder, stacks, names and exporters together. Only the command line imports it."""
