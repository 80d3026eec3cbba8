"""A model's structure: the exported graph, which channels belong together, and networks of any width made from it."""
