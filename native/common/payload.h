/* Payload that identifies its origin, and memory that is mapped before the timed loop. */
#ifndef NM_PAYLOAD_H
#define NM_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Return page-aligned memory, every page touched, or NULL. Zero bytes give a valid pointer. Free with free(). */
unsigned char *payload_allocate(size_t bytes);

/* Return the key of a message: different for another sender, receiver, slot or round. */
uint32_t payload_key(int source, int destination, int slot, int round);

/* Fill with the pattern of a key, or check that it is intact. */
void payload_fill(unsigned char *bytes, size_t count, uint32_t key);
bool payload_matches(const unsigned char *bytes, size_t count, uint32_t key);

#endif
