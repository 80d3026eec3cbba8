"""The paper's benchmarks: data files, streams of tasks, networks and recipes."""
