/* Answers that a client of NFS gives, beneath one folder: preloaded into a process, between it and its C library.

   PLANC_NFS_TOP     the folder; without it nothing is done
   PLANC_NFS_ONLY    an extended regular expression over "KIND PATH": which calls count; PLANC_NFS_NOT: which do not
   PLANC_NFS_LOG     a file that gets a line for each call that counts
   PLANC_NFS_AT      the call, from 1, that is answered wrongly; 0 for every call
   PLANC_NFS_MODE    stale: ESTALE, and nothing is done. lost: it is done, the answer is lost, and the question is
                     asked again: ENOENT or EEXIST. An absent mode changes no answer
   PLANC_NFS_HELD    paths that another process has open: unlinked, they are renamed to .nfs*, which is busy
   PLANC_NFS_TIMES   paths whose times are all made up: the same, whatever is in them */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <regex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_int num_counted, num_silly;

static int matches(const char *variable, const char *text) {
    const char *pattern = getenv(variable);
    regex_t expression;
    if (pattern == NULL || regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) return 0;
    int found = regexec(&expression, text, 0, NULL, 0) == 0;
    regfree(&expression);
    return found;
}

/* The absolute path of a name in the folder of a descriptor; 0 unless it is beneath the top. */
static int absolute(int folder, const char *name, char *out) {
    const char *top = getenv("PLANC_NFS_TOP");
    if (top == NULL || name == NULL) return 0;
    out[0] = 0;
    if (name[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, out, PATH_MAX - 1);
        if (length < 0) return 0;
        out[length] = 0;
        if (name[0] != 0) strncat(out, "/", PATH_MAX - strlen(out) - 1);
    }
    strncat(out, name, PATH_MAX - strlen(out) - 1);
    size_t length = strlen(top);
    return strncmp(out, top, length) == 0 && (out[length] == '/' || out[length] == 0);
}

/* Whether the call is the one to be answered wrongly, with this mode. */
static int is_due(const char *kind, const char *path, const char *mode) {
    char text[PATH_MAX + 32];
    snprintf(text, sizeof text, "%s %s", kind, path);
    if (getenv("PLANC_NFS_ONLY") != NULL && !matches("PLANC_NFS_ONLY", text)) return 0;
    if (matches("PLANC_NFS_NOT", text)) return 0;
    int number = atomic_fetch_add(&num_counted, 1) + 1;
    const char *log = getenv("PLANC_NFS_LOG");
    if (log != NULL) {
        int descriptor = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (descriptor >= 0) {
            strcat(text, "\n");
            syscall(SYS_write, descriptor, text, strlen(text));
            syscall(SYS_close, descriptor);
        }
    }
    const char *wanted = getenv("PLANC_NFS_MODE"), *at = getenv("PLANC_NFS_AT");
    return wanted != NULL && strcmp(wanted, mode) == 0 && at != NULL && (atoi(at) == 0 || atoi(at) == number);
}

static int counts_as(const char *mode) {
    const char *wanted = getenv("PLANC_NFS_MODE");
    return wanted == NULL || strcmp(wanted, mode) == 0;
}

/* ESTALE instead of a call, in the mode that is for all calls. */
#define STALE(folder, name, kind, failed)                                          \
    char path[PATH_MAX];                                                           \
    int is_beneath = absolute(folder, name, path);                                 \
    if (is_beneath && counts_as("stale") && is_due(kind, path, "stale")) {         \
        errno = ESTALE;                                                            \
        return failed;                                                             \
    }

/* The result of a call that changes a name, whose answer may be lost. */
static int answered(int result, int is_beneath, const char *kind, const char *path, int repeated) {
    if (result == 0 && is_beneath && !counts_as("stale") && is_due(kind, path, "lost")) {
        errno = repeated;
        return -1;
    }
    return result;
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
    STALE(folder, name, flags & (O_WRONLY | O_RDWR) ? "write-open" : "open", -1)
    return syscall(SYS_openat, folder, name, flags, mode);
}

#define OPEN(function, parameters, folder)                                         \
    int function parameters {                                                      \
        va_list more;                                                              \
        va_start(more, flags);                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;    \
        va_end(more);                                                              \
        return opened(folder, name, flags, mode);                                  \
    }
OPEN(open, (const char *name, int flags, ...), AT_FDCWD)
OPEN(open64, (const char *name, int flags, ...), AT_FDCWD)
OPEN(openat, (int folder, const char *name, int flags, ...), folder)
OPEN(openat64, (int folder, const char *name, int flags, ...), folder)

DIR *opendir(const char *name) {
    STALE(AT_FDCWD, name, "list", NULL)
    return REAL(opendir)(name);
}

DIR *fdopendir(int folder) {
    STALE(folder, "", "list", NULL)
    return REAL(fdopendir)(folder);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    STALE(descriptor, "", "write", -1)
    return syscall(SYS_write, descriptor, data, size);
}

int fsync(int descriptor) {
    STALE(descriptor, "", "fsync", -1)
    return syscall(SYS_fsync, descriptor);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    STALE(folder, name, "mkdir", -1)
    return answered(REAL(mkdirat)(folder, name, mode), is_beneath, "mkdir", path, EEXIST);
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int renameat(int folder, const char *name, int target_folder, const char *target) {
    STALE(folder, name, "rename", -1)
    return answered(REAL(renameat)(folder, name, target_folder, target), is_beneath, "rename", path, ENOENT);
}

int rename(const char *name, const char *target) { return renameat(AT_FDCWD, name, AT_FDCWD, target); }

int unlinkat(int folder, const char *name, int flags) {
    const char *kind = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
    STALE(folder, name, kind, -1)
    if (is_beneath && !(flags & AT_REMOVEDIR) && strstr(path, "/.nfs") != NULL) {
        errno = EBUSY;
        return -1;
    }
    if (is_beneath && !(flags & AT_REMOVEDIR) && matches("PLANC_NFS_HELD", path)) {
        char silly[PATH_MAX];
        snprintf(silly, sizeof silly, "%s", path);
        snprintf(strrchr(silly, '/'), 40, "/.nfs%08d", atomic_fetch_add(&num_silly, 1));
        return REAL(renameat)(folder, name, AT_FDCWD, silly);
    }
    return answered(REAL(unlinkat)(folder, name, flags), is_beneath, kind, path, ENOENT);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int remove(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

#define MAKE_UP(found)                                                             \
    if (is_beneath && matches("PLANC_NFS_TIMES", path))                            \
        found->st_mtim = found->st_ctim = (struct timespec){1000000000, 0};

#define STAT(function, type, parameters, folder, call)                             \
    int function parameters {                                                      \
        STALE(folder, name, "stat", -1)                                            \
        int result = call;                                                         \
        if (result == 0) MAKE_UP(found)                                            \
        return result;                                                             \
    }
STAT(stat, struct stat, (const char *name, struct stat *found), AT_FDCWD, REAL(fstatat)(AT_FDCWD, name, found, 0))
STAT(lstat, struct stat, (const char *name, struct stat *found), AT_FDCWD,
     REAL(fstatat)(AT_FDCWD, name, found, AT_SYMLINK_NOFOLLOW))
STAT(fstatat, struct stat, (int folder, const char *name, struct stat *found, int flags), folder,
     REAL(fstatat)(folder, name, found, flags))
STAT(stat64, struct stat64, (const char *name, struct stat64 *found), AT_FDCWD,
     REAL(fstatat64)(AT_FDCWD, name, found, 0))
STAT(lstat64, struct stat64, (const char *name, struct stat64 *found), AT_FDCWD,
     REAL(fstatat64)(AT_FDCWD, name, found, AT_SYMLINK_NOFOLLOW))
STAT(fstatat64, struct stat64, (int folder, const char *name, struct stat64 *found, int flags), folder,
     REAL(fstatat64)(folder, name, found, flags))
