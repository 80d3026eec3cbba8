"""Data: tasks, images, readers of the publishers' formats, the cache, and benchmarks as streams of tasks."""
