//! git-sync's layout: `.worktrees/<commit>` and a link of any name. `left` has roots that git-sync made.

mod left;

use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::*;
use crate::revision::Revision;
use crate::store::layout::RootHandles;
use crate::store::{Error, inspect};

/// A root in git-sync's layout, and the path of its link.
struct Root {
    world: World,
    link: PathBuf,
}

impl Root {
    fn new() -> Self {
        let world = World::new();
        Self { link: world.at("live"), world }
    }

    fn options(&self) -> Options {
        let mut options = self.world.options();
        options.layout = Layout::GitSync { link: self.link.clone() };
        options
    }

    fn try_open(&self) -> Result<(Store, Recovered), Error> {
        Store::open(self.options())
    }

    fn open(&self) -> Store {
        self.try_open().unwrap().0
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.world.root().join(name)
    }

    fn worktrees(&self) -> Vec<String> {
        let all = fs_err::read_dir(self.at(".worktrees")).unwrap();
        let mut names: Vec<String> =
            all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Asserts what readers see: a link to the commit, and behind it the commit's tree and the `.git` file.
    fn assert_serves(&self, tree: &Tree) {
        let commit = of(tree).revision;
        let target = fs_err::read_link(&self.link).unwrap();
        assert!(target.is_relative(), "{target:?}");
        assert_eq!(target.file_name().unwrap().to_str().unwrap(), commit.to_string());
        let dir = self.link.canonicalize().unwrap();
        assert_eq!(dir, self.at(Name::from_commit(commit).relative_path()).canonicalize().unwrap());
        let mut found = read_back(&dir);
        let git = found.remove(&b".git"[..]).unwrap().1;
        assert_eq!(String::from_utf8(git).unwrap(), format!("gitdir: ../../.git/worktrees/{commit}\n"));
        assert_eq!(found, expected(tree));
    }

    /// A worktree as git-sync leaves it.
    fn make_worktree(&self, tree: &Tree) -> Revision {
        let commit = of(tree).revision;
        self.make_tree(&self.at(".worktrees").join(commit.to_string()), tree, commit);
        commit
    }

    fn make_tree(&self, dir: &Path, tree: &Tree, commit: Revision) {
        fs_err::create_dir_all(dir).unwrap();
        for (path, (kind, content)) in tree {
            assert_eq!(*kind, Kind::File);
            let path = dir.join(std::str::from_utf8(path).unwrap());
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content).unwrap();
        }
        fs_err::write(dir.join(".git"), format!("gitdir: ../../.git/worktrees/{commit}\n")).unwrap();
    }
}

fn inode(path: &Path) -> u64 {
    fs_err::metadata(path).unwrap().ino()
}

fn repair(store: &mut Store) -> Recovered {
    store.repair(&clock::now()).unwrap()
}

#[test]
fn a_root_of_the_other_layout_is_refused_and_untouched() {
    let tree = files("a", "1");
    let theirs = Root { link: PathBuf::new(), ..Root::new() };
    drop(theirs.world.with(&tree));
    let before = theirs.world.names();
    let asked = Root { link: theirs.at("below/live"), ..theirs };
    let error = asked.try_open().unwrap_err();
    assert!(error.to_string().ends_with("it was made with --layout=kubelet"), "{error}");
    assert!(!error.is_transient() && !error.hints().is_empty(), "{error}");
    assert_eq!(asked.world.names(), before);
    let ours = Root::new();
    let mut store = ours.open();
    publish(&mut store, &tree);
    drop(store);
    let error = Store::open(ours.world.options()).unwrap_err();
    assert!(error.to_string().ends_with("it was made with --layout=git-sync"), "{error}");
    ours.assert_serves(&tree);
}

#[test]
fn a_generation_is_named_by_its_commit_and_the_one_before_has_its_grace_period() {
    let root = Root::new();
    let one = varied("1");
    let two = varied("2");
    let mut store = root.open();
    publish(&mut store, &one);
    root.assert_serves(&one);
    let published = publish(&mut store, &two);
    root.assert_serves(&two);
    assert_eq!(published.previous, Some(Name::from_commit(of(&one).revision)));
    assert_eq!(root.worktrees().len(), 2);
    let order: Vec<_> = store.generations().iter().map(|record| record.revision).collect();
    assert_eq!(order, [of(&two).revision, of(&one).revision], "newest first, whatever their names");
    assert!(repair(&mut store).done.is_empty());
    drop(store);
    let (store, found) = root.try_open().unwrap();
    assert!(found.done.is_empty() && found.foreign.is_empty(), "{found:?}");
    assert!(store.is_trusted(&clock::now()));
    assert!(store.plan(&clock::now()).decisions.iter().all(|decision| decision.keep), "the age survives");
}

#[test]
fn a_record_of_the_last_moment_there_is_and_of_a_size_that_cannot_be_keeps_nobody_from_publishing() {
    let root = Root::new();
    let (one, two, three) = (varied("1"), varied("2"), varied("3"));
    let mut store = root.open();
    publish(&mut store, &one);
    publish(&mut store, &two);
    for record in &mut store.state.generations {
        record.published = jiff::Timestamp::MAX;
        record.bytes = u64::MAX;
    }
    assert_eq!(store.room().used_bytes, u64::MAX);
    publish(&mut store, &three);
    root.assert_serves(&three);
}

#[test]
fn the_link_may_be_anywhere_and_its_parents_are_made() {
    for link in ["root/sub/dir/live", "else/where/live"] {
        let world = World::new();
        let root = Root { link: world.dir.path().join(link), world };
        let mut store = root.open();
        publish(&mut store, &files("a", "1"));
        root.assert_serves(&files("a", "1"));
        let seen = inspect(&root.world.root()).unwrap();
        assert_eq!((seen.current, seen.link_problem), (store.current().map(|r| r.name.clone()), None));
        let parent = root.link.parent().unwrap();
        let names: Vec<_> =
            fs_err::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["live"]);
    }
}

#[test]
fn a_link_where_it_would_be_in_the_way_is_refused() {
    let world = World::new();
    for link in [".git/x", ".worktrees/x", "..treeswap/x", "a/../.worktrees/x", "..", "."] {
        let link = world.root().join(link);
        let error = Store::open(Options { layout: Layout::GitSync { link }, ..world.options() }).unwrap_err();
        assert!(matches!(error, Error::BadLink { .. }) && !error.is_transient(), "{error}");
    }
    let root = Root::new();
    fs_err::create_dir_all(root.link.join("precious")).unwrap();
    let error = root.try_open().unwrap_err();
    assert!(error.to_string().contains("a directory is there"), "{error}");
    fs_err::remove_dir_all(&root.link).unwrap();
    let mut store = root.open();
    fs_err::write(&root.link, "precious").unwrap();
    let staged = store.stage(&of(&files("a", "1")), "all", &Blobs::of(&[&files("a", "1")]), &go()).unwrap();
    assert!(store.publish(staged, &clock::now()).is_err());
    assert_eq!(fs_err::read_to_string(&root.link).unwrap(), "precious");
}

#[test]
fn a_commit_that_is_published_again_is_exchanged_and_the_old_one_stays_for_its_readers() {
    let root = Root::new();
    let one = files("ab", "1");
    let mut store = root.open();
    publish(&mut store, &one);
    let before = inode(&root.link);
    let pin = fsx::open_dir_at_path(&root.link).unwrap();
    assert_eq!(fsx::try_lock_shared(&pin).unwrap(), fsx::Lock::Taken);
    fs_err::write(root.link.join("a"), "tampered").unwrap();
    let watch = Watch::on(root.link.parent().unwrap());
    let published = publish(&mut store, &one);
    root.assert_serves(&one);
    assert_ne!(inode(&root.link), before);
    assert!(watch.events().iter().any(|event| event == "MOVED_TO live"), "watchers of the link are told");
    let old = published.previous.unwrap();
    assert_eq!(old, Name::from_commit(of(&one).revision).numbered(1));
    assert_eq!(inode(&root.at(old.relative_path())), before);
    assert_eq!(fs_err::read_to_string(root.at(old.relative_path()).join("a")).unwrap(), "tampered");
    let later =
        store.plan(&clock::Now { boottime: clock::now().boottime + Duration::from_secs(60), ..clock::now() });
    let decision = later.decisions.iter().find(|decision| decision.name == old).unwrap();
    assert!(decision.keep && decision.pinned, "{decision:?}");
    fsx::unlock(&pin).unwrap();
    drop(pin);
    let mut gone = Vec::new();
    for _ in 0..2000 {
        // A child that another test starts has a duplicate of the pin until its exec.
        let now = clock::Now { boottime: clock::now().boottime + Duration::from_secs(60), ..clock::now() };
        let plan = store.plan(&now);
        gone.extend(store.reap(&plan));
        if !gone.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gone, [old]);
    root.assert_serves(&one);
}

#[test]
fn going_back_to_a_retired_commit_leaves_its_readers_their_directory() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    publish(&mut store, &one);
    let reader = fsx::open_dir_at_path(&root.link).unwrap();
    publish(&mut store, &two);
    publish(&mut store, &one);
    root.assert_serves(&one);
    assert_eq!(store.generations().len(), 3);
    let name = Name::from_commit(of(&one).revision);
    assert_eq!(fsx::identity(&reader).unwrap().ino, inode(&root.at(name.numbered(1).relative_path())));
    assert_eq!(store.generations().iter().filter(|record| record.retired.is_none()).count(), 1);
}

/// A store whose file system cannot exchange names, as on NFS.
#[test]
fn without_an_exchange_there_is_always_a_complete_generation_behind_the_link() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    store.probes.exchange = Some(false);
    publish(&mut store, &one);
    publish(&mut store, &one);
    let name = Name::from_commit(of(&one).revision);
    assert_eq!(store.current().unwrap().name, name.numbered(1));
    assert_eq!(fs_err::read_to_string(root.link.join("a")).unwrap(), "1");
    publish(&mut store, &two);
    root.assert_serves(&two);
    publish(&mut store, &one); // the name is free for it: what had it is renamed
    root.assert_serves(&one);
    assert_eq!(store.generations().len(), 4);
    assert!(store.generations().iter().all(|record| root.at(record.name.relative_path()).is_dir()));
    assert!(repair(&mut store).done.is_empty());
}

#[test]
fn whether_names_can_be_exchanged_is_tested_when_it_is_first_needed() {
    let root = Root::new();
    let one = files("a", "1");
    let mut store = root.open();
    publish(&mut store, &one);
    assert_eq!(store.probes.exchange, None, "not needed yet");
    publish(&mut store, &one);
    assert_eq!(store.probes.exchange, Some(true));
    root.assert_serves(&one);
    store.wait_for_deletions(&go());
    root.world.assert_tidy();
}

#[test]
fn what_becomes_of_the_link_is_mended_and_what_it_named_elsewhere_is_left_alone() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    fs_err::create_dir_all(root.at("releases/v1")).unwrap();
    fs_err::write(root.at("releases/v1/precious"), "x").unwrap();
    symlink("releases/v1", &root.link).unwrap();
    let mut store = root.open();
    assert!(store.current().is_none());
    assert_eq!(fs_err::read_link(&root.link).unwrap(), Path::new("releases/v1"), "until there is something");
    publish(&mut store, &one);
    publish(&mut store, &two);
    root.assert_serves(&two);
    let retired = Name::from_commit(of(&one).revision).relative_path();
    for target in [None, Some("releases/v1"), Some("nowhere"), Some(retired.to_str().unwrap())] {
        fs_err::remove_file(&root.link).unwrap();
        if let Some(target) = target {
            symlink(target, &root.link).unwrap();
        }
        assert_eq!(repair(&mut store).done.len(), 1, "{target:?}");
        root.assert_serves(&two);
    }
    assert_eq!(fs_err::read_to_string(root.at("releases/v1/precious")).unwrap(), "x");
}

#[test]
fn a_current_generation_that_is_gone_is_noticed() {
    let root = Root::new();
    let one = files("a", "1");
    let mut store = root.open();
    publish(&mut store, &one);
    fs_err::remove_dir_all(root.link.canonicalize().unwrap()).unwrap();
    assert_eq!(repair(&mut store).warnings.len(), 1);
    assert!(store.current().is_none());
    publish(&mut store, &one);
    root.assert_serves(&one);
    fs_err::remove_dir_all(root.at(".worktrees")).unwrap();
    repair(&mut store);
    publish(&mut store, &one);
    root.assert_serves(&one);
}

#[test]
fn foreign_things_are_kept_and_garbage_in_the_way_is_replaced() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    fs_err::create_dir_all(root.at(".worktrees/mine")).unwrap();
    fs_err::create_dir_all(root.at("lost+found")).unwrap();
    fs_err::write(root.at("note"), "x").unwrap();
    fs_err::write(root.at(of(&one).revision.to_string()), "a file named as a commit").unwrap();
    let mut store = root.open();
    fs_err::write(root.at(Name::from_commit(of(&one).revision).relative_path()), "garbage").unwrap();
    publish(&mut store, &one);
    root.assert_serves(&one);
    fs_err::create_dir(root.at(Name::from_commit(of(&two).revision).relative_path())).unwrap();
    publish(&mut store, &two);
    root.assert_serves(&two);
    let found = repair(&mut store);
    assert_eq!(found.foreign, ["\"mine\" was not created by treeswap"]);
    assert_eq!(fs_err::read_to_string(root.at("note")).unwrap(), "x");
    assert!(root.at(of(&one).revision.to_string()).is_file() && root.at(".worktrees/mine").is_dir());
    assert!(store.wait_for_deletions(&go()));
    root.world.assert_tidy();
}

#[test]
fn consumers_may_write_into_the_tree_but_not_change_what_is_of_the_commit() {
    let root = Root::new();
    let one = varied("1");
    let mut store = root.open();
    publish(&mut store, &one);
    fs_err::write(root.link.join("app/made-by-a-hook"), "x").unwrap();
    fs_err::write(root.link.join("vendored/x"), "x").unwrap();
    assert_eq!(store.verify(&of(&one), &go()).unwrap(), [""; 0]);
    fs_err::write(root.link.join(".git"), "gitdir: /elsewhere\n").unwrap();
    assert_eq!(store.verify(&of(&one), &go()).unwrap(), [".git: has unexpected content"]);
    publish(&mut store, &one);
    root.assert_serves(&one);
}

/// Puts the root into the state that a crash after a step of an exchange leaves.
#[test]
fn after_a_crash_around_an_exchange_nothing_is_trusted_and_nothing_is_lost() {
    for exchanged in [None, Some(false), Some(true)] {
        let root = Root::new();
        let one = files("a", "1");
        let mut store = root.open();
        publish(&mut store, &one);
        let name = store.current().unwrap().name.clone();
        let other = name.numbered(1);
        let mut state = store.state.clone();
        let new = store.current().unwrap().clone();
        state.publishing = Some(name.clone());
        state.replacing = Some(other.clone());
        state.rename(&name, &other);
        state.put(new);
        store.handles.save(&state, fsx::Flush::Lazy).unwrap();
        drop(store);
        if let Some(exchanged) = exchanged {
            root.make_tree(&root.at(other.relative_path()), &one, of(&one).revision);
            if exchanged {
                let home = fsx::open_dir_at_path(&root.at(".worktrees")).unwrap();
                assert!(fsx::exchange(&home, name.as_str(), &home, other.as_str()).unwrap());
            }
        }
        let mut store = root.open();
        root.assert_serves(&one);
        assert_eq!(store.is_trusted(&clock::now()), exchanged.is_none(), "{exchanged:?}");
        assert_eq!(store.generations().len(), if exchanged.is_none() { 1 } else { 2 });
        assert_eq!(store.verify(&of(&one), &go()).unwrap(), [""; 0]);
        store.adopt(&of(&one), "all", &clock::now()).unwrap();
        let later = clock::Now { boottime: clock::now().boottime + Duration::from_secs(60), ..clock::now() };
        let plan = store.plan(&later);
        store.reap(&plan);
        assert_eq!(root.worktrees(), [name.as_str()]);
        root.assert_serves(&one);
    }
}

#[test]
fn a_publication_that_is_stopped_before_its_swap_leaves_everything_as_it_was() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    publish(&mut store, &one);
    let before = (inode(&root.link), store.generations().to_vec());
    for tree in [&one, &two] {
        let staged = store.stage(&of(tree), "other", &Blobs::of(&[tree]), &go()).unwrap();
        let failed = store.publish_and(staged, &clock::now(), &mut |record, at| {
            assert_eq!(record.revision, of(tree).revision);
            assert!(at.join(".git").is_file());
            Err::<(), Error>(Error::Cancelled)
        });
        assert!(matches!(failed, Err(Error::Cancelled)), "{failed:?}");
        assert_eq!((inode(&root.link), store.generations().to_vec()), before);
        root.assert_serves(&one);
        assert_eq!(root.worktrees().len(), 1);
    }
    drop(store);
    let (store, found) = root.try_open().unwrap();
    assert!(found.done.is_empty() && store.is_trusted(&clock::now()), "{found:?}");
}

#[test]
fn the_link_resolves_at_every_look_while_generations_are_published_and_exchanged() {
    let root = Root::new();
    let trees = [files("abc", "1"), files("abd", "22")];
    let mut options = root.options();
    options.retention.grace = Duration::from_secs(3600); // longer than any look
    options.retention.max_generations = 1_000_000;
    let mut store = Store::open(options).unwrap().0;
    publish(&mut store, &trees[0]);
    let link = root.link.clone();
    let wanted: Vec<_> = trees.iter().map(|tree| expected(tree).len() + 1).collect();
    let rounds = AtomicUsize::new(0);
    let end = Instant::now() + Duration::from_secs(120);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            // Read until some publications were seen, however slow the other thread is.
            let enough = |look| look >= 10_000 && (rounds.load(Relaxed) >= 10 || Instant::now() > end);
            for look in (0..).take_while(|look| !enough(*look)) {
                let target = fs_err::read_link(&link).unwrap_or_else(|error| panic!("look {look}: {error}"));
                let listed = fs_err::read_dir(&link)
                    .unwrap_or_else(|error| panic!("look {look}, {target:?}: {error}"));
                assert!(wanted.contains(&listed.count()), "look {look}");
            }
        });
        while !looker.is_finished() {
            let round = rounds.fetch_add(1, Relaxed);
            publish(&mut store, &trees[round / 2 % 2]); // each twice: one tree's commit, and the same again
        }
    });
    assert!(rounds.into_inner() >= 10);
}

#[test]
fn a_spare_becomes_the_next_worktree_and_shares_no_file_with_the_last() {
    for spare in [Spare::Copy, Spare::Link] {
        let root = Root::new();
        let first = files("ab", "1");
        let second = tree(&[("a", Kind::File, "2"), ("b", Kind::File, "1")]);
        let blobs = Blobs::of(&[&first, &second]);
        let mut store = Store::open(Options { spare, ..root.options() }).unwrap().0;
        publish(&mut store, &first);
        let old = root.link.canonicalize().unwrap();
        store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
        let delta = crate::payload::testing::delta(&first, &second, rules()).unwrap();
        let staged = store.stage_delta(&delta, "all", &blobs, &go()).unwrap().unwrap();
        store.publish(staged, &clock::now()).unwrap();
        root.assert_serves(&second);
        assert_eq!(store.verify(&of(&second), &go()).unwrap(), [""; 0]);
        assert_ne!(inode(&root.link.join("b")), inode(&old.join("b")), "{spare:?}");
    }
}

#[test]
fn a_file_among_the_generations_goes_after_a_grace_period() {
    let root = Root::new();
    let mut store = root.open();
    publish(&mut store, &files("a", "1"));
    let file = root.at(".worktrees/not-a-directory");
    fs_err::write(&file, "x").unwrap();
    repair(&mut store);
    assert!(file.exists());
    let then = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs_err::File::open(&file).unwrap().file().set_modified(then).unwrap();
    assert_eq!(repair(&mut store).done.len(), 1);
    assert!(!file.exists());
    root.assert_serves(&files("a", "1"));
}

#[test]
fn a_root_with_dots_in_its_path_is_cleaned_as_git_sync_does() {
    let root = Root::new();
    let weird = root.world.dir.path().join("x/.././/root/../root");
    let mut store = Store::open(Options { root: weird, ..root.options() }).unwrap().0;
    publish(&mut store, &files("a", "1"));
    root.assert_serves(&files("a", "1"));
}

#[test]
fn an_error_names_the_directory_that_it_is_about() {
    let root = Root::new();
    let mut store = root.open();
    let path_of = |error| match error {
        Error::Io { path, .. } => path,
        error => panic!("{error}"),
    };
    fs_err::remove_dir_all(root.at("..treeswap")).unwrap();
    let moved = store.handles.quarantine("state".as_ref()).err().map(path_of);
    assert_eq!(moved, Some(store.handles.private_at("state")));
    let mut handles = RootHandles::open(&root.options(), &mut Recovered::default()).unwrap();
    let file = fs_err::File::create(root.at("file")).unwrap();
    handles.generations_dir = file.into_parts().0.into(); // not a directory: it cannot be listed
    store.handles = handles.into();
    let scanned = store.scan().err().map(path_of);
    assert_eq!(scanned, Some(store.handles.at(".worktrees")));
}
