"""Export of a task's network to a file for other programs."""
