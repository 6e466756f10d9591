//! Several sources (`--sources`) under remotes that push, hang, die and refuse at random, from outside: what pinned readers
//! see, what becomes of two refs that move together, and what a sick remote costs the healthy ones.
//!
//! `cargo test` runs a sample; with `TREESWAP_TESTS=full` the numbers are those of `tests/nightly adversary`. Whatever is
//! random comes from a seed. Figures go to standard output, a line each.
#![allow(unreachable_pub, missing_docs)] // a test binary exports nothing

#[path = "../common/mod.rs"]
mod common;
mod pool;
#[allow(dead_code)] // it has more than is needed here
#[path = "../servers/port.rs"]
mod port;
mod readers;
mod remotes;
mod sick;
mod together;

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
