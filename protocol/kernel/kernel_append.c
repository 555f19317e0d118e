/* The way in: what a client encodes, and what the writer checks, numbers and seals. Part of
 * kernel.c, which includes it. The oracles are protocol/record/patch.py and protocol/record/encode.py, for
 * the batches of RocketMQ's clients protocol/remoting/batch.py and keelog/gateway/batch_records.py.
 *
 * `append_check` finds what every record of a request must be and which queues there are; the caller
 * gives each of those its next offset; `append_seal` fills in what only the writer knows. `append_run`
 * does both for a request of one queue. Suspicion of any kind is -1: the plain way then decides, and
 * words the error. */

#define FORBIDDEN_SYS_FLAGS (0xC | 0x80 | 0x40) /* transactions, inner batches */
#define QUEUE_ID_MAX 65535
#define ANY_QUEUE (-1)
#define STEM_BYTES 28 /* of a unique key: all but its counter */
#define PROPERTIES_BYTES_MAX 32767

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* -- checking ----------------------------------------------------------------------------------- */

/* Where one is in `name 0x01 value 0x02`, repeated. */
typedef struct {
    int64_t begin; /* of the current name or value */
    int in_value;
} pair_walk;

/* The separator at `position`; 0 where it may not stand. */
static inline int take_separator(pair_walk *walk, uint8_t byte, int64_t position) {
    if (byte == NAME_END) {
        if (walk->in_value || position == walk->begin)
            return 0;
        walk->in_value = 1;
    } else {
        if (!walk->in_value || position == walk->begin)
            return 0;
        walk->in_value = 0;
    }
    walk->begin = position + 1;
    return 1;
}

/* Whether properties are whole pairs of a name and a value, neither of them empty, in UTF-8. */
static int are_pairs(const uint8_t *at, int64_t size) {
    pair_walk walk = {0, 0};
    int64_t i = 0;
    unsigned wide = 0;
#ifdef __SSE2__
    const __m128i one = _mm_set1_epi8(1);
    for (; i + 16 <= size; i += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(at + i));
        __m128i less = _mm_sub_epi8(block, one); /* separators become 0 and 1 */
        unsigned found = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(less, one), less));
        wide |= (unsigned)_mm_movemask_epi8(block);
        for (; found; found &= found - 1) {
            int64_t position = i + __builtin_ctz(found);
            if (!take_separator(&walk, at[position], position))
                return 0;
        }
    }
#endif
    for (; i < size; i++) {
        wide |= at[i] & 0x80;
        if ((at[i] == NAME_END || at[i] == PAIR_END) && !take_separator(&walk, at[i], i))
            return 0;
    }
    return walk.begin == size && !walk.in_value && (!wide || is_utf8(at, size));
}

static inline int ends_in_crc(const uint8_t *properties, int64_t size) {
    const uint8_t *tail = properties + size - CRC_PROPERTY_BYTES;
    return size >= CRC_PROPERTY_BYTES && !memcmp(tail, "__CRC32#\1", CRC_NAME_BYTES + 1) &&
           tail[CRC_PROPERTY_BYTES - 1] == PAIR_END;
}

/* A request of a client. All addresses are the caller's memory; numbers are 64 bits on every machine. */
typedef struct {
    int64_t size, count;             /* what the client says of its records */
    int64_t crc;                     /* of all of them, -1: none was named */
    int64_t is_any_queue;            /* whether the caller chooses one queue for all */
    int64_t topic_bytes, queue_id;   /* of a run: its queue, */
    int64_t queue_offset;            /* and the offset there of the first record */
    int64_t base;                    /* log offset of the first record */
    int64_t out, out_bytes;          /* where the sealed records go */
    int64_t time, host;              /* store time and host for all */
    int64_t body_max, seal_crc;      /* the rules: largest body; whether __CRC32# must, or may not, be */
    int64_t parts, part_of, rows_max; /* append_part, and int32: the part of each record */
    int64_t table, slots;            /* int32, a power of two, more than twice rows_max */
    int64_t last_at;                 /* found: where the last record begins in `out` */
} append_request;

/* The records of a request that go to one queue. */
typedef struct {
    int64_t topic_at, topic_length, queue_id, count;
    int64_t next; /* queue offset of the next record; the caller's, before sealing */
} append_part;

#define AT(kind, address) ((kind *)(uintptr_t)(address))

/* FNV-1a of a text, and where a row of this text and queue is looked for first in a table. */
static inline uint32_t hash_of(const uint8_t *text, int64_t size) {
    uint32_t hash = 2166136261u;
    for (int64_t i = 0; i < size; i++)
        hash = (hash ^ text[i]) * 16777619u;
    return hash;
}

static inline int64_t slot_of(uint32_t of_text, int64_t queue_id, int64_t slots) {
    uint32_t hash = (of_text ^ (uint32_t)queue_id * 0x9E3779B1u) * 0x85EBCA77u;
    return (hash ^ hash >> 15) & (slots - 1);
}

static inline int is_part(const uint8_t *data, const append_part *part, const uint8_t *topic,
                          int64_t size, int64_t queue_id) {
    return part->queue_id == queue_id && part->topic_length == size &&
           !memcmp(data + part->topic_at, topic, (size_t)size);
}

/* The number of the part for this topic and queue among the `parts` that there are; a new one when it
 * is the first. */
static int64_t part_for(const append_request *request, const uint8_t *data, int64_t parts, int64_t slots,
                        int64_t topic_at, int64_t size, int64_t queue_id) {
    append_part *all = AT(append_part, request->parts);
    int32_t *table = AT(int32_t, request->table);
    int64_t slot = slot_of(hash_of(data + topic_at, size), queue_id, slots);
    for (; table[slot] >= 0; slot = (slot + 1) & (slots - 1))
        if (is_part(data, all + table[slot], data + topic_at, size, queue_id))
            return table[slot];
    table[slot] = (int32_t)parts;
    all[parts] = (append_part){topic_at, size, queue_id, 0, 0};
    return parts;
}

/* Whether a record that a client encoded is what check_plain takes. */
static int is_fit(const uint8_t *data, const record *found, int64_t body_max, int64_t crc) {
    const int64_t *field = found->field;
    const uint8_t *properties = data + field[PROPERTIES_START];
    return field[QUEUE_ID] >= ANY_QUEUE && field[QUEUE_ID] <= QUEUE_ID_MAX &&
           !(field[SYS_FLAG] & (FORBIDDEN_SYS_FLAGS | STORE_HOST_V6)) &&
           field[BODY_LENGTH] <= body_max && are_pairs(properties, field[PROPERTIES_LENGTH]) &&
           ends_in_crc(properties, field[PROPERTIES_LENGTH]) == (crc != 0) &&
           crc_agrees(data, found, 0);
}

/* Whether the request names this size for its record: u32 little-endian at `stated`. */
static inline int is_stated(const uint8_t *stated, int64_t size) {
    uint32_t low = (uint32_t)stated[1] << 8 | stated[0];
    return ((uint32_t)stated[3] << 24 | (uint32_t)stated[2] << 16 | low) == size;
}

/* Whether the next record of a request is at `at`, fit, and of the size that the request names. */
static inline int is_next(const append_request *request, const uint8_t *data, int64_t at, int64_t row,
                          const uint8_t *sizes, record *found) {
    int64_t size = stated_size(data + at, request->size - at);
    return size && row < request->count && read_record(data, at, size, found) &&
           is_fit(data, found, request->body_max, request->seal_crc) &&
           (!sizes || is_stated(sizes + 4 * row, size));
}

static inline int agrees_in_crc(const append_request *request, const uint8_t *data) {
    return request->crc < 0 || crc32_of(data, (size_t)request->size) == request->crc;
}

/* Checks every record of a request. `sizes` may be none. Answers how many parts there are, -1 where the
 * plain way has to look: something is wrong, or the caller's memory too small. */
EXPORT int64_t keelog_append_check(append_request *request, const uint8_t *data, const uint8_t *sizes) {
    append_part *all = AT(append_part, request->parts);
    int64_t at = 0, rows = 0, slots = 4, parts = 0, part = -1;
    record found;
    if (request->count < 1 || request->count > request->rows_max || request->size < 0 ||
        !agrees_in_crc(request, data))
        return -1;
    while (slots <= 2 * request->count)
        slots *= 2;
    if (slots > request->slots)
        return -1;
    memset(AT(int32_t, request->table), 0xFF, 4 * (size_t)slots);
    for (; at < request->size; at += found.field[SIZE], rows++) {
        if (!is_next(request, data, at, rows, sizes, &found))
            return -1;
        int64_t queue_id = request->is_any_queue ? ANY_QUEUE : found.field[QUEUE_ID];
        int64_t topic_at = found.field[TOPIC_START], length = found.field[TOPIC_LENGTH];
        if (part < 0 || !is_part(data, all + part, data + topic_at, length, queue_id)) {
            part = part_for(request, data, parts, slots, topic_at, length, queue_id);
            parts += part == parts;
        }
        all[part].count++;
        AT(int32_t, request->part_of)[rows] = (int32_t)part;
    }
    return rows == request->count ? parts : -1;
}

/* -- sealing ------------------------------------------------------------------------------------ */

/* Ten digits, least significant first, behind the name of the property. */
static inline void put_crc_property(uint8_t *tail, uint32_t crc) {
    memcpy(tail, "__CRC32#\1", CRC_NAME_BYTES + 1);
    crc &= CRC_MASK;
    for (int i = 0; i < CRC_DIGITS; i++, crc /= 10)
        tail[CRC_NAME_BYTES + 1 + i] = (uint8_t)('0' + crc % 10);
    tail[CRC_PROPERTY_BYTES - 1] = PAIR_END;
}

/* Whether a record is long enough for what `seal` writes. */
static inline int is_sealable(const uint8_t *at, int64_t size, int64_t crc) {
    return size >= RECORD_BYTES_MIN + V6_EXTRA_BYTES * !!(at[39] & BORN_HOST_V6) &&
           (!crc || size >= RECORD_BYTES_MIN + CRC_PROPERTY_BYTES);
}

/* What only the writer knows of a record. */
typedef struct {
    int64_t queue_id, queue_offset, log_offset, time, host;
} record_seal;

/* Fills in queue, offsets, store time and host, and last the checksum. */
static inline void seal(uint8_t *at, int64_t size, const record_seal *with, int64_t crc) {
    put32(at + 12, (uint32_t)with->queue_id);
    put64(at + 20, (uint64_t)with->queue_offset);
    put64(at + 28, (uint64_t)with->log_offset);
    uint8_t *stamp = at + 56 + (at[39] & BORN_HOST_V6 ? V6_EXTRA_BYTES : 0);
    put64(stamp, (uint64_t)with->time);
    put64(stamp + 8, (uint64_t)with->host);
    if (crc) {
        uint8_t *tail = at + size - CRC_PROPERTY_BYTES;
        put_crc_property(tail, crc32_of(at, (size_t)(size - CRC_PROPERTY_BYTES)));
    }
}

/* Copies a request that was checked to `out` and seals it there. The parts' `queue_id` and `next` are
 * the caller's by now. Answers the records sealed; not all of them only when it was not checked. */
EXPORT int64_t keelog_append_seal(append_request *request, const uint8_t *records) {
    uint8_t *data = AT(uint8_t, request->out);
    append_part *parts = AT(append_part, request->parts);
    const int32_t *part_of = AT(int32_t, request->part_of);
    int64_t position = 0, row = 0;
    if (request->size < 0 || request->size > request->out_bytes)
        return 0;
    memcpy(data, records, (size_t)request->size);
    for (; row < request->count && row < request->rows_max; row++) {
        uint8_t *at = data + position;
        int64_t size = stated_size(at, request->size - position);
        if (!size || !is_sealable(at, size, request->seal_crc) || part_of[row] < 0 ||
            part_of[row] >= request->rows_max)
            break;
        append_part *part = parts + part_of[row];
        record_seal with = {part->queue_id, part->next++,
                            (int64_t)((uint64_t)request->base + (uint64_t)position), request->time,
                            request->host};
        seal(at, size, &with, request->seal_crc);
        request->last_at = position;
        position += size;
    }
    return row;
}

/* What most clients send goes to one queue, and the caller can tell which before it has checked
 * anything. Copies such a request to `out`, checks and seals it there in one pass. `sizes` may be none.
 * Answers how many records there are, -1 where another way has to look. */
EXPORT int64_t keelog_append_run(append_request *request, const uint8_t *records, const uint8_t *sizes,
                                 const uint8_t *topic) {
    uint8_t *data = AT(uint8_t, request->out);
    int64_t at = 0, rows = 0;
    record_seal with = {request->queue_id, request->queue_offset, request->base, request->time,
                        request->host};
    record found;
    if (request->size < 0 || request->size > request->out_bytes)
        return -1;
    memcpy(data, records, (size_t)request->size);
    if (!agrees_in_crc(request, data))
        return -1;
    for (; at < request->size; at += found.field[SIZE], rows++) {
        if (!is_next(request, data, at, rows, sizes, &found) ||
            (!request->is_any_queue && found.field[QUEUE_ID] != request->queue_id) ||
            found.field[TOPIC_LENGTH] != request->topic_bytes ||
            memcmp(data + found.field[TOPIC_START], topic, (size_t)request->topic_bytes) ||
            !is_sealable(data + at, found.field[SIZE], request->seal_crc))
            return -1;
        with.queue_offset = (int64_t)((uint64_t)request->queue_offset + (uint64_t)rows);
        with.log_offset = (int64_t)((uint64_t)request->base + (uint64_t)at);
        seal(data + at, found.field[SIZE], &with, request->seal_crc);
        request->last_at = at;
    }
    return rows == request->count ? rows : -1;
}

/* -- encoding ----------------------------------------------------------------------------------- */

/* A batch's numbers. The bytes that its messages share stand back to back in `shared`. */
typedef struct {
    int64_t rows, bodies_bytes, born_timestamp;
    int64_t counter;     /* what the first unique key ends in */
    int64_t crc;         /* whether there is room for __CRC32# */
    int64_t topic_bytes; /* behind HEAD_BYTES of head: the topic's length, then its name */
    int64_t tags_bytes;  /* then the property TAGS, or nothing, and STEM_BYTES of unique keys */
    int64_t keys_bytes;  /* then each row's text of KEYS, ended by 0x02, or nothing at all */
    int64_t out_bytes;   /* room for the records alone */
} batch_draft;

static inline uint8_t *put_bytes(uint8_t *at, const void *from, int64_t size) {
    memcpy(at, from, (size_t)size);
    return at + size;
}

/* A record up to its properties of `own` bytes: its head is `head` but for lengths and checksum, and
 * `topic` is the topic behind its length. */
static inline uint8_t *put_record(uint8_t *start, int64_t total, const uint8_t *head, int64_t head_bytes,
                                  const uint8_t *body, int64_t body_bytes, const uint8_t *topic,
                                  int64_t topic_bytes, int64_t own) {
    uint8_t *at = put_bytes(start, head, head_bytes);
    put32(start, (uint32_t)total);
    put32(start + 8, crc32_of(body, (size_t)body_bytes) & CRC_MASK);
    put32(at - 4, (uint32_t)body_bytes);
    at = put_bytes(at, body, body_bytes);
    at = put_bytes(at, topic, topic_bytes);
    *at++ = (uint8_t)(own >> 8);
    *at++ = (uint8_t)own;
    return at;
}

/* The length of the next text in *at, which ends before `end` in 0x02 and holds no other
 * separator, -1 where there is none. */
static inline int64_t next_keys(const uint8_t *at, const uint8_t *end) {
    const uint8_t *stop = memchr(at, PAIR_END, (size_t)(end - at));
    return !stop || memchr(at, NAME_END, (size_t)(stop - at)) ? -1 : stop - at;
}

/* The properties of one row at `at`: TAGS and the stem stand in `tags`. */
static uint8_t *put_properties(uint8_t *at, const batch_draft *draft, const uint8_t *tags,
                               uint64_t counter, const uint8_t *keys, int64_t keys_bytes) {
    static const char hex[] = "0123456789ABCDEF";
    at = put_bytes(at, tags, draft->tags_bytes);
    if (keys_bytes) {
        at = put_bytes(at, "KEYS\1", 5);
        at = put_bytes(at, keys, keys_bytes);
        *at++ = PAIR_END;
    }
    at = put_bytes(at, "UNIQ_KEY\1", 9);
    at = put_bytes(at, tags + draft->tags_bytes, STEM_BYTES);
    for (int shift = 12; shift >= 0; shift -= 4)
        *at++ = (uint8_t)hex[counter >> shift & 15];
    *at++ = PAIR_END;
    return draft->crc ? put_bytes(at, "__CRC32#\1" "0000000000" "\2", CRC_PROPERTY_BYTES) : at;
}

/* Encodes a batch: into `out` go the CRC-32 of the records, the size of each (both uint32), then the
 * records, of which the bytes are answered. -1 where the plain way has to say what is wrong: keys,
 * lengths, too much for a record or for the room there is. */
EXPORT int64_t keelog_encode_batch(const batch_draft *draft, const uint8_t *shared,
                                   const uint8_t *bodies, const int64_t *body_sizes, uint8_t *out) {
    const uint8_t *body = bodies, *bodies_end = bodies + draft->bodies_bytes;
    const uint8_t *topic = shared + HEAD_BYTES, *tags = topic + draft->topic_bytes;
    const uint8_t *keys = tags + draft->tags_bytes + STEM_BYTES, *keys_end = keys + draft->keys_bytes;
    uint8_t *sizes = out + 4, *first = sizes + 4 * draft->rows, *at = first;
    uint8_t *end = first + draft->out_bytes;
    int64_t fixed = draft->tags_bytes + 9 + STEM_BYTES + 5 + (draft->crc ? CRC_PROPERTY_BYTES : 0);
    for (int64_t row = 0; row < draft->rows; row++) {
        int64_t size = body_sizes[row];
        int64_t keys_bytes = draft->keys_bytes ? next_keys(keys, keys_end) : 0;
        int64_t own = fixed + (keys_bytes ? keys_bytes + 6 : 0);
        if (keys_bytes < 0 || size < 0 || size > bodies_end - body || own > PROPERTIES_BYTES_MAX)
            return -1;
        int64_t total = HEAD_BYTES + size + draft->topic_bytes + 2 + own;
        if (total > INT32_MAX || total > end - at)
            return -1;
        uint8_t *start = at;
        at = put_record(at, total, shared, HEAD_BYTES, body, size, topic, draft->topic_bytes, own);
        put64(start + 40, (uint64_t)draft->born_timestamp);
        at = put_properties(at, draft, tags, (uint64_t)draft->counter + (uint64_t)row, keys, keys_bytes);
        body += size;
        keys += draft->keys_bytes ? keys_bytes + 1 : 0;
        uint32_t stated = (uint32_t)total;
        memcpy(sizes + 4 * row, &stated, 4);
    }
    if (body != bodies_end || keys != keys_end)
        return -1;
    uint32_t checksum = crc32_of(first, (size_t)(at - first));
    memcpy(out, &checksum, 4);
    return at - first;
}

/* A message of the node's own, encoded and sealed at once. */

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

/* -- batches of RocketMQ's clients: messages that stand back to back become records --------------- */

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
