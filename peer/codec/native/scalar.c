/* The kernels for any processor. */

#include <math.h>

#include "kernels.h"

static uint32_t largest_of(const float *values) {
    uint32_t largest = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t magnitude = bits_of(values[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static float divisor_of(uint32_t largest) { return largest > 0 && largest < INFINITE ? float_of(largest) : 1.0f; }

/* Of a finite ratio in [-1, 1]; what is not finite is refused afterwards. */
static int level_of(float ratio, float top) { return isfinite(ratio) ? (int)lrintf(ratio * top) : 0; }

static uint8_t power_of(float ratio) {
    uint32_t bits = bits_of(ratio), magnitude = bits & 0x7fffffffu;
    int32_t code = (int32_t)((magnitude + 0x3fffffu + ((magnitude >> 23) & 1)) >> 23) - 120;
    code = code < 0 ? 0 : code > 7 ? 7 : code;
    if (code == 0 && magnitude > 0x3c000000u) /* above 2^-7, the middle of 0 and 2^-6 */
        code = 1;
    return (uint8_t)(code | (int32_t)(bits >> 31 << 3));
}

static void int8_encode(const float *values, uint32_t largest, uint8_t *codes) {
    float divisor = divisor_of(largest);
    for (int i = 0; i < BLOCK; i++)
        codes[i] = (uint8_t)level_of(values[i] / divisor, 127.0f);
}

static void int4_encode(const float *values, uint32_t largest, uint8_t *codes) {
    float divisor = divisor_of(largest);
    for (int i = 0; i < BLOCK; i += 2) {
        int low = level_of(values[i] / divisor, 7.0f), high = level_of(values[i + 1] / divisor, 7.0f);
        codes[i / 2] = (uint8_t)((low & 15) | (high & 15) << 4);
    }
}

static void e3m0_encode(const float *values, uint32_t largest, uint8_t *codes) {
    float divisor = divisor_of(largest);
    for (int i = 0; i < BLOCK; i += 2)
        codes[i / 2] = (uint8_t)(power_of(values[i] / divisor) | power_of(values[i + 1] / divisor) << 4);
}

static float int8_ratio(const uint8_t *codes, int i) { return (float)(int8_t)codes[i] / 127.0f; }

static int nibble(const uint8_t *codes, int i) { return i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15; }

static float int4_ratio(const uint8_t *codes, int i) { return (float)((nibble(codes, i) ^ 8) - 8) / 7.0f; }

static float e3m0_ratio(const uint8_t *codes, int i) {
    uint32_t code = (uint32_t)nibble(codes, i), exponent = code & 7;
    return float_of((exponent ? (exponent + 120) << 23 : 0) | (code & 8) << 28);
}

static unsigned int8_bad(const uint8_t *codes) {
    unsigned bad = 0;
    for (int i = 0; i < BLOCK; i++)
        bad |= codes[i] == 0x80;
    return bad;
}

static unsigned int4_bad(const uint8_t *codes) {
    unsigned bad = 0;
    for (int i = 0; i < BLOCK / 2; i++)
        bad |= (codes[i] & 15) == 8 || codes[i] >> 4 == 8;
    return bad;
}

static unsigned e3m0_bad(const uint8_t *codes) { (void)codes; return 0; }

#define BLOCK_DECODERS(kind)                                                                  \
    static unsigned kind##_decode(const uint8_t *codes, float scale, float *into) {           \
        for (int i = 0; i < BLOCK; i++)                                                       \
            into[i] = kind##_ratio(codes, i) * scale;                                         \
        return kind##_bad(codes);                                                             \
    }                                                                                         \
    static unsigned kind##_add(const uint8_t *codes, float scale, float weight, float *into) { \
        for (int i = 0; i < BLOCK; i++)                                                       \
            into[i] += (kind##_ratio(codes, i) * scale) * weight;                             \
        return kind##_bad(codes);                                                             \
    }

BLOCK_DECODERS(int8)
BLOCK_DECODERS(int4)
BLOCK_DECODERS(e3m0)

static uint32_t chunk_counts(const uint32_t *magnitudes, uint32_t above) {
    uint32_t count = 0;
    for (int i = 0; i < CHUNK; i++)
        count += magnitudes[i] > above;
    return count;
}

static uint32_t chunk_candidates(const uint32_t *magnitudes, uint32_t least, uint16_t *indices) {
    uint32_t found = 0;
    for (int i = 0; i < CHUNK; i++) {
        indices[found] = (uint16_t)i;
        found += magnitudes[i] >= least;
    }
    return found;
}

static void bf16_encode(const float *values, uint16_t *into, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(values[i]);
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
        into[i] = (uint16_t)((bits & 0x7fffffffu) > INFINITE ? 0x7fc0u : rounded);
    }
}

/* A payload need not be aligned. */
static float bf16_at(const uint16_t *payload) {
    uint16_t bits;
    memcpy(&bits, payload, 2);
    return float_of((uint32_t)bits << 16);
}

static void bf16_decode(const uint16_t *payload, float *into, size_t n) {
    for (size_t i = 0; i < n; i++)
        into[i] = bf16_at(payload + i);
}

static void bf16_add(const uint16_t *payload, float weight, float *into, size_t n) {
    for (size_t i = 0; i < n; i++)
        into[i] += bf16_at(payload + i) * weight;
}

static void fp32_add(const float *payload, float weight, float *into, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, payload + i, 4);
        into[i] += value * weight;
    }
}

static void nothing_poured(void) {}

const kernel_set scalar_kernels = {
    "scalar",
    {{BLOCK, largest_of, int8_encode, int8_decode, int8_decode, int8_add},
     {BLOCK / 2, largest_of, int4_encode, int4_decode, int4_decode, int4_add},
     {BLOCK / 2, largest_of, e3m0_encode, e3m0_decode, e3m0_decode, e3m0_add}},
    nothing_poured, chunk_counts, chunk_candidates, bf16_encode, bf16_decode, bf16_add, fp32_add,
};
