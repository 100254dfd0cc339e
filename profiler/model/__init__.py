"""The values that travel through pyprof: samples in, walks, stacks, profiles out. No I/O, no policy."""
