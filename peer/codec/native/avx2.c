/* The same for x86 processors with AVX2, chosen at run time. */

#include "kernels.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE AVX2 static inline __attribute__((always_inline))

INLINE __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

#define AHEAD 8192 /* bytes */

/* The values after these are asked for early: from memory, that is faster by a third and more than what the processor
   foresees by itself. Past the end of the values it touches nothing. */
AVX2 static uint32_t largest_of(const float *values) {
    for (int i = 0; i < BLOCK; i += 16)
        _mm_prefetch((const char *)((uintptr_t)(values + i) + AHEAD), _MM_HINT_T0);
    __m256i most[4];
    for (int k = 0; k < 4; k++)
        most[k] = _mm256_setzero_si256();
    for (int i = 0; i < BLOCK; i += 32)
        for (int k = 0; k < 4; k++) /* of numbers without a sign the order of the bits is that of the values */
            most[k] = _mm256_max_epi32(most[k], _mm256_castps_si256(magnitude(_mm256_loadu_ps(values + i + 8 * k))));
    __m256i all = _mm256_max_epi32(_mm256_max_epi32(most[0], most[1]), _mm256_max_epi32(most[2], most[3]));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

INLINE __m256 divisor_of(uint32_t largest) {
    return _mm256_set1_ps(largest > 0 && largest < INFINITE ? float_of(largest) : 1.0f);
}

/* 32 integers as bytes, those beyond a byte as the nearest one; `in_order` afterwards. */
INLINE __m256i to_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
    return _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
}

INLINE __m256i in_order(__m256i bytes) {
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE __m256i level_of(const float *values, __m256 divisor, __m256 top) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_div_ps(_mm256_loadu_ps(values), divisor), top));
}

INLINE __m256i levels_of(const float *values, __m256 divisor, __m256 top) {
    return in_order(to_bytes(level_of(values, divisor, top), level_of(values + 8, divisor, top),
                             level_of(values + 16, divisor, top), level_of(values + 24, divisor, top)));
}

/* Of 8 ratios, halved: the exponent and the first bit of the mantissa, in bits 0 to 8, and the sign in bit 9. The
   borders between codes, 2^-8 and 1.5 times a power of two, are where this rises by one. A ratio on the border below an
   odd code belongs to the code below: ties go to the even one. Of the borders those, and they alone, have an odd
   exponent, and so has no zero: that is what the halving is for. */
INLINE __m256i half_octaves(const float *values, __m256 twice) {
    __m256i bits = _mm256_castps_si256(_mm256_div_ps(_mm256_loadu_ps(values), twice));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_sub_epi32(bits, odd), 22);
}

/* Of 16 values, in the order that packing gives; the magnitude is made in the low byte, the sign in the high one. */
INLINE __m256i powers_of_16(const float *values, __m256 twice) {
    __m256i code_of = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7));
    __m256i halves = _mm256_packs_epi32(half_octaves(values, twice), half_octaves(values + 8, twice));
    halves = _mm256_subs_epu8(halves, _mm256_set1_epi16(237)); /* 2^-8 itself, less the one for its odd exponent */
    return _mm256_maddubs_epi16(_mm256_shuffle_epi8(code_of, halves), _mm256_set1_epi16(0x0801));
}

/* Codes of 32 values, as power_of in scalar.c makes them. */
INLINE __m256i powers_of(const float *values, __m256 twice) {
    return in_order(_mm256_packus_epi16(powers_of_16(values, twice), powers_of_16(values + 16, twice)));
}

/* 64 codes below 16 to 32 bytes, the earlier one low. */
INLINE void join(__m256i first, __m256i second, uint8_t *codes) {
    __m256i weights = _mm256_set1_epi16(0x1001), fifteen = _mm256_set1_epi8(15);
    __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(first, fifteen), weights);
    __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(second, fifteen), weights);
    _mm256_storeu_si256((__m256i *)codes, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8));
}

AVX2 static void int8_encode(const float *values, uint32_t largest, uint8_t *codes) {
    __m256 divisor = divisor_of(largest), top = _mm256_set1_ps(127.0f);
    for (int i = 0; i < BLOCK; i += 32)
        _mm256_storeu_si256((__m256i *)(codes + i), levels_of(values + i, divisor, top));
}

AVX2 static void int4_encode(const float *values, uint32_t largest, uint8_t *codes) {
    __m256 divisor = divisor_of(largest), top = _mm256_set1_ps(7.0f);
    for (int i = 0; i < BLOCK; i += 64)
        join(levels_of(values + i, divisor, top), levels_of(values + i + 32, divisor, top), codes + i / 2);
}

AVX2 static void e3m0_encode(const float *values, uint32_t largest, uint8_t *codes) {
    if (largest >= 0x7f000000) { /* twice as much would be infinite */
        scalar_kernels.blocks[E3M0].encode(values, largest, codes);
        return;
    }
    __m256 twice = _mm256_set1_ps(largest > 0 ? 2 * float_of(largest) : 1.0f);
    for (int i = 0; i < BLOCK; i += 64)
        join(powers_of(values + i, twice), powers_of(values + i + 32, twice), codes + i / 2);
}

INLINE void put(float *into, __m256 ratio, __m256 scale) { _mm256_storeu_ps(into, _mm256_mul_ps(ratio, scale)); }

/* The same past the caches, to a multiple of 32 bytes. */
INLINE void pour(float *into, __m256 ratio, __m256 scale) { _mm256_stream_ps(into, _mm256_mul_ps(ratio, scale)); }

INLINE void add(float *into, __m256 ratio, __m256 scale, __m256 weight) {
    __m256 value = _mm256_mul_ps(_mm256_mul_ps(ratio, scale), weight);
    _mm256_storeu_ps(into, _mm256_add_ps(_mm256_loadu_ps(into), value));
}

INLINE __m256 int8_ratio(const uint8_t *codes) {
    __m256i levels = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes));
    return _mm256_div_ps(_mm256_cvtepi32_ps(levels), _mm256_set1_ps(127.0f));
}

INLINE unsigned int8_bad(const uint8_t *codes) {
    __m256i bad = _mm256_setzero_si256();
    for (int i = 0; i < BLOCK; i += 32)
        bad = _mm256_or_si256(
            bad, _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(codes + i)), _mm256_set1_epi8(-128)));
    return (unsigned)_mm256_movemask_epi8(bad);
}

AVX2 static unsigned int8_decode(const uint8_t *codes, float scale, float *into) {
    __m256 by = _mm256_set1_ps(scale);
    for (int i = 0; i < BLOCK; i += 8)
        put(into + i, int8_ratio(codes + i), by);
    return int8_bad(codes);
}

AVX2 static unsigned int8_pour(const uint8_t *codes, float scale, float *into) {
    __m256 by = _mm256_set1_ps(scale);
    for (int i = 0; i < BLOCK; i += 8)
        pour(into + i, int8_ratio(codes + i), by);
    return int8_bad(codes);
}

AVX2 static unsigned int8_add(const uint8_t *codes, float scale, float weight, float *into) {
    __m256 by = _mm256_set1_ps(scale), times = _mm256_set1_ps(weight);
    for (int i = 0; i < BLOCK; i += 8)
        add(into + i, int8_ratio(codes + i), by, times);
    return int8_bad(codes);
}

/* What the sixteen codes of a four bit codec mean: eight for bit 3 clear, eight for bit 3 set. */
typedef struct { __m256 clear, set; } meanings;

INLINE meanings int4_meanings(void) {
    __m256 seven = _mm256_set1_ps(7.0f);
    meanings all = {_mm256_div_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), seven),
                    _mm256_div_ps(_mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1), seven)};
    return all;
}

INLINE meanings e3m0_meanings(void) {
    __m256 powers = _mm256_setr_ps(0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1);
    meanings all = {powers, _mm256_or_ps(powers, _mm256_set1_ps(-0.0f))};
    return all;
}

INLINE __m256 meaning(const meanings *all, __m128i bytes) {
    __m256i codes = _mm256_cvtepu8_epi32(bytes);
    __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
    return _mm256_blendv_ps(
        _mm256_permutevar8x32_ps(all->clear, codes), _mm256_permutevar8x32_ps(all->set, codes), bit3);
}

/* Sixteen bytes to 32 codes, in order. */
INLINE void split(const uint8_t *codes, __m128i *first, __m128i *second) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)codes), fifteen = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(bytes, fifteen), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen);
    *first = _mm_unpacklo_epi8(low, high);
    *second = _mm_unpackhi_epi8(low, high);
}

INLINE unsigned is_eight(__m128i first, __m128i second) {
    __m128i eight = _mm_set1_epi8(8);
    __m128i bad = _mm_or_si128(_mm_cmpeq_epi8(first, eight), _mm_cmpeq_epi8(second, eight));
    return (unsigned)_mm_movemask_epi8(bad);
}

#define NIBBLE_DECODER(name, kind, store, eight_is_bad)                                                  \
    AVX2 static unsigned name(const uint8_t *codes, float scale, float *into) {                          \
        meanings all = kind##_meanings();                                                                \
        __m256 by = _mm256_set1_ps(scale);                                                               \
        unsigned bad = 0;                                                                                \
        for (int i = 0; i < BLOCK; i += 32) {                                                            \
            __m128i first, second;                                                                       \
            split(codes + i / 2, &first, &second);                                                       \
            store(into + i, meaning(&all, first), by);                                                   \
            store(into + i + 8, meaning(&all, _mm_srli_si128(first, 8)), by);                            \
            store(into + i + 16, meaning(&all, second), by);                                             \
            store(into + i + 24, meaning(&all, _mm_srli_si128(second, 8)), by);                          \
            bad |= (eight_is_bad) ? is_eight(first, second) : 0;                                         \
        }                                                                                                \
        return bad;                                                                                      \
    }

#define NIBBLE_DECODERS(kind, eight_is_bad)                                                              \
    NIBBLE_DECODER(kind##_decode, kind, put, eight_is_bad)                                               \
    NIBBLE_DECODER(kind##_pour, kind, pour, eight_is_bad)                                                \
    AVX2 static unsigned kind##_add(const uint8_t *codes, float scale, float weight, float *into) {      \
        meanings all = kind##_meanings();                                                                \
        __m256 by = _mm256_set1_ps(scale), times = _mm256_set1_ps(weight);                               \
        unsigned bad = 0;                                                                                \
        for (int i = 0; i < BLOCK; i += 32) {                                                            \
            __m128i first, second;                                                                       \
            split(codes + i / 2, &first, &second);                                                       \
            add(into + i, meaning(&all, first), by, times);                                              \
            add(into + i + 8, meaning(&all, _mm_srli_si128(first, 8)), by, times);                       \
            add(into + i + 16, meaning(&all, second), by, times);                                        \
            add(into + i + 24, meaning(&all, _mm_srli_si128(second, 8)), by, times);                     \
            bad |= (eight_is_bad) ? is_eight(first, second) : 0;                                         \
        }                                                                                                \
        return bad;                                                                                      \
    }

NIBBLE_DECODERS(int4, 1)
NIBBLE_DECODERS(e3m0, 0)

AVX2 static uint32_t chunk_counts(const uint32_t *magnitudes, uint32_t above) {
    __m256i bound = _mm256_set1_epi32((int)above), count[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < CHUNK; i += 16)
        for (int k = 0; k < 2; k++) {
            __m256i some = _mm256_loadu_si256((const __m256i *)(magnitudes + i + 8 * k));
            count[k] = _mm256_sub_epi32(count[k], _mm256_cmpgt_epi32(some, bound));
        }
    uint32_t lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)lanes, _mm256_add_epi32(count[0], count[1]));
    for (int i = 0; i < 8; i++)
        sum += lanes[i];
    return sum;
}

AVX2 static uint32_t chunk_candidates(const uint32_t *magnitudes, uint32_t least, uint16_t *indices) {
    __m256i bound = _mm256_set1_epi32((int)least - 1);
    uint32_t found = 0;
    for (int i = 0; i < CHUNK; i += 8) {
        __m256i some = _mm256_loadu_si256((const __m256i *)(magnitudes + i));
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(some, bound)));
        for (; mask; mask &= mask - 1)
            indices[found++] = (uint16_t)(i + __builtin_ctz(mask));
    }
    return found;
}

INLINE __m256i bf16_of(const float *values) {
    __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(values));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32((int)INFINITE));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
}

AVX2 static void bf16_encode(const float *values, uint16_t *into, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i both = _mm256_packus_epi32(bf16_of(values + i), bf16_of(values + i + 8));
        _mm256_storeu_si256((__m256i *)(into + i), _mm256_permute4x64_epi64(both, 0xd8));
    }
    scalar_kernels.bf16_encode(values + i, into + i, n - i);
}

INLINE __m256 bf16_at(const uint16_t *payload) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)payload)), 16));
}

AVX2 static void bf16_decode(const uint16_t *payload, float *into, size_t n) {
    size_t i = 0;
    if (pours(into, n)) {
        for (; i + 8 <= n; i += 8)
            _mm256_stream_ps(into + i, bf16_at(payload + i));
        _mm_sfence();
    }
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(into + i, bf16_at(payload + i));
    scalar_kernels.bf16_decode(payload + i, into + i, n - i);
}

AVX2 static void bf16_add(const uint16_t *payload, float weight, float *into, size_t n) {
    __m256 times = _mm256_set1_ps(weight);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(into + i, _mm256_add_ps(_mm256_loadu_ps(into + i), _mm256_mul_ps(bf16_at(payload + i), times)));
    scalar_kernels.bf16_add(payload + i, weight, into + i, n - i);
}

AVX2 static void fp32_add(const float *payload, float weight, float *into, size_t n) {
    __m256 times = _mm256_set1_ps(weight);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(into + i,
                         _mm256_add_ps(_mm256_loadu_ps(into + i), _mm256_mul_ps(_mm256_loadu_ps(payload + i), times)));
    scalar_kernels.fp32_add(payload + i, weight, into + i, n - i);
}

static void poured(void) { _mm_sfence(); }

static const kernel_set kernels = {
    "avx2",
    {{BLOCK, largest_of, int8_encode, int8_decode, int8_pour, int8_add},
     {BLOCK / 2, largest_of, int4_encode, int4_decode, int4_pour, int4_add},
     {BLOCK / 2, largest_of, e3m0_encode, e3m0_decode, e3m0_pour, e3m0_add}},
    poured, chunk_counts, chunk_candidates, bf16_encode, bf16_decode, bf16_add, fp32_add,
};

const kernel_set *avx2_kernels(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? &kernels : NULL;
}

#else

const kernel_set *avx2_kernels(void) { return NULL; }

#endif
