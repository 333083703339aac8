#include "sample_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the sample file is little-endian and is written from memory"
#endif

enum { ALIGN_BYTES = 8 };

uint32_t crc32_continue(uint32_t crc, const void *bytes, size_t count) {
    static uint32_t table[256];
    if (table[1] == 0)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t value = n;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? 0xedb88320u ^ (value >> 1) : value >> 1;
            table[n] = value;
        }
    const unsigned char *byte = bytes;
    crc = ~crc;
    for (size_t i = 0; i < count; i++)
        crc = table[(crc ^ byte[i]) & 0xff] ^ (crc >> 8);
    return ~crc;
}

static char *temporary_name(const char *path) {
    struct text name = {0};
    text_add(&name, "%s.tmp.%ld", path, (long)getpid());
    if (name.failed)
        errno = ENOMEM;
    return name.chars;
}

bool sample_file_probe(const char *path) {
    char *name = temporary_name(path);
    if (name == NULL)
        return false;
    const int descriptor = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    const int error = errno;
    if (descriptor >= 0) {
        close(descriptor);
        unlink(name);
    }
    free(name);
    errno = error;
    return descriptor >= 0;
}

static void write_bytes(struct sample_file *file, const void *bytes, size_t count) {
    if (file->error != 0)
        return;
    if (fwrite(bytes, 1, count, file->stream) != count) {
        file->error = errno;
        return;
    }
    file->crc = crc32_continue(file->crc, bytes, count);
    file->bytes += count;
}

void sample_file_block(struct sample_file *file, const void *bytes, size_t count) {
    static const char zeros[ALIGN_BYTES];
    write_bytes(file, bytes, count);
    write_bytes(file, zeros, (ALIGN_BYTES - count % ALIGN_BYTES) % ALIGN_BYTES);
}

void sample_file_begin(struct sample_file *file, const char *path, const char *magic, uint32_t version,
                       const struct text *header) {
    *file = (struct sample_file){.path = path, .temporary_path = temporary_name(path)};
    if (header->failed || file->temporary_path == NULL) {
        file->error = ENOMEM;
        return;
    }
    file->stream = fopen(file->temporary_path, "wb");
    if (file->stream == NULL) {
        file->error = errno;
        return;
    }
    static const char spaces[ALIGN_BYTES + 1] = "        ";
    const size_t padding = (ALIGN_BYTES - header->length % ALIGN_BYTES) % ALIGN_BYTES;
    const uint32_t numbers[2] = {version, (uint32_t)(header->length + padding)};
    write_bytes(file, magic, SAMPLE_FILE_MAGIC_BYTES);
    write_bytes(file, numbers, sizeof numbers);
    write_bytes(file, header->chars, header->length);
    write_bytes(file, spaces, padding);
}

static void write_trailer(struct sample_file *file) {
    const uint64_t length = file->bytes;
    const uint32_t numbers[2] = {file->crc, 0};
    write_bytes(file, "NMTRAILR", 8);
    write_bytes(file, &length, sizeof length);
    write_bytes(file, numbers, sizeof numbers);
}

/* A rename is on disk only once its directory is. */
static int sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    struct text name = {0};
    if (slash == NULL)
        text_add(&name, ".");
    else
        text_add(&name, "%.*s", (int)(slash - path) + 1, path);
    const int descriptor = name.failed ? -1 : open(name.chars, O_RDONLY | O_DIRECTORY);
    text_free(&name);
    if (descriptor < 0)
        return errno;
    const int error = fsync(descriptor) == 0 ? 0 : errno;
    close(descriptor);
    return error;
}

int sample_file_commit(struct sample_file *file) {
    write_trailer(file);
    if (file->stream != NULL) {
        if (file->error == 0 && (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0))
            file->error = errno;
        if (fclose(file->stream) != 0 && file->error == 0)
            file->error = errno;
        if (file->error == 0 && rename(file->temporary_path, file->path) != 0)
            file->error = errno;
        if (file->error != 0)
            unlink(file->temporary_path);
        else
            file->error = sync_directory(file->path);
    }
    free(file->temporary_path);
    file->temporary_path = NULL;
    file->stream = NULL;
    return file->error;
}
