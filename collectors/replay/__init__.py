"""A log of a collector's batches, and a collector that replays it.

collector  A collector that yields again what collectors/replay/log.py saved, in the same order
log        A wrapper that saves what a collector yields for replay/collector.py: batches, images, threads
"""
