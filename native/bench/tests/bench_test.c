/* Tests of the engine's command line. */
#include "../options.h"
#include "check.h"

static void test_options_are_read(void) {
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS];
    CHECK(PARSE("--op bw --out f --sizes 1,65536,8 --iterations 7 --iterations-large 3 --check --sync-window-us 5",
                &options, message));
    CHECK(strcmp(options.operation, "bw") == 0 && options.check && options.sizes_bytes.count == 3);
    const int64_t *sizes = options.sizes_bytes.items;
    CHECK(sizes[0] == 1 && sizes[1] == 65536 && sizes[2] == 8);
    CHECK(options_iterations(&options, 8) == 7 && options_iterations(&options, 65536) == 3);
    CHECK(options_warmup(&options, 8) == 100 && options_warmup(&options, 65536) == 100);
    CHECK(options.sync_window_ns == 5000 && options.sync == NULL);
    CHECK(options.pace_ns == 0 && options.seed == 0 && !options.many_buffers);
    CHECK(PARSE("--op bw --out f --pace-us 500 --seed 9223372036854775807 --buffers many", &options, message));
    CHECK(options.pace_ns == 500000 && options.seed == INT64_MAX && options.many_buffers);
    CHECK(options.compute_ns == 0 && options.working_set_bytes == 1 << 20);
    CHECK(PARSE("--op exchange --out f --compute-us 400 --working-set 4096", &options, message));
    CHECK(options.compute_ns == 400000 && options.working_set_bytes == 4096);
}

static void test_numbers_of_large_sizes_are_read(void) {
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS];
    CHECK(PARSE("--op bw --out f --iterations 9 --large-from 64,4096 --iterations-large 7,3 --warmup-large 0,2",
                &options, message));
    static const int64_t rows[][3] = {{63, 9, 100}, {64, 7, 0}, {4095, 7, 0}, {4096, 3, 2}, {INT64_MAX, 3, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK(options_iterations(&options, rows[i][0]) == rows[i][1]);
        CHECK(options_warmup(&options, rows[i][0]) == rows[i][2]);
    }
    CHECK(PARSE("--op bw --out f --warmup-large 2,3 --large-from 64,4096 --iterations 9", &options, message));
    CHECK(options_iterations(&options, 4096) == 9 && options_warmup(&options, 4096) == 3);
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
        {"--op bw --out f --iterations-large 0", "--iterations-large needs whole numbers from 1"},
        {"--op bw --out f --warmup-large -1", "--warmup-large needs whole numbers from 0"},
        {"--op bw --out f --large-from 0", "--large-from needs whole numbers from 1"},
        {"--op bw --out f --large-from 8,8 --iterations-large 1,2", "that ascend, not '8,8'"},
        {"--op bw --out f --large-from 8,64 --iterations-large 3", "each of the 2 of --large-from, not 1"},
        {"--op bw --out f --warmup-large 3,4", "--warmup-large needs one number for each of the 1 of"},
        {"--op bw --out f --window 1e3", "1e3"},
        {"--op bw --out f --iteration 5", "--iteration"},
        {"--op bw --out f extra", "extra"},
        {"--op bw --out", "--out"},
        {"--op bw --out f --buffers two", "'two'"},
        {"--op bw --out f --pace-us -1", "--pace-us"},
        {"--op bw --out f --compute-us -1", "--compute-us"},
        {"--op bw --out f --working-set 4095", "--working-set"},
        {"--op bw --out f --seed 9223372036854775808", "--seed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct options options;
        char message[ARGUMENTS_MESSAGE_CHARS] = "";
        CHECK_REFUSED(PARSE(rows[i][0], &options, message), rows[i][0], message, rows[i][1]);
    }
}

static void test_too_many_sizes_are_refused(void) {
    char list[4 * OPTIONS_MAX_SIZES] = "1";
    for (int i = 0; i < OPTIONS_MAX_SIZES; i++)
        strcat(list, ",2");
    char *argv[] = {(char[]){"nmbench"}, (char[]){"--sizes"}, list};
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS];
    CHECK(!options_parse(3, argv, &options, message));
}

int main(void) {
    test_options_are_read();
    test_numbers_of_large_sizes_are_read();
    test_bad_options_are_named();
    test_too_many_sizes_are_refused();
    return failures == 0 ? 0 : 1;
}
