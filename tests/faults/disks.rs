//! Disks that are full or become read-only, as small memory file systems.
//!
//! Each test runs in a mount namespace of its own (see [`mounting`]).

use std::process::Command;

use super::common::mounts::{self, mount};
use super::common::sources_world::{SourcesWorld, published, source};
use super::common::{Files, Ran, Remote, Sidecar, World, eventually, noise, run};
use super::{ONCE, publish, publish_with, small};

/// Files that no compression makes small; those of another size have nothing in common with them.
fn incompressible(files: usize, bytes: usize) -> Files {
    (0..files).fold(small(9), |all, index| {
        let seed = (bytes * 100 + index) as u64;
        all.file(format!("noise/{index}"), noise(seed, bytes))
    })
}

/// Runs the body in a mount namespace of its own.
fn mounting(test: &str, body: impl FnOnce()) {
    mounts::mounting(&format!("disks::{test}"), body);
}

/// A world whose root lies on a small memory file system.
fn world_on(options: &str) -> World {
    let mut world = World::new();
    let disk = world.dir().join("disk");
    std::fs::create_dir(&disk).unwrap();
    mounts::tmpfs(options, &disk);
    world.root = disk.join("root");
    world
}

/// The disk fills up while the next generation comes in; `args` say where the mirror lies.
fn fills_up(options: &str, args: &[&str], too_much: &Files) {
    let world = world_on(options);
    let args = [ONCE, args].concat();
    let before = publish_with(&world, &args, &small(1));
    world.remote.commit(too_much);
    for _ in 0..2 {
        let ran = world.sync_once(&args).expect_failure("a disk that is full");
        ran.names(&[world.root.to_str().unwrap()]);
        world.assert_published(&before);
    }
    let after = world.remote.commit(&small(2));
    world.sync_once(&args).expect_ok("space again");
    world.assert_published(&after);
    world.sync_once(&args).expect_ok("a cycle later");
    world.assert_clean(1);
}

#[test]
fn a_full_disk_leaves_what_is_published_and_heals_by_itself() {
    mounting("a_full_disk_leaves_what_is_published_and_heals_by_itself", || {
        fills_up("size=3m", &[], &incompressible(12, 400_000));
    });
}

#[test]
fn a_disk_that_fills_up_while_a_generation_is_written_heals_by_itself() {
    mounting("a_disk_that_fills_up_while_a_generation_is_written_heals_by_itself", || {
        let elsewhere = World::new();
        let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
        fills_up("size=3m", &[&mirror], &incompressible(12, 400_000));
    });
}

#[test]
fn a_disk_without_inodes_left_heals_by_itself() {
    mounting("a_disk_without_inodes_left_heals_by_itself", || {
        let elsewhere = World::new();
        let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
        fills_up("nr_inodes=150", &[&mirror], &incompressible(300, 3));
    });
}

/// Room that appears while it runs needs no restart.
#[test]
fn a_disk_that_is_full_at_the_start_is_waited_for() {
    mounting("a_disk_that_is_full_at_the_start_is_waited_for", || {
        for options in ["size=8k", "nr_inodes=8"] {
            let world = world_on(options);
            let commit = world.remote.commit(&small(1));
            let ran = world.sync_once(ONCE).expect_failure("no room");
            assert!(ran.stderr.contains("No space left on device"), "{options}: {}", ran.stderr);
            assert!(ran.stderr.contains("full"), "the hint says so: {options}: {}", ran.stderr);
            let flags = ["--period=100ms", "--max-backoff=200ms", "--http-bind=127.0.0.1:0"];
            let sidecar = Sidecar::of(&world, world.sync(&flags).args(["--min-interval=0s"]));
            let words = "cannot start; trying again";
            eventually(30, words, || sidecar.process.log().contains(words).then_some(()));
            let answer = sidecar.ask("/readyz?verbose").unwrap();
            assert!(answer.contains("No space left on device"), "{options}: {answer}");
            mount(&["-o", "remount,size=10m,nr_inodes=1000"], world.root.parent().unwrap());
            sidecar.publishes(&world, &commit);
        }
    });
}

/// What a killed process left behind takes all room: blocks or inodes, in staging or in the trash.
#[test]
fn a_disk_that_is_full_of_left_overs_at_the_start_heals_by_itself() {
    mounting("a_disk_that_is_full_of_left_overs_at_the_start_heals_by_itself", || {
        for (options, bytes) in [("size=3m", 4096), ("nr_inodes=150", 0)] {
            for place in ["staging/generation-1-0", "trash/gone-1-0"] {
                let (world, elsewhere) = (world_on(options), World::new());
                let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
                let args = [ONCE[0], &mirror];
                publish_with(&world, &args, &small(1));
                let left = world.root.join("..treeswap").join(place);
                std::fs::create_dir(&left).unwrap();
                let fill = |n: usize| std::fs::write(left.join(n.to_string()), vec![0; bytes]);
                assert!((0..).map(fill).any(|written| written.is_err()), "it is full");
                let commit = world.remote.commit(&small(2));
                world.sync_once(&args).expect_ok("the room that left-overs took");
                world.assert_published(&commit);
            }
        }
    });
}

/// What takes all room is somebody else's, and the link is gone.
#[test]
fn a_disk_that_others_filled_serves_what_it_can_and_heals_once_they_leave() {
    mounting("a_disk_that_others_filled_serves_what_it_can_and_heals_once_they_leave", || {
        let (world, elsewhere) = (world_on("nr_inodes=150"), World::new());
        let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
        let args = [ONCE[0], &mirror];
        let before = publish_with(&world, &args, &small(1));
        let others = world.dir().join("disk/others");
        std::fs::create_dir(&others).unwrap();
        let fill = |n: usize| std::fs::write(others.join(n.to_string()), "");
        assert!((0..).map(fill).any(|written| written.is_err()), "it is full");
        let commit = world.remote.commit(&small(2));
        let link = world.root.join("..data");
        std::fs::remove_file(&link).unwrap(); // which leaves an inode for it
        world.sync_once(&args).expect_failure("no room").names(&["inodes"]);
        world.assert_published(&before);
        std::fs::remove_file(&link).unwrap();
        assert!((0..).map(fill).any(|written| written.is_err()), "it is full");
        world.sync_once(&args).expect_failure("no room for the link").names(&["No space left", "..data"]);
        std::fs::remove_dir_all(&others).unwrap();
        world.sync_once(&args).expect_ok("room again");
        world.assert_published(&commit);
    });
}

/// How many generations are there.
fn generations(world: &World) -> usize {
    let names = std::fs::read_dir(&world.root).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(b"..2")).count()
}

#[test]
fn a_grace_period_ends_early_for_room_only_where_that_gives_it() {
    mounting("a_grace_period_ends_early_for_room_only_where_that_gives_it", || {
        let (world, elsewhere) = (world_on("size=6m"), World::new());
        let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
        let args = ["--grace=1h", "--spare=off", &mirror];
        // 2.0 MB and 1.2 MB of 6 MB: both stay.
        for files in [incompressible(5, 400_000), incompressible(4, 300_000)] {
            publish_with(&world, &args, &files);
        }
        assert_eq!(generations(&world), 2);
        world.remote.commit(&incompressible(14, 400_001));
        let ran = world.sync_once(&args).expect_failure("5.6 MB do not fit beside 1.2 MB, whatever goes");
        ran.names(&["no room"]);
        assert_eq!(generations(&world), 2, "a grace period ended for nothing: {}", ran.stderr);
        // 4.0 MB fit once the oldest has gone.
        let commit = world.remote.commit(&incompressible(10, 400_002));
        let ran = world.sync_once(&args).expect_ok("what fits where the oldest goes");
        world.assert_published(&commit);
        assert_eq!(generations(&world), 2);
        assert!(ran.stderr.contains("reaped before its time"), "{}", ran.stderr);
    });
}

/// The same where it is the fetch that has no room: how much it brings is asked before a grace period ends for it.
#[test]
fn a_grace_period_ends_early_for_a_fetch_only_where_that_gives_it_room() {
    mounting("a_grace_period_ends_early_for_a_fetch_only_where_that_gives_it_room", || {
        let world = world_on("size=8250k");
        let args = ["--grace=1h", "--spare=off"];
        // 2.0 MB and 1.2 MB, each in the mirror, too: 2.0 MB are left.
        for files in [incompressible(5, 400_000), incompressible(4, 300_000)] {
            publish_with(&world, &args, &files);
        }
        assert_eq!(generations(&world), 2);
        world.remote.commit(&incompressible(14, 400_001));
        let ran = world.sync_once(&args).expect_failure("5.6 MB do not fit into 4.0 MB");
        ran.names(&["No space left"]);
        assert_eq!(generations(&world), 2, "a grace period ended for nothing: {}", ran.stderr);
        // 2.4 MB fit once the oldest has gone, and then its objects.
        let commit = world.remote.commit(&incompressible(6, 400_002));
        let ran = world.sync_once(&args).expect_ok("what fits where the oldest goes");
        world.assert_published(&commit);
        assert!(ran.stderr.contains("reaped before its time"), "{}", ran.stderr);
    });
}

/// A revision comes that the volume has room for only once, in the mirror: it is never published. The next one finds
/// room beside it for its own objects but not for its files, or not even for those. Each pass is a process of its own, as
/// where the first failure ends it.
fn makes_room(pass: impl Fn(&World) -> Ran, published: impl Fn(&World) -> Option<String>) {
    for next in [incompressible(7, 200_000), incompressible(7, 400_001)] {
        let world = world_on("size=6m");
        let before = world.remote.commit(&small(1));
        pass(&world).expect_ok("what fits");
        world.remote.commit(&incompressible(9, 400_000));
        for _ in 0..2 {
            pass(&world).expect_failure("too much for the volume");
            assert_eq!(published(&world).as_deref(), Some(before.as_str()));
        }
        let after = world.remote.commit(&next);
        let ran = pass(&world).expect_ok("what would fit without what did not");
        assert_eq!(published(&world), Some(after), "{}", ran.stderr);
        assert!(ran.stderr.contains("removed unpublished fetched objects"), "{}", ran.stderr);
        pass(&world).expect_ok("a cycle later");
    }
}

#[test]
fn a_revision_that_did_not_fit_does_not_keep_the_next_one_out() {
    mounting("a_revision_that_did_not_fit_does_not_keep_the_next_one_out", || {
        makes_room(
            |world| world.sync_once(ONCE),
            |world| {
                let commits = world.remote.git(&["rev-list", "main"]);
                commits.lines().find(|commit| world.differences(commit).is_empty()).map(str::to_owned)
            },
        );
    });
}

#[test]
fn nor_does_it_in_git_syncs_layout() {
    mounting("nor_does_it_in_git_syncs_layout", || {
        let sync = |world: &World| world.sync_once(&["--layout=git-sync", "--link=link", "--grace=0s"]);
        makes_room(sync, |world| {
            let target = std::fs::read_link(world.root.join("link")).ok()?;
            Some(target.file_name()?.to_str()?.to_owned())
        });
    });
}

/// The set is composed of what is there, but its trees have no room beside what came and was never published.
#[test]
fn nor_does_it_keep_a_set_from_being_composed() {
    mounting("nor_does_it_keep_a_set_from_being_composed", || {
        let many = SourcesWorld::new();
        let (one, disk) = (many.remote("one"), many.world.dir().join("disk"));
        std::fs::create_dir(&disk).unwrap();
        mount(&["-t", "tmpfs", "-o", "size=6m", "tmpfs"], &disk);
        let sync = || run::to_end(&mut many.sync(&["--one-time", &format!("--mirror={}", disk.display())]));
        let before = one.commit(&small(1));
        many.list(&[source("one", &one, ", to: here")]);
        sync().expect_ok("what fits");
        one.commit(&incompressible(4, 400_000).link("out", "../../out"));
        sync().expect_failure("a link out of its part");
        one.reset(&before);
        // Sixty directories, and a page for each: more than is left.
        let place = vec!["d"; 60].join("/");
        many.list(&[source("one", &one, &format!(", to: {place}"))]);
        let left = rustix::fs::statvfs(&disk).unwrap();
        let filler = (left.f_bavail * left.f_frsize) as usize - (64 << 10);
        std::fs::write(disk.join("filler"), vec![0; filler]).unwrap();
        let ran = sync().expect_ok("what would fit without what did not");
        assert!(ran.stderr.contains("removed unpublished fetched objects"), "{}", ran.stderr);
        assert_eq!(published(&many.world.root)[&format!("{place}/one")], "1");
    });
}

/// A directory of the published generation, mounted once more: neither its path nor any directory above it says where it
/// lies.
#[test]
fn another_mount_of_a_directory_of_the_generation_takes_no_file_of_the_operators() {
    mounting("another_mount_of_a_directory_of_the_generation_takes_no_file_of_the_operators", || {
        let world = World::new();
        let commit = publish(&world, &small(1));
        let out = world.dir().join("out of sight");
        std::fs::create_dir(&out).unwrap();
        let below = world.root.join("..data/below");
        mount(&["--bind", below.to_str().unwrap()], &out);
        let args = [
            format!("--touch-file={0}/ready", out.display()),
            format!("--error-file={0}/two", out.display()),
        ];
        let args = [ONCE[0], &*args[0], &*args[1]];
        let failed = world.sync_once(&[&args[..], &["--ref=nowhere"]].concat()).expect_failure("no such ref");
        assert!(failed.stderr.contains("cannot write"), "{}", failed.stderr);
        let ran = world.sync_once(&args).expect_ok("a pass");
        assert!(ran.stderr.contains("cannot touch"), "{}", ran.stderr);
        world.assert_published(&commit);
        let log = format!("--termination-log={}/two", out.display());
        let ran = world.sync_once(&[&log, "--ref=nowhere"]).expect_failure("a file of the generation");
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        world.assert_published(&commit);
    });
}

/// A spare has no room: that is said, and what has room is published all the same.
#[test]
fn a_spare_without_room_is_said_once() {
    mounting("a_spare_without_room_is_said_once", || {
        let (world, elsewhere) = (world_on("size=5m"), World::new());
        let mirror = format!("--mirror={}", elsewhere.dir().join("mirror").display());
        world.remote.commit(&incompressible(8, 400_000));
        let log = world.dir().join("log");
        let args = ["--period=10ms", "--min-interval=0s", "--spare=copy", &mirror];
        let process = run::Background::start(&mut world.sync(&args), &log);
        let said = "there is no room on the volume for a spare";
        super::eventually(30, "it is said", || process.log().contains(said).then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(300)); // dozens of attempts
        assert_eq!(process.log().matches(said).count(), 1, "{}", process.log());
    });
}

/// A world whose root is on a file system that does not tell case.
fn world_without_case() -> World {
    let mut world = World::new();
    let (image, disk) = (world.dir().join("image"), world.dir().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run::to_end(Command::new("mkntfs").args(["-F", "-q"]).arg(&image)).expect_ok("mkntfs");
    let options = ["-o", "ignore_case,permissions"];
    run::to_end(Command::new("lowntfs-3g").args(options).args([&image, &disk])).expect_ok("lowntfs-3g");
    world.root = disk.join("root");
    world
}

/// The root link keeps its earlier spelling, under which readers find it as well.
#[test]
fn a_name_at_the_top_whose_case_changes_is_published() {
    mounting("a_name_at_the_top_whose_case_changes_is_published", || {
        let world = world_without_case();
        for (name, content) in [("readme", "one"), ("README", "two"), ("Readme", "three"), ("readme", "four")]
        {
            world.remote.commit(&Files::new().file(name, content).file("kept", content));
            world.sync_once(&[]).expect_ok(name);
            for spelling in ["readme", "README", "..data/readme"] {
                let read = std::fs::read_to_string(world.root.join(spelling));
                assert_eq!(read.unwrap(), content, "{spelling} of {name}");
            }
        }
        world.remote.commit(&Files::new().file("kept", "five"));
        let ran = world.sync_once(&[]).expect_ok("without it");
        assert!(!world.root.join("README").exists(), "{}", ran.stderr);
    });
}

/// On a file system that does not tell case, two sources bring names that differ in nothing else.
#[test]
fn names_that_are_one_name_to_the_file_system_are_refused() {
    mounting("names_that_are_one_name_to_the_file_system_are_refused", || {
        let world = world_without_case();
        let other = Remote::create(&world.dir().join("other"));
        let one = world.remote.commit(&Files::new().file("jobs/same.yaml", "one"));
        other.commit(&Files::new().file("jobs/other.yaml", "other"));
        let file = world.dir().join("sources.yaml");
        let source = |name, remote: &Remote| {
            format!("  - {{name: {name}, repo: {}, ref: main, to: all}}\n", remote.path.display())
        };
        let sources = source("one", &world.remote) + &source("two", &other);
        std::fs::write(&file, format!("version: 1\nsources:\n{sources}end: true\n")).unwrap();
        let sync = || {
            let mut command = world.treeswap(&["sync", "--one-time", "--sources"]);
            run::to_end(command.arg(&file).arg("--root").arg(&world.root))
        };
        sync().expect_ok("the first set");
        other.commit(&Files::new().file("jobs/Same.yaml", "other"));
        let ran = sync();
        assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
        let said = |ran: &Ran, words: &str| assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        for words in
            ["source two is not at the newest commit", "all/jobs/same.yaml", "`Same.yaml` as the same name"]
        {
            said(&ran, words);
        }
        let read =
            |name: &str| std::fs::read_to_string(world.root.join("..data/all/jobs").join(name)).unwrap();
        assert_eq!([read("same.yaml"), read("other.yaml")], ["one", "other"], "what serves stays");
        // One repository by itself: the same.
        world.remote.commit(&Files::new().file("jobs/a/x", "1").file("jobs/A/y", "2"));
        let ran = sync();
        said(&ran, "source one is not at the newest commit");
        said(&ran, "as the same name");
        assert_eq!(read("same.yaml"), "one", "{one} serves");
    });
}

#[test]
fn a_root_that_became_read_only_serves_and_says_so() {
    mounting("a_root_that_became_read_only_serves_and_says_so", || {
        let world = world_on("size=16m");
        let disk = world.dir().join("disk");
        let before = publish(&world, &small(1));
        mount(&["-o", "remount,ro"], &disk);
        let after = world.remote.commit(&small(2));
        let ran = world.sync_once(ONCE).expect_failure("a read-only root");
        ran.names(&["Read-only file system", disk.to_str().unwrap()]);
        world.assert_published(&before);
        mount(&["-o", "remount,rw"], &disk);
        world.sync_once(ONCE).expect_ok("writable again");
        world.assert_published(&after);
    });
}

/// A mirror that was deleted cannot be made again, but a generation is published.
#[test]
fn a_volume_without_room_for_the_mirror_leaves_a_published_root_ready() {
    mounting("a_volume_without_room_for_the_mirror_leaves_a_published_root_ready", || {
        let world = World::new();
        let disk = world.dir().join("disk");
        std::fs::create_dir(&disk).unwrap();
        mounts::tmpfs("size=3m,nr_inodes=150", &disk);
        let mirror = format!("--mirror={}", disk.join("mirror").display());
        publish_with(&world, &[ONCE[0], &mirror], &small(1));
        std::fs::remove_dir_all(disk.join("mirror")).unwrap();
        let fill = |n: usize| std::fs::write(disk.join(n.to_string()), "");
        assert!((0..).map(fill).any(|written| written.is_err()), "it is full");
        let commit = world.remote.commit(&small(2));
        let flags = ["--period=100ms", "--max-backoff=200ms", "--http-bind=127.0.0.1:0", &mirror];
        let sidecar = Sidecar::of(&world, world.sync(&flags).arg("--min-interval=0s"));
        let words = "cannot start; trying again";
        eventually(30, words, || sidecar.process.log().contains(words).then_some(()));
        let ready = sidecar.ask("/readyz?verbose").unwrap();
        assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("No space left"), "{ready}");
        assert_eq!(sidecar.metric("treeswap_never_succeeded"), Some(0.0));
        let status = eventually(30, "the writer answers", || {
            let ran = run::to_end(world.treeswap(&["status"]).arg(&world.root));
            ran.stdout.contains("No space left").then_some(ran)
        });
        assert!(status.ok(), "{}", status.stdout);
        mount(&["-o", "remount,size=10m,nr_inodes=1000"], &disk);
        sidecar.publishes(&world, &commit);
    });
}
