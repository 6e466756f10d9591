//! git-sync's layout: `.worktrees/<commit>` and a link of any name. `left` has roots that git-sync made.

mod exchange;
mod left;

use std::os::unix::fs::{MetadataExt, symlink};

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
fn what_is_the_kernels_is_no_root_in_this_layout_either() {
    for path in ["/", "/proc/self", "/sys/fs", "/srv/../proc"] {
        let options = Options { root: path.into(), ..Root::new().options() };
        let error = Store::open(options).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{path}: {error}");
    }
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
    let other = World::new();
    drop(other.with(&varied("1")));
    for link in ["..data/app/x", "app/new/x", "..treeswap/x"] {
        let layout = Layout::GitSync { link: other.at(link) };
        let error = Store::open(Options { layout, ..world.options() }).unwrap_err();
        assert!(matches!(error, Error::BadLink { .. }), "{error}");
    }
    other.assert_serves(&varied("1"));
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
