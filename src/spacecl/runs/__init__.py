"""Runs: settings, the run folder, results, what inference costs, and many runs at a time."""
