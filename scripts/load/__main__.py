"""Load tests of a node, `send`, `consume`, `e2e` and `mixed`, and `store` of the store alone.

`python -m scripts.load send --help`: the same code as `keelog bench send`, with the same options.
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", *sys.argv[1:]]))
