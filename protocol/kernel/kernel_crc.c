/* CRC-32 as in zlib: by tables, or by carry-less multiplication where the processor has it. Part of
 * kernel.c, which includes it. zlib.crc32 is the oracle. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_PCLMUL 1
#include <immintrin.h>
#endif

static uint32_t crc_table[8][256];
enum crc_way { BY_TABLES, BY_FOLDING, BY_WIDE_FOLDING };
static enum crc_way crc_way;

/* Called once, by who loads the library, before any other function. Answers the way in which
 * checksums are made: the last of enum crc_way that the processor can, or `best`, for the tests. */
EXPORT int32_t keelog_init(int32_t best) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_table[row - 1][byte];
            crc_table[row][byte] = before >> 8 ^ crc_table[0][before & 0xFF];
        }
    crc_way = BY_TABLES;
#ifdef HAS_PCLMUL
    __builtin_cpu_init();
    if (best >= BY_FOLDING && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        crc_way = BY_FOLDING;
    if (best >= BY_WIDE_FOLDING && crc_way == BY_FOLDING && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("vpclmulqdq"))
        crc_way = BY_WIDE_FOLDING;
#else
    (void)best;
#endif
    return crc_way;
}

/* Slicing by 8: eight bytes a step, by eight tables. Takes and gives the inverted register. */
static uint32_t crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = crc ^ __builtin_bswap32(u32(at)), high = __builtin_bswap32(u32(at + 4));
        crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^
              crc_table[5][low >> 16 & 0xFF] ^ crc_table[4][low >> 24] ^
              crc_table[3][high & 0xFF] ^ crc_table[2][high >> 8 & 0xFF] ^
              crc_table[1][high >> 16 & 0xFF] ^ crc_table[0][high >> 24];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 0xFF];
    return crc;
}

#ifdef HAS_PCLMUL
/* Folding, after V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"
 * (Intel, 2009), with its constants for the reflected polynomial. Four lanes of 16 bytes are folded
 * over 64 bytes a step, then into one, then reduced. A constant moves a lane over so many bytes: it
 * is x^(8 * bytes + 32) and x^(8 * bytes - 32) modulo the polynomial. */
#define BY_256_LOW 0x011542778a
#define BY_256_HIGH 0x01322d1430
#define BY_64_LOW 0x0154442bd4
#define BY_64_HIGH 0x01c6e41596
#define BY_16_LOW 0x01751997d0
#define BY_16_HIGH 0x00ccaa009e

__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i lane, __m128i by,
                                                                    __m128i next) {
    __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Goes on from four lanes with `size` bytes more, a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_from_lanes(const __m128i lane[4],
                                                                        const uint8_t *at,
                                                                        size_t size) {
    const __m128i by_64 = _mm_set_epi64x(BY_64_HIGH, BY_64_LOW);
    const __m128i by_16 = _mm_set_epi64x(BY_16_HIGH, BY_16_LOW);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
#define LOAD(i) _mm_loadu_si128((const __m128i *)(at + 16 * (i)))
    __m128i a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (; size >= 64; at += 64, size -= 64) {
        a = fold(a, by_64, LOAD(0));
        b = fold(b, by_64, LOAD(1));
        c = fold(c, by_64, LOAD(2));
        d = fold(d, by_64, LOAD(3));
    }
    a = fold(a, by_16, b);
    a = fold(a, by_16, c);
    a = fold(a, by_16, d);
    for (; size >= 16; at += 16, size -= 16)
        a = fold(a, by_16, LOAD(0));
#undef LOAD
    /* 128 bits to 64, to 32 by Barrett. */
    b = _mm_clmulepi64_si128(a, by_16, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), b);
    b = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00), b);
    b = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), polynomial, 0x10), low_32);
    b = _mm_clmulepi64_si128(b, polynomial, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

/* `size` is a multiple of 16, at least 64. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_folding(uint32_t crc,
                                                                        const uint8_t *at,
                                                                        size_t size) {
    __m128i lane[4];
    memcpy(lane, at, sizeof lane);
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)crc));
    return crc_from_lanes(lane, at + 64, size - 64);
}

#define WIDE_BYTES 256 /* a step of it: four lanes of 64 bytes */

__attribute__((target("avx512f,vpclmulqdq"))) static inline __m512i fold_wide(__m512i lane,
                                                                              __m512i by,
                                                                              __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(lane, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(lane, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* all three by exclusive or */
}

/* As crc_by_folding, with lanes four times as wide; at least WIDE_BYTES. */
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1"))) static uint32_t
crc_by_wide_folding(uint32_t crc, const uint8_t *at, size_t size) {
    const __m512i by_256 = _mm512_set4_epi64(BY_256_HIGH, BY_256_LOW, BY_256_HIGH, BY_256_LOW);
    const __m512i by_64 = _mm512_set4_epi64(BY_64_HIGH, BY_64_LOW, BY_64_HIGH, BY_64_LOW);
    __m128i lane[4];
#define LOAD(i) _mm512_loadu_si512(at + 64 * (i))
    __m512i first = _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0);
    __m512i a = _mm512_xor_si512(LOAD(0), first), b = LOAD(1), c = LOAD(2), d = LOAD(3);
    at += WIDE_BYTES;
    size -= WIDE_BYTES;
    for (; size >= WIDE_BYTES; at += WIDE_BYTES, size -= WIDE_BYTES) {
        a = fold_wide(a, by_256, LOAD(0));
        b = fold_wide(b, by_256, LOAD(1));
        c = fold_wide(c, by_256, LOAD(2));
        d = fold_wide(d, by_256, LOAD(3));
    }
#undef LOAD
    b = fold_wide(a, by_64, b);
    c = fold_wide(b, by_64, c);
    d = fold_wide(c, by_64, d);
    _mm512_storeu_si512(lane, d);
    /* An Intel processor whose wide registers are in use does narrow instructions at a tenth of
     * their speed, here and in whatever the process does next. GCC leaves this out. */
    _mm256_zeroupper();
    return crc_from_lanes(lane, at, size);
}
#endif

static uint32_t crc32_of(const uint8_t *at, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
#ifdef HAS_PCLMUL
    if (crc_way != BY_TABLES && size >= 64) {
        size_t folded = size & ~(size_t)15;
        int is_wide = crc_way == BY_WIDE_FOLDING && size >= WIDE_BYTES;
        crc = is_wide ? crc_by_wide_folding(crc, at, folded) : crc_by_folding(crc, at, folded);
        at += folded;
        size -= folded;
    }
#endif
    return ~crc_by_tables(crc, at, size);
}

EXPORT uint32_t keelog_crc32(const uint8_t *data, int64_t size) {
    return size > 0 ? crc32_of(data, (size_t)size) : 0;
}
