//! Reproducible pseudo-random numbers.

/// A seeded generator (xorshift64*), with the same sequence on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number from 0 to `bound` exclusive.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Sleeps for a random time below this many milliseconds.
    pub fn pause(&mut self, most: usize) {
        std::thread::sleep(std::time::Duration::from_millis(self.below(most) as u64));
    }
}
