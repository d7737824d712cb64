/* int8, int4, e3m0: tiles, the short last block, and what is refused. A payload is tile after tile; a tile is its
   scales, then its codes. */

#include "kernels.h"

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t code_bytes(const block_kernel *kernel, size_t n) {
    return (n * (size_t)kernel->code_bytes + BLOCK - 1) / BLOCK;
}

static size_t scale_bytes(size_t n) { return 4 * ((n + BLOCK - 1) / BLOCK); }

size_t blocks_bytes(const block_kernel *kernel, size_t n) { return scale_bytes(n) + code_bytes(kernel, n); }

/* A block's largest magnitude is looked for while the block before it is encoded: all of a block waits for it, and it
   takes a while to come out of the vectors. */
static uint32_t encode_tile(const block_kernel *kernel, const float *values, size_t n, uint8_t *payload) {
    uint8_t *codes = payload + scale_bytes(n);
    uint32_t most = 0, next = n >= BLOCK ? kernel->largest(values) : 0;
    for (; n >= BLOCK; n -= BLOCK, payload += 4) {
        uint32_t largest = next;
        next = n >= 2 * BLOCK ? kernel->largest(values + BLOCK) : 0;
        kernel->encode(values, largest, codes);
        memcpy(payload, &largest, 4);
        most = largest > most ? largest : most;
        values += BLOCK;
        codes += kernel->code_bytes;
    }
    if (n > 0) {
        float padded[BLOCK] = {0};
        uint8_t few[BLOCK];
        memcpy(padded, values, n * sizeof(float));
        uint32_t largest = kernel->largest(padded);
        kernel->encode(padded, largest, few);
        memcpy(payload, &largest, 4);
        memcpy(codes, few, code_bytes(kernel, n));
        most = largest > most ? largest : most;
    }
    return most;
}

enum verdict blocks_encode(const block_kernel *kernel, const float *values, size_t n, uint8_t *payload) {
    for (size_t done = 0; done < n; done += TILE) {
        size_t some = smaller(n - done, TILE);
        if (encode_tile(kernel, values + done, some, payload) >= INFINITE)
            return NOT_FINITE;
        payload += blocks_bytes(kernel, some);
    }
    return FINE;
}

typedef unsigned decoder(const uint8_t *codes, float scale, float *into);

/* weight: NULL to store, by `store`, else to add. */
static enum verdict decode_tile(
    const block_kernel *kernel, decoder *store, const uint8_t *payload, size_t n, const float *weight, float *into) {
    const uint8_t *codes = payload + scale_bytes(n);
    unsigned bad = 0;
    for (; n > 0; payload += 4) {
        float scale;
        memcpy(&scale, payload, 4);
        if (bits_of(scale) >= INFINITE && bits_of(scale) != 0x80000000u) /* the sign makes these large, too */
            return BAD_SCALE;
        if (n >= BLOCK) {
            bad |= weight ? kernel->add(codes, scale, *weight, into) : store(codes, scale, into);
        } else {
            float padded[BLOCK] = {0}; /* declared further out, it is cleared for every block: a quarter of the time */
            uint8_t few[BLOCK] = {0};
            memcpy(few, codes, code_bytes(kernel, n));
            if (kernel->code_bytes < BLOCK && n % 2)
                few[n / 2] &= 15; /* the half byte left over is not looked at */
            memcpy(padded, into, weight ? n * sizeof(float) : 0);
            bad |= weight ? kernel->add(few, scale, *weight, padded) : kernel->decode(few, scale, padded);
            memcpy(into, padded, n * sizeof(float));
        }
        into += BLOCK;
        codes += kernel->code_bytes;
        n -= smaller(n, BLOCK);
    }
    return bad ? BAD_CODE : FINE;
}

static enum verdict decode(const block_kernel *kernel, decoder *store, const uint8_t *payload, size_t n,
                           const float *weight, float *into) {
    for (size_t done = 0; done < n; done += TILE) {
        size_t some = smaller(n - done, TILE);
        enum verdict verdict = decode_tile(kernel, store, payload, some, weight, into + done);
        if (verdict != FINE)
            return verdict;
        payload += blocks_bytes(kernel, some);
    }
    return FINE;
}

enum verdict blocks_decode(const kernel_set *set, enum kind kind, const uint8_t *payload, size_t n, float *into) {
    const block_kernel *kernel = &set->blocks[kind];
    if (!pours(into, n))
        return decode(kernel, kernel->decode, payload, n, NULL, into);
    enum verdict verdict = decode(kernel, kernel->pour, payload, n, NULL, into);
    set->poured();
    return verdict;
}

enum verdict blocks_add(const block_kernel *kernel, const uint8_t *payload, size_t n, float weight, float *into) {
    return decode(kernel, kernel->decode, payload, n, &weight, into);
}
