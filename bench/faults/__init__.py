"""Fault injection: what goes wrong in the field, tried here by the thousand. `python -m bench.faults --help`."""
