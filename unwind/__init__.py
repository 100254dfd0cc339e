"""Tables and the walk: registers, stack bytes and modules in, addresses out."""
