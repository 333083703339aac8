/* A preloaded library that records what a disk holds after a power failure: only what was synced.
 *
 * fsync and fdatasync of a file keep its content in the folder LOSE_KEEP, of a directory its entries; neither keeps
 * anything else. So a file survives when it was synced itself and when the directory that names it was synced
 * after it got that name (fsync(2)). tests/lost.py builds that tree. LOSE_DROP=file:TEXT or folder:TEXT makes syncs of
 * files, or directories, whose path contains the text keep nothing. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_CHARS = 96, PATH_CHARS = 4096 };

/* Inode numbers are reused, birth times are not. */
static int name_of(int folder, const char *entry, char name[NAME_CHARS], int *is_folder) {
    struct statx at;
    if (statx(folder, entry, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &at) != 0)
        return -1;
    *is_folder = S_ISDIR(at.stx_mode);
    snprintf(name, NAME_CHARS, "%u-%u-%llu-%lld-%u", at.stx_dev_major, at.stx_dev_minor, (unsigned long long)at.stx_ino,
             (long long)at.stx_btime.tv_sec, at.stx_btime.tv_nsec);
    return 0;
}

static FILE *open_kept(const char *keep, const char *name, const char *kind, char path[PATH_CHARS]) {
    snprintf(path, PATH_CHARS, "%s/%s.%s", keep, name, kind);
    FILE *const stream = fopen(path, "wb");
    if (stream == NULL) {
        fprintf(stderr, "lose: cannot write %s\n", path);
        abort();
    }
    return stream;
}

static void keep_folder(FILE *out, const char *self, const char *path) {
    DIR *const folder = opendir(self);
    fprintf(out, "%s\n", path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char name[NAME_CHARS];
        int is_folder;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (name_of(dirfd(folder), entry->d_name, name, &is_folder) == 0)
            fprintf(out, "%s.%s\t%s\n", name, is_folder ? "folder" : "file", entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
}

static void keep_file(FILE *out, const char *self) {
    char bytes[1 << 16];
    const int in = open(self, O_RDONLY);
    for (ssize_t got; in >= 0 && (got = read(in, bytes, sizeof bytes)) > 0;)
        fwrite(bytes, 1, (size_t)got, out);
    if (in >= 0)
        close(in);
}

static int dropped(const char *kind, const char *path) {
    const char *const drop = getenv("LOSE_DROP");
    const size_t length = strlen(kind);
    return drop != NULL && strncmp(drop, kind, length) == 0 && drop[length] == ':' && strstr(path, drop + length + 1);
}

static void keep(int descriptor) {
    const char *const keep_in = getenv("LOSE_KEEP");
    char name[NAME_CHARS], self[64], path[PATH_CHARS], kept[PATH_CHARS];
    int is_folder;
    if (keep_in == NULL || name_of(descriptor, "", name, &is_folder) != 0)
        return;
    snprintf(self, sizeof self, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(self, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = '\0';
    const char *const kind = is_folder ? "folder" : "file";
    if (dropped(kind, path))
        return;
    FILE *const out = open_kept(keep_in, name, kind, kept);
    if (is_folder)
        keep_folder(out, self, path);
    else
        keep_file(out, self);
    fclose(out);
}

typedef int sync_function(int);

static int sync_with(const char *function, int descriptor) {
    sync_function *real;
    *(void **)&real = dlsym(RTLD_NEXT, function);
    const int status = real(descriptor);
    if (status == 0)
        keep(descriptor);
    return status;
}

int fsync(int descriptor) { return sync_with("fsync", descriptor); }

int fdatasync(int descriptor) { return sync_with("fdatasync", descriptor); }
