"""Measures the way from a send to a waiting consumer: `keelog bench e2e`.

python -m scripts.load.end_to_end --help
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", "e2e", *sys.argv[1:]]))
