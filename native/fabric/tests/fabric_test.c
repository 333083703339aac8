/* Tests of the parts that need no MPI. */
#include "../options.h"
#include "../rounds.h"
#include "check.h"

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
        {"all 0-1\nall 2-3", "has no line break"},
        {"\n", "is empty"},
        {"all 0-4\n", "'0-4'"},
        {"all 0-99999999999999999999\n", "pair"},
        {"all 0-0\n", "'0-0'"},
        {"all 0-1-2\n", "'0-1-2'"},
        {"all 0\n", "'0'"},
        {"all -1\n", "'-1'"},
        {"all 0-\n", "'0-'"},
        {"all 0-1 1-2\n", "twice: '1-2'"},
        {"ALL 0-1\n", "lower-case letters"},
        {"0-1\n", "lower-case letters"},
        {"averyveryverylongword 0-1\n", "short word"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rounds rounds;
        char message[ROUNDS_MESSAGE_CHARS] = "";
        CHECK_REFUSED(parse(rows[i][0], 4, &rounds, message), rows[i][0], message, rows[i][1]);
        rounds_free(&rounds);
    }
}

static void test_options_are_read(void) {
    struct options read;
    char message[ARGUMENTS_MESSAGE_CHARS];
    CHECK(PARSE("--rounds r --out o --latency-warmup 3 --bandwidth-iterations 0 --patience 7", &read, message));
    CHECK(strcmp(read.rounds, "r") == 0 && strcmp(read.out, "o") == 0 && read.patience_s == 7);
    CHECK(options_latency_entries(&read) == 53 && options_bandwidth_entries(&read) == 0);
    CHECK(PARSE("--help", &read, message) && read.help);
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
        char message[ARGUMENTS_MESSAGE_CHARS] = "";
        CHECK_REFUSED(PARSE(rows[i][0], &read, message), rows[i][0], message, rows[i][1]);
    }
}

int main(void) {
    test_rounds_are_read();
    test_bad_rounds_are_named();
    test_options_are_read();
    test_bad_options_are_named();
    return failures == 0 ? 0 : 1;
}
