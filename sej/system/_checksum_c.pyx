# cython: language_level=3
"""CRC32C by AVX-512's carry-less multiplication and the CRC instruction side by side, or by that instruction alone.

With both this is three times as fast as the library; that difference decides what checksums cost a writer. With the
instruction alone it is as fast as the library, and no import is needed, which takes longer than most short commands.
Other processors use the library, except for a few bytes.
Source of the folding: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009).
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

import sys

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9))
    #include <immintrin.h>
    #include <string.h>

    #define SEJ_WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))
    #define SEJ_NARROW __attribute__((target("pclmul,sse4.2")))
    enum {
        WIDE = 256,             /* bytes of a round that are folded, 64 by each of four vectors */
        NARROW = 40,            /* and by each of three scalar streams: what fits beside the multiplications */
        ROUND = WIDE + 3 * NARROW,
        MOST = 1 << 14,         /* rounds in one go */
    };
    static uint64_t sej_fold_low, sej_fold_high, sej_shift[15];

    /* x^n modulo the polynomial; numbers are bit-reflected, so that x^0 is the highest bit. */
    static uint64_t sej_power(int n) {
        uint32_t power = 0x80000000u;
        while (n-- > 0)
            power = power & 1 ? power >> 1 ^ 0x82f63b78u : power >> 1;
        return power;
    }

    /* a b x^33: the product of two reflected numbers is one bit short, its reduction moves it 32. */
    SEJ_NARROW static inline uint64_t sej_product(uint64_t a, uint64_t b) {
        const __m128i wide = _mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0);
        return _mm_crc32_u64(0, _mm_cvtsi128_si64(wide));
    }

    SEJ_NARROW static void sej_crc_constants(void) {
        sej_fold_low = sej_power(8 * WIDE + 32) << 1;
        sej_fold_high = sej_power(8 * WIDE - 32) << 1;
        sej_shift[0] = sej_power(8 * NARROW - 33);  /* then doubled: 2, 4, 8 ... times NARROW bytes */
        for (int i = 1; i < 15; i++)
            sej_shift[i] = sej_product(sej_shift[i - 1], sej_shift[i - 1]);
    }

    static int sej_wide;

    static int sej_crc_fast(void) {
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2")))
            return 0;
        sej_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
        sej_crc_constants();
        return 1;
    }

    static inline uint64_t sej_word(const unsigned char *p) { uint64_t word; memcpy(&word, p, 8); return word; }

    #define SEJ_FOLD(vector, data) _mm512_ternarylogic_epi64( \\
        _mm512_clmulepi64_epi128(vector, by, 0x00), _mm512_clmulepi64_epi128(vector, by, 0x11), \\
        _mm512_loadu_si512(data), 0x96)

    /* x^(8 NARROW rounds - 33): what sej_product() moves a checksum by, over a stream of so many rounds. */
    SEJ_NARROW static uint64_t sej_over(size_t rounds) {
        uint64_t shift = 0;
        for (int i = 0; rounds >> i; i++)
            if (rounds >> i & 1)
                shift = shift ? sej_product(shift, sej_shift[i]) : sej_shift[i];
        return shift;
    }

    /* The state after so many rounds' worth of bytes: three streams. */
    SEJ_NARROW static uint64_t sej_crc_streams(const unsigned char *p, size_t rounds, uint64_t crc) {
        const size_t stream = NARROW * rounds;
        const uint64_t shift = sej_over(rounds);
        uint64_t second = 0, third = 0;
        for (const unsigned char *end = p + stream; p < end; p += 8) {
            crc = _mm_crc32_u64(crc, sej_word(p));
            second = _mm_crc32_u64(second, sej_word(p + stream));
            third = _mm_crc32_u64(third, sej_word(p + 2 * stream));
        }
        crc = sej_product(crc, shift) ^ second;
        return sej_product(crc, shift) ^ third;
    }

    /* The state after so many rounds' worth of bytes: first the folded part, behind it the three streams. */
    SEJ_WIDE static uint64_t sej_crc_rounds(const unsigned char *p, size_t rounds, uint64_t crc) {
        const __m512i by = _mm512_set_epi64(sej_fold_high, sej_fold_low, sej_fold_high, sej_fold_low,
                                            sej_fold_high, sej_fold_low, sej_fold_high, sej_fold_low);
        const unsigned char *q = p + WIDE * rounds;
        const size_t stream = NARROW * rounds;
        const uint64_t shift = sej_over(rounds);
        uint64_t folded[WIDE / 8], first = 0, second = 0, third = 0;
        __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, crc));
        __m512i b = _mm512_loadu_si512(p + 64);
        __m512i c = _mm512_loadu_si512(p + 128);
        __m512i d = _mm512_loadu_si512(p + 192);
        for (size_t left = rounds; left--; q += NARROW) {
            if (left) {
                p += WIDE;
                a = SEJ_FOLD(a, p);
                b = SEJ_FOLD(b, p + 64);
                c = SEJ_FOLD(c, p + 128);
                d = SEJ_FOLD(d, p + 192);
            }
            for (int i = 0; i < NARROW; i += 8) {
                first = _mm_crc32_u64(first, sej_word(q + i));
                second = _mm_crc32_u64(second, sej_word(q + stream + i));
                third = _mm_crc32_u64(third, sej_word(q + 2 * stream + i));
            }
        }
        _mm512_storeu_si512(folded, a);
        _mm512_storeu_si512(folded + 8, b);
        _mm512_storeu_si512(folded + 16, c);
        _mm512_storeu_si512(folded + 24, d);
        crc = 0;
        for (int i = 0; i < WIDE / 8; i++)
            crc = _mm_crc32_u64(crc, folded[i]);
        crc = sej_product(crc, shift) ^ first;
        crc = sej_product(crc, shift) ^ second;
        return sej_product(crc, shift) ^ third;
    }

    SEJ_NARROW static uint32_t sej_crc(const unsigned char *p, size_t size, uint32_t before) {
        const size_t round = sej_wide ? ROUND : 3 * NARROW;
        uint64_t crc = before ^ 0xffffffffu;
        for (; size && (uintptr_t)p & 63; p++, size--)  /* a load across two cache lines counts twice */
            crc = _mm_crc32_u8((uint32_t)crc, *p);
        while (size >= 4 * round) {
            const size_t rounds = size / round < MOST ? size / round : MOST;
            crc = sej_wide ? sej_crc_rounds(p, rounds, crc) : sej_crc_streams(p, rounds, crc);
            p += rounds * round;
            size -= rounds * round;
        }
        for (; size >= 8; p += 8, size -= 8)
            crc = _mm_crc32_u64(crc, sej_word(p));
        for (; size; p++, size--)
            crc = _mm_crc32_u8((uint32_t)crc, *p);
        return (uint32_t)crc ^ 0xffffffffu;
    }
    #else
    static int sej_crc_fast(void) { return 0; }
    static uint32_t sej_crc(const unsigned char *p, size_t size, uint32_t before) { return 0; }
    #endif

    /* Byte by byte, on any processor. */
    static uint32_t sej_crc_small(const unsigned char *p, size_t size, uint32_t before) {
        static uint32_t table[256];
        uint32_t crc = before ^ 0xffffffffu;
        if (!table[1])
            for (uint32_t n = 256; n--;) {  /* table[1] last: it says that the table is made */
                uint32_t row = n;
                for (int bit = 0; bit < 8; bit++)
                    row = row & 1 ? row >> 1 ^ 0x82f63b78u : row >> 1;
                if (n != 1)
                    table[n] = row;
            }
        if (!table[1])
            table[1] = 0xf26b8303u;
        for (; size; p++, size--)
            crc = crc >> 8 ^ table[(crc ^ *p) & 0xff];
        return crc ^ 0xffffffffu;
    }
    """
    bint sej_crc_fast()
    uint32_t sej_crc(const unsigned char *p, size_t size, uint32_t before) noexcept nogil
    uint32_t sej_crc_small(const unsigned char *p, size_t size, uint32_t before)

cdef bint FAST = sej_crc_fast()
cdef object library = None  # its function: at the interpreter's end a module cannot be imported, not even again
cdef enum:
    SMALL = 256
    LARGE = 1 << 16  # takes longer than releasing the interpreter's lock


cdef bint is_fast() noexcept:
    """Return whether :func:`fast_crc32c` may be called on this processor."""
    return FAST


cdef uint32_t fast_crc32c(const unsigned char *data, size_t size, uint32_t crc) noexcept nogil:
    """Return the checksum of what crc stands for, followed by data."""
    return sej_crc(data, size, crc)


def crc32c(data, uint32_t crc=0):
    """The checksum of what crc stands for, followed by data; the library computes what is not fast here, nor small."""
    global library
    cdef Py_buffer raw
    PyObject_GetBuffer(data, &raw, PyBUF_CONTIG_RO)
    try:
        if FAST and raw.len >= LARGE:
            with nogil:
                crc = sej_crc(<const unsigned char *> raw.buf, raw.len, crc)
            return crc
        if FAST:
            return sej_crc(<const unsigned char *> raw.buf, raw.len, crc)
        if raw.len <= SMALL or library is None and sys.is_finalizing():
            return sej_crc_small(<const unsigned char *> raw.buf, raw.len, crc)
    finally:
        PyBuffer_Release(&raw)
    if library is None:
        import crc32c as package
        library = package.crc32c
    return library(data, crc)
