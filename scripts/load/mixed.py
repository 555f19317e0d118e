"""Producers, consumers, look-ups and kills at once, everything checked: `keelog bench mixed`.

python -m scripts.load.mixed --help
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", "mixed", *sys.argv[1:]]))
