"""Sends messages to a node and measures it: `keelog bench send`.

python -m scripts.load.send --help
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", "send", *sys.argv[1:]]))
