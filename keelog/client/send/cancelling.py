"""Takes a message back that waits for its time."""

from keelog.client.messages import OutgoingMessage
from keelog.client.results import Receipt
from protocol.errors import BadRequest
from protocol.record.properties import TIMER_DELETE_KEY
from protocol.record.waiting import RECALL_BODY, RECALL_TAG


def cancelling(receipt: Receipt) -> OutgoingMessage:
    """A message of the same second, which names the other one's unique key and never arrives.

    Raises BadRequest for the receipt of a message that waits for no time.
    """
    if not receipt.deliver_ms:
        raise BadRequest(
            "the message does not wait for a time", "cancel what was sent with delay or deliver_at"
        )
    return OutgoingMessage(
        RECALL_BODY,
        tags=RECALL_TAG,
        properties={TIMER_DELETE_KEY: receipt.unique_key},
        queue_id=receipt.queue_id,
        unique_key=receipt.unique_key,
        deliver_at=receipt.deliver_ms,
    )
