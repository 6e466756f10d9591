//! Objects of a mirror that cannot be read: the mirror is fetched anew, unless the cause is elsewhere.

use std::fs::File;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::common::{Files, Remote};
use super::{Bench, Depth, noise, revision, try_update, update, wait, wide};
use treeswap::mirror::{Access, Error, Gc, Mirror, Selection, Submodules};

#[test]
fn an_object_that_cannot_be_read_makes_the_next_fetch_start_anew() {
    let bench = Bench::new("main");
    let old = revision(&bench.world.remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    // The pack's content is overwritten in place, its length and index kept.
    let pack = &bench.packs()[0];
    let mut permissions = std::fs::metadata(pack).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a test's own file")]
    permissions.set_readonly(false);
    std::fs::set_permissions(pack, permissions).unwrap();
    let length = std::fs::metadata(pack).unwrap().len() as usize;
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[12..length - 20].fill(0xaa);
    std::fs::write(pack, bytes).unwrap();
    let error = mirror.objects().payload(old, &Selection::default()).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    assert_eq!(update(&mut mirror, &[old]), old);
    bench.assert_whole(&mirror, old);
}

/// Overwrites bytes in the middle of an object's entry in its pack.
fn damage(bench: &Bench, id: &str) {
    for pack in bench.packs() {
        // `<id> <type> <size> <bytes in the pack> <offset>`
        let listed = bench.git(&["verify-pack", "-v", pack.to_str().unwrap()]);
        let Some(line) = listed.lines().find(|line| line.starts_with(id)) else { continue };
        let mut numbers = line.split_whitespace().skip(2).map(|number| number.parse().unwrap());
        let [_, length, offset]: [usize; 3] = std::array::from_fn(|_| numbers.next().unwrap());
        let mut bytes = std::fs::read(&pack).unwrap();
        bytes[offset + length / 2..][..4].fill(0xaa);
        let modified = std::fs::metadata(&pack).unwrap().modified().unwrap();
        std::fs::remove_file(&pack).unwrap(); // it is read-only
        std::fs::write(&pack, bytes).unwrap();
        // A pack that is newer than its index is one that another git is reusing.
        File::options().write(true).open(&pack).unwrap().set_modified(modified).unwrap();
        return;
    }
    panic!("{id} is in no pack");
}

/// The remote sends it again, but the copy of the earlier pack may be found first.
#[test]
fn a_commit_that_is_damaged_in_the_mirror_is_no_fault_of_the_remote() {
    for depth in [Depth::Full, Depth::Commits(1), Depth::Commits(2)] {
        let bench = Bench::at_depth("main", depth);
        let old = bench.world.remote.commit(&wide());
        update(&mut bench.open(), &[]);
        let new = revision(&bench.world.remote.commit(&wide().file("x", "y")));
        update(&mut bench.open(), &[]);
        damage(&bench, &old);
        bench.world.remote.reset(&old);
        let mut mirror = bench.open();
        // Which copy is found first is not known.
        let first = try_update(&mut mirror, &[new]);
        assert!(first.as_ref().err().is_none_or(Error::is_damage), "{depth:?}: {first:?}");
        drop(mirror);
        let mut mirror = bench.open();
        assert_eq!(update(&mut mirror, &[new]), revision(&old), "{depth:?}");
        bench.assert_whole(&mirror, revision(&old));
    }
}

/// Only the commit is known to be needed; the tree is asked for by its id.
#[test]
fn a_tree_that_is_damaged_in_a_partial_clone_is_no_fault_of_the_remote() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("tree:0".to_owned());
    bench.world.remote.git(&["config", "uploadpack.allowFilter", "true"]);
    bench.world.remote.git(&["config", "uploadpack.allowAnySHA1InWant", "true"]);
    let filled = |mirror: &mut Mirror| {
        let revision = try_update(mirror, &[])?;
        wait(mirror.fill(revision, &Selection::default()))
    };
    let old = bench.world.remote.commit(&wide());
    filled(&mut bench.open()).unwrap();
    bench.world.remote.commit(&wide().file("x", "y"));
    filled(&mut bench.open()).unwrap();
    let tree = bench.world.remote.git(&["rev-parse", &format!("{old}^{{tree}}")]);
    damage(&bench, tree.trim());
    bench.world.remote.reset(&old);
    let error = filled(&mut bench.open()).unwrap_err();
    assert!(error.is_damage(), "{error:?}");
    filled(&mut bench.open()).unwrap();
}

/// A mirror is checked for blobs that are missing, not for those whose content is damaged.
#[test]
fn a_file_that_one_process_cannot_read_makes_the_next_one_start_anew() {
    let bench = Bench::new("main");
    let noise = noise(1, 100_000);
    let old = revision(&bench.world.remote.commit(&wide().file("large", noise)));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let blob = bench.git(&["rev-parse", &format!("{old}:large")]).trim().to_owned();
    damage(&bench, &blob);
    drop(mirror);

    let mirror = bench.open();
    assert_eq!(bench.packs().len(), 1, "nothing is missing");
    let blobs = mirror.objects().blobs();
    let id = treeswap::revision::ObjectId::from_hex(&blob).unwrap();
    let read = blobs.reader().unwrap().read(&id, &mut |_| Ok(()));
    assert!(read.is_err(), "it is damaged");
    drop((blobs, mirror));

    let mut mirror = bench.open();
    assert_eq!(bench.packs().len(), 0, "it is rebuilt");
    assert_eq!(update(&mut mirror, &[old]), old);
    bench.assert_whole(&mirror, old);
    drop(mirror);
    bench.open();
    assert_eq!(bench.packs().len(), 1, "once");
}

/// What was fetched before, and is complete, is not looked through again.
#[test]
fn a_tree_of_a_partial_clone_that_is_damaged_while_it_is_open_is_fetched_again() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("tree:0".to_owned());
    let filled = |mirror: &mut Mirror| {
        let revision = try_update(mirror, &[])?;
        wait(mirror.fill(revision, &Selection::default()))
    };
    let tip = bench.world.remote.commit(&wide());
    let mut mirror = bench.open();
    filled(&mut mirror).unwrap();
    let tree = bench.world.remote.git(&["rev-parse", &format!("{tip}^{{tree}}")]);
    damage(&bench, &tree);
    let error = filled(&mut mirror).unwrap_err();
    assert!(error.is_damage(), "{error:?}");
    filled(&mut mirror).unwrap();
    bench.assert_whole(&mirror, revision(&tip));
}

/// Submodules are listed before anything is read for a generation.
#[test]
fn a_list_of_submodules_that_cannot_be_read_makes_the_next_fetch_start_anew() {
    let mut bench = Bench::new("main");
    bench.options.modules = Access { submodules: Submodules::First, local: true, ..Access::default() };
    let sub = Remote::create(&bench.world.dir().join("sub"));
    let commit = sub.commit(&Files::new().file("f", "below"));
    let declared = "[submodule \"sub\"]\n\tpath = sub\n\turl = ../sub\n";
    let mut files = wide().file(".gitmodules", declared);
    files.0.insert("sub".to_owned(), ("160000", commit.into()));
    bench.world.remote.commit(&files);
    let mut mirror = bench.open();
    let old = update(&mut mirror, &[]);
    damage(&bench, bench.git(&["rev-parse", &format!("{old}:.gitmodules")]).trim());
    let new = revision(&bench.world.remote.commit(&files.file("x", "y")));
    let error = try_update(&mut mirror, &[old]).unwrap_err();
    assert!(error.is_damage(), "{error:?}");
    assert_eq!(update(&mut mirror, &[old]), new);
    mirror.objects().payload(new, &Selection::default()).unwrap();
}

/// What is only kept is read by nobody else.
#[test]
fn what_garbage_collection_cannot_read_is_fetched_anew_unless_consumers_may_have_committed() {
    for (gc, object, worktrees) in
        [(Gc::Always, "^{tree}", false), (Gc::Aggressive, ":large", false), (Gc::Always, "^{tree}", true)]
    {
        let mut bench = Bench::new("main");
        bench.options.gc = gc;
        bench.options.worktrees = worktrees;
        bench.options.dir = bench.world.dir().join("root/.git");
        let old = revision(&bench.world.remote.commit(&wide().file("large", noise(1, 100_000))));
        let mut mirror = bench.open();
        update(&mut mirror, &[]);
        // Too different to be a delta, so that only one pack has each object of the old one.
        let new = revision(&bench.world.remote.commit(&Files::new().file("only", "this")));
        update(&mut mirror, &[old]);
        damage(&bench, bench.git(&["rev-parse", &format!("{old}{object}")]).trim());
        let packs = bench.packs().len();
        let error = mirror.housekeep(&[new, old]).expect_err(object);
        drop(mirror);
        let mut mirror = bench.open();
        if worktrees {
            assert_eq!(bench.packs().len(), packs, "what consumers committed is gone");
            let hints = error.hints();
            assert!(matches!(error, Error::Irreplaceable { .. }) && !error.is_transient(), "{error:?}");
            assert!(hints.len() == 1 && hints[0].contains("save what they have"), "{hints:?}");
            continue;
        }
        assert!(error.is_damage(), "{object}: {error:?}");
        assert_eq!(bench.packs().len(), 0, "{object}: it is rebuilt");
        assert_eq!(update(&mut mirror, &[new, old]), new);
        mirror.housekeep(&[new, old]).unwrap();
    }
}

/// Opens files until no more can be opened.
fn use_up_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// libgit2 says of a pack that it could not open only that the object is not found.
#[test]
fn a_process_that_can_open_no_more_files_calls_no_mirror_damaged() {
    const INSIDE: &str = "TREESWAP_TEST_DESCRIPTORS";
    if std::env::var_os(INSIDE).is_none() {
        // In a process of its own: other tests would run out of them, too.
        let name = "damage::a_process_that_can_open_no_more_files_calls_no_mirror_damaged";
        let mut this = Command::new(std::env::current_exe().unwrap());
        let inside = this.args(["--exact", "--nocapture", name]).env(INSIDE, "1").output().unwrap();
        let [said, errors] = [&inside.stdout, &inside.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(inside.status.success() && said.contains("1 passed"), "{said}{errors}");
        return;
    }
    let bench = Bench::new("main");
    let mut mirror = bench.open();
    let mut files = wide();
    let mut held = Vec::new();
    for n in 0..4 {
        files = files.file(format!("dir{n}/new"), n.to_string());
        bench.world.remote.commit(&files);
        held.insert(0, update(&mut mirror, &held));
    }
    let packs = bench.packs().len();
    assert!(packs >= 4, "each fetch leaves one: {packs}");
    let limit = Rlimit { current: Some(256), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).unwrap();

    let objects = mirror.objects();
    let mut taken = use_up_descriptors();
    let (mut lacked, mut refused) = (0, 0);
    for _ in 0..12 {
        drop(taken.pop());
        let read = objects.payload(held[0], &Selection::default());
        lacked += usize::from(read.is_err_and(|error| error.is_damage()));
    }
    drop((objects, mirror, taken));
    let mut taken = use_up_descriptors();
    for _ in 0..12 {
        drop(taken.pop());
        // With the record that all is there it would not be looked for.
        let _ = std::fs::remove_file(bench.dir().join("treeswap-complete"));
        let opened = Mirror::open(bench.options.clone());
        refused += usize::from(opened.is_err_and(|error| matches!(error, Error::Local { .. })));
    }
    drop(taken);
    assert!(lacked > 0 && refused > 0, "a pack could be opened each time: {lacked}, {refused}");
    bench.open();
    assert_eq!(bench.packs().len(), packs, "it is rebuilt");
}
