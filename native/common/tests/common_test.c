/* Tests of what the engines share and needs no MPI. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "payload.h"
#include "sample_file.h"
#include "text.h"

static void test_check_sum_is_that_of_zlib(void) {
    CHECK(crc32_continue(0, "123456789", 9) == 0xcbf43926u); /* the check value of CRC-32/ISO-HDLC */
    CHECK(crc32_continue(crc32_continue(0, "1234", 4), "56789", 5) == 0xcbf43926u);
}

static void test_text_is_json(void) {
    struct text text = {0};
    text_add_json(&text, "a\"\\\n\x01\xc3");
    CHECK(!text.failed && strcmp(text.chars, "\"a\\\"\\\\\\n\\u0001\\u00c3\"") == 0);
    text_free(&text);
    for (int i = 0; i < 1000; i++)
        text_add(&text, "%d,", i);
    CHECK(text.length == 10 * 2 + 90 * 3 + 900 * 4);
    text_free(&text);
}

static void test_payload_tells_what_changed(void) {
    unsigned char bytes[100];
    const uint32_t key = payload_key(1, 0, 2, 3);
    payload_fill(bytes, sizeof bytes, key);
    CHECK(payload_matches(bytes, sizeof bytes, key));
    CHECK(!payload_matches(bytes, sizeof bytes, payload_key(1, 0, 2, 4)));
    CHECK(!payload_matches(bytes, sizeof bytes, payload_key(0, 1, 2, 3)));
    CHECK(!payload_matches(bytes + 1, sizeof bytes - 1, key));
    bytes[99] ^= 1;
    CHECK(!payload_matches(bytes, sizeof bytes, key));
    CHECK(payload_allocate(SIZE_MAX) == NULL);
    unsigned char *nothing = payload_allocate(0);
    CHECK(nothing != NULL);
    free(nothing);
}

static void test_clock_never_goes_back(void) {
    int64_t last_ns = clock_stamp_ns();
    for (int i = 0; i < 1000; i++) {
        const int64_t now_ns = clock_stamp_ns();
        CHECK(now_ns >= last_ns);
        last_ns = now_ns;
    }
    CHECK(clock_cost_ns() >= 0);
}

static int write_file(const char *path, size_t count) {
    static const char block[4096];
    struct text header = {0};
    struct sample_file file;
    text_add(&header, "{}");
    sample_file_begin(&file, path, SAMPLE_FILE_MAGIC, SAMPLE_FILE_VERSION, &header);
    sample_file_block(&file, block, count);
    text_free(&header);
    return sample_file_commit(&file);
}

static void test_file_appears_whole_or_not_at_all(const char *folder) {
    char path[400];
    snprintf(path, sizeof path, "%s/whole", folder);
    CHECK(sample_file_probe(path) && access(path, F_OK) != 0);
    CHECK(write_file(path, 9) == 0);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0 && ftell(file) == 16 + 8 + 16 + 24);
    if (file != NULL)
        fclose(file);
    snprintf(path, sizeof path, "%s/no/such/folder", folder);
    CHECK(!sample_file_probe(path) && errno == ENOENT);
    CHECK(write_file(path, 9) == ENOENT);
}

/* As on a full disk: the kernel refuses to let the file grow. */
static void test_full_disk_is_an_error(const char *folder) {
    char path[400];
    snprintf(path, sizeof path, "%s/full", folder);
    const struct rlimit limit = {.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
    const struct rlimit none = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(write_file(path, 4096) == EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK(access(path, F_OK) != 0);
}

int main(int argc, char *argv[]) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s EMPTY-FOLDER\n", argv[0]);
        return 2;
    }
    CHECK(split_words("one two") == 3);
    test_check_sum_is_that_of_zlib();
    test_text_is_json();
    test_payload_tells_what_changed();
    test_clock_never_goes_back();
    test_file_appears_whole_or_not_at_all(argv[1]);
    test_full_disk_is_an_error(argv[1]);
    return failures == 0 ? 0 : 1;
}
