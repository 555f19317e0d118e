/* The batches of RocketMQ's clients: messages that stand back to back become records. Part of
 * kernel.c, which includes it behind kernel_append.c. The oracles are protocol/remoting/batch.py and
 * keelog/gateway/batch_records.py. */

#define ITEM_HEAD_BYTES 20 /* size, magic and checksum, which Java ignores; flag; the body's length */
#define ITEM_BYTES_MIN (ITEM_HEAD_BYTES + 2)

typedef struct {
    const uint8_t *body, *properties;
    int64_t body_bytes, properties_bytes;
    uint32_t flag;
} item;

/* The message in front of `end`, which *at moves behind; 0 where it does not end before. */
static inline int next_item(const uint8_t **at, const uint8_t *end, item *found) {
    if (end - *at < ITEM_BYTES_MIN)
        return 0;
    int64_t left = end - *at - ITEM_BYTES_MIN;
    found->flag = u32(*at + 12);
    found->body_bytes = i32(*at + 16);
    if (found->body_bytes < 0 || found->body_bytes > left)
        return 0;
    found->body = *at + ITEM_HEAD_BYTES;
    const uint8_t *behind = found->body + found->body_bytes;
    found->properties_bytes = i16(behind);
    if (found->properties_bytes < 0 || found->properties_bytes > left - found->body_bytes)
        return 0;
    found->properties = behind + 2;
    *at = found->properties + found->properties_bytes;
    return 1;
}

/* How many messages there are, -1 where they are not whole. */
EXPORT int64_t keelog_count_items(const uint8_t *items, int64_t size) {
    const uint8_t *at = items, *end = items + size;
    int64_t rows = 0;
    for (item found; at < end; rows++)
        if (!next_item(&at, end, &found))
            return -1;
    return rows;
}

/* A batch's numbers. The bytes that its records share stand back to back in `shared`. */
typedef struct {
    int64_t rows, items_bytes;
    int64_t head_bytes;  /* the head of each record, without what differs */
    int64_t topic_bytes; /* then the topic's length and name */
    int64_t names_bytes; /* then the names of properties that are not for here: length and name */
    int64_t body_max;
    int64_t crc;         /* whether there is room for __CRC32# */
    int64_t out_bytes;   /* room for the records alone */
} items_draft;

static int is_named(const uint8_t *names, const uint8_t *end, const uint8_t *name, int64_t size) {
    for (; names < end; names += 1 + *names)
        if (*names == size && !memcmp(names + 1, name, (size_t)size))
            return 1;
    return 0;
}

/* Whether properties are pairs of which none has one of these names and one is UNIQ_KEY, whose value
 * `key` becomes. The last pair may lack its 0x02. */
static int are_plain(const item *found, const uint8_t *names, const uint8_t *names_end, pair *key) {
    const uint8_t *data = found->properties;
    int64_t size = found->properties_bytes, keys = 0;
    pair one;
    for (int64_t at = 0; at < size && next_pair(data, &at, size, &one);) {
        int64_t name_bytes = one.middle - one.start;
        if (is_named(names, names_end, data + one.start, name_bytes))
            return 0;
        if (name_bytes == 8 && !memcmp(data + one.start, "UNIQ_KEY", 8)) {
            *key = one;
            keys++;
        }
    }
    return keys == 1;
}

/* Encodes a batch: into `out` go the CRC-32 of the records, then the size of each record, where its
 * unique key begins among all and how long that is (all uint32), then the records, of which the
 * bytes are answered. -1 where the plain way has to look: at odd properties, a missing key, lengths,
 * too much for a record or for the room there is. */
EXPORT int64_t keelog_encode_items(const items_draft *draft, const uint8_t *shared,
                                   const uint8_t *items, uint8_t *out) {
    const uint8_t *in = items, *in_end = items + draft->items_bytes;
    const uint8_t *topic = shared + draft->head_bytes, *names = topic + draft->topic_bytes;
    uint8_t *numbers = out + 4, *first = numbers + 12 * draft->rows, *at = first;
    uint8_t *end = first + draft->out_bytes;
    for (int64_t row = 0; row < draft->rows; row++) {
        item found;
        pair key;
        if (!next_item(&in, in_end, &found) || found.body_bytes > draft->body_max ||
            !are_plain(&found, names, names + draft->names_bytes, &key))
            return -1;
        int64_t size = found.properties_bytes;
        int is_open = found.properties[size - 1] != PAIR_END;
        int64_t own = size + is_open + (draft->crc ? CRC_PROPERTY_BYTES : 0);
        int64_t total = draft->head_bytes + found.body_bytes + draft->topic_bytes + 2 + own;
        if (own > PROPERTIES_BYTES_MAX || total > end - at)
            return -1;
        uint8_t *start = at;
        at = put_record(at, total, shared, draft->head_bytes, found.body, found.body_bytes, topic,
                        draft->topic_bytes, own);
        put32(start + 16, found.flag);
        uint32_t of_row[3] = {(uint32_t)total, (uint32_t)(at - first + key.middle + 1),
                              (uint32_t)(key.end - key.middle - 1)};
        uint8_t *properties = at;
        at = put_bytes(at, found.properties, size);
        if (is_open)
            *at++ = PAIR_END;
        if (!are_pairs(properties, at - properties))
            return -1;
        if (draft->crc)
            at = put_bytes(at, "__CRC32#\1" "0000000000" "\2", CRC_PROPERTY_BYTES);
        for (int column = 0; column < 3; column++)
            memcpy(numbers + 4 * (column * draft->rows + row), of_row + column, 4);
    }
    if (in != in_end)
        return -1;
    uint32_t checksum = crc32_of(first, (size_t)(at - first));
    memcpy(out, &checksum, 4);
    return at - first;
}

/* The message ids of records that lie back to back in the log from `place` on, a comma after each:
 * `start`, then the log offset in 16 hexadecimal digits. `out` has room for them. */
EXPORT void keelog_join_ids(const uint32_t *size, int64_t rows, int64_t place, const uint8_t *start,
                            int64_t start_chars, uint8_t *out) {
    for (int64_t row = 0; row < rows; place += size[row++]) {
        out = put_bytes(out, start, start_chars);
        for (int shift = 60; shift >= 0; shift -= 4)
            *out++ = (uint8_t)"0123456789ABCDEF"[((uint64_t)place >> shift) & 15];
        *out++ = ',';
    }
}
