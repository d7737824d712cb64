/* What the files here share. Formats and rounding are those of peer/codec/blocks.py, topk.py and plain.py, which say
   what they mean; these kernels give the same bytes and the same floats, bit for bit. So: no -ffast-math and no fused
   multiply-add anywhere (built with -ffp-contract=off; AVX2 without FMA). */

#ifndef PEER_KERNELS_H
#define PEER_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 128          /* elements that share a scale */
#define CHUNK 4096         /* of topk */
#define KEPT 64
#define CHUNK_BYTES 120
#define TILE (1 << 18)     /* elements of a payload's self-contained piece */
#define POURED (1 << 20)   /* so many elements at once are written past the caches, which they would only sweep */
#define INFINITE 0x7f800000u

enum kind { INT8, INT4, E3M0, KINDS };
enum verdict { FINE = 0, BAD_SCALE = 1, BAD_CODE = 2, BAD_INDEX = 3, NOT_FINITE = 4 };

/* One block of BLOCK elements. */
typedef struct {
    int code_bytes;
    uint32_t (*largest)(const float *values); /* bits of the largest magnitude, which is the scale */
    void (*encode)(const float *values, uint32_t largest, uint8_t *codes);
    unsigned (*decode)(const uint8_t *codes, float scale, float *into); /* not 0: a code that is not used */
    unsigned (*pour)(const uint8_t *codes, float scale, float *into); /* as decode, where `pours` */
    unsigned (*add)(const uint8_t *codes, float scale, float weight, float *into);
} block_kernel;

/* All that depends on the processor. */
typedef struct {
    const char *name;
    block_kernel blocks[KINDS];
    void (*poured)(void); /* makes what was poured visible to others */
    uint32_t (*chunk_counts)(const uint32_t *magnitudes, uint32_t above); /* of a CHUNK: how many are larger */
    uint32_t (*chunk_candidates)(const uint32_t *magnitudes, uint32_t least, uint16_t *indices); /* up to CHUNK + 1 */
    void (*bf16_encode)(const float *values, uint16_t *into, size_t n);
    void (*bf16_decode)(const uint16_t *payload, float *into, size_t n);
    void (*bf16_add)(const uint16_t *payload, float weight, float *into, size_t n);
    void (*fp32_add)(const float *payload, float weight, float *into, size_t n);
} kernel_set;

extern const kernel_set scalar_kernels;
extern const kernel_set *avx2_kernels(void); /* NULL: not on this processor, or not built for it */

static inline uint32_t bits_of(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline float float_of(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }

static inline int pours(const float *into, size_t n) { return n >= POURED && (uintptr_t)into % 32 == 0; }

/* blocks.c: n elements, a payload as long as `blocks_bytes` says. */
size_t blocks_bytes(const block_kernel *kernel, size_t n);
enum verdict blocks_encode(const block_kernel *kernel, const float *values, size_t n, uint8_t *payload);
enum verdict blocks_decode(const kernel_set *set, enum kind kind, const uint8_t *payload, size_t n, float *into);
enum verdict blocks_add(const block_kernel *kernel, const uint8_t *payload, size_t n, float weight, float *into);

/* topk.c */
enum verdict topk_encode(const kernel_set *set, const float *values, size_t n, uint8_t *payload);
enum verdict topk_decode(const uint8_t *payload, size_t n, float *into);
enum verdict topk_add(const uint8_t *payload, size_t n, float weight, float *into);

#endif
