"""`python -m spacecl` is the command line."""

import sys

try:
    from .cli.main import main

    sys.exit(main())
except KeyboardInterrupt:  # while importing; main() has its own words
    sys.exit(130)
