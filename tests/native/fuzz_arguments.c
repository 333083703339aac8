/* libFuzzer's entry point to what the engines read: a command line (words end with a zero byte), and the rounds of
 * nmfabric. Built once in each engine's folder, whose options.h it finds. */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#if __has_include("rounds.h")
#include "rounds.h"

static void read_rounds(char *text, int ranks) {
    struct rounds rounds;
    char message[ROUNDS_MESSAGE_CHARS] = "";
    if (!rounds_parse(text, ranks, &rounds, message) && (message[0] == '\0' || strlen(message) >= sizeof message))
        abort();
    rounds_free(&rounds);
}
#else
static void read_rounds(char *text, int ranks) {
    (void)text;
    (void)ranks;
}
#endif

enum { MOST_WORDS = 64 };

static void read_words(char *text, size_t size) {
    char *words[MOST_WORDS + 1] = {(char *)"engine"};
    int count = 1;
    for (size_t at = 0; at < size && count < MOST_WORDS; at += strlen(text + at) + 1)
        words[count++] = text + at;
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS] = "";
    if (!options_parse(count, words, &options, message) && (message[0] == '\0' || strlen(message) >= sizeof message))
        abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    if (size == 0)
        return 0;
    char *text = malloc(size);
    if (text == NULL)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 2)
        read_rounds(text, 1 + data[0] / 2);
    else
        read_words(text, size);
    free(text);
    return 0;
}

#ifdef REPLAY /* the inputs that were kept, each named on the command line */
#include <stdio.h>

int main(int argc, char *argv[]) {
    static unsigned char data[1 << 16];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL)
            return 1;
        const size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
        LLVMFuzzerTestOneInput(data, size / 2);
    }
    return argc < 2;
}
#endif
