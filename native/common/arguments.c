#include "arguments.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool arguments_number(const char *text, const char *end, int64_t *value) {
    if (text == end || !isdigit((unsigned char)*text))
        return false;
    char *stop = NULL;
    errno = 0;
    const long long number = strtoll(text, &stop, 10);
    if (errno != 0 || stop != end)
        return false;
    *value = number;
    return true;
}

static bool read_value(const struct argument *row, const char *value, void *options, char *message) {
    void *const field = (char *)options + row->offset;
    if (row->read != NULL)
        return row->read(value, options, message);
    if (row->text) {
        *(const char **)field = value;
        return true;
    }
    int64_t number;
    if (arguments_number(value, value + strlen(value), &number) && number >= row->least && number <= row->most) {
        *(int64_t *)field = number;
        return true;
    }
    snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s needs a whole number from %lld to %lld, not '%.60s'", row->name,
             (long long)row->least, (long long)row->most, value);
    return false;
}

static const struct argument *find(const struct argument *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, table[i].name) == 0)
            return &table[i];
    return NULL;
}

bool arguments_parse(int argc, char *const argv[], const struct argument *table, size_t count, void *options,
                     char *message) {
    for (int i = 1; i < argc; i++) {
        const struct argument *row = find(table, count, argv[i]);
        if (row == NULL) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "there is no option '%.60s'; --help lists them", argv[i]);
            return false;
        }
        if (row->switched) {
            *(bool *)((char *)options + row->offset) = true;
            continue;
        }
        if (i + 1 == argc) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s needs a value; --help lists the options", row->name);
            return false;
        }
        if (!read_value(row, argv[++i], options, message))
            return false;
    }
    return true;
}

bool arguments_complete(const struct argument *table, size_t count, const void *options, char *message) {
    for (size_t i = 0; i < count; i++) {
        if (table[i].needed == NULL || *(const char *const *)((const char *)options + table[i].offset) != NULL)
            continue;
        snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s %s is missing; --help shows the usage", table[i].name,
                 table[i].needed);
        return false;
    }
    return true;
}
