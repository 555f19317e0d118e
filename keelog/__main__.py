"""`python -m keelog`: the same as the command `keelog`."""

import sys

from keelog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
