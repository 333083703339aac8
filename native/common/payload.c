#include "payload.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

unsigned char *payload_allocate(size_t bytes) {
    if (bytes > SIZE_MAX - PAGE_BYTES)
        return NULL;
    const size_t whole_bytes = (bytes / PAGE_BYTES + 1) * PAGE_BYTES;
    unsigned char *memory = aligned_alloc(PAGE_BYTES, whole_bytes);
    if (memory != NULL)
        memset(memory, 0x5a, whole_bytes);
    return memory;
}

uint32_t payload_key(int source, int destination, int slot, int round) {
    uint32_t key = (uint32_t)round + 1;
    key = key * 0x01000193u ^ (uint32_t)source;
    key = key * 0x01000193u ^ (uint32_t)destination;
    return key * 0x01000193u ^ (uint32_t)slot;
}

/* A multiplicative hash (Knuth, TAOCP 3, 6.4) of key and position: a shifted or stale message does not match. */
static unsigned char pattern_byte(uint32_t key, size_t position) {
    return (unsigned char)(((key + (uint32_t)position) * 2654435761u) >> 24);
}

void payload_fill(unsigned char *bytes, size_t count, uint32_t key) {
    for (size_t i = 0; i < count; i++)
        bytes[i] = pattern_byte(key, i);
}

bool payload_matches(const unsigned char *bytes, size_t count, uint32_t key) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != pattern_byte(key, i))
            return false;
    return true;
}
