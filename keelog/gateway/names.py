"""How a node calls itself towards RocketMQ's clients, and the constants of its replies."""

from typing import NamedTuple

TBW102 = "TBW102"
"""The topic whose settings a topic gets that a send creates (RocketMQ: TopicValidator)."""
TBW102_QUEUES = 8
CLUSTER_QUEUES = 16
"""Of the topic with the name of the cluster, which new topics may follow too."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
"""Of a topic that a producer in unit mode made, and of the retry topic of a group in unit mode
(TopicSysFlag)."""
MASTER = 0
"""The broker id of a master."""
REGION = "DefaultRegion"
SEND_EXT = {"MSG_REGION": REGION, "TRACE_ON": "true"}
"""In every answer to a send, also a refusal: the Java client reads MSG_REGION without a check."""


class BrokerName(NamedTuple):
    """A broker of a cluster. `address` is for clients; empty: the one that each reached."""

    cluster: str
    broker: str
    address: str = ""
    broker_id: int = MASTER
    announced: str = ""
    """The one address that name servers get."""
    ha: str = ""
    """Where followers connect, as name servers get it; empty: nobody may follow."""
    epoch: int = 0
    """Of the elected master: name servers let no master of an earlier one take its place."""

    @property
    def reply_topic(self) -> str:
        """The topic of replies to requests (MixAll#getReplyTopic)."""
        return f"{self.cluster}_REPLY_TOPIC"
