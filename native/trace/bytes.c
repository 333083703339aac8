#include "bytes.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the trace file is little-endian and written from memory");

bool nmt_grow(void *array, size_t *room, size_t wanted, size_t entry_bytes) {
    if (wanted <= *room)
        return true;
    size_t more = *room ? *room : 16;
    while (more < wanted)
        more *= 2;
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, more * entry_bytes);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *room = more;
    return true;
}

void nmt_bytes_put(struct nmt_bytes *bytes, const void *data, size_t size) {
    if (bytes->failed || !size)
        return;
    if (!nmt_grow(&bytes->data, &bytes->room, bytes->size + size, 1)) {
        bytes->failed = true;
        return;
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void nmt_bytes_put_varint(struct nmt_bytes *bytes, uint64_t value) {
    uint8_t encoded[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7)
        encoded[size++] = (uint8_t)(value | 0x80);
    encoded[size++] = (uint8_t)value;
    nmt_bytes_put(bytes, encoded, size);
}

void nmt_bytes_put_zigzag(struct nmt_bytes *bytes, int64_t value) {
    nmt_bytes_put_varint(bytes, ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0));
}

void nmt_bytes_put_u16(struct nmt_bytes *bytes, uint16_t value) { nmt_bytes_put(bytes, &value, sizeof value); }

void nmt_bytes_put_u32(struct nmt_bytes *bytes, uint32_t value) { nmt_bytes_put(bytes, &value, sizeof value); }

void nmt_bytes_put_u64(struct nmt_bytes *bytes, uint64_t value) { nmt_bytes_put(bytes, &value, sizeof value); }

void nmt_bytes_free(struct nmt_bytes *bytes) {
    free(bytes->data);
    *bytes = (struct nmt_bytes){0};
}

uint32_t nmt_crc32(uint32_t crc, const void *data, size_t size) {
    /* Four bits at a time: a table of 16 entries is enough for files of kilobytes. */
    static const uint32_t nibble[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const uint8_t *byte = data;
    crc = ~crc;
    for (size_t i = 0; i < size; ++i) {
        crc ^= byte[i];
        crc = (crc >> 4) ^ nibble[crc & 15];
        crc = (crc >> 4) ^ nibble[crc & 15];
    }
    return ~crc;
}

/* Both halves of a product of 128 bits: every bit of either factor reaches it. */
static uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t nmt_hash(const void *data, size_t size) {
    const uint8_t *byte = data;
    uint64_t hash = nmt_mix(size + 1);
    for (; size >= 16; size -= 16, byte += 16) {
        uint64_t words[2];
        memcpy(words, byte, sizeof words);
        hash = fold(words[0] ^ UINT64_C(0x9e3779b97f4a7c15), words[1] ^ hash);
    }
    uint64_t rest[2] = {0};
    memcpy(rest, byte, size);
    return fold(rest[0] ^ UINT64_C(0xd1342543de82ef95), rest[1] ^ hash);
}
