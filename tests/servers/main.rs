//! Servers that are down, broken or hostile, against the real binary: every attempt ends in time and in little memory,
//! with one clear line, and the old generation is served all the while.
//!
//! `cargo test --test servers -- --nocapture` prints the table: how long each attempt took and had, the memory of its
//! whole process tree, and what it said.
#![allow(missing_docs, unreachable_pub)]

mod answers;
mod attempt;
#[path = "../common/mod.rs"]
mod common;
mod credentials;
mod cuts;
mod endless;
mod packs;
mod port;
mod replies;
mod running;
mod silence;
mod transports;

use std::time::Duration;

use attempt::{Case, Place};
use common::http_backend::{HttpBackend, Kind};
use port::{Behaviour, Port, Relay};

const SECOND: Duration = Duration::from_secs(1);
/// A ref's tip that nobody has.
const NOBODY: &str = "1234567890123456789012345678901234567890";

/// The time limits of an attempt.
#[derive(Clone, Copy)]
enum Limits {
    /// Short enough to wait for: one of them may be what ends the attempt.
    Short,
    /// So long that something else must end it, on a machine that is busy with others.
    Long,
}

impl Limits {
    /// The flags, and these others, which may set some of the same.
    fn flags(self, more: &[&str]) -> Vec<String> {
        let set = |flag: &str| more.iter().any(|other| other.split('=').next() == flag.split('=').next());
        let flags = match self {
            Self::Short => ["--connect-timeout=1s", "--idle-timeout=1s", "--sync-timeout=3s"],
            Self::Long => ["--connect-timeout=60s", "--idle-timeout=60s", "--sync-timeout=60s"],
        };
        flags.iter().filter(|flag| !set(flag)).chain(more).map(|flag| (*flag).to_owned()).collect()
    }
}

/// A place whose first generation came through a port, behind which everything can change.
struct Stage {
    place: Place,
    good: HttpBackend,
    port: Port,
    rows: Vec<String>,
}

impl Stage {
    fn new() -> Self {
        let place = Place::new();
        let good = HttpBackend::start(place.world.dir(), Kind::default());
        let port = Port::open(Relay::all(good.address).behaviour());
        let stage = Self { place, good, port, rows: Vec::new() };
        stage.place.publish(&stage.url(), &[]);
        stage.place.advance(&Place::newer_files());
        stage
    }

    fn url(&self) -> String {
        format!("http://{}/remote", self.port.address)
    }

    /// One attempt, with whatever the port does now.
    #[track_caller]
    fn attempt(&mut self, name: &str, deadline: u32, limits: Limits, more: &[&str], words: &[&str]) {
        let (url, flags) = (self.url(), limits.flags(more));
        let case = Case { name, url, flags, deadline: deadline * SECOND, words };
        self.rows.push(self.place.fails(&case));
    }

    /// One attempt against this behaviour.
    #[track_caller]
    fn against(&mut self, name: &str, behaviour: Behaviour, deadline: u32, limits: Limits, words: &[&str]) {
        self.port.behave(behaviour);
        self.attempt(name, deadline, limits, &[], words);
    }

    /// The good server again: nothing that happened may stand in its way.
    #[track_caller]
    fn recovers(&mut self) {
        self.port.behave(Relay::all(self.good.address).behaviour());
        self.place.recovers(&self.url(), &[]);
        print(&self.rows);
    }
}

fn print(rows: &[String]) {
    println!("\n{}", rows.join("\n"));
}
