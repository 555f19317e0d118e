/* A message of the node's own, encoded and sealed at once. Part of kernel.c, which includes it behind
 * kernel_append.c. The oracles are protocol/record/encode.py and protocol/record/patch.py. */

#define TOPIC_BYTES_MAX 127 /* of a record of the first version */

typedef struct {
    int64_t host, seal_crc; /* the store host; whether records end in __CRC32# */
    int64_t out, out_bytes; /* where the record goes */
    int64_t body_bytes, properties_bytes, topic_bytes;
    int64_t queue_id, queue_offset, log_offset, time, born_timestamp;
    int32_t flag, sys_flag, born_port, reconsume_times;
    uint8_t born_ip[4];
} message_draft;

/* Answers the bytes of the record, -1 for what needs another head, or has no room. `properties` are
 * without the checksum's. */
EXPORT int64_t keelog_put_message(const message_draft *draft, const uint8_t *body,
                                  const uint8_t *topic, const uint8_t *properties) {
    int64_t own = draft->properties_bytes + (draft->seal_crc ? CRC_PROPERTY_BYTES : 0);
    if (draft->body_bytes < 0 || draft->body_bytes > INT32_MAX - 2 * PROPERTIES_BYTES_MAX ||
        draft->topic_bytes < 1 || draft->topic_bytes > TOPIC_BYTES_MAX ||
        draft->properties_bytes < 0 || own > PROPERTIES_BYTES_MAX ||
        draft->sys_flag & (FORBIDDEN_SYS_FLAGS | BORN_HOST_V6 | STORE_HOST_V6))
        return -1;
    int64_t total = HEAD_BYTES + draft->body_bytes + 1 + draft->topic_bytes + 2 + own;
    if (total > draft->out_bytes)
        return -1;
    uint8_t *start = AT(uint8_t, draft->out), *at = start + HEAD_BYTES;
    memset(start, 0, HEAD_BYTES);
    put32(start, (uint32_t)total);
    put32(start + 4, MAGIC_V1);
    put32(start + 8, crc32_of(body, (size_t)draft->body_bytes) & CRC_MASK);
    put32(start + 16, (uint32_t)draft->flag);
    put32(start + 36, (uint32_t)draft->sys_flag);
    put64(start + 40, (uint64_t)draft->born_timestamp);
    memcpy(start + 48, draft->born_ip, 4);
    put32(start + 52, (uint32_t)draft->born_port);
    put32(start + 72, (uint32_t)draft->reconsume_times);
    put32(start + 84, (uint32_t)draft->body_bytes);
    at = put_bytes(at, body, draft->body_bytes);
    *at++ = (uint8_t)draft->topic_bytes;
    at = put_bytes(at, topic, draft->topic_bytes);
    *at++ = (uint8_t)(own >> 8);
    *at++ = (uint8_t)own;
    put_bytes(at, properties, draft->properties_bytes);
    record_seal with = {draft->queue_id, draft->queue_offset, draft->log_offset, draft->time,
                        draft->host};
    seal(start, total, &with, draft->seal_crc);
    return total;
}
