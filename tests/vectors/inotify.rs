//! The scenarios of `inotify_sequences*.json`, replayed: a real store publishes and reaps, real watches look on.
//!
//! What a scenario does is read from its events (names that come and go, whether an old generation is removed). What
//! is compared depends on whose it is. Our own (`treeswap ...`) must come out event for event. AtomicWriter's must
//! come out the same in what a consumer reacts to: one swap, the same names added and dropped, the old generation
//! gone when it should be, nothing else. Two differences are intended: a generation is built elsewhere and arrives and
//! leaves by rename, and links come and go before the swap, not after it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use treeswap::generation::Name;
use treeswap::payload::{Builder, DeltaBuilder, DirIndex, Payload, Rules};
use treeswap::revision::{ObjectId, Revision};
use treeswap::store::{Durability, Layout, Options, Spare, Staged, Store};
use treeswap::{clock, retention};

use super::blobs::Blobs;
use super::{Outcome, cases, files};

/// What does not concern a root in the kubelet's layout that we write, and why.
const EXCUSES: &[(&str, &str)] = &[
    (
        "1e AtomicWriter update with fsGroup (setPerms walks the whole volume before the swap)",
        "we set owner and mode when a file is made and never walk over what is published",
    ),
    ("2 git-sync swap (link -> .worktrees/<hash>)", "git-sync's layout, not the kubelet's"),
    (
        "3a RENAME_EXCHANGE of the two symlinks",
        "we rename over the link: an exchange makes a second pair of events, and consumers reload twice",
    ),
    (
        "3b RENAME_EXCHANGE of two real directories current<->next, then rm -r next (library-go atomicdir)",
        "the current generation is never renamed: watches would stay on the old tree",
    ),
    (
        "4 unlink + symlink (Windows branch, ln -sfn of old coreutils): NOT atomic",
        "the link would be absent for a moment",
    ),
];

/// Between two parts of a scenario.
const MARKER: &str = "----";

pub(crate) fn check() {
    let mut outcome = Outcome::default();
    for scenario in cases(&files("inotify_sequences"), "scenarios") {
        let name = scenario["scenario"].as_str().unwrap().to_owned();
        outcome.case(&name, EXCUSES, || replay(&name, &scenario));
    }
    outcome.finish("inotify_sequences", EXCUSES);
}

// What a scenario does.

/// Events by watch.
type Events = BTreeMap<String, Vec<String>>;

fn expected(scenario: &Value) -> Events {
    let watches = scenario["watches"].as_array().unwrap();
    let events = |watch: &Value| {
        let list = watch["events"].as_array().unwrap();
        list.iter().map(|event| event.as_str().unwrap().to_owned()).collect()
    };
    watches.iter().map(|watch| (watch["watch"].as_str().unwrap().to_owned(), events(watch))).collect()
}

/// What consumers can tell from the events of the root.
#[derive(Default, PartialEq, Eq, Debug)]
struct Told {
    /// Whether a new generation arrived.
    arrived: bool,
    added: BTreeSet<String>,
    dropped: BTreeSet<String>,
    swaps: usize,
    /// In which part of the scenario the old generation left.
    left: Vec<usize>,
    /// Anything else.
    other: Vec<String>,
}

fn told(events: &[String]) -> Told {
    let mut told = Told::default();
    let mut part = 0;
    for event in events {
        let event = event.split(" cookie#").next().unwrap();
        let (mask, name) = event.split_once(' ').unwrap_or((event, ""));
        let generation = name.strip_prefix("..T").is_some();
        match (mask, name) {
            (MARKER, _) => part += 1,
            ("CREATE|ISDIR" | "MOVED_TO|ISDIR", _) if generation => told.arrived = true,
            ("ATTRIB|ISDIR", _) if generation && told.arrived && told.swaps == 0 => {}
            ("DELETE|ISDIR" | "MOVED_FROM|ISDIR", _) if generation => told.left.push(part),
            ("CREATE" | "MOVED_FROM", "..data_tmp") => {}
            ("MOVED_TO", "..data") => told.swaps += 1,
            ("CREATE", name) if !name.starts_with("..") => drop(told.added.insert(name.to_owned())),
            ("DELETE", name) if !name.starts_with("..") => drop(told.dropped.insert(name.to_owned())),
            // A link that was made before the swap is pointed to the link after it.
            ("MOVED_TO", name) if told.swaps == 1 && told.added.contains(name) => {}
            _ => told.other.push(event.to_owned()),
        }
    }
    told
}

/// Names that are published: top-level name to whether it is a directory.
type Names = BTreeMap<String, bool>;

/// What was published before: what the deletion of the old generation shows, or a file and a directory.
fn names_before(events: &Events, told: &Told) -> Names {
    let followed = events.iter().find(|(watch, _)| watch.starts_with("symlink path"));
    let shown: Names = followed
        .into_iter()
        .flat_map(|(_, events)| events)
        .filter_map(|event| {
            let (mask, path) = event.split_once(" ..data/")?;
            mask.starts_with("DELETE").then(|| (path.to_owned(), mask.ends_with("ISDIR")))
        })
        .collect();
    let mut names =
        if shown.is_empty() { Names::from([("a".into(), false), ("d".into(), true)]) } else { shown };
    for dropped in &told.dropped {
        names.entry(dropped.clone()).or_insert(true);
    }
    names.retain(|name, _| !told.added.contains(name));
    names
}

fn replay(name: &str, scenario: &Value) -> Result<(), String> {
    let wanted = expected(scenario);
    let parent = wanted.iter().find(|(watch, _)| watch.starts_with("parent dir"));
    let told_by = parent.map(|(_, events)| told(events)).unwrap_or_default();
    let closes = name.contains("now it closes it");
    let plan = Plan {
        first: told_by.arrived && told_by.left.is_empty() && wanted.len() == 1 && !name.contains("update"),
        nothing: !told_by.arrived && !closes,
        later: told_by.left.iter().any(|part| *part > 0),
        linked: name.contains("hard-linked"),
        held: closes || name.contains("keeps the old file open"),
        closes,
    };
    let before = if plan.first { Names::new() } else { names_before(&wanted, &told_by) };
    let mut after: Names = before.clone();
    after.retain(|name, _| !told_by.dropped.contains(name));
    after.extend(told_by.added.iter().map(|name| (name.clone(), false)));
    let found = Stage::new(plan.linked).play(&plan, &before, &after, wanted.keys())?;
    for (watch, events) in &wanted {
        compare(name, watch, events, &found[watch]).map_err(|why| format!("{watch}: {why}"))?;
    }
    Ok(())
}

fn compare(name: &str, watch: &str, wanted: &[String], found: &[String]) -> Result<(), String> {
    let same = if name.starts_with("treeswap") {
        wanted == found
    } else if watch.starts_with("parent dir") {
        in_our_order(found)?;
        told(wanted) == told(found)
    } else {
        // The old generation is renamed away before it is deleted; in which order a directory is emptied is open.
        let sorted = |events: &[String]| {
            let mut parts: Vec<Vec<String>> = vec![Vec::new()];
            for event in events {
                if event.starts_with(MARKER) {
                    parts.push(Vec::new());
                } else if !event.starts_with("MOVE_SELF") {
                    parts.last_mut().unwrap().push(event.clone());
                }
            }
            parts.iter_mut().for_each(|part| part.sort());
            parts
        };
        sorted(wanted) == sorted(found)
    };
    if same { Ok(()) } else { Err(format!("\n  wanted {wanted:#?}\n  found {found:#?}")) }
}

/// Everything that a consumer can list is in place when the link's event arrives.
fn in_our_order(events: &[String]) -> Result<(), String> {
    let at = |wanted: &dyn Fn(&str) -> bool| events.iter().position(|event| wanted(event));
    let Some(swap) = at(&|event| event.starts_with("MOVED_TO ..data")) else { return Ok(()) };
    let late =
        events[swap..].iter().find(|event| event.starts_with("CREATE") || event.starts_with("DELETE "));
    match late {
        Some(late) => Err(format!("`{late}` came after the swap")),
        None => Ok(()),
    }
}

// How it is played.

struct Plan {
    /// The root is empty.
    first: bool,
    /// Nothing changes: a cycle that finds everything right.
    nothing: bool,
    /// The old generation is removed in a part of its own.
    later: bool,
    /// Through a spare of hard links.
    linked: bool,
    /// A file of the old generation stays open.
    held: bool,
    /// And only what happens when it is closed counts.
    closes: bool,
}

struct Stage {
    _dir: tempfile::TempDir,
    root: PathBuf,
    store: Store,
    contents: Blobs,
    published: Vec<Name>,
}

impl Stage {
    fn new(linked: bool) -> Self {
        let dir = tempfile::tempdir_in(super::common::scratch()).unwrap();
        let root = dir.path().join("root");
        let options = Options {
            root: root.clone(),
            layout: Layout::Kubelet,
            operator_names: std::collections::BTreeSet::new(),
            durability: Durability::Syncfs,
            spare: if linked { Spare::Link } else { Spare::Off },
            group_write: false,
            writers: 2,
            retention: retention::Options {
                grace: Duration::from_secs(60),
                max_pin: Duration::from_secs(600),
                max_generations: 5,
                max_bytes: None,
            },
        };
        let (store, _) = Store::open(options).unwrap();
        Self { _dir: dir, root, store, contents: Blobs::default(), published: Vec::new() }
    }

    fn play<'w>(
        mut self,
        plan: &Plan,
        before: &Names,
        after: &Names,
        watches: impl Iterator<Item = &'w String>,
    ) -> Result<Events, String> {
        if !plan.first {
            self.publish(before, 1);
        }
        let mut held = plan.held.then(|| File::open(self.root.join("a")).unwrap());
        let mut recorder = Recorder::new(&self.root, watches)?;
        if plan.nothing {
            self.store.repair(&clock::now()).unwrap();
        } else if plan.linked {
            self.publish_linked(before);
        } else {
            self.publish(after, 2);
        }
        recorder.read(&self.published);
        if plan.later {
            recorder.mark(&format!("{MARKER} grace over, old generation removed {MARKER}"));
        }
        if !plan.nothing {
            self.reap();
        }
        recorder.read(&self.published);
        if plan.closes {
            recorder.forget();
        }
        if plan.closes || !plan.held {
            held.take();
        }
        recorder.read(&self.published);
        Ok(recorder.events)
    }

    /// Writes and publishes a tree of these names, with contents that the number tells apart.
    fn publish(&mut self, names: &Names, number: u8) {
        let payload = self.contents.payload(names, number);
        let cancel = CancellationToken::new();
        let staged = self.store.stage(&payload, "", &self.contents, &cancel).unwrap();
        self.swap(staged);
    }

    fn swap(&mut self, staged: Staged) {
        let published = self.store.publish(staged, &clock::now()).unwrap();
        assert!(published.warnings.is_empty(), "{:?}", published.warnings);
        self.published.push(published.current.name);
    }

    /// Publishes a revision with the same content, out of a spare of hard links.
    fn publish_linked(&mut self, names: &Names) {
        let payload = self.contents.payload(names, 1);
        let cancel = CancellationToken::new();
        let task = self.store.spare_task().expect("there is no spare yet");
        assert!(task.link(&cancel).unwrap(), "a copy was needed");
        let next = ObjectId([2; 20]);
        let delta = DeltaBuilder::new(
            payload.tree,
            payload.count(),
            payload.bytes,
            Revision(next),
            next,
            Rules::default(),
        );
        let delta = delta.finish().unwrap().expect("a small delta");
        let staged = self.store.stage_delta(&delta, "", &self.contents, &cancel).unwrap();
        self.swap(staged.expect("the spare was not used"));
    }

    /// Removes what is retired, the grace period being over.
    fn reap(&mut self) {
        let mut now = clock::now();
        now.boottime += Duration::from_secs(3_600);
        now.wall += Duration::from_secs(3_600);
        let plan = self.store.plan(&now);
        self.store.reap(&plan);
        self.store.drop_spare(&CancellationToken::new()).unwrap(); // what would be used again is deleted, too
        assert!(self.store.wait_for_deletions(&CancellationToken::new()));
    }
}

impl Blobs {
    /// A tree of these names. The id of a file's content is made of its name and the number.
    fn payload(&mut self, names: &Names, number: u8) -> Payload {
        let tree = ObjectId([number; 20]);
        let mut builder = Builder::new(Revision(tree), tree, Rules::default());
        for (name, is_dir) in names {
            let mut id = [number; 20];
            id[..name.len()].copy_from_slice(name.as_bytes());
            let content = format!("{name} {number}").into_bytes();
            let size = content.len() as u64;
            self.0.insert(ObjectId(id), content);
            let (dir, name) = if *is_dir {
                (builder.dir(DirIndex::TOP, name.as_bytes()).unwrap(), "x")
            } else {
                (DirIndex::TOP, name.as_str())
            };
            builder.file(dir, name.as_bytes(), false, ObjectId(id), size).unwrap();
        }
        builder.finish().unwrap()
    }
}

// Who looks on.

/// Watches, and what they said.
struct Recorder {
    inotify: OwnedFd,
    /// By watch descriptor: the scenario's words for it, and how events name it.
    watches: HashMap<i32, (String, String)>,
    cookies: Vec<u32>,
    events: Events,
}

impl Recorder {
    fn new<'w>(root: &Path, watches: impl Iterator<Item = &'w String>) -> Result<Self, String> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let mut recorder =
            Self { inotify, watches: HashMap::new(), cookies: Vec::new(), events: Events::new() };
        for watch in watches {
            let words: Vec<&str> = watch.split(' ').collect();
            let (path, label) = match words[..] {
                ["parent", "dir", ..] => (root.to_owned(), "."),
                ["symlink", "path" | "itself", name, ..]
                | ["file", name, ..]
                | ["user-visible", "link", name, ..] => (root.join(name), name),
                _ => return Err(format!("no such kind of watch: {watch}")),
            };
            let quiet = WatchFlags::ACCESS | WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
            let mut flags = WatchFlags::ALL_EVENTS - quiet;
            if watch.contains("IN_DONT_FOLLOW") {
                flags |= WatchFlags::DONT_FOLLOW;
            }
            let descriptor = inotify::add_watch(&recorder.inotify, &path, flags)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            recorder.watches.insert(descriptor, (watch.clone(), label.to_owned()));
            recorder.events.insert(watch.clone(), Vec::new());
        }
        Ok(recorder)
    }

    /// Takes what the kernel has. Events are queued by the call that causes them, so nothing is still to come. The
    /// generations are numbered as they were published.
    fn read(&mut self, generations: &[Name]) {
        let numbered = |name: &str| match generations.iter().position(|known| known.as_str() == name) {
            Some(at) => format!("..T{}", at + 1),
            None => name.to_owned(),
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            let (watch, label) = &self.watches[&event.wd()];
            let name = event.file_name().map(|name| name.to_str().unwrap().to_owned());
            let mut line = mask(event.events());
            line.push(' ');
            line.push_str(&match name {
                Some(name) if label == "." => numbered(&name),
                Some(name) => format!("{label}/{name}"),
                None => format!("on {label}"),
            });
            if event.cookie() != 0 {
                let known = self.cookies.iter().position(|cookie| *cookie == event.cookie());
                let number = known.unwrap_or_else(|| {
                    self.cookies.push(event.cookie());
                    self.cookies.len() - 1
                });
                line.push_str(&format!(" cookie#{}", number + 1));
            }
            self.events.get_mut(watch).unwrap().push(line);
        }
    }

    fn mark(&mut self, marker: &str) {
        self.events.values_mut().for_each(|events| events.push(marker.to_owned()));
    }

    fn forget(&mut self) {
        self.events.values_mut().for_each(Vec::clear);
    }
}

fn mask(flags: ReadFlags) -> String {
    let names = [
        (ReadFlags::MODIFY, "MODIFY"),
        (ReadFlags::ATTRIB, "ATTRIB"),
        (ReadFlags::CLOSE_WRITE, "CLOSE_WRITE"),
        (ReadFlags::MOVED_FROM, "MOVED_FROM"),
        (ReadFlags::MOVED_TO, "MOVED_TO"),
        (ReadFlags::CREATE, "CREATE"),
        (ReadFlags::DELETE, "DELETE"),
        (ReadFlags::DELETE_SELF, "DELETE_SELF"),
        (ReadFlags::MOVE_SELF, "MOVE_SELF"),
        (ReadFlags::UNMOUNT, "UNMOUNT"),
        (ReadFlags::QUEUE_OVERFLOW, "Q_OVERFLOW"),
        (ReadFlags::IGNORED, "IGNORED"),
        (ReadFlags::ISDIR, "ISDIR"),
    ];
    let set: Vec<_> = names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect();
    set.join("|")
}
