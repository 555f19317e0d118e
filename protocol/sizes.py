"""Sizes that settings begin with: apart from the codecs, which need numpy and so start slowly."""

DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
RECORD_EXTRA_BYTES_MAX = 64 * 1024
"""A record may have this much more than the largest body (RocketMQ: MessageExtEncoder)."""

UNIT_BYTES = 20
"""One unit of a queue (`protocol.derived.queue_unit`)."""
DEFAULT_QUEUE_FILE_BYTES = 300_000 * UNIT_BYTES

DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_INDEX_NUM = 20_000_000
