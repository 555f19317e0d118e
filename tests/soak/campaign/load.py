"""What sends to a node and asks it during a campaign, in threads beside its rounds."""

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from keelog.bench.queue_checks import Ints
from keelog.client.client import connect
from keelog.client.transport.exchange import Retry
from protocol.errors import MqError
from tests.soak.campaign.watch import Watch, WatchedNotes
from tests.soak.load import Traffic, keys_of, receipt_files, send_until, told_in

PRODUCERS = 3
"""One sends single messages, one batches, one batches that wait for the disk."""
TRAFFIC = Traffic(burst=6, pause_s=0.8, single_pause_s=0.15, timeout_s=3.0)
_ASK_S = 0.5


class Load:
    """Sends and asks until `close`, whatever becomes of the node."""

    def __init__(self, folder: Path, endpoint: str, watch: Watch) -> None:
        self.failures: list[str] = []
        """Exceptions that no client may raise."""
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._paths = receipt_files(folder, PRODUCERS)
        self._notes = {n: WatchedNotes(path, watch.witness) for n, path in self._paths.items()}
        works: list[Callable[[], None]] = [partial(self._send, n) for n in self._paths]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (*works, self._ask)
        ]
        for thread in self._threads:
            thread.start()

    def told(self) -> dict[int, Ints]:
        """What the senders know by now, rows of `ROW` by producer."""
        return told_in(self._paths)

    def stop(self) -> None:
        """Returns when each sender knows what became of its messages. Harmless when repeated."""
        if self._stop.is_set():
            return
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for notes in self._notes.values():
            notes.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 (whatever it is, it is a fault of the client)
            self.failures.append(f"the load met:\n{traceback.format_exc()}")

    def _send(self, producer: int) -> None:
        send_until(self._endpoint, TRAFFIC, producer, self._notes[producer], self._stop)

    def _ask(self) -> None:
        """Look-ups and offsets, of what may not be there."""
        attempts = Retry(max_attempts=1)
        with connect(self._endpoint, timeout=TRAFFIC.timeout_s, retry=attempts) as client:
            turn = 0
            while not self._stop.wait(_ASK_S):
                turn += 1
                topic = TRAFFIC.topics[turn % len(TRAFFIC.topics)]
                with suppress(MqError):
                    client.offsets(topic, turn % TRAFFIC.queues)
                    list(client.find(topic, keys_of(1, turn)[1], limit=2))
