"""Learning a task: the recipe, the one training loop, checkpoints, and the core of what is committed."""
