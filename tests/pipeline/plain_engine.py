"""An engine for jobs that runs their tasks one after the other, in this process.

What a task is given and answers is pickled, as on the way to a worker. A task can be run twice,
as a retry or speculation would.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class PlainTasks:
    """What `parallelize` and `map` give."""

    def __init__(self, items: Sequence[Any], times: int) -> None:
        self._items = items
        self._times = times
        self._function: Callable[[Any], Any] = lambda item: item

    def map(self, function: Callable[[Any], Any]) -> "PlainTasks":
        self._function = function
        return self

    def collect(self) -> list[Any]:
        packed = [pickle.dumps((self._function, item)) for item in self._items]
        answers: list[Any] = []
        for data in packed:
            for _ in range(self._times):
                function, item = pickle.loads(data)
                answer = pickle.loads(pickle.dumps(function(item)))
            answers.append(answer)
        return answers


class PlainEngine:
    """Stands for a session, in what the jobs ask of it."""

    defaultParallelism = 3  # noqa: N815  (Spark's name)
    master = "local"

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.sparkContext = self

    def setJobDescription(self, _what: str) -> None: ...  # noqa: N802  (Spark's names)

    def parallelize(self, items: Sequence[Any], _parts: int) -> PlainTasks:
        return PlainTasks(items, self.times)
