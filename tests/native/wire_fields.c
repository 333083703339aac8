/* Prints where a CPU keeps its fields, by descriptions as QEMU 10.0 has them, or 11.1 with -DLATER_DESCRIPTION and
 * -DLATER_FIELD (include/migration/vmstate.h; the second seen in the program file of Debian's 11.1.3). */
#include "fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct field {
    const char *name;
#ifdef LATER_FIELD
    size_t offset, size, start, count_offset, size_offset;
    int count;
#else
    const char *error_hint;
    size_t offset, size, start;
    int count;
    size_t count_offset, size_offset;
#endif
    const void *info;
    int flags;
    const struct description *description;
    int version, struct_version;
    void *exists;
};
struct description {
    const char *name;
    _Bool flags[2];
    int version, oldest_version, priority;
#ifdef LATER_DESCRIPTION
    void *calls[9];
#else
    void *calls[6];
#endif
    const struct field *fields;
    const struct description *const *subsections;
};

static const struct field of_segment[] = {
    {.name = "selector", .size = 4},
    {.name = "base", .offset = 8, .size = 8},
    {0},
};
static const struct description segment = {.name = "segment", .version = 1, .fields = of_segment};
static const struct field of_cpu[] = {
    {.name = "env.regs", .offset = 1000, .size = 8, .count = 16},
    {.name = "env.eip", .offset = 1128, .size = 8},
    {.name = "env.segs", .offset = 1200, .size = 24, .count = 6, .description = &segment},
    {.name = "env.hflags", .offset = 1500, .size = 8}, /* of another size than asked for */
    {.name = "env.hflags", .offset = 1600, .size = 4},
    {0},
};
const struct description vmstate_x86_cpu = {.name = "cpu", .version = 12, .fields = of_cpu};

static const struct field of_pending[] = {{.name = "exception_index", .offset = 77, .size = 4}, {0}};
static const struct description other = {.name = "cpu_common/crash_occurred"};
static const struct description pending = {.name = "cpu_common/exception_index", .fields = of_pending};
static const struct description *const parts[] = {&other, &pending, NULL};
static const struct field of_common[] = {{.name = "halted", .offset = 3, .size = 4}, {0}};
const struct description vmstate_cpu_common = {.name = "cpu_common", .fields = of_common, .subsections = parts};

_Noreturn void wire_die(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    exit(70);
}

int main(int count, char **arguments) {
    printf("%zu ", fields_exception_index());
    printf("%zu %zu %zu", fields_of_cpu("env.eip", 8), fields_of_cpu("env.hflags", 4), fields_segment_base(1));
    if (count > 1)
        fields_of_cpu(arguments[1], 8);
    return 0;
}
