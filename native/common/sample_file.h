/* The sample file on disk: framing, check sum and atomic appearance. See docs/reference/sample-file.md.
 *
 *     magic, 8 bytes  uint32 version  uint32 header_bytes  header (JSON, spaces to a multiple of 8)
 *     blocks of whole numbers, each padded with zeros to a multiple of 8
 *     "NMTRAILR"  uint64 bytes before the trailer  uint32 CRC-32 of them  uint32 0
 *
 * All little-endian. No MPI in here.
 */
#ifndef NM_SAMPLE_FILE_H
#define NM_SAMPLE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "text.h"

#define SAMPLE_FILE_MAGIC "NMSAMPLE"

enum { SAMPLE_FILE_VERSION = 1, SAMPLE_FILE_MAGIC_BYTES = 8 };

/* A file being written under a temporary name next to its own. A failed write is remembered in `error` (errno). */
struct sample_file {
    const char *path;
    char *temporary_path;
    FILE *stream;
    uint64_t bytes;
    uint32_t crc;
    int error;
};

/* Return the CRC-32 (IEEE 802.3, as zlib's crc32) of `crc` continued with more bytes; start with 0. */
uint32_t crc32_continue(uint32_t crc, const void *bytes, size_t count);

/* Return whether a file can be created next to `path`, leaving none; otherwise errno says why not. */
bool sample_file_probe(const char *path);

/* Start the file with its header; `magic` has 8 characters and says, with the version, what the blocks are. Check
 * `error` at the end, in sample_file_commit's result. */
void sample_file_begin(struct sample_file *file, const char *path, const char *magic, uint32_t version,
                       const struct text *header);

/* Append a block and its padding. */
void sample_file_block(struct sample_file *file, const void *bytes, size_t count);

/* Write the trailer, sync, rename. Returns 0, or the errno of the first failure with no file left behind. */
int sample_file_commit(struct sample_file *file);

#endif
