"""`python -m planc`."""

import sys

from planc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
