/* bytes.h - a growing byte buffer and the number encodings of the trace file (docs/reference/trace-file.md).
 *
 * Every function of the recorder that may run out of memory or space reports it by returning false or NMT_NONE, and
 * never ends the traced program. A buffer whose `failed` is set keeps its contents and accepts no more.
 */
#ifndef NMT_BYTES_H
#define NMT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NMT_NONE UINT32_MAX

struct nmt_bytes {
    uint8_t *data;
    size_t size;
    size_t room;
    bool failed;
};

/* Append `size` bytes. */
void nmt_bytes_put(struct nmt_bytes *bytes, const void *data, size_t size);

/* Append an unsigned LEB128 number. */
void nmt_bytes_put_varint(struct nmt_bytes *bytes, uint64_t value);

/* Append a signed number: zigzag, then LEB128. */
void nmt_bytes_put_zigzag(struct nmt_bytes *bytes, int64_t value);

/* Append fixed-width little-endian numbers. */
void nmt_bytes_put_u16(struct nmt_bytes *bytes, uint16_t value);
void nmt_bytes_put_u32(struct nmt_bytes *bytes, uint32_t value);
void nmt_bytes_put_u64(struct nmt_bytes *bytes, uint64_t value);

void nmt_bytes_free(struct nmt_bytes *bytes);

/* Continue a CRC-32 (zlib's; start with 0) over `size` bytes. */
uint32_t nmt_crc32(uint32_t crc, const void *data, size_t size);

/* A 64-bit hash of `size` bytes; the same bytes have the same hash on every machine. */
uint64_t nmt_hash(const void *data, size_t size);

/* Scramble a 64-bit number so that every input bit reaches every output bit (the finalizer of MurmurHash3). */
static inline uint64_t nmt_mix(uint64_t value) {
    value = (value ^ (value >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    value = (value ^ (value >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return value ^ (value >> 33);
}

/* Make room for `wanted` entries of `entry_bytes` in *array, doubling; false when out of memory (nothing is lost). */
bool nmt_grow(void *array, size_t *room, size_t wanted, size_t entry_bytes);

#endif
