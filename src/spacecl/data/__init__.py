"""Data: tasks, images, datasets (find, download, read, cache), users' own data, and the benchmarks."""
