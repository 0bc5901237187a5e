"""The compiled checksum, for compiled modules that check bytes without the interpreter's lock."""

from libc.stdint cimport uint32_t

cdef bint is_fast() noexcept
cdef uint32_t fast_crc32c(const unsigned char *data, size_t size, uint32_t crc) noexcept nogil
