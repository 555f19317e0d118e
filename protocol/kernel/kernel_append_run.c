/* A whole request in one pass: what most clients send goes to one queue, and the caller can tell which
 * before it has checked anything. Part of kernel.c, which includes it behind kernel_append.c. */

/* A request whose records all go to one queue, which the caller knows beforehand. */
typedef struct {
    int64_t size, count, crc, flags; /* as of an append_request */
    int64_t topic_bytes, queue_id;   /* the queue, and which one each record names without a flag */
    int64_t queue_offset, base;      /* of the first record */
    int64_t time, host;
    int64_t body_max, seal_crc; /* the rules, as of an append_group */
    int64_t out, out_bytes;     /* where the sealed records go */
    int64_t last_at;            /* found: where the last one begins in `out` */
} append_run;

/* Copies the records to `out`, checks and seals them there. `sizes` may be none. Answers how many
 * there are, -1 where another way has to look. */
EXPORT int64_t keelog_append_run(append_run *run, const uint8_t *records, const uint8_t *sizes,
                                 const uint8_t *topic) {
    uint8_t *data = AT(uint8_t, run->out);
    int64_t at = 0, rows = 0;
    record_seal with = {run->queue_id, run->queue_offset, run->base, run->time, run->host};
    record found;
    if (run->size < 0 || run->size > run->out_bytes)
        return -1;
    memcpy(data, records, (size_t)run->size);
    if (run->crc >= 0 && crc32_of(data, (size_t)run->size) != run->crc)
        return -1;
    for (int64_t size; at < run->size; at += size, rows++) {
        size = stated_size(data + at, run->size - at);
        if (!size || rows >= run->count || !read_record(data, at, size, &found) ||
            (!(run->flags & IS_CHECKED) && !is_fit(data, &found, run->body_max, run->seal_crc)) ||
            (sizes && !is_stated(sizes + 4 * rows, size)) ||
            (!(run->flags & IS_ANY_QUEUE) && found.field[QUEUE_ID] != run->queue_id) ||
            found.field[TOPIC_LENGTH] != run->topic_bytes ||
            memcmp(data + found.field[TOPIC_START], topic, (size_t)run->topic_bytes) ||
            !is_sealable(data + at, size, run->seal_crc))
            return -1;
        with.queue_offset = (int64_t)((uint64_t)run->queue_offset + (uint64_t)rows);
        with.log_offset = (int64_t)((uint64_t)run->base + (uint64_t)at);
        seal(data + at, size, &with, run->seal_crc);
        run->last_at = at;
    }
    return rows == run->count ? rows : -1;
}
