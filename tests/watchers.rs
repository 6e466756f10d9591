//! What a watcher on the directory sees: exactly one event named `..data` per publication, with everything in place
//! when it comes, and nothing at all while nothing changes.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use common::{Files, Sidecar, World, eventually, full, root};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// One event: what, and the name.
type Event = (ReadFlags, String);

struct Watch(OwnedFd);

impl Watch {
    /// Everything but looking.
    fn on(dir: &Path) -> Self {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let all = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        inotify::add_watch(&fd, dir, all).unwrap();
        Self(fd)
    }

    /// What came since the last time.
    fn events(&self) -> Vec<Event> {
        let mut buffer = [MaybeUninit::uninit(); 65536];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            events.push((event.events(), name));
        }
        events
    }
}

/// What somebody sees who lists the directory: visible names, each with what reading it through its link gives.
fn listing(root: &Path) -> BTreeSet<(String, String)> {
    root::names(root)
        .iter()
        .filter(|name| !name.starts_with(b".."))
        .map(|name| {
            let path = root.join(OsStr::from_bytes(name));
            let content =
                std::fs::read_to_string(&path).unwrap_or_else(|error| format!("unreadable: {error}"));
            (String::from_utf8_lossy(name).into_owned(), content)
        })
        .collect()
}

/// Revision `n` of a tree whose names come and go.
fn revision(n: usize) -> (Files, BTreeSet<(String, String)>) {
    let mut files = Files::new().file("below/it", format!("{n}"));
    let mut names = vec!["always".to_owned(), format!("only-{n}")];
    names.extend((0..8).filter(|bit| n >> bit & 1 == 1).map(|bit| format!("bit-{bit}")));
    let mut visible = BTreeSet::from([("below".to_owned(), String::new())]);
    for name in names {
        files = files.file(name.clone(), format!("{name} {n}"));
        let content = format!("{name} {n}");
        visible.insert((name, content));
    }
    (files, visible)
}

/// The same, with what a directory says when it is read as a file made equal.
fn comparable(mut listing: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    listing.retain(|(name, _)| name != "below");
    listing.insert(("below".to_owned(), String::new()));
    listing
}

#[test]
fn one_event_per_publication_and_everything_is_in_place_when_it_comes() {
    let world = World::new();
    world.remote.commit(&revision(0).0);
    let sidecar = Sidecar::start(&world, &["--grace=100ms"]);
    eventually(30, "the first publication", || root::current(&world.root).ok().flatten());
    // The links' last change follows the event of the first publication; nothing is listened to until it is over.
    sidecar.idle(5);
    let watch = Watch::on(&world.root);
    let publications = if full() { 500 } else { 60 };
    for n in 1..=publications {
        let (files, expected) = revision(n);
        world.remote.commit(&files);
        let mut events: Vec<Event> = Vec::new();
        let is_swap = |event: &Event| event.1 == "..data" && event.0.contains(ReadFlags::MOVED_TO);
        eventually(30, "the event of the publication", || {
            events.extend(watch.events());
            events.iter().any(is_swap).then_some(())
        });
        let seen = comparable(listing(&world.root));
        assert_eq!(seen, expected, "what is listed at the event of publication {n}");
        let cycles = if n % 10 == 0 { 15 } else { 2 };
        sidecar.idle(cycles);
        events.extend(watch.events());
        judge(n, &events, &revision(n - 1).1, &expected);
    }
}

/// The whole sequence of one publication.
#[track_caller]
fn judge(
    n: usize,
    events: &[Event],
    before: &BTreeSet<(String, String)>,
    after: &BTreeSet<(String, String)>,
) {
    let names = |listing: &BTreeSet<(String, String)>| -> BTreeSet<String> {
        listing.iter().map(|(name, _)| name.clone()).collect()
    };
    let (before, after) = (names(before), names(after));
    let named_data: Vec<&Event> = events.iter().filter(|(_, name)| name == "..data").collect();
    assert!(
        matches!(named_data[..], [(flags, _)] if *flags == ReadFlags::MOVED_TO),
        "publication {n}: events named ..data: {named_data:?}"
    );
    let swap = events.iter().position(|(_, name)| name == "..data").unwrap();
    for (at, (flags, name)) in events.iter().enumerate() {
        assert!(!flags.contains(ReadFlags::ATTRIB), "publication {n}: {name} had its attributes changed");
        if name.starts_with("..") {
            continue;
        }
        // A name that consumers see: made or removed before the swap; a new one may be pointed elsewhere after it.
        let (added, removed) =
            (after.contains(name) && !before.contains(name), before.contains(name) && !after.contains(name));
        let allowed = (removed && at < swap && *flags == ReadFlags::DELETE)
            || (added && at < swap && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO))
            || (added && at > swap && *flags == ReadFlags::MOVED_TO);
        assert!(
            allowed,
            "publication {n}: {flags:?} of {name}, {}",
            if at < swap { "before the swap" } else { "after the swap" }
        );
    }
}

#[test]
fn nothing_at_all_happens_while_nothing_changes() {
    let world = World::new();
    let commit = world.remote.commit(&revision(5).0);
    let sidecar = Sidecar::start(&world, &["--grace=0s"]);
    sidecar.publishes(&world, &commit);
    sidecar.idle(5);
    let watch = Watch::on(&world.root);
    sidecar.idle(1000);
    // An empty commit changes the tip, but not the tree: no generation, no event.
    world.remote.commit(&revision(5).0);
    sidecar.idle(5);
    let events = watch.events();
    assert!(events.is_empty(), "events in 1,000 idle cycles: {events:?}");
}
