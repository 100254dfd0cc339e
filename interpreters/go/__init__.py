"""Go: not an interpreter, but samples need the separate stacks of its goroutines.

goroutine_offsets  The way from a thread of a Go program to its goroutine, read from the code of its runtime
"""
