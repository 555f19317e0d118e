"""What each setting does, in one line: for docs/settings.md, for `keelog config init`, and for the
options of `keelog serve`."""

import re

MEANINGS = {
    "mapped_file_size_commit_log": "length of a log segment; its disk space is taken at once",
    "mapped_file_size_consume_queue": "length of a queue file (sparse)",
    "max_hash_slot_num": "hash slots of an index file (sparse)",
    "max_index_num": "entries of an index file, one is never used",
    "message_index_enable": "whether there is an index of keys at all",
    "index_tags_enable": "index the tag of a message too, as RocketMQ 5.4 and later do",
    "flush_disk_type": "`ASYNC_FLUSH`, or `SYNC_FLUSH`: every answer waits for the disk",
    "flush_interval_commit_log": "ASYNC_FLUSH: ms between two flushes",
    "flush_commit_log_least_pages": "ASYNC_FLUSH: pages of 4 KiB that a flush must be worth",
    "flush_commit_log_thorough_interval": "ASYNC_FLUSH: after so many ms even one byte is flushed",
    "flush_commit_log_timed": "ASYNC_FLUSH: sleep it out; false: a commit or wake-up ends it early",
    "wake_flush_when_put_message": "ASYNC_FLUSH, not timed: each append is such a wake-up",
    "sync_flush_timeout": "ms that an answer waits for the disk; then `FLUSH_DISK_TIMEOUT`",
    "transient_store_pool_enable": "ASYNC_FLUSH: appends go to memory first, and are "
    "[lost with the process](operations.md#flush-modes) until committed",
    "transient_store_pool_size": "its buffers, of 8 MiB or one segment, whichever is less",
    "fast_fail_if_no_buffer_in_store_pool": "pool full: SYSTEM_BUSY; false: wait for the disk",
    "commit_interval_commit_log": "pool: ms between two commits, the writes into the segment",
    "commit_commit_log_least_pages": "pool: pages of 4 KiB that a commit must be worth",
    "commit_commit_log_thorough_interval": "pool: after so many ms even one byte is committed",
    "wake_commit_when_put_message": "pool: each append ends the interval early",
    "flush_interval_consume_queue": "ms between two syncs of queue files, and of index files",
    "flush_consume_queue_least_pages": "pages of 4 KiB of new units that a sync is worth",
    "flush_consume_queue_thorough_interval": "after so many ms even one unit is synced",
    "file_reserved_time": "hours that a segment is kept after it was last written",
    "delete_when": "hours of the local day in which older segments go: `04`, or `04;16`",
    "disk_max_used_space_ratio": "% of the disk; above it they go at any hour",
    "disk_space_clean_forcibly_ratio": "% of the disk; above it segments go before their time, "
    "and [abandoned staged batches](operations.md#what-goes-when-the-disk-fills) before them",
    "disk_space_warning_level_ratio": "% of the disk; above it appends are refused, `disk_full`",
    "clean_file_forcibly_enable": "whether segments may go before their time at all",
    "file_forced_reserved_minutes": "minutes after its last write that a segment stays, however "
    "full the disk is; 0: none, [as in a broker](operations.md#old-segments)",
    "clean_resource_interval": "ms between two rounds of deleting",
    "delete_commit_log_files_interval": "ms between two deleted segments",
    "delete_file_batch_max": "segments that one round deletes at most",
    "max_message_size": "largest body",
    "enabled_append_prop_crc": "seal each record with a checksum over all of it "
    "([why](decisions/0002-whole-record-checksum.md)); off in RocketMQ",
    "auto_create_topic_enable": "make a topic when the first message for it comes",
    "default_topic_queue_nums": "queues of a topic made so",
    "message_delay_level": "delays of the levels of DELAY, for reading delayed messages",
    "max_transfer_bytes_on_message_in_memory": "bytes of one pull, recent messages",
    "max_transfer_count_on_message_in_memory": "messages of one pull, recent messages",
    "max_transfer_bytes_on_message_in_disk": "bytes of one pull, old messages",
    "max_transfer_count_on_message_in_disk": "messages of one pull, old messages",
    "access_message_in_memory_max_ratio": "% of memory; messages further back in the log are old",
    "max_filter_message_size": "bytes of queue units that a pull with tags looks through",
    "travel_cq_file_num_when_get_message": "queue files that one pull looks into",
    "send_thread_pool_queue_capacity": "requests that may wait for the disk; then SYSTEM_BUSY",
    "waiting_bytes_max": "bytes of records that may wait for the disk; then SYSTEM_BUSY",
    "long_polling_ms_max": "longest wait of a pull that finds nothing",
    "staging_retention_hours": "hours that staged batches are kept which nobody publishes",
    "staging_abandoned_minutes": "minutes without a write after which a staged batch may go when "
    "the disk needs room",
    "staging_bytes_max": "bytes of staged batches, of all queries together; then NO_PERMISSION; 0: "
    "[what the disk allows](operations.md#what-goes-when-the-disk-fills)",
}

SERVE_MEANINGS = {
    "bind": "the control socket; the writer listens one port above, the readers above it; port 0"
    " takes free ones",
    "queue_workers": "processes that write the queues; each reads the whole log",
    "readers": "processes that answer pulls and look-ups",
    "http": "where /metrics, /livez, /readyz and /healthz are, as 9875 or 0.0.0.0:9875; empty:"
    " nowhere",
    "restart_limit": "a process that ends so often within a minute is given up; 0: never",
}
"""Those of the table [serve]."""

NODE_MEANINGS = {
    "silence_limit_s": "a process that gave no sign of life for so long is killed and started"
    " again; after half of it the node is not ready",
}
"""Those of the table [node]."""

_LINK = re.compile(r" ?\(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)")


def plain_meaning(name: str) -> str:
    """The line of a setting without Markdown. Raises KeyError for one without a meaning."""
    return _LINK.sub(r"\1", (MEANINGS | SERVE_MEANINGS | NODE_MEANINGS)[name]).replace("`", "")


def shown(value: object) -> str:
    """A setting's value as people write it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
