//! C's `memcpy`, `memmove` and `memcmp` for x86-64. musl copies with `rep movsq`, whose start-up takes longer than most
//! copies, and compares byte by byte; both functions are called for every name, path and object id.
//!
//! Up to 128 bytes are loaded completely before any is stored, in pieces that overlap in the middle: the same code
//! serves every length of a size class, and source and destination that overlap. Every x86-64 processor has SSE2.
#![expect(unsafe_code, reason = "functions of C, which take pointers")]

use core::arch::asm;
use core::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_storeu_si128};
use core::cmp::Ordering;

/// Size of an SSE2 vector in bytes.
const VECTOR: usize = 16;

/// Bytes copied by one iteration of a copy loop.
const BLOCK: usize = 64;

/// Copies of up to this many bytes use no loop.
const SHORT: usize = 128;

/// Copies between ranges that do not overlap.
///
/// # Safety
///
/// `from` is valid for reads of `bytes`, `to` for writes of as many.
#[cfg_attr(not(test), unsafe(export_name = "memcpy"))]
pub(super) unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: as promised by the caller.
    unsafe { if bytes <= SHORT { copy_short(to, from, bytes) } else { copy_forwards(to, from, bytes) } }
    to
}

/// Copies between ranges that may overlap.
///
/// # Safety
///
/// As [`copy`]'s.
#[cfg_attr(not(test), unsafe(export_name = "memmove"))]
pub(super) unsafe extern "C" fn copy_overlapping(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: as promised by the caller.
    unsafe {
        if bytes <= SHORT {
            copy_short(to, from, bytes);
        } else if (to as usize).wrapping_sub(from as usize) >= bytes {
            copy_forwards(to, from, bytes); // the destination begins before the source, or at or after its end
        } else {
            copy_backwards(to, from, bytes);
        }
    }
    to
}

/// Compares two ranges as unsigned bytes. Returns a number less than, equal to or greater than 0.
///
/// # Safety
///
/// Both pointers are valid for reads of `bytes`.
#[cfg_attr(not(test), unsafe(export_name = "memcmp"))]
pub(super) unsafe extern "C" fn compare(left: *const u8, right: *const u8, bytes: usize) -> i32 {
    // SAFETY: each read is within `bytes` of both ranges.
    let order = unsafe {
        match bytes {
            0 => Ordering::Equal,
            1..4 => {
                let number = |from: *const u8| {
                    [0, bytes / 2, bytes - 1].iter().fold(0, |sum, at| sum << 8 | u32::from(*from.add(*at)))
                };
                number(left).cmp(&number(right))
            }
            4..8 => {
                let number =
                    |from: *const u8, at: usize| u32::from_be(from.add(at).cast::<u32>().read_unaligned());
                let last = bytes - 4;
                (number(left, 0), number(left, last)).cmp(&(number(right, 0), number(right, last)))
            }
            8..VECTOR => {
                let number =
                    |from: *const u8, at: usize| u64::from_be(from.add(at).cast::<u64>().read_unaligned());
                let last = bytes - 8;
                (number(left, 0), number(left, last)).cmp(&(number(right, 0), number(right, last)))
            }
            _ => compare_vectors(left, right, bytes),
        }
    };
    order as i32
}

/// Compares 16 bytes at a time; the last vector may overlap the one before it.
///
/// # Safety
///
/// As [`compare`]'s; `bytes` is at least [`VECTOR`].
unsafe fn compare_vectors(left: *const u8, right: *const u8, bytes: usize) -> Ordering {
    let last = bytes - VECTOR;
    let mut at = 0;
    loop {
        // SAFETY: `at` is at most `last`, so a whole vector can be read; the first byte that differs is inside it.
        unsafe {
            let equal = _mm_cmpeq_epi8(load(left.add(at)), load(right.add(at)));
            let differs = !_mm_movemask_epi8(equal) & 0xffff;
            if differs != 0 {
                let at = at + differs.trailing_zeros() as usize;
                return (*left.add(at)).cmp(&*right.add(at));
            }
        }
        if at == last {
            return Ordering::Equal;
        }
        at = last.min(at + VECTOR);
    }
}

/// Loads a vector from an unaligned address.
///
/// # Safety
///
/// `from` is valid for reads of [`VECTOR`] bytes.
#[inline(always)]
unsafe fn load(from: *const u8) -> __m128i {
    // SAFETY: as promised by the caller.
    unsafe { _mm_loadu_si128(from.cast()) }
}

/// Stores a vector to an unaligned address.
///
/// # Safety
///
/// `to` is valid for writes of [`VECTOR`] bytes.
#[inline(always)]
unsafe fn store(to: *mut u8, vector: __m128i) {
    // SAFETY: as promised by the caller.
    unsafe { _mm_storeu_si128(to.cast(), vector) }
}

/// Copies at most [`SHORT`] bytes; everything is loaded before anything is stored.
///
/// # Safety
///
/// As [`copy`]'s; the ranges may overlap.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, bytes: usize) {
    /// Copies the first and the last integer of this type; they overlap if `bytes` is less than twice its size.
    macro_rules! ends {
        ($number:ty) => {{
            let last = bytes - size_of::<$number>();
            let first_one = from.cast::<$number>().read_unaligned();
            let last_one = from.add(last).cast::<$number>().read_unaligned();
            to.cast::<$number>().write_unaligned(first_one);
            to.add(last).cast::<$number>().write_unaligned(last_one);
        }};
    }
    // SAFETY: each arm accesses at most the smallest length of its range from either end.
    unsafe {
        match bytes {
            0 => {}
            1 => *to = *from,
            2..4 => ends!(u16),
            4..8 => ends!(u32),
            8..VECTOR => ends!(u64),
            VECTOR..=32 => {
                let first = load(from);
                let last = load(from.add(bytes - VECTOR));
                store(to, first);
                store(to.add(bytes - VECTOR), last);
            }
            33..=64 => {
                let rest = bytes - 2 * VECTOR;
                let first = (load(from), load(from.add(VECTOR)));
                let last = (load(from.add(rest)), load(from.add(rest + VECTOR)));
                store(to, first.0);
                store(to.add(VECTOR), first.1);
                store(to.add(rest), last.0);
                store(to.add(rest + VECTOR), last.1);
            }
            _ => {
                let first = load_block(from);
                let last = load_block(from.add(bytes - BLOCK));
                store_block(to, first);
                store_block(to.add(bytes - BLOCK), last);
            }
        }
    }
}

/// Copies in ascending order.
///
/// # Safety
///
/// As [`copy`]'s; `bytes` is greater than [`BLOCK`], and if the ranges overlap, `to` is the lower address.
unsafe fn copy_forwards(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: an iteration begins only where a whole block is left. The last block was loaded before the iterations
    // could have overwritten it.
    unsafe {
        let rest = bytes - BLOCK;
        let last = load_block(from.add(rest));
        let mut at = 0;
        while at < rest {
            let vectors = load_block(from.add(at));
            // Keeps the compiler from recognizing the loop and replacing it by a call of memmove, which is this
            // function.
            asm!("", options(nostack, preserves_flags));
            store_block(to.add(at), vectors);
            at += BLOCK;
        }
        store_block(to.add(rest), last);
    }
}

/// Copies in descending order.
///
/// # Safety
///
/// As [`copy`]'s; `bytes` is greater than [`BLOCK`], and if the ranges overlap, `to` is the higher address.
unsafe fn copy_backwards(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: as in `copy_forwards`, in descending order.
    unsafe {
        let first = load_block(from);
        let mut left = bytes;
        while left > BLOCK {
            left -= BLOCK;
            let vectors = load_block(from.add(left));
            asm!("", options(nostack, preserves_flags)); // as above
            store_block(to.add(left), vectors);
        }
        store_block(to, first);
    }
}

/// Loads a block of [`BLOCK`] bytes.
///
/// # Safety
///
/// `from` is valid for reads of [`BLOCK`] bytes.
#[inline(always)]
unsafe fn load_block(from: *const u8) -> [__m128i; BLOCK / VECTOR] {
    // SAFETY: as promised by the caller.
    unsafe { [load(from), load(from.add(16)), load(from.add(32)), load(from.add(48))] }
}

/// Stores a block of [`BLOCK`] bytes.
///
/// # Safety
///
/// `to` is valid for writes of [`BLOCK`] bytes.
#[inline(always)]
unsafe fn store_block(to: *mut u8, vectors: [__m128i; BLOCK / VECTOR]) {
    // SAFETY: as promised by the caller.
    unsafe {
        store(to, vectors[0]);
        store(to.add(16), vectors[1]);
        store(to.add(32), vectors[2]);
        store(to.add(48), vectors[3]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers every size class, and several iterations of the loops with every remainder.
    const MOST: usize = 300;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 167 + at / 256) as u8).collect()
    }

    #[test]
    fn copies_what_the_standard_library_copies_and_no_byte_more() {
        for length in 0..MOST {
            for offset in [0, 1, 7, 15] {
                let from = bytes(MOST + 64);
                let mut to = vec![0xee; MOST + 64];
                let mut right = to.clone();
                right[offset..offset + length].copy_from_slice(&from[3..3 + length]);
                // SAFETY: both have the room.
                let end = unsafe { copy(to[offset..].as_mut_ptr(), from[3..].as_ptr(), length) };
                assert_eq!(to, right, "{length} bytes to {offset}");
                assert_eq!(end.cast_const(), to[offset..].as_ptr());
            }
        }
    }

    /// A page of memory between two inaccessible pages: an access outside of it ends the process.
    struct Guarded {
        pages: *mut u8,
    }

    const PAGE: usize = 4096;

    impl Guarded {
        fn new() -> Self {
            let (none, all) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: new memory of three pages, of which the middle one is used.
            unsafe {
                let (flags, null) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, std::ptr::null_mut());
                let pages = libc::mmap(null, 3 * PAGE, none, flags, -1, 0).cast::<u8>();
                assert_eq!(libc::mprotect(pages.add(PAGE).cast(), PAGE, all), 0);
                pages.add(PAGE).write_bytes(7, PAGE);
                Self { pages }
            }
        }

        /// The first and the last so many bytes.
        fn ends(&self, bytes: usize) -> [*mut u8; 2] {
            // SAFETY: within the pages.
            unsafe { [self.pages.add(PAGE), self.pages.add(2 * PAGE - bytes)] }
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: mapped by this, and nothing is used any more.
            unsafe { libc::munmap(self.pages.cast(), 3 * PAGE) };
        }
    }

    #[test]
    fn not_a_byte_beside_the_ranges_is_touched() {
        let (left, right) = (Guarded::new(), Guarded::new());
        for length in 0..MOST {
            for from in left.ends(length) {
                for to in right.ends(length) {
                    // SAFETY: both have the room.
                    unsafe {
                        copy(to, from, length);
                        copy_overlapping(to, from, length);
                        copy_overlapping(from, from, length);
                        assert_eq!(compare(to, from, length), 0);
                    }
                }
            }
        }
    }

    #[test]
    fn copies_ranges_that_overlap_in_any_way() {
        for length in 0..MOST {
            for to in (0..length + 2).chain([MOST]) {
                for from in [0, length / 3, length + 1] {
                    let mut moved = bytes(3 * MOST);
                    let mut right = moved.clone();
                    right.copy_within(from..from + length, to);
                    let start = moved.as_mut_ptr();
                    // SAFETY: both are within three times the most.
                    unsafe { copy_overlapping(start.add(to), start.add(from), length) };
                    assert!(moved == right, "{length} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn compares_as_the_standard_library_does() {
        // SAFETY: both slices have `left.len()` bytes.
        let order = |left: &[u8], right: &[u8]| unsafe { compare(left.as_ptr(), right.as_ptr(), left.len()) };
        for length in 0..MOST {
            let left = bytes(length);
            assert_eq!(order(&left, &left.clone()), 0, "{length} equal bytes");
            for at in 0..length {
                let mut right = left.clone();
                // Bytes after the first difference do not count, and bytes are compared as unsigned.
                right[at] = right[at].wrapping_add(128);
                right.iter_mut().skip(at + 1).for_each(|byte| *byte = !*byte);
                let wanted = left.cmp(&right) as i32;
                assert_eq!(
                    order(&left, &right).signum(),
                    wanted,
                    "{length} bytes, the first other one at {at}"
                );
                assert_eq!(order(&right, &left).signum(), -wanted);
            }
        }
    }
}
