//! Numbers by chance, the same each time.

/// A generator of numbers that is the same everywhere (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// A pause of some milliseconds up to this many.
    pub fn pause(&mut self, most: usize) {
        std::thread::sleep(std::time::Duration::from_millis(self.below(most) as u64));
    }
}
