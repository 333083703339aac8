#include "rounds.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refuse_line(char *message, size_t line, const char *what, const char *word) {
    snprintf(message, ROUNDS_MESSAGE_CHARS, "line %zu of the rounds: %s '%.40s'", line, what, word);
    return false;
}

/* Read decimal digits at `*cursor` and advance past them; -1 when there are none or they name no rank. */
static int32_t read_rank(const char **cursor, int ranks) {
    int32_t value = 0;
    if (!isdigit((unsigned char)**cursor))
        return -1;
    for (; isdigit((unsigned char)**cursor); (*cursor)++) {
        value = value * 10 + (**cursor - '0');
        if (value >= ranks)
            return -1;
    }
    return value;
}

static bool add_pair(struct rounds *rounds, size_t round, const char *word, char *message) {
    const char *cursor = word;
    const int32_t first = read_rank(&cursor, rounds->ranks);
    const int32_t second = first >= 0 && *cursor++ == '-' ? read_rank(&cursor, rounds->ranks) : -1;
    if (second < 0 || *cursor != '\0' || first == second)
        return refuse_line(message, round + 1, "not a pair of two ranks:", word);
    int32_t *const of_first = &rounds->partner[(size_t)first * rounds->count + round];
    int32_t *const of_second = &rounds->partner[(size_t)second * rounds->count + round];
    if (*of_first != 0 || *of_second != 0)
        return refuse_line(message, round + 1, "a rank appears twice:", word);
    *of_first = second + 1;
    *of_second = -(first + 1);
    return true;
}

static bool add_phase(struct rounds *rounds, size_t round, const char *word, char *message) {
    const size_t length = strlen(word);
    for (size_t i = 0; i < length; i++)
        if (!islower((unsigned char)word[i]))
            return refuse_line(message, round + 1, "a phase is a word of lower-case letters, not", word);
    if (length >= ROUNDS_PHASE_CHARS)
        return refuse_line(message, round + 1, "a phase is a short word, not", word);
    if (rounds->phase_count == 0 || strcmp(rounds->phases[rounds->phase_count - 1].name, word) != 0)
        memcpy(rounds->phases[rounds->phase_count++].name, word, length + 1);
    rounds->phases[rounds->phase_count - 1].rounds++;
    return true;
}

static bool add_line(struct rounds *rounds, size_t round, char *line, char *message) {
    char *rest = NULL;
    const char *word = strtok_r(line, " ", &rest);
    if (word == NULL)
        return refuse_line(message, round + 1, "the line is empty:", "");
    if (!add_phase(rounds, round, word, message))
        return false;
    while ((word = strtok_r(NULL, " ", &rest)) != NULL)
        if (!add_pair(rounds, round, word, message))
            return false;
    return true;
}

static size_t count_lines(const char *text) {
    size_t lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

bool rounds_parse(char *text, int ranks, struct rounds *rounds, char message[ROUNDS_MESSAGE_CHARS]) {
    *rounds = (struct rounds){.ranks = ranks, .count = count_lines(text)};
    if (rounds->count == 0) {
        snprintf(message, ROUNDS_MESSAGE_CHARS, "no rounds: each is a line that ends with a line break");
        return false;
    }
    rounds->partner = calloc(rounds->count * (size_t)ranks, sizeof rounds->partner[0]);
    rounds->phases = calloc(rounds->count, sizeof rounds->phases[0]);
    if (rounds->partner == NULL || rounds->phases == NULL) {
        snprintf(message, ROUNDS_MESSAGE_CHARS, "out of memory for %zu rounds of %d ranks", rounds->count, ranks);
        return false;
    }
    char *line = text;
    for (size_t round = 0; round < rounds->count; round++) {
        char *const end = strchr(line, '\n');
        *end = '\0';
        if (!add_line(rounds, round, line, message))
            return false;
        line = end + 1;
    }
    if (*line != '\0')
        return refuse_line(message, rounds->count + 1, "the line has no line break:", line);
    return true;
}

void rounds_free(struct rounds *rounds) {
    free(rounds->partner);
    free(rounds->phases);
    *rounds = (struct rounds){0};
}
