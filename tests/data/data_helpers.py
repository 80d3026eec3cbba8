"""What tests of data share."""

import os
import tracemalloc
from contextlib import contextmanager

REAL = os.environ.get("SPACECL_DATA")  # a folder with real datasets, if there is one


@contextmanager
def limited_memory(largest=48 << 20):
    """Fail if more memory is allocated, in bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < largest
    finally:
        tracemalloc.stop()
