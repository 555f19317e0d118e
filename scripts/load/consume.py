"""Reads stored messages at full speed and measures it: `keelog bench consume`.

python -m scripts.load.consume --help
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", "consume", *sys.argv[1:]]))
