"""A log of a collector's batches, and a collector that replays it.

batch_log  A wrapper that saves what a collector yields for replay/collector.py: batches, images, threads
collector  A collector that yields again what collectors/replay/batch_log.py saved, in the same order
"""
