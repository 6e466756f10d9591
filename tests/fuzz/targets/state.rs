//! The state file of a root, as it is found there.

use super::state::{Loaded, State};
use crate::fsx::Flush;
use crate::fuzz::{Scratch, Target};
use crate::store::names::STATE;

pub(crate) const TARGETS: &[Target] = &[Target::new("states", states)];

/// A state that is understood is written as it was read, and what is left of it after a cut is not understood.
fn states(data: &[u8]) {
    Scratch::with(|path| {
        let dir = std::fs::File::open(path).unwrap().into();
        std::fs::write(path.join(STATE), data).unwrap();
        let load = || State::load(&dir).unwrap();
        let state = match load() {
            Loaded::Known(state) => state,
            Loaded::Absent => panic!("the file is there"),
            Loaded::Damaged(why) => return assert!(!why.is_empty()),
        };
        state.save(&dir, Flush::Lazy).unwrap();
        let Loaded::Known(again) = load() else { panic!("what was written is not understood") };
        assert_eq!(again, state);
        for record in &state.generations {
            assert!(record.name.relative_path().is_relative() && state.record(&record.name).is_some());
        }
        let mut ordered = State::default();
        state.generations.iter().for_each(|record| ordered.put(record.clone()));
        assert!(
            ordered.generations.windows(2).all(|pair| pair[0].order() >= pair[1].order()),
            "newest first"
        );
        let written = std::fs::read(path.join(STATE)).unwrap();
        let cut =
            data.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)) % written.len();
        std::fs::write(path.join(STATE), &written[..cut]).unwrap();
        assert!(matches!(load(), Loaded::Damaged(_)), "torn at {cut}, and understood");
    });
}
