"""Load tests of a node: what `keelog bench` and `scripts.load` run, for programs too.

from keelog.bench import Workload, run
result = run(Workload(kind="send", callers="batches", batch=100, in_flight=16))
print(result.steady.messages_per_s, result.cpu_s_per_million)
"""

from keelog.bench.results import Result, Summary
from keelog.bench.running import LoadListener, run
from keelog.bench.workload import Workload

__all__ = ["LoadListener", "Result", "Summary", "Workload", "run"]
