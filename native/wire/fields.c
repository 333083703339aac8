// SPDX-License-Identifier: GPL-2.0-or-later
#include "fields.h"

#include <link.h>
#include <stdint.h>
#include <string.h>

#include "report.h"

enum { FIELDS_MOST = 400, SUBSECTIONS_MOST = 16, SEGMENT_BYTES = 24 };

/* include/migration/vmstate.h: where a description and a field keep what matters here, and how long a field is. The
 * first of each are of QEMU 10.0, the second of 11.1. */
static const struct description_shape {
    size_t fields, subsections;
} description_shapes[] = {{72, 80}, {96, 104}};
static const struct field_shape {
    size_t bytes, offset, size, description;
} field_shapes[] = {{104, 16, 24, 80}, {96, 8, 16, 72}};
extern const char vmstate_x86_cpu[], vmstate_cpu_common[];

static const struct description_shape *of_description;
static const struct field_shape *of_field;

static const char *pointer_at(const char *from, size_t place) {
    const char *value;
    memcpy(&value, from + place, sizeof value);
    return value;
}

static size_t size_at(const char *from, size_t place) {
    size_t value;
    memcpy(&value, from + place, sizeof value);
    return value;
}

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

static bool is_description(const char *from) {
    return fields_in_program(from, of_description->subsections + sizeof(void *)) &&
           fields_in_program(pointer_at(from, 0), 1);
}

/* Return a field of a description, NULL if there is none under the present shapes. */
static const char *find_named(const char *description, const char *name, size_t bytes) {
    const char *field = pointer_at(description, of_description->fields);
    for (int i = 0; i < FIELDS_MOST; i++, field += of_field->bytes) {
        if (!fields_in_program(field, of_field->bytes))
            break;
        const char *called = pointer_at(field, 0);
        if (!fields_in_program(called, 1))
            break;
        if (!strcmp(called, name) && size_at(field, of_field->size) == bytes)
            return field;
    }
    return NULL;
}

/* Find the shapes under which a CPU has an instruction pointer. */
static void choose_shapes(void) {
    for (size_t i = 0; i < sizeof description_shapes / sizeof *description_shapes; i++)
        for (size_t j = 0; j < sizeof field_shapes / sizeof *field_shapes; j++) {
            of_description = &description_shapes[i];
            of_field = &field_shapes[j];
            if (find_named(vmstate_x86_cpu, "env.eip", 8))
                return;
        }
    wire_die("this QEMU is unknown: its CPU's description has no env.eip");
}

static const char *find_field(const char *description, const char *name, size_t bytes) {
    if (!of_field)
        choose_shapes();
    const char *field = find_named(description, name, bytes);
    if (!field)
        wire_die("this QEMU is unknown: its CPU's description has no %s", name);
    return field;
}

static const char *find_subsection(const char *description, const char *name) {
    const char *one = pointer_at(description, of_description->subsections);
    for (int i = 0; i < SUBSECTIONS_MOST; i++, one += sizeof(void *)) {
        if (!fields_in_program(one, sizeof(void *)) || !is_description(pointer_at(one, 0)))
            break;
        if (!strcmp(pointer_at(pointer_at(one, 0), 0), name))
            return pointer_at(one, 0);
    }
    wire_die("this QEMU is unknown: its CPU's description has no %s", name);
}

static size_t place_of(const char *field) { return size_at(field, of_field->offset); }

size_t fields_of_cpu(const char *name, size_t bytes) { return place_of(find_field(vmstate_x86_cpu, name, bytes)); }

size_t fields_segment_base(int segment) {
    const char *segments = find_field(vmstate_x86_cpu, "env.segs", SEGMENT_BYTES);
    const char *description = pointer_at(segments, of_field->description);
    if (!is_description(description))
        wire_die("this QEMU is unknown: its segments have no description");
    return place_of(segments) + (size_t)segment * SEGMENT_BYTES + place_of(find_field(description, "base", 8));
}

size_t fields_exception_index(void) {
    if (!of_field)
        choose_shapes();
    const char *pending = find_subsection(vmstate_cpu_common, "cpu_common/exception_index");
    return place_of(find_field(pending, "exception_index", 4));
}
