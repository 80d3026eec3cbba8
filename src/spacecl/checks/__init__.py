"""Conformance checks that every method passes: `spacecl check METHOD` runs them, and so does the test suite."""
