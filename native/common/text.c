#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct text *text, size_t more) {
    if (text->failed)
        return false;
    if (text->length + more + 1 <= text->capacity)
        return true;
    const size_t capacity = 2 * (text->length + more + 1);
    char *chars = realloc(text->chars, capacity);
    if (chars == NULL) {
        text->failed = true;
        return false;
    }
    text->chars = chars;
    text->capacity = capacity;
    return true;
}

void text_add(struct text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0)
        text->failed = true;
    else if (reserve(text, (size_t)length))
        text->length += (size_t)vsnprintf(text->chars + text->length, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
}

/* Return what follows the backslash of a character that JSON has a short escape for, or 0. */
static char short_escape(unsigned char c) {
    static const char characters[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    const char *found = strchr(characters, c);
    return found == NULL ? '\0' : escapes[found - characters];
}

void text_add_json(struct text *text, const char *value) {
    text_add(text, "\"");
    for (const unsigned char *c = (const unsigned char *)value; *c != '\0'; c++) {
        if (short_escape(*c) != '\0')
            text_add(text, "\\%c", short_escape(*c));
        else if (*c < 0x20 || *c > 0x7f)
            text_add(text, "\\u%04x", *c);
        else
            text_add(text, "%c", *c);
    }
    text_add(text, "\"");
}

void text_free(struct text *text) {
    free(text->chars);
    *text = (struct text){0};
}
