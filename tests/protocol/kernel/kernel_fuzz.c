/* Feeds protocol/kernel/kernel.c with damaged bytes and wild positions. Built with the address and the
 * undefined-behaviour sanitizer, which end it at the first reach outside a buffer: each buffer is a
 * block of its own, exactly as long as it says.
 *
 *     kernel_fuzz SEEDS ROUNDS SEED     SEEDS: a file of records, back to back
 */

#include <stdio.h>
#include <stdlib.h>

#include "kernel.c"

static uint64_t state;
static int seed_file;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : 0;
}

static void *block(size_t size) {
    void *found = malloc(size ? size : 1);
    if (!found)
        abort();
    return found;
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

/* Mostly within [0, length], sometimes anywhere at all. */
static int64_t wild(int64_t length) {
    switch (draw(8)) {
    case 0:
        return (int64_t)draw(UINT64_MAX);
    case 1:
        return length - (int64_t)draw(120);
    default:
        return (int64_t)draw((uint64_t)length + 1);
    }
}

static void damage(uint8_t *data, int64_t length) {
    static const uint8_t strange[] = {0, 1, 2, 0x7F, 0x80, 0xFF, 0xDA, 0xF0, '_'};
    for (uint64_t count = draw(6); count && length; count--) {
        int64_t at = (int64_t)draw((uint64_t)length);
        switch (draw(4)) {
        case 0:
            data[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 1:
            data[at] = strange[draw(sizeof strange)];
            break;
        case 2:
            data[at] = (uint8_t)draw(256);
            break;
        default: /* a run of bytes from elsewhere, as a torn write leaves it */
            for (int64_t i = 0, from = (int64_t)draw((uint64_t)length); i < 40; i++)
                if (at + i < length && from + i < length)
                    data[at + i] = data[from + i];
        }
    }
}

static void try_pieces(const uint8_t *data, int64_t length) {
    int64_t rows = (int64_t)draw(20), total = 0, known = 0, slots = 1;
    int64_t *start = block(8 * rows), *size = block(8 * rows), *out = block(8 * 6 * rows);
    int64_t *queue = block(8 * rows), *sys_flag = block(8 * rows), *first = block(8 * rows);
    int32_t *hash = block(4 * rows), *offsets = block(4 * (rows + 1)), *counts = block(4 * rows);
    int32_t *ids = block(4 * rows);
    int is_tame = draw(3) > 0;
    for (int64_t row = 0; row < rows; row++) {
        start[row] = is_tame ? (int64_t)draw((uint64_t)length + 1) : wild(length);
        size[row] = is_tame ? (int64_t)draw((uint64_t)(length - start[row]) + 1) : wild(length);
        queue[row] = (int64_t)draw(3);
        sys_flag[row] = (int64_t)draw(16);
        if (size[row] > 0 && size[row] < 1 << 20)
            total += size[row];
    }
    int64_t room = draw(4) ? total : (int64_t)draw((uint64_t)total + 1);
    uint8_t *joined = block(room);
    int64_t found = keelog_join32(data, length, rows, start, size, joined, room, offsets);
    check(!is_tame || found == (room == total ? total : -1), "tame pieces are joined");
    keelog_read_pieces(seed_file, rows, start, size, joined, room);
    keelog_java_hash(data, length, rows, start, size, hash);
    while (slots <= 2 * rows)
        slots *= 2;
    int32_t *table = block(4 * slots);
    memset(table, 0xFF, 4 * slots);
    known = keelog_group(data, length, rows, start, size, draw(2) ? queue : NULL,
                         draw(2) ? sys_flag : NULL, ids, first, table, slots);
    check(known <= rows, "no more texts than rows");
    keelog_find_properties(data, length, rows, start, size, out);
    int64_t capacity = (int64_t)draw(200);
    int64_t *pairs = block(8 * 3 * capacity);
    found = keelog_pairs(data, length, rows, start, size, pairs, capacity, counts);
    for (int64_t i = 0; i < found; i++)
        check(pairs[i] < pairs[capacity + i] && pairs[capacity + i] + 1 < pairs[2 * capacity + i] &&
                  pairs[i] >= 0 && pairs[2 * capacity + i] <= length,
              "pairs lie within the buffer");
    free(pairs), free(table), free(joined), free(counts), free(offsets), free(hash), free(queue);
    free(sys_flag), free(first), free(ids), free(out), free(size), free(start);
}

static void try_gather(const uint8_t *data, int64_t length, const int64_t *known, int64_t rows) {
    int64_t *start = block(8 * rows), *size = block(8 * rows), *place = block(8 * rows);
    int64_t *out = block(8 * COLUMNS * rows);
    uint8_t *good = block(rows);
    for (int64_t row = 0; row < rows; row++) {
        start[row] = draw(4) ? known[row] : wild(length);
        size[row] = draw(4) ? known[rows + row] : wild(length);
        place[row] = draw(4) ? known[PHYSICAL_OFFSET * rows + row] : wild(length);
    }
    keelog_gather(data, length, rows, start, size, place, out, good);
    for (int64_t row = 0; row < rows; row++)
        if (good[row])
            check(out[row] >= 0 && out[row] + out[rows + row] <= length, "records lie within");
    free(good), free(out), free(place), free(size), free(start);
}

/* As a pull does: units of a queue, and the records that they name, in a segment at `base`. */
static void try_messages(const uint8_t *data, int64_t length, const int64_t *known, int64_t rows) {
    int64_t base = (int64_t)draw(3) * 1000, room = (int64_t)draw((uint64_t)length + 40), total = 0;
    int64_t *place = block(8 * rows), *size = block(8 * rows), *number = block(8 * rows);
    uint32_t *stated = block(4 * rows);
    uint8_t *out = block(room), *units = block(UNIT_BYTES * rows), *named = block(UNIT_BYTES * rows);
    for (int64_t row = 0; row < rows; row++) {
        place[row] = draw(9) ? base + known[row] : wild(length);
        size[row] = draw(9) ? known[rows + row] : wild(length);
        number[row] = draw(9) ? known[QUEUE_OFFSET * rows + row] : wild(length);
        size[row] = (int32_t)size[row];
        stated[row] = (uint32_t)size[row];
        for (int byte = 0; byte < 8; byte++)
            named[UNIT_BYTES * row + byte] = (uint8_t)(place[row] >> (56 - 8 * byte));
        for (int byte = 0; byte < 4; byte++)
            named[UNIT_BYTES * row + 8 + byte] = (uint8_t)(stated[row] >> (24 - 8 * byte));
    }
    check(keelog_unit_bytes(named, rows) >= 0, "no record has less than no bytes");
    int64_t topic_length = (int64_t)draw(9) % (length + 1);
    int64_t found = keelog_copy_messages(data, length, base, rows, named, number,
                                         known[QUEUE_ID * rows], data, topic_length, out, room);
    check(found >= 0 && found <= rows, "no more messages than rows");
    for (int64_t row = 0; row < found; total += size[row++])
        check(size[row] <= room - total &&
                  !memcmp(out + total, data + (place[row] - base), (size_t)size[row]),
              "messages are copied as they stand");
    record one;
    for (int64_t row = 0; row < rows; row++)
        if (keelog_record_at(data, length, wild(length), known[PHYSICAL_OFFSET * rows + row], &one))
            check(is_within(one.field[START], one.field[SIZE], length), "a record lies within");
    found = keelog_whole_records(data, length, rows, stated);
    check(found >= 0 && found <= rows, "no more records than rows");
    for (int64_t i = 0; i < UNIT_BYTES * rows; i++)
        units[i] = draw(3) ? 0 : (uint8_t)draw(256);
    int64_t limits[] = {(int64_t)draw(99),   (int64_t)draw(1 << 20), (int64_t)draw(1 << 20),
                        (int64_t)draw(99) - 1, (int64_t)draw(9),     (int64_t)draw(1 << 20),
                        (int64_t)draw(9),    (int64_t)draw(1 << 20)};
    found = keelog_fitting_units(units, rows, limits);
    check(found >= -1 && found <= rows, "no more units than rows");
    free(named), free(units), free(out), free(stated), free(number), free(size), free(place);
}

/* Columns as a scan gave them, or with some of them wild: nothing outside is ever touched. */
static void try_dispatch(const uint8_t *data, int64_t length, const int64_t *known, int64_t rows,
                         int64_t stride) {
    static const int from[WANTED_COLUMNS] = {
        TOPIC_START,       TOPIC_LENGTH,    QUEUE_ID,        SYS_FLAG, PROPERTIES_START,
        PROPERTIES_LENGTH, STORE_TIMESTAMP, PHYSICAL_OFFSET, SIZE,     QUEUE_OFFSET};
    int64_t *column[WANTED_COLUMNS], slots = 1, levels[2] = {1000, INT64_MAX};
    for (int i = 0; i < WANTED_COLUMNS; i++) {
        column[i] = block(8 * rows);
        memcpy(column[i], known + from[i] * stride, (size_t)(8 * rows));
        if (rows && !draw(6))
            column[i][draw((uint64_t)rows)] = wild(length);
    }
    while (slots <= 2 * rows)
        slots *= 2;
    int32_t *table = block(4 * slots), *group = block(4 * rows);
    int64_t *first = block(8 * rows);
    memset(table, 0xFF, (size_t)(4 * slots));
    const int64_t *const *columns = (const int64_t *const *)column;
    int64_t queues = keelog_group(data, length, rows, column[W_TOPIC_START], column[W_TOPIC_LENGTH],
                                  column[W_QUEUE_ID], column[W_SYS_FLAG], group, first, table, slots);
    check(queues <= rows, "no more queues than records");
    if (queues >= 0) {
        int64_t capacity = rows, *place = block(8 * queues), *filled = block(8 * queues);
        for (int64_t i = 0; i < queues; i++)
            place[i] = draw(4) ? (int64_t)draw((uint64_t)rows) : -1; /* may overlap: only room counts */
        uint8_t *units = block(UNIT_BYTES * capacity), *is_run = block(queues);
        int64_t *offset = block(8 * capacity), *end = block(8 * capacity);
        keelog_queue_units(data, length, rows, columns, levels, (int64_t)draw(3), group, queues, place,
                           capacity, units, offset, end, filled, is_run);
        free(end), free(offset), free(is_run), free(units), free(filled), free(place);
    }
    int64_t room = (int64_t)draw(4) * rows;
    int64_t *row_of_key = block(8 * room);
    int32_t *hash = block(4 * room);
    int64_t keys =
        keelog_index_keys(data, length, rows, columns, (int32_t)draw(2), room, row_of_key, hash);
    keys = keys < 0 ? 0 : keys < room ? keys : room;
    for (int64_t i = 0; i < keys; i++)
        check(hash[i] >= 0 && row_of_key[i] >= 0 && row_of_key[i] < rows, "keys are of records");
    int64_t buckets = 1 + (int64_t)draw(3000), *wide = block(8 * keys);
    for (int64_t i = 0; i < keys; i++) {
        wide[i] = wild(length);
        hash[i] = draw(9) ? hash[i] : (int32_t)wild(length);
    }
    uint8_t *slot = block(4 * buckets), *entries = block(ENTRY_BYTES * keys);
    uint8_t *page = block(((INDEX_HEADER_BYTES + 4 * buckets) >> PAGE_BITS) + 1);
    for (int64_t i = 0; i < 4 * buckets; i++)
        slot[i] = (uint8_t)draw(256);
    int64_t opened = keelog_enter_keys(keys, hash, wide, wide, wild(length), 1, slot, buckets, page,
                                       entries);
    check(opened >= 0 && opened <= keys, "no more slots are opened than there are keys");
    free(page), free(entries), free(slot), free(wide), free(hash), free(row_of_key);
    free(first), free(group), free(table);
    for (int i = 0; i < WANTED_COLUMNS; i++)
        free(column[i]);
}

static void try_scan(const uint8_t *data, int64_t length) {
    int64_t position = draw(3) ? 0 : (int64_t)draw((uint64_t)length + 1), end = -1;
    int64_t rows = keelog_count(data, length, position);
    int64_t *out = block(8 * COLUMNS * rows);
    int64_t base = draw(2) ? 0 : wild(length);
    int64_t found =
        keelog_scan(data, length, position, base, (int32_t)draw(8), out, rows, &end);
    check(found >= 0 && found <= rows && end >= position && end <= length, "a scan ends within");
    for (int64_t row = 0; row < found; row++)
        for (int piece = BODY_START; piece < COLUMNS; piece += 2)
            check(is_within(out[piece * rows + row], out[(piece + 1) * rows + row], length),
                  "pieces of records lie within");
    try_gather(data, length, out, rows ? rows : 0);
    if (found && found == rows)
        try_messages(data, length, out, rows);
    try_dispatch(data, length, out, found, rows);
    free(out);
}

/* A request that says something of its records, mostly the truth: checked and sealed, and as a run. */
static void try_append(const uint8_t *from, int64_t length) {
    int64_t known = keelog_count(from, length, 0), rows = (int64_t)draw(12), slots = 4;
    int64_t room = draw(5) ? length : wild(length);
    int64_t out_bytes = room < 0 || room > length ? 0 : room;
    while (slots <= 2 * rows)
        slots *= 2;
    append_part *parts = block(sizeof *parts * rows);
    int32_t *part_of = block(4 * rows), *table = block(4 * slots);
    uint8_t *data = block(length), *out = block(out_bytes), *sizes = block(4 * (known + 1));
    memcpy(data, from, length);
    memset(sizes, 0, 4 * (known + 1));
    int64_t size = stated_size(data, length);
    record first;
    int64_t topic_bytes = size && read_record(data, 0, size, &first) ? first.field[TOPIC_LENGTH] : 0;
    uint8_t *topic = block(topic_bytes);
    if (topic_bytes)
        memcpy(topic, data + first.field[TOPIC_START], topic_bytes);
    int64_t stated = draw(5) ? known : wild(12);
    const uint8_t *named = draw(3) ? NULL : sizes;
    append_request request = {length, stated > known ? known + 1 : stated, draw(2) ? -1 : wild(length),
                              (int64_t)draw(2), topic_bytes, wild(9), wild(length), wild(length),
                              (intptr_t)out, out_bytes, 5, 7, (int64_t)draw(300), (int64_t)draw(2),
                              (intptr_t)parts, (intptr_t)part_of, rows, (intptr_t)table, slots, 0};
    int64_t sealed = keelog_append_run(&request, data, named, topic);
    check(sealed == -1 || sealed == request.count, "a run is sealed whole, or not taken");
    int64_t found = keelog_append_check(&request, data, named);
    check(found <= rows, "no more parts than there is room for");
    if (found >= 0) {
        if (draw(3) == 0)
            damage(data, length);
        sealed = keelog_append_seal(&request, data);
        check(sealed >= 0 && sealed <= request.count, "a sealed record is one of the request");
    }
    free(data), free(out), free(sizes), free(topic), free(table), free(part_of), free(parts);
}

static void try_put(const uint8_t *from, int64_t length) {
    int64_t out_bytes = (int64_t)draw(600), body_bytes = (int64_t)draw((uint64_t)length + 1);
    int64_t topic_bytes = (int64_t)draw(140), properties_bytes = (int64_t)draw(200);
    uint8_t *out = block(out_bytes), *body = block(body_bytes);
    uint8_t *topic = block(topic_bytes), *properties = block(properties_bytes);
    memcpy(body, from, body_bytes);
    memset(topic, 't', topic_bytes);
    memset(properties, 'p', properties_bytes);
    message_draft made = {7, (int64_t)draw(2), (intptr_t)out, out_bytes,
                          draw(9) ? body_bytes : -1 - (int64_t)draw(99), draw(9) ? properties_bytes : -1,
                          draw(9) ? topic_bytes : 128 + (int64_t)draw(99), wild(9), wild(length),
                          wild(length), 5, wild(9), (int32_t)wild(9),
                          draw(3) ? 0 : (int32_t)wild(99), 1, 2, {1, 2, 3, 4}};
    int64_t size = keelog_put_message(&made, body, topic, properties);
    check(size == -1 || (size <= out_bytes && size == stated_size(out, out_bytes)),
          "a message becomes a record, or nothing");
    free(out), free(body), free(topic), free(properties);
}

/* A batch of messages, most of them whole, with what is damaged of it. */
static void try_items(const uint8_t *from, int64_t length) {
    static const char *const texts[] = {"UNIQ_KEY\1k\2", "UNIQ_KEY\1k", "a\1b\2UNIQ_KEY\1\2",
                                        "DELAY\1" "1\2UNIQ_KEY\1k\2", ""};
    static const uint8_t names[] = "\5DELAY\10TRAN_MSG";
    int64_t rows = (int64_t)draw(6), bytes = 0, body_bytes = (int64_t)draw((uint64_t)length + 1);
    uint8_t *items = block(rows * (length + 64));
    for (int64_t row = 0; row < rows; row++) {
        const char *text = texts[draw(5)];
        int64_t size = (int64_t)strlen(text);
        uint8_t *at = items + bytes;
        memset(at, 0, 16);
        put32(at + 16, (uint32_t)body_bytes);
        memcpy(at + 20, from, body_bytes);
        at[20 + body_bytes] = 0;
        at[21 + body_bytes] = (uint8_t)size;
        memcpy(at + 22 + body_bytes, text, size);
        bytes += 22 + body_bytes + size;
    }
    uint8_t *data = block(bytes);
    memcpy(data, items, bytes);
    if (draw(2))
        damage(data, bytes);
    int64_t counted = keelog_count_items(data, bytes);
    check(counted >= -1 && counted <= bytes / 22, "messages are counted once");
    int64_t known = draw(5) && counted >= 0 ? counted : (int64_t)draw(8);
    int64_t room = draw(5) ? bytes + known * 160 : (int64_t)draw(200);
    uint8_t *out = block(4 + 12 * known + room), *shared = block(88 + 7 + sizeof names - 1);
    memset(shared, 7, 88 + 7);
    memcpy(shared + 88 + 7, names, sizeof names - 1);
    items_draft draft = {known, bytes, 88, 7, sizeof names - 1, draw(3) ? length : 5,
                         (int64_t)draw(2), room};
    int64_t size = keelog_encode_items(&draft, shared, data, out);
    check(size >= -1 && size <= room, "records have room");
    for (int64_t row = 0; size > 0 && row < known; row++) {
        uint32_t at, bytes_of_key;
        memcpy(&at, out + 4 + 4 * (known + row), 4);
        memcpy(&bytes_of_key, out + 4 + 4 * (2 * known + row), 4);
        check(is_within(at, bytes_of_key, size), "keys lie within");
    }
    uint32_t *sizes = block(4 * known);
    for (int64_t row = 0; row < known; row++)
        sizes[row] = (uint32_t)draw(UINT32_MAX);
    int64_t chars = (int64_t)draw(48);
    uint8_t *start = block(chars), *ids = block(known * (chars + 17));
    memset(start, '7', (size_t)chars);
    keelog_join_ids(sizes, known, wild(length), start, chars, ids);
    check(!known || ids[known * (chars + 17) - 1] == ',', "a comma ends the last id");
    free(ids), free(start), free(sizes);
    free(shared), free(out), free(data), free(items);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        return 2;
    static uint8_t seeds[1 << 20];
    int64_t whole = (int64_t)fread(seeds, 1, sizeof seeds, file);
    seed_file = fileno(file);
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 1;
    for (long round = 0, rounds = atol(argv[2]); round < rounds; round++) {
        keelog_init(round % 3);
        int64_t from = draw(2) ? 0 : (int64_t)draw((uint64_t)whole + 1);
        int64_t length = draw(2) ? whole - from : (int64_t)draw((uint64_t)(whole - from) + 1);
        uint8_t *data = block(length);
        memcpy(data, seeds + from, length);
        damage(data, length);
        try_scan(data, length);
        try_pieces(data, length);
        try_append(data, length);
        try_put(data, length);
        try_items(data, length);
        keelog_crc32(data, length);
        free(data);
    }
    return 0;
}
