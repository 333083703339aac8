/* Tests of the engine's parts that need no MPI. Ends with status 0 when all hold; names each that does not. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../clock.h"
#include "../options.h"
#include "../payload.h"
#include "../sample_file.h"
#include "../text.h"

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

enum { MOST_ARGUMENTS = 24 };

static bool parse(const char *line, struct options *options, char *message) {
    static char copy[512];
    char *argv[MOST_ARGUMENTS] = {(char[]){"nmbench"}};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL && argc < MOST_ARGUMENTS; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(argc, argv, options, message);
}

static void test_options_are_read(void) {
    struct options options;
    char message[OPTIONS_MESSAGE_CHARS];
    CHECK(parse("--op bw --out f --sizes 1,65536,8 --iterations 7 --iterations-large 3 --check --sync-window-us 5",
                &options, message));
    CHECK(strcmp(options.operation, "bw") == 0 && options.check && options.size_count == 3);
    CHECK(options.sizes_bytes[0] == 1 && options.sizes_bytes[1] == 65536 && options.sizes_bytes[2] == 8);
    CHECK(options_iterations(&options, 8) == 7 && options_iterations(&options, 65536) == 3);
    CHECK(options_warmup(&options, 8) == 100 && options_warmup(&options, 65536) == 100);
    CHECK(options.sync_window_ns == 5000 && options.sync == NULL);
    CHECK(options.pace_ns == 0 && options.seed == 0 && !options.many_buffers);
    CHECK(parse("--op bw --out f --pace-us 500 --seed 9223372036854775807 --buffers many", &options, message));
    CHECK(options.pace_ns == 500000 && options.seed == INT64_MAX && options.many_buffers);
}

static void test_bad_options_are_named(void) {
    static const char *const rows[][2] = {
        {"--out f", "--op"},
        {"--op bw", "--out"},
        {"--op bw --out f --sizes 8,,9", "--sizes"},
        {"--op bw --out f --sizes -8", "'-8'"},
        {"--op bw --out f --sizes 0", "'0'"},
        {"--op bw --out f --sizes 2147483648", "2147483648"},
        {"--op bw --out f --sizes 8,", "''"},
        {"--op bw --out f --sizes 1x", "1x"},
        {"--op bw --out f --iterations 0", "--iterations"},
        {"--op bw --out f --iterations 99999999999999999999", "--iterations"},
        {"--op bw --out f --window 1e3", "1e3"},
        {"--op bw --out f --iteration 5", "--iteration"},
        {"--op bw --out f extra", "extra"},
        {"--op bw --out", "--out"},
        {"--op bw --out f --buffers two", "'two'"},
        {"--op bw --out f --pace-us -1", "--pace-us"},
        {"--op bw --out f --seed 9223372036854775808", "--seed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct options options;
        char message[OPTIONS_MESSAGE_CHARS] = "";
        CHECK(!parse(rows[i][0], &options, message));
        if (strstr(message, rows[i][1]) == NULL) {
            fprintf(stderr, "%s: the message is '%s'\n", rows[i][0], message);
            failures++;
        }
    }
}

static void test_too_many_sizes_are_refused(void) {
    char list[4 * OPTIONS_MAX_SIZES] = "1";
    for (int i = 0; i < OPTIONS_MAX_SIZES; i++)
        strcat(list, ",2");
    char *argv[] = {(char[]){"nmbench"}, (char[]){"--sizes"}, list};
    struct options options;
    char message[OPTIONS_MESSAGE_CHARS];
    CHECK(!options_parse(3, argv, &options, message));
}

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
    test_options_are_read();
    test_bad_options_are_named();
    test_too_many_sizes_are_refused();
    test_check_sum_is_that_of_zlib();
    test_text_is_json();
    test_payload_tells_what_changed();
    test_clock_never_goes_back();
    test_file_appears_whole_or_not_at_all(argv[1]);
    test_full_disk_is_an_error(argv[1]);
    return failures == 0 ? 0 : 1;
}
