/* The 64 largest of every 4096 elements, two bits each: see peer/codec/topk.py. */

#include "kernels.h"

#define INDICES 8
#define CODES (INDICES + KEPT * 12 / 8)

static int few_above(const kernel_set *set, const uint32_t *magnitudes, uint32_t bits) {
    return set->chunk_counts(magnitudes, bits) < KEPT;
}

/* The bits of the KEPT-th largest magnitude: fewer than KEPT are larger. `guess`: of the chunk before; neighbours are
   alike, so the search begins around it. The answer lies in [low, high) all the time. */
static uint32_t threshold(const kernel_set *set, const uint32_t *magnitudes, uint32_t guess) {
    uint32_t low = 0, high = INFINITE;
    if (few_above(set, magnitudes, guess)) {
        high = guess + 1;
        for (uint32_t step = 1u << 18; low == 0 && step < high; step *= 2) {
            if (few_above(set, magnitudes, high - step))
                high = high - step + 1;
            else
                low = high - step + 1;
        }
    } else {
        low = guess + 1;
        for (uint32_t step = 1u << 18; high == INFINITE && step < INFINITE - low; step *= 2) {
            if (few_above(set, magnitudes, low + step))
                high = low + step + 1;
            else
                low = low + step + 1;
        }
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low - 1) / 2;
        if (few_above(set, magnitudes, middle))
            high = middle + 1;
        else
            low = middle + 1;
    }
    return low;
}

/* Ascending; of equal magnitudes the earlier ones. */
static void choose(const kernel_set *set, const uint32_t *magnitudes, uint32_t least, uint16_t *indices) {
    uint16_t candidates[CHUNK + 1];
    uint32_t ties = KEPT - set->chunk_counts(magnitudes, least);
    set->chunk_candidates(magnitudes, least, candidates);
    for (int kept = 0, next = 0; kept < KEPT; next++) {
        uint16_t index = candidates[next];
        if (magnitudes[index] == least && ties-- == 0)
            ties = 0;
        else
            indices[kept++] = index;
    }
}

/* Halves added to each other: the order of the sum is part of the format. */
static double sum_of(double *values) {
    for (int half = KEPT / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            values[i] += values[i + half];
    return values[0];
}

static float mean_where(const float *sizes, const int *upper, int which) {
    double values[KEPT];
    int count = 0;
    for (int i = 0; i < KEPT; i++) {
        values[i] = upper[i] == which ? (double)sizes[i] : 0.0;
        count += upper[i] == which;
    }
    return (float)(sum_of(values) / (count > 0 ? count : 1));
}

static void encode_chunk(const float *values, const uint16_t *indices, uint8_t *payload) {
    float sizes[KEPT], low = float_of(INFINITE), high = 0.0f;
    int upper[KEPT];
    for (int i = 0; i < KEPT; i++) {
        sizes[i] = float_of(bits_of(values[indices[i]]) & 0x7fffffffu);
        low = sizes[i] < low ? sizes[i] : low;
        high = sizes[i] > high ? sizes[i] : high;
    }
    double middle = ((double)low + (double)high) / 2.0;
    for (int i = 0; i < KEPT; i++)
        upper[i] = (double)sizes[i] > middle;
    float levels[2] = {mean_where(sizes, upper, 0), mean_where(sizes, upper, 1)};
    memcpy(payload, levels, INDICES);
    uint8_t *at = payload + INDICES;
    for (int i = 0; i < KEPT; i += 2, at += 3) {
        at[0] = (uint8_t)indices[i];
        at[1] = (uint8_t)(indices[i] >> 8 | (indices[i + 1] & 15) << 4);
        at[2] = (uint8_t)(indices[i + 1] >> 4);
    }
    for (int i = 0; i < KEPT; i += 4, at++) {
        *at = 0;
        for (int k = 0; k < 4; k++) {
            int negative = values[indices[i + k]] < 0;
            *at |= (uint8_t)((upper[i + k] | negative << 1) << (2 * k));
        }
    }
}

enum verdict topk_encode(const kernel_set *set, const float *values, size_t n, uint8_t *payload) {
    uint32_t guess = 0x3f800000u;
    for (size_t done = 0; done < n; done += CHUNK, payload += CHUNK_BYTES) {
        float padded[CHUNK];
        const float *chunk = values + done;
        uint32_t magnitudes[CHUNK], infinite = 0;
        uint16_t indices[KEPT];
        if (n - done < CHUNK) {
            memset(padded, 0, sizeof(padded));
            memcpy(padded, chunk, (n - done) * sizeof(float));
            chunk = padded;
        }
        for (int i = 0; i < CHUNK; i++) {
            magnitudes[i] = bits_of(chunk[i]) & 0x7fffffffu;
            infinite |= magnitudes[i] >= INFINITE;
        }
        if (infinite)
            return NOT_FINITE;
        guess = threshold(set, magnitudes, guess);
        choose(set, magnitudes, guess, indices);
        encode_chunk(chunk, indices, payload);
    }
    return FINE;
}

static enum verdict read_chunk(const uint8_t *payload, uint16_t *indices, float *values) {
    float levels[2];
    memcpy(levels, payload, INDICES);
    for (int k = 0; k < 2; k++)
        if (bits_of(levels[k]) >= INFINITE && bits_of(levels[k]) != 0x80000000u)
            return BAD_SCALE;
    const uint8_t *at = payload + INDICES;
    for (int i = 0; i < KEPT; i += 2, at += 3) {
        indices[i] = (uint16_t)(at[0] | (at[1] & 15) << 8);
        indices[i + 1] = (uint16_t)(at[1] >> 4 | at[2] << 4);
    }
    for (int i = 1; i < KEPT; i++)
        if (indices[i] <= indices[i - 1])
            return BAD_INDEX;
    for (int i = 0; i < KEPT; i++) {
        int code = payload[CODES + i / 4] >> (2 * (i % 4)) & 3;
        values[i] = code > 1 ? -levels[code & 1] : levels[code & 1];
    }
    return FINE;
}

enum verdict topk_decode(const uint8_t *payload, size_t n, float *into) {
    for (size_t done = 0; done < n; done += CHUNK, payload += CHUNK_BYTES) {
        size_t some = n - done < CHUNK ? n - done : CHUNK;
        uint16_t indices[KEPT];
        float values[KEPT];
        enum verdict verdict = read_chunk(payload, indices, values);
        if (verdict != FINE)
            return verdict;
        memset(into + done, 0, some * sizeof(float));
        for (int i = 0; i < KEPT; i++)
            if (indices[i] < some)
                into[done + indices[i]] = values[i];
    }
    return FINE;
}

enum verdict topk_add(const uint8_t *payload, size_t n, float weight, float *into) {
    for (size_t done = 0; done < n; done += CHUNK, payload += CHUNK_BYTES) {
        size_t some = n - done < CHUNK ? n - done : CHUNK;
        uint16_t indices[KEPT];
        float values[KEPT];
        enum verdict verdict = read_chunk(payload, indices, values);
        if (verdict != FINE)
            return verdict;
        for (int i = 0; i < KEPT; i++)
            if (indices[i] < some)
                into[done + indices[i]] += values[i] * weight;
    }
    return FINE;
}
