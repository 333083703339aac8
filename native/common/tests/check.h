/* Shared by the tests of the engines' parts. Each is one source file that exits with status 0 when it passes. */
#ifndef NM_CHECK_H
#define NM_CHECK_H

#include <stdio.h>
#include <string.h>

#include "arguments.h"

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* Check that something was refused with a message that contains a word. */
#define CHECK_REFUSED(accepted, given, message, word)                                                                  \
    do {                                                                                                               \
        CHECK(!(accepted));                                                                                            \
        if (strstr(message, word) == NULL) {                                                                           \
            fprintf(stderr, "%s: the message is '%s'\n", given, message);                                              \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

enum { MOST_ARGUMENTS = 24 };

/* Read a command line, given as one text, as options_parse would. */
#define PARSE(line, options, message) options_parse(split_words(line), words_of_line, options, message)

static char *words_of_line[MOST_ARGUMENTS];

static int split_words(const char *line) {
    static char copy[512], program[] = "program";
    int count = 0;
    words_of_line[count++] = program;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL && count < MOST_ARGUMENTS; word = strtok(NULL, " "))
        words_of_line[count++] = word;
    return count;
}

#endif
