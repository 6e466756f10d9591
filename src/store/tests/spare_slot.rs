//! The spare's slot and the journal when they are in use, in doubt or full.

use super::recycle::{a_tick, reap};
use super::share::{content, doubt, published};
use super::*;

#[test]
fn deletions_of_what_an_earlier_process_linked_are_ours_whatever_the_spare_is_now() {
    for spare in [Spare::Copy, Spare::Recycle, Spare::Off] {
        let world = World::new();
        drop(published(&world, 3));
        let mut store = Store::open(Options { spare, ..world.options() }).unwrap().0;
        assert_eq!(store.verify(&of(&content(3)), &go()).unwrap(), [""; 0]);
        a_tick();
        assert_eq!(reap(&mut store), 2);
        store.wait_for_deletions(&go());
        assert_eq!(doubt(&mut store), None, "{spare:?}");
    }
}
