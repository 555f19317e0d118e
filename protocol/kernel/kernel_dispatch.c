/* Dispatch: from the bytes of verified records to queue units and to index entries. Included by
 * kernel.c, whose rules hold here. protocol/derived/dispatch_request.py, queue_build.py and index_build.py
 * are what is right.
 *
 * Records come as pointers to their columns, in the order of enum wanted; positions are believed
 * only after they were held against `length`.
 */

enum wanted {
    W_TOPIC_START,
    W_TOPIC_LENGTH,
    W_QUEUE_ID,
    W_SYS_FLAG,
    W_PROPERTIES_START,
    W_PROPERTIES_LENGTH,
    W_STORE_TIMESTAMP,
    W_PHYSICAL_OFFSET,
    W_SIZE,
    W_QUEUE_OFFSET,
    WANTED_COLUMNS
};

#define TRANSACTION_MASK 0xC
#define TRANSACTION_COMMIT 0x8
#define TRANSACTION_ROLLBACK 0xC
#define JAVA_DIGITS_MAX 4000 /* protocol/record/codec.py: longer ones are no number */
#define OUTSIDE (-1)
#define NOT_HERE (-2) /* text that is left to Python */

/* -- Java's hash of text ------------------------------------------------------------------------ */

#define REPLACEMENT 0xFFFDu /* as Java reads what is no UTF-8 */

/* Java's hash over UTF-16 code units, gone on with from `value`. */
static uint32_t hash_text(uint32_t value, const uint8_t *at, int64_t size) {
    const uint8_t *end = at + size;
    for (; end - at >= 4; at += 4) { /* four at once: one step waits for the one before */
        if (u32(at) & 0x80808080u)
            break;
        value = 31u * 31 * 31 * 31 * value + 31u * 31 * 31 * at[0] + 31u * 31 * at[1] +
                31u * at[2] + at[3];
    }
    while (at < end) {
        uint32_t character = next_character(&at, end);
        if (character == NO_CHARACTER)
            character = REPLACEMENT;
        if (character >= 0x10000) {
            character -= 0x10000;
            value = 31 * value + (0xD800u | character >> 10);
            character = 0xDC00u | (character & 0x3FF);
        }
        value = 31 * value + character;
    }
    return value;
}

/* Java's hash of each piece. Answers 0, OUTSIDE for a piece outside `data`. */
EXPORT int64_t keelog_java_hash(const uint8_t *data, int64_t length, int64_t rows,
                                const int64_t *start, const int64_t *size, int32_t *hash) {
    for (int64_t row = 0; row < rows; row++) {
        if (!is_within(start[row], size[row], length))
            return OUTSIDE;
        hash[row] = (int32_t)hash_text(0, data + start[row], size[row]);
    }
    return 0;
}

/* |hash| as an index has it: 0 for -2^31. */
static inline int32_t folded(uint32_t hash) {
    int32_t value = (int32_t)hash;
    return value == INT32_MIN ? 0 : value < 0 ? -value : value;
}

/* -- what a record's properties say -------------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    int64_t size; /* 0: there is none */
} text_piece;

typedef struct {
    text_piece keys, tags, unique, delay;
} dispatch_values;

/* The last of each name counts. */
static void read_values(const uint8_t *data, int64_t start, int64_t size, dispatch_values *found) {
    pair one;
    memset(found, 0, sizeof *found);
    for (int64_t at = start, end = start + size; next_pair(data, &at, end, &one);) {
        const uint8_t *name = data + one.start;
        text_piece *which = NULL;
        switch (one.middle - one.start) {
        case 4:
            which = !memcmp(name, "KEYS", 4)   ? &found->keys
                    : !memcmp(name, "TAGS", 4) ? &found->tags
                                               : NULL;
            break;
        case 5:
            which = !memcmp(name, "DELAY", 5) ? &found->delay : NULL;
            break;
        case 8:
            which = !memcmp(name, "UNIQ_KEY", 8) ? &found->unique : NULL;
        }
        if (which) {
            which->at = data + one.middle + 1;
            which->size = one.end - one.middle - 1;
        }
    }
}

/* Where the values of KEYS, TAGS and UNIQ_KEY stand in the properties of each row: `out` is six
 * columns, start and length of each of the three; a length of 0 means none. Answers 0, OUTSIDE. */
EXPORT int64_t keelog_find_properties(const uint8_t *data, int64_t length, int64_t rows,
                                      const int64_t *start, const int64_t *size, int64_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        dispatch_values found;
        if (!is_within(start[row], size[row], length))
            return OUTSIDE;
        read_values(data, start[row], size[row], &found);
        const text_piece value[] = {found.keys, found.tags, found.unique};
        for (int i = 0; i < 3; i++) {
            out[2 * i * rows + row] = value[i].size ? value[i].at - data : 0;
            out[(2 * i + 1) * rows + row] = value[i].size;
        }
    }
    return 0;
}

static inline int is_schedule_topic(const uint8_t *topic, int64_t size) {
    static const char name[] = "SCHEDULE_TOPIC_XXXX";
    return size == sizeof name - 1 && !memcmp(topic, name, sizeof name - 1);
}

/* Integer.parseInt of ASCII text: 1 a number, 0 none, NOT_HERE for other text. */
static int read_int(const text_piece *text, int32_t *number) {
    int64_t i = text->at[0] == '+' || text->at[0] == '-', sum = 0;
    int is_number = text->size > i && text->size - i <= JAVA_DIGITS_MAX;
    for (int64_t k = 0; k < text->size; k++)
        if (text->at[k] >= 0x80)
            return NOT_HERE;
    for (; i < text->size; i++) {
        unsigned digit = (unsigned)text->at[i] - '0';
        if (digit > 9)
            return 0;
        sum = sum > INT32_MAX ? sum : sum * 10 + digit;
    }
    sum = text->at[0] == '-' ? -sum : sum;
    *number = (int32_t)sum;
    return is_number && sum >= INT32_MIN && sum <= INT32_MAX;
}

typedef struct {
    const uint8_t *data;
    int64_t length;
    const int64_t *const *column;
    const int64_t *levels;
    int64_t level_count;
} dispatch_input;

/* Whether the pieces of a record lie within the buffer. */
static inline int has_pieces(const dispatch_input *of, int64_t row) {
    const int64_t *const *column = of->column;
    return is_within(column[W_TOPIC_START][row], column[W_TOPIC_LENGTH][row], of->length) &&
           is_within(column[W_PROPERTIES_START][row], column[W_PROPERTIES_LENGTH][row], of->length);
}

/* Reads the values of a record, and when a delayed one is due: *code stays as it is for any other
 * (protocol/record/codec.py::delivery_time). 1; 0 for a delay that is no number; NOT_HERE. */
static int read_dispatch(const dispatch_input *of, int64_t row, dispatch_values *found, int64_t *code) {
    const int64_t *const *column = of->column;
    int32_t level;
    read_values(of->data, column[W_PROPERTIES_START][row], column[W_PROPERTIES_LENGTH][row], found);
    *code = found->tags.size ? (int32_t)hash_text(0, found->tags.at, found->tags.size) : 0;
    if (!found->delay.size ||
        !is_schedule_topic(of->data + column[W_TOPIC_START][row], column[W_TOPIC_LENGTH][row]))
        return 1;
    int known = read_int(&found->delay, &level);
    if (known != 1)
        return known;
    int64_t last = level < of->level_count ? level : of->level_count;
    if (last > 0)
        *code = (int64_t)((uint64_t)column[W_STORE_TIMESTAMP][row] + (uint64_t)of->levels[last - 1]);
    return 1;
}

/* -- queue units --------------------------------------------------------------------------------- */

/* Numbers the rows by their text, and by their queue where that is given, in order of appearance;
 * first[number] is the row where each came first. With `sys_flag` the row of a half or rolled-back
 * transaction has the number -1. `table` has `slots` items, a power of two above 2 * rows, all -1.
 * Answers how many there are, OUTSIDE. */
EXPORT int64_t keelog_group(const uint8_t *data, int64_t length, int64_t rows, const int64_t *start,
                            const int64_t *size, const int64_t *queue, const int64_t *sys_flag,
                            int32_t *number, int64_t *first, int32_t *table, int64_t slots) {
    int64_t groups = 0, last = -1;
    uint32_t of_text = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t kind = sys_flag ? sys_flag[row] & TRANSACTION_MASK : 0;
        number[row] = -1;
        if (!is_within(start[row], size[row], length))
            return OUTSIDE;
        if (kind && kind != TRANSACTION_COMMIT)
            continue;
        const uint8_t *text = data + start[row];
        if (last < 0 || size[last] != size[row] ||
            memcmp(data + start[last], text, (size_t)size[row]))
            of_text = hash_of(text, size[row]); /* `table` is never more than half full */
        last = row;
        int64_t slot = slot_of(of_text, queue ? queue[row] : 0, slots);
        for (;; slot = (slot + 1) & (slots - 1)) {
            int32_t known = table[slot];
            if (known < 0) {
                table[slot] = (int32_t)groups;
                first[groups] = row;
                number[row] = (int32_t)groups++;
                break;
            }
            int64_t other = first[known];
            if ((!queue || queue[other] == queue[row]) && size[other] == size[row] &&
                !memcmp(data + start[other], text, (size_t)size[row])) {
                number[row] = known;
                break;
            }
        }
    }
    return groups;
}

/* Makes the units of the queues that are wanted, queue by queue. place[queue] is the number of its
 * first unit, -1 for none of its; filled[queue] becomes how many it got, and is_run[queue] whether
 * their queue offsets follow each other. `offset` and `end` get each unit's queue offset and the
 * log offset behind its record. Answers 0, OUTSIDE or NOT_HERE. */
EXPORT int64_t keelog_queue_units(const uint8_t *data, int64_t length, int64_t rows,
                                  const int64_t *const *column, const int64_t *levels,
                                  int64_t level_count, const int32_t *group, int64_t queues,
                                  const int64_t *place, int64_t capacity, uint8_t *units,
                                  int64_t *offset, int64_t *end, int64_t *filled,
                                  uint8_t *is_run) {
    dispatch_input of = {data, length, column, levels, level_count};
    memset(filled, 0, (size_t)queues * sizeof *filled);
    memset(is_run, 1, (size_t)queues);
    for (int64_t row = 0; row < rows; row++) {
        int64_t number = group[row], code;
        dispatch_values found;
        if (number < 0 || number >= queues || place[number] < 0)
            continue;
        if (!has_pieces(&of, row))
            return OUTSIDE;
        int success = read_dispatch(&of, row, &found, &code);
        if (success == NOT_HERE)
            return NOT_HERE;
        if (!success)
            continue;
        int64_t count = filled[number], at = place[number] + count;
        if (at >= capacity)
            return OUTSIDE;
        int64_t stands = column[W_PHYSICAL_OFFSET][row], size = column[W_SIZE][row];
        put64(units + at * UNIT_BYTES, (uint64_t)stands);
        put32(units + at * UNIT_BYTES + 8, (uint32_t)size);
        put64(units + at * UNIT_BYTES + 12, (uint64_t)code);
        offset[at] = column[W_QUEUE_OFFSET][row];
        end[at] = (int64_t)((uint64_t)stands + (uint64_t)size);
        if (count && (uint64_t)offset[at] != (uint64_t)offset[at - 1] + 1)
            is_run[number] = 0;
        filled[number] = count + 1;
    }
    return 0;
}

/* -- index keys and entries ---------------------------------------------------------------------- */

typedef struct {
    int64_t count, capacity;
    int64_t *row;
    int32_t *hash;
} key_list;

static inline void add_key(key_list *list, int64_t row, uint32_t hash) {
    if (list->count < list->capacity) {
        list->row[list->count] = row;
        list->hash[list->count] = folded(hash);
    }
    list->count++;
}

/* Each key of each record, in the order in which they are entered: UNIQ_KEY, those of KEYS, TAGS
 * (with_tags). Answers how many there are, of which no more than `capacity` were stored; OUTSIDE,
 * NOT_HERE. */
EXPORT int64_t keelog_index_keys(const uint8_t *data, int64_t length, int64_t rows,
                                 const int64_t *const *column, int32_t with_tags, int64_t capacity,
                                 int64_t *row_of_key, int32_t *hash) {
    dispatch_input of = {data, length, column, NULL, 0};
    key_list list = {0, capacity, row_of_key, hash};
    uint32_t prefix = 0;
    int64_t last = -1;
    for (int64_t row = 0; row < rows; row++) {
        dispatch_values found;
        int64_t code;
        if ((column[W_SYS_FLAG][row] & TRANSACTION_MASK) == TRANSACTION_ROLLBACK)
            continue;
        if (!has_pieces(&of, row))
            return OUTSIDE;
        int success = read_dispatch(&of, row, &found, &code);
        if (success == NOT_HERE)
            return NOT_HERE;
        if (!success)
            continue;
        const uint8_t *topic = data + column[W_TOPIC_START][row];
        int64_t size = column[W_TOPIC_LENGTH][row];
        if (last < 0 || column[W_TOPIC_LENGTH][last] != size ||
            memcmp(data + column[W_TOPIC_START][last], topic, (size_t)size))
            prefix = hash_text(0, topic, size) * 31 + '#';
        last = row;
        if (found.unique.size)
            add_key(&list, row, hash_text(prefix, found.unique.at, found.unique.size));
        for (int64_t at = 0, stop; at < found.keys.size; at = stop + 1) {
            const uint8_t *cut = memchr(found.keys.at + at, ' ', (size_t)(found.keys.size - at));
            stop = cut ? cut - found.keys.at : found.keys.size;
            if (stop > at)
                add_key(&list, row, hash_text(prefix, found.keys.at + at, stop - at));
        }
        if (with_tags && found.tags.size) {
            uint32_t tags = (prefix * 31 + 'T') * 31 + '#';
            add_key(&list, row, hash_text(tags, found.tags.at, found.tags.size));
        }
    }
    return list.count;
}

#define ENTRY_BYTES 20
#define INDEX_HEADER_BYTES 40
#define PAGE_BITS 12
#define AHEAD 32 /* slots lie anywhere in a table larger than the caches */

/* Enters keys, in order: entries from number `first` on, each chained to what its slot held, and
 * the slots in `table` (big-endian, as on disk). `begin` is the time that entries count from, 0 or
 * less for none. page[i] becomes 1 where the i-th page of the file holds a changed slot. Answers how
 * many slots were empty before, OUTSIDE without slots. A hash below 0 is taken for 0. */
EXPORT int64_t keelog_enter_keys(int64_t keys, const int32_t *hash, const int64_t *offset,
                                 const int64_t *timestamp, int64_t begin, int64_t first,
                                 uint8_t *table, int64_t slots, uint8_t *page, uint8_t *entries) {
    int64_t opened = 0, slot[AHEAD];
    if (slots <= 0)
        return OUTSIDE;
    for (int64_t done = 0; done < keys; done += AHEAD) {
        int64_t count = keys - done < AHEAD ? keys - done : AHEAD;
        for (int64_t i = 0; i < count; i++) {
            uint32_t clean = hash[done + i] < 0 ? 0 : (uint32_t)hash[done + i];
            slot[i] = (int64_t)(clean % (uint64_t)slots);
            __builtin_prefetch(table + 4 * slot[i], 1);
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t key = done + i, number = first + key, past = 0;
            uint8_t *at = table + 4 * slot[i], *entry = entries + ENTRY_BYTES * key;
            int32_t held = i32(at);
            if (held <= 0 || held > number) {
                held = 0;
                opened++;
            }
            if (begin > 0 && timestamp[key] >= begin)
                past = (int64_t)(((uint64_t)timestamp[key] - (uint64_t)begin) / 1000);
            put32(entry, (uint32_t)(hash[key] < 0 ? 0 : hash[key]));
            put64(entry + 4, (uint64_t)offset[key]);
            put32(entry + 12, (uint32_t)(past > INT32_MAX ? INT32_MAX : past));
            put32(entry + 16, (uint32_t)held);
            put32(at, (uint32_t)number);
            page[(INDEX_HEADER_BYTES + 4 * slot[i]) >> PAGE_BITS] = 1;
        }
    }
    return opened;
}
