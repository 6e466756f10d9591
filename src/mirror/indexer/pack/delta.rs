//! Applies a delta: an object as copies of parts of its base, and new bytes (gitformat-pack(5), deltified
//! representation).

/// A delta with its sizes parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delta<'d> {
    /// The size of the base.
    base: u64,
    /// The size of the result.
    pub(super) result: u64,
    instructions: &'d [u8],
}

impl<'d> Delta<'d> {
    /// Parses the sizes. Returns `None` if they are malformed.
    pub(super) fn new(mut raw: &'d [u8]) -> Option<Self> {
        let base = read_size(&mut raw)?;
        let result = read_size(&mut raw)?;
        Some(Self { base, result, instructions: raw })
    }

    /// Appends the result to `into`, which must have room for it. Returns `None` if the base or the result has another
    /// size than the delta says, or an instruction is malformed.
    pub(super) fn apply(self, base: &[u8], into: &mut Vec<u8>) -> Option<()> {
        if base.len() as u64 != self.base {
            return None;
        }
        let mut left = usize::try_from(self.result).ok()?;
        let mut rest = self.instructions;
        while let Some(instruction) = read_byte(&mut rest) {
            let piece = if instruction & 0x80 == 0 {
                // Insert so many of the following bytes; 0 is reserved.
                let (piece, after) = rest.split_at_checked(instruction.into()).filter(|_| instruction > 0)?;
                rest = after;
                piece
            } else {
                // Copy from the base.
                let from = read_sparse(&mut rest, instruction, 4)?;
                let length = match read_sparse(&mut rest, instruction >> 4, 3)? {
                    0 => 0x10000,
                    length => length,
                };
                base.get(from..from.checked_add(length)?)?
            };
            left = left.checked_sub(piece.len())?;
            into.extend_from_slice(piece);
        }
        (left == 0).then_some(())
    }
}

fn read_byte(raw: &mut &[u8]) -> Option<u8> {
    let (first, rest) = raw.split_first()?;
    *raw = rest;
    Some(*first)
}

/// Reads a variable-length integer: seven bits a byte, the lowest first. Returns `None` if it is cut or overflows.
fn read_size(raw: &mut &[u8]) -> Option<u64> {
    let mut size = 0;
    let mut shift = 0;
    loop {
        let byte = read_byte(raw)?;
        let bits = u64::from(byte & 0x7f);
        if shift > 57 || bits << shift >> shift != bits {
            return None;
        }
        size |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(size);
        }
        shift += 7;
    }
}

/// Reads a little-endian number of so many bytes, of which only those with a bit in `which` are stored; the others are
/// zero.
fn read_sparse(raw: &mut &[u8], which: u8, bytes: u32) -> Option<usize> {
    let mut number = 0;
    for at in (0..bytes).filter(|at| which >> at & 1 != 0) {
        number |= usize::from(read_byte(raw)?) << (8 * at);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(base: &[u8], raw: &[u8]) -> Option<Vec<u8>> {
        let mut into = Vec::new();
        Delta::new(raw)?.apply(base, &mut into)?;
        Some(into)
    }

    #[test]
    fn a_delta_copies_and_inserts() {
        // Copies two bytes from offset 3, inserts "xy", copies all but the first byte of the base.
        assert_eq!(applied(b"abcdef", &[6, 9, 0x91, 3, 2, 2, b'x', b'y', 0x91, 1, 5]).unwrap(), b"dexybcdef");
        // A copy without a length copies 64 KiB.
        let base = vec![7; 0x10000];
        assert_eq!(applied(&base, &[0x80, 0x80, 4, 0x80, 0x80, 4, 0x80]).unwrap(), base);
        assert_eq!(applied(b"", &[0, 0]).unwrap(), b"");
    }

    #[test]
    fn a_malformed_delta_is_refused() {
        let wrong: [&[u8]; 9] = [
            &[],                          // no sizes
            &[6, 0x80],                   // a truncated size
            &[5, 2, 0x91, 0, 2],          // another base size
            &[6, 3, 0x91, 0, 2],          // a smaller result than stated
            &[6, 1, 0x91, 0, 2],          // a larger result than stated
            &[6, 2, 0x91, 5, 2],          // beyond the end of the base
            &[6, 2, 2, b'x'],             // a truncated insert
            &[6, 2, 0x91, 0, 2, 0],       // the reserved instruction
            &[6, 2, 0xff, 255, 255, 255], // a truncated copy
        ];
        for raw in wrong {
            assert_eq!(applied(b"abcdef", raw), None, "{raw:?}");
        }
    }
}
