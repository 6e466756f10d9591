//! Inflates zlib streams (RFC 1950) that are in memory as a whole, with libdeflate: it takes about 0.6 of the time that
//! zlib-rs and zlib-ng take for the short streams of a pack, because it keeps no state between calls.

use std::ptr::NonNull;

use libdeflate_sys as ffi;

/// A decompressor of libdeflate. `None` if there was no memory for it; then nothing is inflated, and the caller uses zlib.
pub(super) struct WholeStream(Option<NonNull<ffi::libdeflate_decompressor>>);

impl WholeStream {
    #[expect(unsafe_code, reason = "libdeflate has no safe interface that returns the length of a stream")]
    pub(super) fn new() -> Self {
        // SAFETY: it has no preconditions; it returns null if memory is short.
        Self(NonNull::new(unsafe { ffi::libdeflate_alloc_decompressor() }))
    }

    /// Inflates the stream at the start of `deflated`, which must have `size` bytes of content, and appends it to
    /// `into`. Returns the stream's length in bytes. `None`, and `into` is unchanged, if `into` has no room, the stream
    /// does not end within `deflated`, has another size, or is malformed.
    #[expect(unsafe_code, reason = "see `new`")]
    pub(super) fn inflate(&mut self, deflated: &[u8], size: usize, into: &mut Vec<u8>) -> Option<usize> {
        let room = into.spare_capacity_mut().get_mut(..size)?;
        let mut used = 0;
        // SAFETY: the decompressor was allocated by libdeflate and is borrowed mutably. Both buffers are valid for their
        // lengths. Without a pointer for the number of bytes written, success means that exactly `size` were.
        let result = unsafe {
            ffi::libdeflate_zlib_decompress_ex(
                self.0?.as_ptr(),
                deflated.as_ptr().cast(),
                deflated.len(),
                room.as_mut_ptr().cast(),
                size,
                &raw mut used,
                std::ptr::null_mut(),
            )
        };
        if result != ffi::libdeflate_result_LIBDEFLATE_SUCCESS {
            return None;
        }
        // SAFETY: the capacity suffices, and these bytes were written just now.
        unsafe { into.set_len(into.len() + size) };
        Some(used)
    }
}

impl Drop for WholeStream {
    #[expect(unsafe_code, reason = "see `new`")]
    fn drop(&mut self) {
        if let Some(decompressor) = self.0 {
            // SAFETY: allocated by libdeflate, and not used any more.
            unsafe { ffi::libdeflate_free_decompressor(decompressor.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn deflated(content: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        to.write_all(content).unwrap();
        to.finish().unwrap()
    }

    #[test]
    fn a_stream_is_inflated_if_it_is_whole_and_has_the_size() {
        let content: Vec<u8> = (0..5_000_u32).flat_map(u32::to_le_bytes).collect();
        let stream = deflated(&content);
        let followed = [&stream[..], b"the next entry"].concat();
        let inflate = |deflated: &[u8], size: usize, room: usize| {
            let mut into = Vec::with_capacity(room + 1);
            into.push(7);
            let used = WholeStream::new().inflate(deflated, size, &mut into);
            assert!(used.is_some() || into == [7], "something was appended");
            used.map(|used| (used, into.split_off(1)))
        };
        assert_eq!(inflate(&followed, content.len(), content.len()), Some((stream.len(), content.clone())));
        assert_eq!(inflate(&deflated(b""), 0, 0), Some((deflated(b"").len(), Vec::new())));
        for size in [0, content.len() - 1, content.len() + 1] {
            assert_eq!(inflate(&followed, size, size), None, "{size} bytes");
        }
        for end in [0, 1, stream.len() / 2, stream.len() - 1] {
            assert_eq!(
                inflate(&stream[..end], content.len(), content.len()),
                None,
                "{end} bytes of the stream"
            );
        }
        let mut damaged = stream.clone();
        damaged[stream.len() / 2] ^= 0x10;
        assert_eq!(inflate(&damaged, content.len(), content.len()), None);
        assert_eq!(inflate(&stream, content.len(), content.len() / 2), None, "there is no room");
    }
}
