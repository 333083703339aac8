/* A growing text, for the header of the sample file. */
#ifndef NM_TEXT_H
#define NM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Start with {0}; free with text_free. After a failed allocation `failed` stays set and nothing is added. */
struct text {
    char *chars;
    size_t length, capacity;
    bool failed;
};

/* Add as printf does. */
__attribute__((format(printf, 2, 3))) void text_add(struct text *text, const char *format, ...);

/* Add a JSON string with its quotes; each byte outside ASCII becomes \u00XX, as if it were Latin-1. */
void text_add_json(struct text *text, const char *value);

void text_free(struct text *text);

#endif
