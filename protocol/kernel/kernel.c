/* The hot loops of protocol/record/columns.py and its neighbours, compiled. Optional: protocol/kernel/loader.py
 * loads this file's library when the installation could build it, and Python does the same work
 * otherwise. The Python functions are what is right; tests hold this file against them, on whole,
 * damaged and random bytes, and under the address sanitizer.
 *
 * Rules of this file:
 *  - Bytes are hostile. A length is held against what is left before it is used, and every field
 *    is read once: the buffer may be a map of a file that somebody else writes.
 *  - One function reads from a file that the caller has open; none does anything else outside.
 *  - Nothing is allocated and nothing is kept; the caller brings all memory.
 *  - A record is accepted or not. Why not is for protocol/record/codec.py::decode to say, in words.
 *  - Columns are int64, one after the other, each `stride` items long, in the order of enum column.
 *  - Plain C11; no Python headers. Whoever changes a signature or a meaning raises KERNEL_ABI, here
 *    and in protocol/kernel/loader.py, and says it in protocol/kernel/loader.py.
 *  - One translation unit: what grows stands in kernel_*.c beside this file, included by it.
 */

#define _GNU_SOURCE /* preadv */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define KERNEL_ABI 12

#ifndef KERNEL_SOURCE
#define KERNEL_SOURCE "" /* the build puts the digest of kernel*.c here */
#endif

#define EXPORT __attribute__((visibility("default")))
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20
#define V6_EXTRA_BYTES 12
#define HEAD_BYTES 88 /* up to and with BODY LENGTH, both hosts IPv4 */
#define RECORD_BYTES_MIN 91
#define CRC_MASK 0x7FFFFFFFu
#define CRC_PROPERTY_BYTES 20 /* __CRC32# 0x01, ten digits, 0x02 */
#define CRC_NAME_BYTES 8
#define CRC_DIGITS 10
#define NAME_END 1
#define PAIR_END 2
#define UNIT_BYTES 20 /* of a queue: log offset, size, hash of the tags */

EXPORT int32_t keelog_abi(void) { return KERNEL_ABI; }
EXPORT const char *keelog_source(void) { return KERNEL_SOURCE; }

/* -- big-endian numbers at any address ---------------------------------------------------------- */

static inline uint32_t u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline int64_t i64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return (int64_t)value;
}

static inline int32_t i32(const uint8_t *at) { return (int32_t)u32(at); }

static inline int16_t i16(const uint8_t *at) {
    return (int16_t)(uint16_t)((uint16_t)at[0] << 8 | at[1]);
}

static inline void put32(uint8_t *at, uint32_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    memcpy(at, &value, 4);
}

static inline void put64(uint8_t *at, uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    memcpy(at, &value, 8);
}

#include "kernel_crc.c"

/* -- records ------------------------------------------------------------------------------------ */

enum column {
    START,
    SIZE,
    MAGIC,
    BODY_CRC,
    QUEUE_ID,
    FLAG,
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    SYS_FLAG,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    RECONSUME_TIMES,
    PREPARED_TRANSACTION_OFFSET,
    BODY_START,
    BODY_LENGTH,
    TOPIC_START,
    TOPIC_LENGTH,
    PROPERTIES_START,
    PROPERTIES_LENGTH,
    COLUMNS
};

EXPORT int32_t keelog_columns(void) { return COLUMNS; }

/* TOTALSIZE of the record at `position`, 0 where no record can begin. `left` bytes follow. */
static inline int64_t stated_size(const uint8_t *at, int64_t left) {
    if (left < RECORD_BYTES_MIN)
        return 0;
    uint32_t magic = u32(at + 4);
    int32_t size = i32(at);
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || size < RECORD_BYTES_MIN || size > left)
        return 0;
    return size;
}

#define NO_CHARACTER 0xFFFFFFFFu

/* The next character of what may be no UTF-8. NO_CHARACTER stands for as many bytes as Java takes for one
 * (protocol/record/java_hash.py::java_text). */
static uint32_t next_character(const uint8_t **at, const uint8_t *end) {
    const uint8_t *from = *at;
    uint8_t lead = *from;
    int more = lead < 0xC2 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : 0;
    *at = from + 1;
    if (lead < 0x80)
        return lead;
    if (!more || end - from < 2)
        return NO_CHARACTER;
    uint8_t second = from[1];
    uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xF4 ? 0x8F : 0xBF;
    if (second < least || second > most)
        return NO_CHARACTER;
    uint32_t character = (uint32_t)(lead & (0x3F >> more)) << 6 | (second & 0x3F);
    *at = from + 2;
    for (int k = 2; k <= more; k++) {
        if (*at >= end || (**at & 0xC0) != 0x80)
            return NO_CHARACTER;
        character = character << 6 | (*(*at)++ & 0x3F);
    }
    return character >= 0xD800 && character <= 0xDFFF ? NO_CHARACTER : character;
}

/* Strict UTF-8, as Python's decoder: no surrogates, nothing overlong, nothing above U+10FFFF. */
static int is_utf8(const uint8_t *at, int64_t size) {
    const uint8_t *end = at + size;
    while (at < end)
        if (*at < 0x80)
            at++;
        else if (next_character(&at, end) == NO_CHARACTER)
            return 0;
    return 1;
}

/* Whether the last 20 bytes of the properties are `__CRC32#`, one damaged byte of its ten fixed
 * ones forgiven (protocol/record/codec.py::states_crc); *stated is -1 where that makes it bad. */
static inline int states_crc(const uint8_t *tail, int64_t *stated) {
    static const uint8_t name[CRC_NAME_BYTES] = "__CRC32#";
    int separators = (tail[8] == NAME_END) + (tail[CRC_PROPERTY_BYTES - 1] == PAIR_END);
    *stated = -1;
    if (memcmp(tail, name, CRC_NAME_BYTES) != 0) {
        int wrong = 0;
        for (int i = 0; i < CRC_NAME_BYTES; i++)
            wrong += tail[i] != name[i];
        return separators == 2 && wrong == 1;
    }
    if (separators != 2)
        return separators == 1;
    int64_t value = 0, weight = 1;
    for (int i = 0; i < CRC_DIGITS; i++, weight *= 10) {
        unsigned digit = (unsigned)tail[9 + i] - '0';
        if (digit > 9)
            return 1;
        value += digit * weight;
    }
    *stated = value;
    return 1;
}

/* What a record's fields say, in the order of enum column, once its lengths agree. */
typedef struct {
    int64_t field[COLUMNS];
} record;

/* Reads the record of `size` bytes at `start`, which lie within `data`. 1 when its lengths agree
 * and its topic is text. All positions are then within the record. */
static int read_record(const uint8_t *data, int64_t start, int64_t size, record *found) {
    const uint8_t *at = data + start;
    int64_t *field = found->field;
    uint32_t magic = u32(at + 4);
    int32_t sys_flag = i32(at + 36);
    int64_t born_extra = sys_flag & BORN_HOST_V6 ? V6_EXTRA_BYTES : 0;
    int64_t both_extra = born_extra + (sys_flag & STORE_HOST_V6 ? V6_EXTRA_BYTES : 0);
    int64_t version = magic == MAGIC_V2;
    int64_t fixed = HEAD_BYTES + both_extra + 1 + version + 2;
    if (size < fixed)
        return 0;
    field[START] = start;
    field[SIZE] = size;
    field[MAGIC] = magic;
    field[BODY_CRC] = i32(at + 8);
    field[QUEUE_ID] = i32(at + 12);
    field[FLAG] = i32(at + 16);
    field[QUEUE_OFFSET] = i64(at + 20);
    field[PHYSICAL_OFFSET] = i64(at + 28);
    field[SYS_FLAG] = sys_flag;
    field[BORN_TIMESTAMP] = i64(at + 40);
    field[STORE_TIMESTAMP] = i64(at + 56 + born_extra);
    const uint8_t *tail = at + both_extra;
    field[RECONSUME_TIMES] = i32(tail + 72);
    field[PREPARED_TRANSACTION_OFFSET] = i64(tail + 76);
    int64_t body_length = i32(tail + 84);
    if (body_length < 0 || body_length > size - fixed)
        return 0;
    int64_t body_at = both_extra + HEAD_BYTES;
    int64_t topic_at = body_at + body_length;
    int64_t topic_length = version ? i16(at + topic_at) : (int8_t)at[topic_at];
    topic_at += 1 + version;
    if (topic_length < 0 || topic_length > size - fixed - body_length)
        return 0;
    int64_t properties_at = topic_at + topic_length + 2;
    int64_t properties_length = i16(at + properties_at - 2);
    if (properties_length < 0 || properties_at + properties_length != size)
        return 0;
    field[BODY_START] = start + body_at;
    field[BODY_LENGTH] = body_length;
    field[TOPIC_START] = start + topic_at;
    field[TOPIC_LENGTH] = topic_length;
    field[PROPERTIES_START] = start + properties_at;
    field[PROPERTIES_LENGTH] = properties_length;
    return is_utf8(at + topic_at, topic_length);
}

/* Whether the checksum that counts for it agrees: of the whole record where it is sealed, else of
 * the body, if there is one. */
static int crc_agrees(const uint8_t *data, const record *found, int sealed) {
    const int64_t *field = found->field;
    int64_t stated;
    if (sealed && field[PROPERTIES_LENGTH] >= CRC_PROPERTY_BYTES) {
        const uint8_t *at = data + field[START];
        int64_t covered = field[SIZE] - CRC_PROPERTY_BYTES;
        if (states_crc(at + covered, &stated))
            return stated >= 0 && (crc32_of(at, (size_t)covered) & CRC_MASK) == (uint64_t)stated;
    }
    if (!field[BODY_LENGTH])
        return 1;
    uint32_t crc = crc32_of(data + field[BODY_START], (size_t)field[BODY_LENGTH]) & CRC_MASK;
    return (int64_t)crc == field[BODY_CRC];
}

static inline void put(const record *found, int64_t *out, int64_t stride, int64_t row) {
    for (int column = 0; column < COLUMNS; column++)
        out[column * stride + row] = found->field[column];
}

/* How many records the sizes of the chain from `position` on promise. */
EXPORT int64_t keelog_count(const uint8_t *data, int64_t length, int64_t position) {
    int64_t rows = 0, size;
    if (position < 0)
        return 0;
    for (; (size = stated_size(data + position, length - position)); position += size)
        rows++;
    return rows;
}

#define CHECK_PLACE 1
#define VERIFY 2
#define SEALED 4

/* Reads back-to-back records from `position` on, `capacity` at most, until one is no record: its
 * lengths, its place (`base` + position, with CHECK_PLACE) or its checksum (with VERIFY) are wrong.
 * Answers how many; *end is the position behind the last one. */
EXPORT int64_t keelog_scan(const uint8_t *data, int64_t length, int64_t position, int64_t base,
                           int32_t flags, int64_t *out, int64_t capacity, int64_t *end) {
    int64_t rows = 0, size;
    record found;
    if (position >= 0)
        for (; rows < capacity && (size = stated_size(data + position, length - position));
             position += size, rows++) {
            if (!read_record(data, position, size, &found))
                break;
            if (flags & CHECK_PLACE &&
                found.field[PHYSICAL_OFFSET] != (int64_t)((uint64_t)base + (uint64_t)position))
                break;
            if (flags & VERIFY && !crc_agrees(data, &found, flags & SEALED))
                break;
            put(&found, out, capacity, rows);
        }
    *end = position;
    return rows;
}

/* Reads the records that start at `start`, wherever that is. `good` tells which are whole; those
 * that are not have zeros in all columns but START. `size` and `place` are what TOTALSIZE and
 * PHYSICALOFFSET must be. */
EXPORT void keelog_gather(const uint8_t *data, int64_t length, int64_t rows, const int64_t *start,
                          const int64_t *size, const int64_t *place, int64_t *out, uint8_t *good) {
    record found;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = start[row];
        int64_t stated = at < 0 || at > length ? 0 : stated_size(data + at, length - at);
        good[row] = stated && stated == size[row] && read_record(data, at, stated, &found) &&
                    found.field[PHYSICAL_OFFSET] == place[row] && crc_agrees(data, &found, 1);
        if (!good[row]) {
            memset(&found, 0, sizeof found);
            found.field[START] = at;
        }
        put(&found, out, rows, row);
    }
}

/* -- pieces of bytes ---------------------------------------------------------------------------- */

static inline int is_within(int64_t start, int64_t size, int64_t length) {
    return start >= 0 && size >= 0 && start <= length && size <= length - start;
}

/* Joins pieces of `data`, and answers their bytes, -1 where one lies outside or has no room. `offsets` are
 * those of an Arrow array: rows + 1 of them, from 0 on. */
EXPORT int64_t keelog_join32(const uint8_t *data, int64_t length, int64_t rows,
                             const int64_t *start, const int64_t *size, uint8_t *out,
                             int64_t out_bytes, int32_t *offsets) {
    int64_t total = 0;
    offsets[0] = 0;
    if (out_bytes > INT32_MAX)
        return -1;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = start[row], count = size[row];
        if (!is_within(at, count, length) || count > out_bytes - total)
            return -1;
        memcpy(out + total, data + at, (size_t)count);
        total += count;
        offsets[row + 1] = (int32_t)total;
    }
    return total;
}

#define GAP_BYTES 2048 /* a smaller gap between two pieces costs less to read than a call */
#define VECTORS 128

/* Reads all of these pieces of a file, in one call of the system. 1 when they are all there. */
static int read_vectors(int file, struct iovec *vectors, int count, int64_t at, int64_t wanted) {
    ssize_t found;
    do
        found = preadv(file, vectors, count, at);
    while (found < 0 && errno == EINTR);
    return found == wanted;
}

/* Reads size[row] bytes from start[row] of a file on for each row, joined in `out`, which has room
 * for `out_bytes`. Pieces that stand near each other are read in one call. Answers the rows read;
 * fewer when the file ends before, cannot be read or there is no room. */
EXPORT int64_t keelog_read_pieces(int32_t file, int64_t rows, const int64_t *start,
                                  const int64_t *size, uint8_t *out, int64_t out_bytes) {
    uint8_t gap[GAP_BYTES]; /* what stands between, never looked at */
    struct iovec vectors[VECTORS];
    int64_t row = 0, total = 0;
    while (row < rows) {
        int64_t first = row, begin = start[row], end = begin, joined = total;
        int count = 0;
        for (; row < rows && count + 2 <= VECTORS; row++) {
            if (start[row] < 0 || size[row] < 0 || size[row] > out_bytes - joined ||
                start[row] > INT64_MAX - size[row])
                return first;
            int64_t between = start[row] - end;
            if (row > first && (between < 0 || between > GAP_BYTES))
                break;
            if (between > 0) {
                vectors[count].iov_base = gap;
                vectors[count++].iov_len = (size_t)between;
            }
            vectors[count].iov_base = out + joined;
            vectors[count++].iov_len = (size_t)size[row];
            joined += size[row];
            end = start[row] + size[row];
        }
        if (!read_vectors(file, vectors, count, begin, end - begin))
            return first;
        total = joined;
    }
    return rows;
}

/* -- properties: name 0x01 value 0x02, repeated ------------------------------------------------- */

typedef struct {
    int64_t start, middle, end; /* the name [start, middle), the value [middle + 1, end) */
} pair;

/* The next pair with a name and a value in data[*at:end]; 0 when there is none. */
static inline int next_pair(const uint8_t *data, int64_t *at, int64_t end, pair *found) {
    while (*at < end) {
        int64_t start = *at, stop = end;
        const uint8_t *cut = memchr(data + start, PAIR_END, (size_t)(end - start));
        if (cut)
            stop = cut - data;
        *at = stop + 1;
        cut = memchr(data + start, NAME_END, (size_t)(stop - start));
        if (cut && cut - data > start && cut - data < stop - 1) {
            found->start = start;
            found->middle = cut - data;
            found->end = stop;
            return 1;
        }
    }
    return 0;
}

#define PAIRS_COMPARED_MAX 64

/* All pairs of each row, of a repeated name the last only, in order. `out` is three columns, name
 * start, middle and end (see pair), `capacity` items each; counts[row] tells how many are a row's.
 * Answers how many in all; -1 for a piece outside `data`, or when a row has so many pairs that to
 * compare each with each would take long, or `capacity` is too small. */
EXPORT int64_t keelog_pairs(const uint8_t *data, int64_t length, int64_t rows, const int64_t *start,
                            const int64_t *size, int64_t *out, int64_t capacity, int32_t *counts) {
    int64_t *starts = out, *middles = out + capacity, *ends = out + 2 * capacity, total = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = total;
        pair found;
        if (!is_within(start[row], size[row], length))
            return -1;
        for (int64_t at = start[row], end = at + size[row]; next_pair(data, &at, end, &found);) {
            int64_t name = found.middle - found.start, kept = first;
            if (total - first >= PAIRS_COMPARED_MAX || total >= capacity)
                return -1;
            for (int64_t i = first; i < total; i++) {
                if (middles[i] - starts[i] == name &&
                    !memcmp(data + starts[i], data + found.start, (size_t)name))
                    continue; /* the later one counts */
                starts[kept] = starts[i];
                middles[kept] = middles[i];
                ends[kept++] = ends[i];
            }
            starts[kept] = found.start;
            middles[kept] = found.middle;
            ends[kept] = found.end;
            total = kept + 1;
        }
        counts[row] = (int32_t)(total - first);
    }
    return total;
}

/* -- handing out the messages of a queue: which of them one pull takes, and their bytes ----------- */

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

#include "kernel_append.c"
#include "kernel_dispatch.c"
