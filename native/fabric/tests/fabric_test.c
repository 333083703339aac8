/* Tests of the parts that need no MPI. Ends with status 0 when all hold; names each that does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../options.h"
#include "../rounds.h"

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

enum { MOST_ARGUMENTS = 24 };

static bool parse(const char *text, int ranks, struct rounds *rounds, char *message) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    return rounds_parse(copy, ranks, rounds, message);
}

static void test_rounds_are_read(void) {
    struct rounds rounds;
    char message[ROUNDS_MESSAGE_CHARS];
    CHECK(parse("all 0-1 3-2\nall 2-0\ncut\nall 1-3\n", 4, &rounds, message));
    CHECK(rounds.count == 4 && rounds.phase_count == 3);
    CHECK(strcmp(rounds.phases[0].name, "all") == 0 && rounds.phases[0].rounds == 2);
    CHECK(strcmp(rounds.phases[1].name, "cut") == 0 && rounds.phases[1].rounds == 1);
    static const int32_t wanted[4][4] = {{2, -3, 0, 0}, {-1, 0, 0, 4}, {-4, 1, 0, 0}, {3, 0, 0, -2}};
    CHECK(memcmp(rounds.partner, wanted, sizeof wanted) == 0);
    rounds_free(&rounds);
}

static void test_bad_rounds_are_named(void) {
    static const char *const rows[][2] = {
        {"", "no rounds"},
        {"all 0-1", "no rounds"},
        {"all 0-1\nall 2-3", "does not end"},
        {"\n", "nothing in it"},
        {"all 0-4\n", "'0-4'"},
        {"all 0-99999999999999999999\n", "pair"},
        {"all 0-0\n", "'0-0'"},
        {"all 0-1-2\n", "'0-1-2'"},
        {"all 0\n", "'0'"},
        {"all -1\n", "'-1'"},
        {"all 0-\n", "'0-'"},
        {"all 0-1 1-2\n", "twice: '1-2'"},
        {"ALL 0-1\n", "small letters"},
        {"0-1\n", "small letters"},
        {"averyveryverylongword 0-1\n", "short word"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rounds rounds;
        char message[ROUNDS_MESSAGE_CHARS] = "";
        CHECK(!parse(rows[i][0], 4, &rounds, message));
        rounds_free(&rounds);
        if (strstr(message, rows[i][1]) == NULL) {
            fprintf(stderr, "%s: the message is '%s'\n", rows[i][0], message);
            failures++;
        }
    }
}

static bool options(const char *line, struct options *read, char *message) {
    static char copy[512];
    char *argv[MOST_ARGUMENTS] = {(char[]){"nmfabric"}};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL && argc < MOST_ARGUMENTS; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(argc, argv, read, message);
}

static void test_options_are_read(void) {
    struct options read;
    char message[OPTIONS_MESSAGE_CHARS];
    CHECK(options("--rounds r --out o --latency-warmup 3 --bandwidth-iterations 0 --patience 7", &read, message));
    CHECK(strcmp(read.rounds, "r") == 0 && strcmp(read.out, "o") == 0 && read.patience_s == 7);
    CHECK(options_latency_entries(&read) == 53 && options_bandwidth_entries(&read) == 0);
    CHECK(options("--help", &read, message) && read.help);
}

static void test_bad_options_are_named(void) {
    static const char *const rows[][2] = {
        {"--out o", "--rounds"},
        {"--rounds r", "--out"},
        {"--rounds r --out", "--out"},
        {"--rounds r --out o --latency-bytes 0", "'0'"},
        {"--rounds r --out o --latency-iterations 1x", "'1x'"},
        {"--rounds r --out o --patience 99999999999999999999", "--patience"},
        {"--rounds r --out o --patient 1", "--patient"},
        {"--rounds r --out o --bandwidth-bytes 2147483647 --bandwidth-window 2", "2147483647"},
        {"rounds r", "'rounds'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct options read;
        char message[OPTIONS_MESSAGE_CHARS] = "";
        CHECK(!options(rows[i][0], &read, message));
        if (strstr(message, rows[i][1]) == NULL) {
            fprintf(stderr, "%s: the message is '%s'\n", rows[i][0], message);
            failures++;
        }
    }
}

int main(void) {
    test_rounds_are_read();
    test_bad_rounds_are_named();
    test_options_are_read();
    test_bad_options_are_named();
    return failures == 0 ? 0 : 1;
}
