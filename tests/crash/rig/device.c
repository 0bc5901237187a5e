/*
 * A block device in user space that fails and loses power on request.
 *
 *     device IMAGE LOG MOUNTPOINT
 *
 * MOUNTPOINT gets three files:
 *
 *     disk      the device: its content is IMAGE, and a loop device makes a block device of it
 *     marks     each write becomes a mark in the log, in order with the writes and flushes of the device
 *     control   each write is one command:
 *                   ok                   nothing fails any more
 *                   marker N TEXT        the next N writes that contain TEXT fail
 *                   writes N FROM TO     the next N writes that touch the bytes FROM up to TO fail
 *                   flush K N            the K-th flush from now fails, and the N - 1 flushes after it
 *
 * What fails has no effect and returns EIO. One thread serves all requests, so the order of the log is the order in
 * which the device took them. medium.py reads the log; the header below is its format, in the byte order of the host.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DISK = 1, MARKS, CONTROL };
static const char *const names[] = { NULL, "disk", "marks", "control" };

enum kind { WRITE = 'W', FLUSH = 'F', MARK = 'M', WRITE_FAILED = 'w', FLUSH_FAILED = 'f' };
struct header {
    uint32_t kind;
    uint32_t size;
    uint64_t position;
};
_Static_assert(sizeof(struct header) == 16, "medium.py reads 16 bytes");

static struct {
    long long marked; /* how many writes with the marker are still to fail */
    char marker[256];
    size_t marker_size;
    long long writes; /* how many writes within the range are still to fail */
    long long from, to;
    long long flush_in; /* how many flushes are left until the first that fails, itself included */
    long long flushes;  /* how many flushes are still to fail from then on */
} fault;

static int image, log_file;
static off_t image_size;

/* A log that is not complete proves nothing: give up. */
static void record(enum kind kind, uint64_t position, const char *data, uint32_t size)
{
    struct header header = { kind, size, position };
    struct iovec parts[] = { { &header, sizeof header }, { (void *)data, data ? size : 0 } };
    ssize_t whole = sizeof header + (data ? size : 0);
    if (writev(log_file, parts, 2) != whole) {
        perror("the log");
        _exit(1);
    }
}

static int command(const char *data, size_t size)
{
    char text[512];
    int at = 0;
    if (size >= sizeof text)
        return -EINVAL;
    memcpy(text, data, size);
    text[size] = 0;
    if (!strcmp(text, "ok")) {
        memset(&fault, 0, sizeof fault);
    } else if (sscanf(text, "marker %lld %n", &fault.marked, &at) == 1 && at && size - at <= sizeof fault.marker) {
        fault.marker_size = size - at;
        memcpy(fault.marker, text + at, fault.marker_size);
    } else if (sscanf(text, "writes %lld %lld %lld", &fault.writes, &fault.from, &fault.to) == 3) {
    } else if (sscanf(text, "flush %lld %lld", &fault.flush_in, &fault.flushes) == 2) {
    } else {
        return -EINVAL;
    }
    return (int)size;
}

static int write_fails(const char *data, size_t size, off_t position)
{
    if (fault.marked > 0 && memmem(data, size, fault.marker, fault.marker_size)) {
        fault.marked--;
        return 1;
    }
    if (fault.writes > 0 && position < fault.to && position + (off_t)size > fault.from) {
        fault.writes--;
        return 1;
    }
    return 0;
}

static int flush_fails(void)
{
    if (fault.flush_in > 0 && --fault.flush_in == 0)
        fault.flush_in = -1; /* reached */
    if (fault.flush_in == -1 && fault.flushes > 0) {
        fault.flushes--;
        return 1;
    }
    return 0;
}

static int file_of(const char *path)
{
    for (int file = DISK; file <= CONTROL; file++)
        if (path[0] == '/' && !strcmp(path + 1, names[file]))
            return file;
    return 0;
}

static int on_getattr(const char *path, struct stat *status, struct fuse_file_info *info)
{
    (void)info;
    memset(status, 0, sizeof *status);
    int file = file_of(path);
    if (!file && strcmp(path, "/"))
        return -ENOENT;
    status->st_mode = file ? S_IFREG | 0600 : S_IFDIR | 0700;
    status->st_nlink = file ? 1 : 2;
    status->st_size = file == DISK ? image_size : 0;
    return 0;
}

static int on_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                      enum fuse_readdir_flags flags)
{
    (void)path, (void)offset, (void)info, (void)flags;
    for (int file = DISK; file <= CONTROL; file++)
        fill(buffer, names[file], NULL, 0, 0);
    return 0;
}

static int on_open(const char *path, struct fuse_file_info *info)
{
    info->fh = file_of(path);
    info->direct_io = 1; /* nothing of it in the page cache: a write is here when it returns */
    return info->fh ? 0 : -ENOENT;
}

static int on_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
    (void)path, (void)size, (void)info;
    return 0; /* a shell redirects to control */
}

static int on_read(const char *path, char *buffer, size_t size, off_t position, struct fuse_file_info *info)
{
    (void)path;
    if (info->fh != DISK)
        return 0;
    ssize_t count = pread(image, buffer, size, position);
    return count < 0 ? -errno : (int)count;
}

static int on_write(const char *path, const char *data, size_t size, off_t position, struct fuse_file_info *info)
{
    (void)path;
    if (info->fh == CONTROL)
        return command(data, size);
    if (info->fh == MARKS) {
        record(MARK, 0, data, size);
        return (int)size;
    }
    if (write_fails(data, size, position)) {
        record(WRITE_FAILED, position, NULL, size);
        return -EIO;
    }
    if (pwrite(image, data, size, position) != (ssize_t)size)
        return -EIO;
    record(WRITE, position, data, size);
    return (int)size;
}

static int on_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path, (void)data_only;
    if (info->fh != DISK)
        return 0;
    if (flush_fails()) {
        record(FLUSH_FAILED, 0, NULL, 0);
        return -EIO;
    }
    record(FLUSH, 0, NULL, 0);
    return 0;
}

static void *on_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->kernel_cache = 0;
    puts("ready");
    fflush(stdout);
    return NULL;
}

static const struct fuse_operations operations = {
    .getattr = on_getattr,
    .readdir = on_readdir,
    .open = on_open,
    .truncate = on_truncate,
    .read = on_read,
    .write = on_write,
    .fsync = on_fsync,
    .init = on_init,
};

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "usage: device IMAGE LOG MOUNTPOINT\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever cleans up is gone: without the device nothing can hang on it */
    image = open(words[1], O_RDWR | O_CLOEXEC);
    log_file = open(words[2], O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (image < 0 || log_file < 0 || (image_size = lseek(image, 0, SEEK_END)) <= 0) {
        perror("device");
        return 1;
    }
    char *arguments[] = { words[0], "-f", "-s", "-o", "fsname=sej-rig", words[3], NULL };
    return fuse_main(6, arguments, &operations, NULL);
}
