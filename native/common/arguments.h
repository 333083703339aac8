/* Command lines as tables: one row per option. No MPI in here, so that it can be tested alone. */
#ifndef NM_ARGUMENTS_H
#define NM_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARGUMENTS_MESSAGE_CHARS = 256 };

/* One option. Exactly one of `switched`, `text`, `read` or a range (`most` above 0) says what it takes; `offset` is
 * where its field lies in the structure that is filled. */
struct argument {
    const char *name;
    size_t offset;
    const char *needed;  /* a required text's placeholder in the usage */
    bool text;           /* a const char *, borrowed from argv */
    bool switched;       /* a bool, true when the option is there; it has no value */
    int64_t least, most; /* an int64_t: whole numbers in this range */
    /* Reads a value of another kind; returns false and one sentence in `message` when it cannot. */
    bool (*read)(const char *value, void *options, char *message);
};

/* Read a whole decimal number that ends exactly at `end`. */
bool arguments_number(const char *text, const char *end, int64_t *value);

/* Read the command line into `options` by the table. Returns true, or false and leaves in `message`
 * (ARGUMENTS_MESSAGE_CHARS) one sentence that names the argument. */
bool arguments_parse(int argc, char *const argv[], const struct argument *table, size_t count, void *options,
                     char *message);

/* Return whether every required text was given; otherwise `message` names the first that was not. */
bool arguments_complete(const struct argument *table, size_t count, const void *options, char *message);

#endif
