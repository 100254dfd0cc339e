"""Object files: which file is behind a mapping, and what is in it."""
