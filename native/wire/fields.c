// SPDX-License-Identifier: GPL-2.0-or-later
#include "fields.h"

#include <link.h>
#include <stdint.h>
#include <string.h>

#include "report.h"

enum { FIELDS_MOST = 400, SUBSECTIONS_MOST = 16, SEGMENT_BYTES = 24 };

/* include/migration/vmstate.h, QEMU 10 */
struct field {
    const char *name, *error_hint;
    size_t offset, size, start;
    int count;
    size_t count_offset, size_offset;
    const void *info;
    int flags;
    const struct description *description;
    int version, struct_version;
    void *exists;
};
struct description {
    const char *name;
    bool flags[2];
    int version, oldest_version, priority;
    void *calls[6];
    const struct field *fields;
    const struct description *const *subsections;
};

extern const struct description vmstate_x86_cpu, vmstate_cpu_common;

struct look {
    uintptr_t from, bytes;
    bool inside;
};

static int search_object(struct dl_phdr_info *object, size_t bytes, void *data) {
    (void)bytes;
    struct look *look = data;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && look->from >= start && look->from + look->bytes <= start + part->p_memsz)
            look->inside = true;
    }
    return 1; /* the program itself comes first, and only it matters */
}

bool fields_in_program(const void *from, size_t bytes) {
    struct look look = {(uintptr_t)from, bytes, false};
    dl_iterate_phdr(search_object, &look);
    return look.inside;
}

static const struct field *find_field(const struct description *description, const char *name, size_t bytes) {
    const struct field *field = description->fields;
    for (int i = 0; i < FIELDS_MOST; i++, field++) {
        if (!fields_in_program(field, sizeof *field) || !fields_in_program(field->name, 1))
            break;
        if (!strcmp(field->name, name) && field->size == bytes)
            return field;
    }
    wire_die("this QEMU is unknown: its CPU's description has no %s", name);
}

static const struct description *find_subsection(const struct description *description, const char *name) {
    const struct description *const *one = description->subsections;
    for (int i = 0; i < SUBSECTIONS_MOST; i++, one++) {
        if (!fields_in_program(one, sizeof *one) || !fields_in_program(*one, sizeof **one))
            break;
        if (fields_in_program((*one)->name, 1) && !strcmp((*one)->name, name))
            return *one;
    }
    wire_die("this QEMU is unknown: its CPU's description has no %s", name);
}

size_t fields_of_cpu(const char *name, size_t bytes) { return find_field(&vmstate_x86_cpu, name, bytes)->offset; }

size_t fields_segment_base(int segment) {
    const struct field *segments = find_field(&vmstate_x86_cpu, "env.segs", SEGMENT_BYTES);
    if (!fields_in_program(segments->description, sizeof *segments->description))
        wire_die("this QEMU is unknown: its segments have no description");
    return segments->offset + (size_t)segment * SEGMENT_BYTES + find_field(segments->description, "base", 8)->offset;
}

size_t fields_exception_index(void) {
    const struct description *pending = find_subsection(&vmstate_cpu_common, "cpu_common/exception_index");
    return find_field(pending, "exception_index", 4)->offset;
}
