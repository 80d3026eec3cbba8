"""SPACE: the method, and the steps of its analysis."""

from .method import SPACE as SPACE
