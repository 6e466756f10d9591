//! How two revisions stand to each other, asked of a mirror that holds one commit.

use std::io::Write as _;
use std::process::Stdio;

use treeswap::revision::Relation;

use super::common::http_backend::{HttpBackend, Kind};
use super::common::remote::Remote;
use super::*;

/// Commits on a branch, each the child of the one before, the first one of `from`; oldest first.
fn chain(remote: &Remote, branch: &str, from: Option<Revision>, length: usize) -> Vec<Revision> {
    let mut text = String::new();
    for at in 0..length {
        text +=
            &format!("commit refs/heads/{branch}\ncommitter x <x@example.com> 1700000000 +0000\ndata 1\nx\n");
        if let (0, Some(from)) = (at, from) {
            text += &format!("from {from}\n");
        }
        text += &format!("M 644 inline {branch}\ndata 100\n{at:0100}\n");
    }
    let mut child = remote.command(&["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let newest = remote.git(&["rev-list", "--reverse", &format!("--max-count={length}"), branch]);
    newest.lines().map(|id| Revision(id.parse().unwrap())).collect()
}

fn nobody() -> Revision {
    Revision(ObjectId([0xab; 20]))
}

/// A mirror of depth 1 over smart HTTP.
struct Far {
    bench: Bench,
    server: HttpBackend,
}

impl Far {
    fn new(kind: Kind) -> Self {
        let mut bench = Bench::new("main");
        let server = HttpBackend::start(bench.world.dir(), kind);
        bench.options.wire = wire::Options::new(server.url("remote"));
        Self { bench, server }
    }

    /// What `ask` costs in requests and bytes.
    fn cost<T>(&self, ask: impl FnOnce() -> T) -> (T, usize, u64) {
        self.server.forget();
        let answer = ask();
        let hits = self.server.hits();
        (answer, hits.len(), hits.iter().map(|hit| hit.down).sum())
    }
}

/// Nothing of the answers stays: the mirror is as shallow as before, and says so.
#[track_caller]
fn assert_untouched(bench: &Bench, packs: &[PathBuf], tip: Revision) {
    assert_eq!(bench.packs(), packs);
    assert_eq!(bench.depth_of(tip), 1);
    assert!(!bench.dir().join("history").exists());
}

#[test]
fn a_mirror_of_one_commit_tells_an_advance_from_a_rewind_and_a_forced_ref() {
    for over_http in [true, false] {
        let mut far = Far::new(Kind::default());
        if !over_http {
            far.bench.options.wire = wire::Options::new(far.bench.world.remote.path.to_str().unwrap());
        }
        let main = chain(&far.bench.world.remote, "main", None, 100);
        let side = chain(&far.bench.world.remote, "side", Some(main[90]), 3);
        let tip = main[99];
        let mut mirror = far.bench.open();
        assert_eq!(update(&mut mirror, &[]), tip);
        let packs = far.bench.packs();
        let mut ask = |recorded, named| wait(mirror.relation(recorded, named)).unwrap();
        let (parent, requests, _) = far.cost(|| ask(main[98], tip));
        assert_eq!((parent, requests), (Relation::Ahead, 0), "a commit names its parents itself");
        assert_eq!(ask(tip, main[98]), Relation::Behind);
        for (recorded, named, relation) in [
            (main[70], tip, Relation::Ahead),
            (main[3], tip, Relation::Ahead),
            (tip, main[70], Relation::Behind),
            (tip, main[3], Relation::Behind),
            (side[2], tip, Relation::Diverged),
            (tip, side[0], Relation::Diverged),
            (main[90], side[2], Relation::Ahead),
            (nobody(), tip, Relation::UnknownToRemote),
        ] {
            assert_eq!(ask(recorded, named), relation, "{recorded} {named} {over_http}");
        }
        assert_untouched(&far.bench, &packs, tip);
    }
}

#[test]
fn a_server_that_cannot_leave_trees_out_is_not_asked_and_what_is_not_known_is_said() {
    let no_filter = Far::new(Kind::default());
    no_filter.bench.world.remote.git(&["config", "uploadpack.allowFilter", "false"]);
    let old = Far::new(Kind { only_v0: true, ..Kind::default() });
    old.bench.world.remote.git(&["config", "uploadpack.allowAnySHA1InWant", "false"]);
    let mut program = Far::new(Kind::default());
    program.bench.options.wire.program =
        Some(wire::Program { path: "git".into(), config: Vec::new(), mirror: PathBuf::new() });
    for far in [no_filter, old, program] {
        let main = chain(&far.bench.world.remote, "main", None, 10);
        let mut mirror = far.bench.open();
        let tip = update(&mut mirror, &[]);
        let packs = far.bench.packs();
        let mut ask = |recorded, named| wait(mirror.relation(recorded, named)).unwrap();
        let (relation, _, bytes) = far.cost(|| ask(main[3], tip));
        assert_eq!(relation, Relation::Unknown);
        assert!(bytes < 2_000, "{bytes}: no pack came");
        let again = far.cost(|| ask(main[3], tip)).1;
        assert_eq!(again, 0, "the answer would be the same");
        assert_eq!(ask(main[8], tip), Relation::Ahead, "what the mirror knows by itself");
        assert_untouched(&far.bench, &packs, tip);
    }
}

#[test]
fn beyond_the_cap_nothing_is_known_but_what_two_tips_have_in_common_is_enough() {
    let far = Far::new(Kind::default());
    let main = chain(&far.bench.world.remote, "main", None, 1_200);
    let side = chain(&far.bench.world.remote, "side", Some(main[1_150]), 2);
    let mut mirror = far.bench.open();
    let tip = update(&mut mirror, &[]);
    let packs = far.bench.packs();
    let mut ask = |recorded, named| wait(mirror.relation(recorded, named)).unwrap();
    let (far_back, _, bytes) = far.cost(|| ask(main[5], tip));
    assert_eq!(far_back, Relation::Unknown);
    assert!(bytes < 1 << 20, "{bytes}");
    assert_eq!(far.cost(|| ask(main[5], tip)).1, 0, "the answer would be the same");
    let (nearer, _, bytes) = far.cost(|| ask(main[300], tip));
    assert_eq!(nearer, Relation::Ahead);
    println!("900 commits: {bytes} bytes");
    assert!(bytes < 1 << 20, "{bytes}");
    assert_eq!(ask(side[1], tip), Relation::Diverged);
    assert_untouched(&far.bench, &packs, tip);
}

#[test]
fn a_server_whose_own_history_ends_is_not_believed_to_know_all_of_it() {
    let far = Far::new(Kind::default());
    let main = chain(&far.bench.world.remote, "main", None, 20);
    let url = format!("file://{}", far.bench.world.remote.path.display());
    let shallow = far.bench.world.dir().join("shallow");
    let clone = ["clone", "--quiet", "--bare", "--depth=5", &url, shallow.to_str().unwrap()];
    let mut git = run::clean("git", far.bench.world.dir());
    run::to_end(git.args(clone)).expect_ok("git clone");
    let mut git = run::clean("git", far.bench.world.dir());
    let allow = ["config", "--file", "shallow/config", "uploadpack.allowFilter", "true"];
    run::to_end(git.args(allow).current_dir(far.bench.world.dir())).expect_ok("git config");
    let mut options = far.bench.options.clone();
    options.wire = wire::Options::new(far.server.url("shallow"));
    let mut mirror = Mirror::open(options).unwrap();
    let tip = update(&mut mirror, &[]);
    let mut ask = |recorded, named| wait(mirror.relation(recorded, named)).unwrap();
    assert_eq!(ask(main[16], tip), Relation::Ahead);
    assert_eq!(ask(main[14], tip), Relation::Ahead, "the boundary names its parent");
    assert_eq!(ask(main[10], tip), Relation::UnknownToRemote, "the server never had it");
}

#[test]
fn what_an_interrupted_question_left_is_swept_and_a_remote_that_is_away_is_an_error() {
    let far = Far::new(Kind::default());
    let main = chain(&far.bench.world.remote, "main", None, 20);
    let left = far.bench.dir().join("history/objects");
    let mut mirror = far.bench.open();
    let tip = update(&mut mirror, &[]);
    std::fs::create_dir_all(&left).unwrap();
    drop(mirror);
    let mut mirror = far.bench.open();
    assert!(!left.exists());
    std::fs::create_dir_all(&left).unwrap();
    assert_eq!(wait(mirror.relation(main[3], tip)).unwrap(), Relation::Ahead);
    let Far { bench, server } = far;
    drop(server);
    let error = wait(mirror.relation(main[2], tip)).unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_untouched(&bench, &bench.packs(), tip);
}

#[test]
fn what_an_interrupted_question_left_in_git_syncs_layout_is_swept_and_nothing_else_of_the_name() {
    for is_ours in [true, false] {
        let mut bench = Bench::new("main");
        bench.options.worktrees = true;
        bench.options.dir = bench.world.dir().join("root/.git");
        bench.world.remote.commit(&wide());
        update(&mut bench.open(), &[]);
        let history = bench.dir().join("history");
        std::fs::create_dir(&history).unwrap();
        std::fs::write(history.join(if is_ours { "treeswap" } else { "notes" }), "").unwrap();
        drop(bench.open());
        assert_eq!(history.exists(), !is_ours);
    }
}
