"""The log of sources and jobs: what it says of addresses goes without their credentials."""

import logging

from protocol.addresses import without_credentials


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_credentials(record.getMessage()), ()
    return True


log = logging.getLogger("keelog.pipeline")
log.addFilter(_clean)
