"""What a topic's retention takes does not depend on store times that lie ahead."""

import pytest

from node.store.opening import open_store
from node.writer.removal import PurgePoint, TopicSurvey
from tests.support.golden import GetStore

NAME = "small-clean"


@pytest.mark.parametrize("reads_queues", [True, False])
def test_old_segments_go_whatever_the_store_times_are(golden: GetStore, reads_queues: bool) -> None:
    root = golden(NAME)
    with open_store(root) as store:
        start, end = store.log.min_offset, store.log.end
        topic = next(one for one in store.topics() if not one.startswith(("%", "SCHED")))
    below = (start + end) // 2
    survey = TopicSurvey(root, topic, PurgePoint(time_ms=0, below=below), None, start)
    survey.read_queues(end if reads_queues else 0)
    survey.read_log(end)
    assert survey.gone_bytes > 0
    begins = [queue.begin for queue in survey.queues.values() if queue.begin is not None]
    assert begins
    assert all(begin >= below for begin in begins)
