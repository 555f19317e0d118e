"""The settings of the node that all tests of a process share: `shared_node` of tests/conftest.py.

Whoever uses it sends to topics and reads in groups whose names no other module has, and neither
kills nor damages anything. A test that counts what the whole node did has a node of its own.
"""

from tests.support.remoting import REMOTING

BROKER = "b1"
LEVELS = ("1s", "1s", "1s", "2s", "1s", "1s", "1s", "1s", "2h")
"""The delay levels from 1 on: those of consumers' retries, which begin at 3, are short."""
TRANSACTION_TIMEOUT_MS, TRANSACTION_INTERVAL_MS = 500, 300
SETTINGS = (
    REMOTING,
    f"broker.broker_name={BROKER}",
    f"message_delay_level={' '.join(LEVELS)}",
    "recall_message_enable=true",
    f"transaction_time_out={TRANSACTION_TIMEOUT_MS}",
    f"transaction_check_interval={TRANSACTION_INTERVAL_MS}",
    "transaction_check_max=3",
    "transaction_op_batch_interval=100",
)
