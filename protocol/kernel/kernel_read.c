/* Handing out the messages of a queue: which of them one pull takes, and their bytes. */

/* How many of the queue's units one pull without a filter takes. `limits` are, in this order: where
 * the log begins and ends, the length of a segment, below how many bytes to its end a record is hot
 * (-1: all are); then how many records and bytes may be taken up to a hot one, and up to a cold one.
 * The first unit is taken whatever its size. Answers -1 when one of them names no place of the log,
 * which the broker's loop knows how to go on from. */
EXPORT int64_t keelog_fitting_units(const uint8_t *units, int64_t rows, const int64_t *limits) {
    int64_t begin = limits[0], log_end = limits[1], segment = limits[2], hot_bytes = limits[3];
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t place = i64(units + UNIT_BYTES * row), size = i32(units + UNIT_BYTES * row + 8);
        if (size <= 0 || place < begin || place > log_end - size ||
            (segment && place % segment > segment - size))
            return -1;
        int is_cold = hot_bytes >= 0 && log_end - place > hot_bytes;
        total += size;
        if (row && (row >= limits[4 + 2 * is_cold] || total > limits[5 + 2 * is_cold]))
            return row;
    }
    return rows;
}

/* Whether a whole record that names the log offset `place` begins at `position`; `found` is then what
 * its fields say. */
EXPORT int64_t keelog_record_at(const uint8_t *data, int64_t length, int64_t position,
                                int64_t place, record *found) {
    int64_t size = position < 0 || position > length ? 0 : stated_size(data + position, length - position);
    return size && read_record(data, position, size, found) &&
           found->field[PHYSICAL_OFFSET] == place && crc_agrees(data, found, 1);
}

/* Whether `size` bytes are, as a whole and at log offset `place`, the message `number` of a queue. */
static inline int is_message(const uint8_t *at, int64_t size, int64_t place, int64_t number,
                             int64_t queue_id, const uint8_t *topic, int64_t topic_length) {
    record found;
    return size > 0 && keelog_record_at(at, size, 0, place, &found) && found.field[SIZE] == size &&
           found.field[QUEUE_ID] == queue_id && found.field[QUEUE_OFFSET] == number &&
           found.field[TOPIC_LENGTH] == topic_length &&
           !memcmp(at + found.field[TOPIC_START], topic, (size_t)topic_length);
}

/* Records that lie apart are fetched while the ones before them are looked at. */
static inline void fetch_ahead(const uint8_t *at, int64_t size) {
    for (int64_t line = 0; line < size && line < 1024; line += 64)
        __builtin_prefetch(at + line);
}

/* The bytes of all records that units name. */
EXPORT int64_t keelog_unit_bytes(const uint8_t *units, int64_t rows) {
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t size = i32(units + UNIT_BYTES * row + 8);
        total += size > 0 ? size : 0;
    }
    return total;
}

/* Copies the record of each unit to `out`, back to back, and looks at each copy while the processor
 * still has it at hand. `data` is a segment that begins at log offset `base`; `number` has the place
 * of each unit in its queue. Answers how many are the messages wanted: it ends at the first one that
 * is not, that does not lie in `data` or has no room in `out`. */
EXPORT int64_t keelog_copy_messages(const uint8_t *data, int64_t length, int64_t base, int64_t rows,
                                    const uint8_t *units, const int64_t *number, int64_t queue_id,
                                    const uint8_t *topic, int64_t topic_length, uint8_t *out,
                                    int64_t out_bytes) {
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++, units += UNIT_BYTES) {
        int64_t place = i64(units), size = i32(units + 8);
        if (place < base || !is_within(place - base, size, length) || size > out_bytes - total)
            return row;
        if (row + 2 < rows) {
            int64_t later = i64(units + 2 * UNIT_BYTES), bytes = i32(units + 2 * UNIT_BYTES + 8);
            if (later >= base && is_within(later - base, bytes, length))
                fetch_ahead(data + (later - base), bytes);
        }
        memcpy(out + total, data + (place - base), (size_t)size);
        if (!is_message(out + total, size, place, number[row], queue_id, topic, topic_length))
            return row;
        total += size;
    }
    return rows;
}

/* The records stand back to back in `data`, as long as `size` says. Answers how many there are
 * before the first that is not whole. */
EXPORT int64_t keelog_whole_records(const uint8_t *data, int64_t length, int64_t rows,
                                    const uint32_t *size) {
    int64_t at = 0;
    record found;
    for (int64_t row = 0; row < rows; at += size[row++])
        if (size[row] > length - at || stated_size(data + at, size[row]) != size[row] ||
            !read_record(data, at, size[row], &found) || !crc_agrees(data, &found, 1))
            return row;
    return rows;
}
