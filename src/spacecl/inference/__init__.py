"""Inferring which task an input belongs to."""
