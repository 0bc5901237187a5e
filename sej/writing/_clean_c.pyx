# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Opening a clean journal, and leaving it clean, compiled: see :mod:`sej.writing.clean`.

Opening only looks, apart from the two locks that it takes and the line that it writes into the lock file. At the first
surprise, also at the first error of the system, it closes what it has opened and returns None. The reference,
:func:`sej.writing.taking.take_end`, then starts from the beginning. So each condition accepts less than the reference
or the same, and no error is raised here.

Closing writes the two records of a segment that was just synced. At the first surprise it returns False, and the
reference writes both of them again: :class:`sej.system.durable.KeptPosition` and :class:`sej.writing.blocks.Blocks`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport ENOENT, errno
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset, strchr, strcmp, strcpy, strlen, strncmp, strrchr, strspn, strstr

from sej.codec._buffer_c cimport Buffer
from sej.codec._layout cimport get32, get64, put32, put64
from sej.journal._entry cimport ENTRY, Entry, is_in_segment, load, read_whole, sej_pread
from sej.system._checksum_c cimport fast_crc32c, is_fast
from sej.system._descriptor_c cimport Descriptor, audit, encoded, new, new_tuple, stat_t

from sej.journal.directory import Segment
from sej.journal.identity import ID_SIZES
from sej.journal.index import Block
from sej.journal.index_format import ENTRY_SIZE, HEAD, HEAD_SIZE
from sej.system.durable_format import HEAD_BYTES, MAGIC, RECORD_SIZE

assert (ENTRY, INDEX_HEAD, RECORD, SEGMENT_HEAD) == (ENTRY_SIZE, HEAD_SIZE, RECORD_SIZE, HEAD_BYTES)
assert (OLD_ID, ID) == ID_SIZES

cdef extern from *:
    """
    #include <dirent.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdlib.h>
    #include <sys/file.h>
    #include <time.h>
    #include <unistd.h>
    #if defined(__linux__)
    #include <sys/sysmacros.h>
    #include <sys/vfs.h>
    /* Return whether a directory is on a file system that no network has: one with a block device, or one of the common
       ones without. For all others the caller reads the table of mounts, which takes as long as the rest of an opening. */
    static int sej_is_local(const char *path, const struct stat *there) {
        struct statfs found;
        if (major(there->st_dev) != 0)
            return 1;
        if (statfs(path, &found))
            return 0;
        switch ((uint32_t)found.f_type) {
        case 0x01021994: /* tmpfs */
        case 0x794c7630: /* overlay */
        case 0x9123683e: /* btrfs */
            return 1;
        }
        return 0;
    }
    #else
    #define sej_is_local(path, there) 0
    #endif
    #define sej_no_error() (errno = 0)
    """
    ctypedef struct DIR:
        pass
    struct dirent:
        char d_name[1]

    const int O_RDONLY, O_RDWR, O_APPEND, O_NONBLOCK, O_CLOEXEC, LOCK_EX, LOCK_NB
    bint S_ISREG(unsigned int mode) nogil
    bint S_ISDIR(unsigned int mode) nogil
    bint sej_is_local(const char *path, stat_t *there) nogil
    int c_open "open"(const char *path, int flags, ...) nogil
    int c_close "close"(int fd) nogil
    int c_fstat "fstat"(int fd, stat_t *found) nogil
    int c_stat "stat"(const char *path, stat_t *found) nogil
    int c_flock "flock"(int fd, int kind) nogil
    int sej_no_error() nogil
    int getpid() nogil
    int gethostname(char *name, size_t size) nogil
    uint64_t strtoull(const char *text, char **end, int base) nogil
    ssize_t c_pwrite "pwrite"(int fd, const void *data, size_t size, int64_t position) nogil
    DIR *opendir(const char *path) nogil
    dirent *readdir(DIR *folder) nogil
    struct timespec:
        long tv_sec, tv_nsec
    struct tm:
        int tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec
    const int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now) nogil
    tm *gmtime_r(const long *seconds, tm *parts) nogil
    int closedir(DIR *folder) nogil

cdef extern from "Python.h":
    str PyUnicode_DecodeFSDefault(const char *path)

cdef enum:
    PATH = 4096
    NAME = 64  # room for each name that is put after the path
    HOLDER = 256  # these two are as in sej.system.locks
    LONGEST_HOST = 128  # with it the line is not cut
    HOST = 256
    OLD_ID = 16
    ID = 20
    INDEX_HEAD = 16
    FEW = 4096  # an index of at most this size is read by one call
    RECORD = 48
    SEGMENT_HEAD = 64
    SEGMENT_NAME = 20  # 16 hex digits and .jnl

cdef struct Journal:
    char path[PATH + NAME]  # of the directory with its separator, and then of one file in it
    size_t prefix  # the length of the former
    stat_t lock
    char signature[HOLDER + 1]
    ssize_t signed
    char segment[NAME]  # these two are names in the directory
    char index[NAME]
    bint batches
    int64_t segments
    int64_t first_offset
    int64_t size
    uint64_t inode
    int64_t entries
    Entry last
    uint32_t head

cdef bytes index_head = HEAD, record_magic = MAGIC
cdef const char *INDEX_MAGIC = index_head
cdef const char *RECORD_MAGIC = record_magic


def is_prepared(str prefix not None, bint any_file_system):
    """Return whether a journal has its directories, an identity of the right size, and is on a local file system."""
    cdef Journal journal
    cdef stat_t there
    cdef bint found
    if not set_path(&journal, prefix):
        return False
    with nogil:
        found = (
            is_directory(&journal, "", &there)
            and (any_file_system or sej_is_local(journal.path, &there))
            and is_directory(&journal, "jnl", &there)
            and is_directory(&journal, "ofs", &there)
            and not c_stat(in_journal(&journal, "id"), &there)
            and S_ISREG(there.st_mode)
            and (there.st_size == OLD_ID or there.st_size == ID)
        )
    return found


def take(str prefix not None, Descriptor lock not None, kind):
    """Lock a clean journal and open its last segment.

    Args:
        prefix: the path of the directory with its separator.
        lock: a closed file with the path of the lock file. It is open and locked if this succeeds, else perhaps.
        kind: the class of the segment's file.

    A file that is not needed any more is unlocked before it is closed: a child that was just forked by another thread
    may have a copy of its descriptor, and the reference locks the file again. So the caller releases the lock.

    Returns:
        None, or the segment, its file, its size, the number of entries in its index, the last one, the offset after it,
        the identity of the lock file, its signature, the segment's inode, the checksum of its head, the number of
        segments, and whether batches are recorded.
    """
    cdef Journal journal
    cdef Descriptor segment
    cdef Entry *last
    cdef bint found
    if not is_fast() or not set_path(&journal, prefix):
        return None
    audit(lock._path, O_RDWR)
    audit(path_of(&journal, "id"), O_RDONLY)
    with nogil:
        found = (
            is_locked(&journal, lock)
            and has_identity(&journal)
            and is_settled(&journal)
            and has_segment(&journal)
            and is_swept(&journal)
        )
    if not found:
        return None
    segment = new(kind, ())
    segment._path = path_of(&journal, journal.segment)
    audit(segment._path, O_RDWR | O_APPEND)
    audit(path_of(&journal, journal.index), O_RDONLY)
    audit(path_of(&journal, "idx/durable"), O_RDONLY)
    with nogil:
        found = is_opened(&journal, segment) and is_indexed(&journal, segment._fd) and is_durable(&journal, segment._fd)
    if not found:
        segment.unlock()
        segment.close()
        return None
    last = &journal.last
    return (
        new_tuple(Segment, ((journal.first_offset, segment._path),)),
        segment,
        journal.size,
        journal.entries,
        new_tuple(Block, ((
            last.position, last.end, last.first_offset, last.messages, last.crc32c,
            last.first_timestamp, last.last_timestamp, last.newest_timestamp,
        ),)),
        last.first_offset + last.messages,
        (journal.lock.st_dev, journal.lock.st_ino),
        PyBytes_FromStringAndSize(journal.signature, journal.signed),
        journal.inode,
        journal.head,
        journal.segments,
        journal.batches,
    )


cdef bint set_path(Journal *journal, str prefix) except -1:
    """Store the path of the directory, as the system has it; return whether it is short enough."""
    cdef bytes name = encoded(prefix)
    journal.prefix = len(name)
    if journal.prefix >= PATH:
        return False
    strcpy(journal.path, name)
    return True


cdef str path_of(Journal *journal, const char *name):
    """Return the path of a file in the directory, as text."""
    return PyUnicode_DecodeFSDefault(in_journal(journal, name))


cdef const char *in_journal(Journal *journal, const char *name) noexcept nogil:
    """Return the path of a file in the directory."""
    strcpy(journal.path + journal.prefix, name)
    return journal.path


cdef bint is_directory(Journal *journal, const char *name, stat_t *found) noexcept nogil:
    return not c_stat(in_journal(journal, name), found) and S_ISDIR(found.st_mode)


cdef ssize_t content(const char *path, void *data, size_t size) noexcept nogil:
    """Return how many bytes a file begins with, at most size; -1 if the system refuses."""
    cdef int fd = c_open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    cdef ssize_t count
    if fd < 0:
        return -1
    count = sej_pread(fd, data, size, 0)
    c_close(fd)
    return count


# --- the lock


cdef bint is_locked(Journal *journal, Descriptor lock) noexcept nogil:
    """Lock a signed lock file in which no original has left a trace, and sign it."""
    cdef stat_t named
    cdef char text[HOLDER + 2]
    cdef ssize_t size
    lock._fd = c_open(in_journal(journal, "jnl.lck"), O_RDWR | O_NONBLOCK | O_CLOEXEC)
    if lock._fd < 0 or c_fstat(lock._fd, &journal.lock) or not S_ISREG(journal.lock.st_mode):
        return False
    if c_flock(lock._fd, LOCK_EX | LOCK_NB):
        return False
    size = sej_pread(lock._fd, text, HOLDER + 1, 0)
    if not 0 < size <= HOLDER:
        return False
    text[size] = 0
    if strlen(text) != <size_t> size or strstr(text, "original=") != NULL:
        return False
    if c_stat(journal.path, &named) or named.st_ino != journal.lock.st_ino or named.st_dev != journal.lock.st_dev:
        return False
    return is_signed(journal, lock._fd, size)


cdef bint is_signed(Journal *journal, int fd, ssize_t there) noexcept nogil:
    """Write the holder's line over the ``there`` bytes of the lock file, as :meth:`sej.system.locks.Lock._sign` does."""
    cdef char host[HOST]
    cdef char *text = journal.signature
    cdef char *end
    cdef ssize_t at = 0
    if gethostname(host, HOST) or not host[0]:
        return False
    while at < HOST and host[at]:
        if <unsigned char> host[at] > 127:  # the reference decides how it is written
            return False
        at += 1
    if at > LONGEST_HOST:
        return False
    end = number(append(text, "pid="), getpid(), 0)
    end = stamp(append(append(append(end, " host="), host), " start="))
    if end == NULL:
        return False
    end = append(end, "\n")
    if end - text < there:
        memset(end, c" ", there - (end - text))
        end = text + there
    journal.signed = end - text
    return c_pwrite(fd, text, journal.signed, 0) == journal.signed


cdef char *stamp(char *text) noexcept nogil:
    """Write the time as sej.system.locks does; return the end, or NULL."""
    cdef timespec now
    cdef tm parts
    if clock_gettime(CLOCK_REALTIME, &now) or gmtime_r(&now.tv_sec, &parts) == NULL:
        return NULL
    text = append(number(text, parts.tm_year + 1900, 4), "-")
    text = append(number(text, parts.tm_mon + 1, 2), "-")
    text = append(number(text, parts.tm_mday, 2), "T")
    text = append(number(text, parts.tm_hour, 2), ":")
    text = append(number(text, parts.tm_min, 2), ":")
    text = append(number(text, parts.tm_sec, 2), ".")
    return append(number(text, now.tv_nsec // 1000, 6), "+00:00")


cdef char *append(char *text, const char *more) noexcept nogil:
    """Copy a text; return its end."""
    return strcpy(text, more) + strlen(more)


cdef char *number(char *text, long value, int width) noexcept nogil:
    """Write a number with at least ``width`` digits; return its end. snprintf took a fifth of the time of this module."""
    cdef char digits[20]
    cdef int at = 0
    while value or at < width or not at:
        digits[at] = <char> (c"0" + value % 10)
        value //= 10
        at += 1
    while at:
        at -= 1
        text[0] = digits[at]
        text += 1
    return text


# --- what earlier processes may have left


cdef bint has_identity(Journal *journal) noexcept nogil:
    cdef unsigned char data[ID + 1]
    cdef ssize_t size = content(in_journal(journal, "id"), data, ID + 1)
    return size == OLD_ID or (size == ID and fast_crc32c(data, OLD_ID, 0) == get32(data + OLD_ID))


cdef bint is_settled(Journal *journal) noexcept nogil:
    """Return whether no merge or repair is unfinished; batches may be recorded."""
    journal.batches = False
    return each_name(journal, "txn", is_batch, &journal.batches)


cdef bint is_batch(const char *name, void *found) noexcept nogil:
    """Return whether it belongs to a batch that the writer completes after it has opened the end."""
    (<bint *> found)[0] = True
    return strcmp(name, "merge") and strcmp(name, "repair") and strchr(name, c"~") == NULL


cdef bint is_swept(Journal *journal) noexcept nogil:
    """Return whether no staged file is left."""
    return each_name(journal, "tmp", is_unstaged, NULL)


cdef bint is_unstaged(const char *name, void *_) noexcept nogil:
    cdef const char *end = strrchr(name, c".")
    end = name if end == NULL else end + 1
    return strcmp(end, "publish") and strcmp(end, "removed") and strcmp(end, "rows") and strncmp(name, "repair", 6)


cdef struct Segments:
    int64_t count
    char last[SEGMENT_NAME + 1]


cdef bint has_segment(Journal *journal) noexcept nogil:
    """Find the last segment."""
    cdef Segments found
    cdef uint64_t first_offset
    memset(&found, 0, sizeof(found))
    if not each_name(journal, "jnl", add_segment, &found) or not found.count:
        return False
    first_offset = strtoull(found.last, NULL, 16)
    journal.first_offset = <int64_t> first_offset
    journal.segments = found.count
    append(append(journal.segment, "jnl/"), found.last)
    found.last[16] = 0
    append(append(append(journal.index, "idx/"), found.last), ".idx")
    return journal.first_offset >= 0


cdef bint add_segment(const char *name, void *segments) noexcept nogil:
    """Count a segment; other names are ignored."""
    cdef Segments *found = <Segments *> segments
    if strlen(name) == SEGMENT_NAME and strspn(name, "0123456789abcdef") == 16 and not strcmp(name + 16, ".jnl"):
        found.count += 1
        if strcmp(name, found.last) > 0:
            strcpy(found.last, name)
    return True


cdef bint each_name(Journal *journal, const char *folder, bint (*see)(const char *, void *) noexcept nogil, void *to
                    ) noexcept nogil:
    """Call a function with each name in a directory; False if it returns False. A missing directory has no names."""
    cdef DIR *names = opendir(in_journal(journal, folder))
    cdef dirent *entry
    cdef bint more = True
    if names == NULL:
        return errno == ENOENT
    while more:
        sej_no_error()
        entry = readdir(names)
        if entry == NULL:
            more = errno == 0
            break
        if strcmp(entry.d_name, ".") and strcmp(entry.d_name, ".."):
            more = see(entry.d_name, to)
    closedir(names)
    return more


# --- the last segment


cdef bint is_opened(Journal *journal, Descriptor segment) noexcept nogil:
    """Open and lock the last segment."""
    cdef stat_t there
    segment._fd = c_open(in_journal(journal, journal.segment), O_RDWR | O_APPEND | O_NONBLOCK | O_CLOEXEC)
    if segment._fd < 0 or c_flock(segment._fd, LOCK_EX | LOCK_NB) or c_fstat(segment._fd, &there):
        return False
    journal.size, journal.inode = there.st_size, there.st_ino
    return S_ISREG(there.st_mode)


cdef bint is_indexed(Journal *journal, int segment) noexcept nogil:
    """Load the last entry of the index, if it is in order and describes the end of the segment."""
    cdef unsigned char data[FEW + 1]
    cdef unsigned char *last = data
    cdef Entry before
    cdef ssize_t size
    cdef int fd
    fd = c_open(in_journal(journal, journal.index), O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    if fd < 0:
        return False
    size = sej_pread(fd, data, FEW + 1, 0)
    if size > FEW:
        last = ends_of(fd, data, &journal.entries)
    elif size >= INDEX_HEAD + ENTRY:
        journal.entries = (size - INDEX_HEAD) // ENTRY
        last = data + INDEX_HEAD + (journal.entries - 1) * ENTRY
    else:
        last = NULL
    c_close(fd)
    if last == NULL or memcmp(data, INDEX_MAGIC, INDEX_HEAD):
        return False
    before.end = 0
    before.first_offset, before.messages = journal.first_offset, 0
    if journal.entries > 1 and not load(&before, last - ENTRY, fast_crc32c(last - ENTRY, ENTRY - 4, 0)):
        return False
    if not load(&journal.last, last, fast_crc32c(last, ENTRY - 4, 0)):
        return False
    return (
        journal.last.end == journal.size
        and journal.last.position == before.end
        and journal.last.first_offset == before.first_offset + before.messages
        and is_in_segment(segment, &journal.last)
    )


cdef unsigned char *ends_of(int fd, unsigned char *data, int64_t *entries) noexcept nogil:
    """Read the last two entries of a large index; return the last one, or NULL."""
    cdef stat_t there
    if c_fstat(fd, &there):
        return NULL
    entries[0] = (there.st_size - INDEX_HEAD) // ENTRY
    if not read_whole(fd, data + INDEX_HEAD, 2 * ENTRY, INDEX_HEAD + (entries[0] - 2) * ENTRY):
        return NULL
    return data + INDEX_HEAD + ENTRY


cdef bint is_durable(Journal *journal, int segment) noexcept nogil:
    """Return whether all bytes of the segment are on the medium, as its record says."""
    cdef unsigned char record[RECORD]
    cdef unsigned char head[SEGMENT_HEAD]
    cdef int64_t size = min(journal.size, <int64_t> SEGMENT_HEAD)
    if content(in_journal(journal, "idx/durable"), record, RECORD) != RECORD:
        return False
    if memcmp(record, RECORD_MAGIC, 8) or fast_crc32c(record, RECORD - 4, 0) != get32(record + RECORD - 4):
        return False
    if get64(record + 8) != <uint64_t> journal.first_offset or get64(record + 16) != journal.inode:
        return False
    if get64(record + 24) != <uint64_t> journal.size:
        return False
    if get64(record + 32) != <uint64_t> (journal.last.first_offset + journal.last.messages):
        return False
    journal.head = get32(record + 40)
    return read_whole(segment, head, size, 0) and fast_crc32c(head, size, 0) == journal.head


# --- closing


def record(Buffer buffer not None, str kept not None, uint64_t name, uint64_t inode, uint32_t head,
           str index not None, int64_t place, int64_t size, int64_t position, int64_t end, int64_t first_offset,
           uint32_t crc, first_timestamp, int64_t newest_timestamp):
    """Write the durable position of a segment that was just synced, and then the last entry of its index.

    Args:
        buffer: it has the bytes of the last block, or the rest of it.
        kept: the path of the durable position.
        name: the first offset of the segment.
        inode: of the segment.
        head: the checksum of its first bytes, of which it has enough.
        index: the path of the index.
        place: where the entry is written.
        size: the size that the index must have.
        position: where the block begins.
        end: where the part of the block that is not in the buffer ends.
        first_offset: of the block.
        crc: the checksum of the part that is not in the buffer.
        first_timestamp: the block's first timestamp; None: it is in the buffer.
        newest_timestamp: the newest one before the buffer.

    Returns:
        Whether both were written. If not, one may have been.
    """
    cdef unsigned char durable[RECORD]
    cdef unsigned char entry[ENTRY]
    cdef int64_t messages = buffer.offset - first_offset, first
    cdef bint written
    cdef bytes kept_path = encoded(kept), index_path = encoded(index)
    cdef const char *to_kept = kept_path
    cdef const char *to_index = index_path
    first = buffer.first_timestamp if first_timestamp is None else first_timestamp
    if not is_fast() or buffer._used == 0 or end + buffer._used != buffer.position or not 0 < messages <= UINT32_MAX:
        return False
    audit(kept, O_RDWR)
    audit(index, O_RDWR)
    with nogil:
        memcpy(durable, RECORD_MAGIC, 8)
        put64(durable + 8, name)
        put64(durable + 16, inode)
        put64(durable + 24, <uint64_t> buffer.position)
        put64(durable + 32, <uint64_t> buffer.offset)
        put32(durable + 40, head)
        put32(durable + RECORD - 4, fast_crc32c(durable, RECORD - 4, 0))
        put64(entry, <uint64_t> position)
        put64(entry + 8, <uint64_t> buffer.position)
        put64(entry + 16, <uint64_t> first_offset)
        put32(entry + 24, <uint32_t> messages)
        put32(entry + 28, fast_crc32c(buffer._data, buffer._used, crc))
        put64(entry + 32, <uint64_t> first)
        put64(entry + 40, <uint64_t> buffer.last_timestamp)
        put64(entry + 48, <uint64_t> max(newest_timestamp, buffer.newest_timestamp))
        put32(entry + 56, 0)
        put32(entry + ENTRY - 4, fast_crc32c(entry, ENTRY - 4, 0))
        written = (
            is_overwritten(to_kept, durable, RECORD, 0, -1) and is_overwritten(to_index, entry, ENTRY, place, size)
        )
    return written


cdef bint is_overwritten(const char *path, const void *data, size_t count, int64_t position, int64_t size
                         ) noexcept nogil:
    """Overwrite bytes of a regular file, if it has this size; -1: any size."""
    cdef stat_t found
    cdef int fd = c_open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)
    cdef bint written
    if fd < 0:
        return False
    written = (
        not c_fstat(fd, &found)
        and S_ISREG(found.st_mode)
        and (size == -1 or found.st_size == size)
        and c_pwrite(fd, data, count, position) == <ssize_t> count
    )
    return not c_close(fd) and written
