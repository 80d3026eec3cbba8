"""Fault injection: whatever can go wrong in use, tried thousands of times. See `python -m bench.faults --help`."""
