"""A task's network as a file for other programs."""
