"""The paper's benchmarks: streams of tasks, networks, settings, and published results."""
