//! Commits whose author wants more than to change files: every one is refused by name, or written exactly.
//!
//! Each case is a commit of raw objects in a real repository. A root that serves an honest commit is synchronised with
//! it. Afterwards the root must serve the honest commit still, and the error must name the entry (or the object), or
//! it must serve the case's tree byte for byte, with no mode but 0644 and 0755. Around the root lie files that an
//! escaping entry would replace; they must not change.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod repository;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use cases::{Case, Expect, Served};
use common::{Files, Raw, Remote, Snapshot, root, run};
use treeswap::mirror::{self, Base, Mirror, Selection, wire};
use treeswap::payload::Rules;
use treeswap::revision::{Ref, Revision};

/// Cases are tried side by side: each is mostly waiting for a process to start or for a lock to be let go.
const WORKERS: usize = 3;

/// Everything that a case is tried on.
struct Yard {
    dir: tempfile::TempDir,
    remote: Remote,
    raw: Raw,
    honest: String,
}

impl Yard {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("treeswap-hostile-").tempdir_in(common::scratch()).unwrap();
        let remote = Remote::create(&dir.path().join("remote"));
        let honest = remote.commit(&Files::new().file("honest", "honest\n").file("d/honest", "too\n"));
        let raw = Raw::open(&remote.path);
        Self { dir, remote, raw, honest }
    }

    /// A place for one case: `place/root`, and beside and above it what must not change.
    fn place(&self) -> PathBuf {
        let place = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        for path in ["canary", "etc/passwd", "other/canary", "a/canary", "x", "evil"] {
            let path = place.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "canary\n").unwrap();
        }
        std::fs::create_dir(place.join("home")).unwrap();
        place
    }

    /// One synchronisation; `git` is the only directory that programs are looked for in, if it is given.
    fn sync(&self, place: &Path, git: Option<&Path>, more: &[&str]) -> common::Ran {
        let mut command = run::clean(env!("CARGO_BIN_EXE_treeswap"), &place.join("home"));
        command.args(["sync", "--one-time", "--ref=main", "--repo"]).arg(&self.remote.path);
        command.arg("--root").arg(place.join("root")).args(more);
        if let Some(git) = git {
            command.env("PATH", git);
        }
        run::to_end(&mut command)
    }

    /// Tries one case; says what is wrong with it, if anything is. Whether it was refused by the remote itself, so that
    /// its entries were never seen.
    fn try_case(&self, case: &Case) -> Result<bool, String> {
        let mut unseen = false;
        let place = self.place();
        self.remote.reset(&self.honest);
        let first = self.sync(&place, None, &[]);
        if !first.ok() {
            return Err(format!("the honest commit was not published: {}", first.stderr));
        }
        let around = surroundings(&place);
        let tip = (case.make)(&self.raw);
        self.raw.set_main(tip);
        let git = match case.served {
            Served::Git => None,
            Served::InPlace => Some(PathBuf::from("/nowhere")),
            Served::AsItIs => Some(server::unchecked_server(&self.remote, &tip.to_string(), &place)),
        };
        let ran = self.sync(&place, git.as_deref(), case.flags);
        let published = published(&place.join("root"))?;
        let honest = self.remote.snapshot(&self.honest);
        match &case.expect {
            Expect::Refused(words) => {
                if ran.ok() || ran.status.code().is_none() || ran.stderr.contains("panicked") {
                    return Err(format!("not refused in words: {}\n{}", ran.status, ran.stderr));
                }
                println!("{}: {}", case.name, ran.complaint());
                let complaint = ran.complaint();
                if case.unseen && complaint.contains("the remote does not send ") {
                    // Its own words follow, and they are about the repository as a whole.
                    let remote = self.remote.path.to_str().unwrap();
                    if !complaint.contains(&tip.to_string()) || !complaint.contains(remote) {
                        return Err(format!("the refusal names no revision or no remote:\n{}", ran.stderr));
                    }
                    unseen = true;
                } else if let Some(word) = words.iter().find(|word| !complaint.contains(*word)) {
                    return Err(format!("the refusal does not name `{word}`:\n{}", ran.stderr));
                }
                if words.is_empty() && !self.names_an_object(complaint) {
                    return Err(format!("the refusal names no object:\n{}", ran.stderr));
                }
                same("the honest tree", &honest, &published)?;
            }
            Expect::Written(tree) => {
                if !ran.ok() {
                    return Err(format!("refused: {}", ran.stderr));
                }
                same("the case's tree", tree, &published)?;
            }
        }
        if ran.stderr.bytes().any(|byte| byte == 0x1b) {
            return Err(format!("an escape sequence reached the terminal: {:?}", ran.stderr));
        }
        same("what lies around the root", &around, &surroundings(&place))?;
        let _ = std::fs::remove_dir_all(&place); // deep trees are left for the temporary directory's own removal
        Ok(unseen)
    }
}

impl Yard {
    /// Whether the text has the id of an object of the case, or of the one that no case has.
    fn names_an_object(&self, text: &str) -> bool {
        let ids = server::objects(&self.remote);
        text.contains(cases::MISSING) || ids.iter().any(|id| *id != self.honest && text.contains(&id[..12]))
    }
}

/// What the root serves.
fn published(root: &Path) -> Result<Snapshot, String> {
    let dir = root::current(root)?.ok_or("nothing is published")?;
    Snapshot::read(&dir).map_err(|error| format!("{}: {error}", dir.display()))
}

/// Everything beside the root.
fn surroundings(place: &Path) -> Snapshot {
    let mut all = Snapshot::default();
    for name in root::names(place) {
        let path = place.join(std::ffi::OsStr::new(std::str::from_utf8(&name).unwrap()));
        if name == b"root" || name == b"home" {
            continue;
        }
        if path.is_dir() {
            let inner = Snapshot::read(&path).unwrap();
            all.0.extend(inner.0.into_iter().map(|(at, node)| ([&name, &b"/"[..], &at].concat(), node)));
        } else {
            let content = std::fs::read(&path).unwrap();
            all.0.insert(name, common::tree::Node::File { executable: false, content });
        }
    }
    all
}

fn same(what: &str, wanted: &Snapshot, found: &Snapshot) -> Result<(), String> {
    let lines = wanted.differences(found);
    if lines.is_empty() { Ok(()) } else { Err(format!("{what}:\n  {}", lines.join("\n  "))) }
}

#[test]
fn every_hostile_tree_is_refused_by_name_or_written_exactly() {
    let cases = cases::all();
    let (next, unseen) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Each worker with a remote of its own: a case moves its branch.
    let work = || {
        let yard = Yard::new();
        let mut wrong = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The unlooking server sends all there is: only the case.
            let own = (case.served == Served::AsItIs).then(Yard::new);
            match own.as_ref().unwrap_or(&yard).try_case(case) {
                Ok(by_remote) => drop(unseen.fetch_add(usize::from(by_remote), Ordering::Relaxed)),
                Err(why) => wrong.push(format!("{}: {why}", case.name)),
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let refused = cases.iter().filter(|case| matches!(case.expect, Expect::Refused(_))).count();
    let (all, unseen) = (cases.len(), unseen.into_inner());
    println!(
        "hostile trees: {all} cases, {} written, {} refused with the entry or the object named, {unseen} not sent by the \
         remote and refused with the revision named",
        all - refused,
        refused - unseen
    );
    assert!(refused - unseen >= 80, "only {} were seen and refused", refused - unseen);
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= 80, "only {} cases are left", cases.len());
}

/// A resident process brings a spare forward by what a commit changes. That way is as narrow as the other.
#[test]
fn what_the_whole_tree_is_refused_for_its_delta_is_refused_for_too() {
    let yard = Yard::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let remote = wire::Options::new(yard.remote.path.to_str().unwrap());
    let mut options = mirror::Options::new(yard.dir.path().join("mirror"), Ref::Named("main".into()), remote);
    options.indexer = env!("CARGO_BIN_EXE_treeswap").into();
    let mut mirror = Mirror::open(options).unwrap();
    let mut fetch = |held: &[Revision]| {
        runtime.block_on(async {
            let tip = mirror.resolve().await?;
            let revision = mirror.fetch(&tip, held).await?;
            Ok::<_, mirror::Error>((revision, mirror.objects()))
        })
    };
    let rules = Rules { reserve_dotdot: true, ..Rules::default() };
    let selection = Selection { rules, ..Selection::default() };
    let (honest, objects) = fetch(&[]).unwrap();
    let old = objects.payload(honest, &selection).unwrap();
    let base = Base { tree: old.tree, entries: old.count(), bytes: old.bytes };
    let (mut refused, mut same, mut whole_only) = (0, 0, 0);
    for case in cases::all().iter().filter(|case| case.served == Served::Git && case.flags.is_empty()) {
        yard.raw.set_main((case.make)(&yard.raw));
        let Ok((revision, objects)) = fetch(&[honest]) else {
            assert!(matches!(case.expect, Expect::Refused(_)), "{}: not fetched", case.name);
            continue;
        };
        match (objects.payload(revision, &selection), objects.delta(base, revision, &selection)) {
            (Err(whole), Err(delta)) => {
                // Of two rules that a tree breaks, either may be the one that is named.
                let of_revision = |error: &mirror::Error| error.to_string().contains(&revision.short());
                assert!(of_revision(&whole) && of_revision(&delta), "{}: {whole}; {delta}", case.name);
                refused += 1;
            }
            (Ok(whole), Ok(Some(delta))) => {
                let sums = (whole.tree, whole.count(), whole.bytes);
                assert_eq!((delta.tree, delta.entries, delta.bytes), sums, "{}", case.name);
                same += 1;
            }
            (_, Ok(None)) => whole_only += 1,
            (whole, delta) => panic!("{}: {whole:?} but {delta:?}", case.name),
        }
    }
    println!("as deltas: {refused} refused alike, {same} with the same sums, {whole_only} only as a whole");
    assert!(refused > 60 && same > 40, "too few cases came to a delta: {refused}, {same}");
}

#[test]
fn modes_are_exact_under_any_umask() {
    let yard = Yard::new();
    let files = Files::new().file("d/f", "x").script("d/run", "x").link("l", "d/f");
    let commit = yard.remote.commit(&files);
    for umask in ["0000", "0027", "0077"] {
        let place = yard.place();
        let mut command = run::clean("sh", &place.join("home"));
        command.args(["-c", "umask \"$1\"; shift; exec \"$@\"", "sh", umask]);
        command.arg(env!("CARGO_BIN_EXE_treeswap")).args(["sync", "--one-time", "--ref=main", "--repo"]);
        command.arg(&yard.remote.path).arg("--root").arg(place.join("root"));
        run::to_end(&mut command).expect_ok(umask);
        let found = published(&place.join("root")).unwrap();
        assert_eq!(yard.remote.snapshot(&commit).differences(&found), [""; 0], "umask {umask}");
    }
}
