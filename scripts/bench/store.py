"""The cost of the store alone, in process, without sockets: `keelog bench store`.

Prints rate, latency and CPU of single puts, of batches and of a walk of the log, a column each.

    python -m scripts.bench.store --help
"""

import sys

from keelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", "store", *sys.argv[1:]]))
