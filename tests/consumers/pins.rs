//! Whoever pins reads one whole generation, however slowly, from wherever.

use super::*;

/// What every pin is for: a slow reader has one complete generation while newer ones come and the reaper goes round.
#[track_caller]
fn holds_one_generation(writer: &mut Writer, what: &str, command: &[String]) {
    let first = writer.publish(1);
    writer.reap();
    let mut consumer = Talker::start(command);
    assert_eq!(consumer.line(), "pinned", "{what}");
    for n in 2..5 {
        writer.publish(n);
        assert!(!writer.reap().contains(&first), "{what}: a pinned generation was reaped");
    }
    consumer.say("go on");
    assert_eq!(consumer.rest(), "1\n1\n1\n", "{what}: it did not read the whole generation it had pinned");
    assert!(consumer.ended().success(), "{what}");
    writer.reaps(&first, &format!("{what}: nobody pins it any more"));
}

#[test]
fn a_pin_from_another_process_holds_one_generation_until_it_ends() {
    let mut writer = Writer::new();
    let root = writer.root().to_owned();
    for (what, command) in writer.pinners(&root) {
        holds_one_generation(&mut writer, what, &command);
    }
}

#[test]
fn a_pin_of_another_user_holds_as_well() {
    let mut writer = Writer::new();
    let root = writer.root().to_owned();
    for (what, command) in writer.pinners(&root) {
        holds_one_generation(&mut writer, what, &as_stranger(&command));
    }
}

#[test]
fn a_pin_of_another_user_through_a_read_only_mount_holds_as_well() {
    let mut writer = Writer::new();
    let (root, mount) = (writer.root().to_owned(), writer.dir.path().join("mount"));
    for (what, command) in writer.pinners(&mount) {
        let command = behind_a_read_only_mount(&root, &mount, &as_stranger(&command));
        holds_one_generation(&mut writer, what, &command);
    }
}

#[test]
fn a_pin_that_a_low_limit_of_descriptors_forbids_says_so() {
    let writer = Writer::started();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 9 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_treeswap"), "pin"]);
    shell.args([writer.root().to_str().unwrap(), "--", "true"]);
    let ran = run::to_end(shell.stdin(Stdio::null()));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("(os error 24)"), "not that an argument is invalid: {}", ran.stderr);
}

/// The reaper's lock is on the generation that a consumer opens; when it goes, another generation is current.
#[test]
fn a_pin_that_a_swap_overtakes_is_taken_again() {
    let mut writer = Writer::new();
    // The library tries for a quarter of a second and then goes on, and the program fails: these have their own tests.
    let patient = |(what, _): &(&str, _)| !what.starts_with("treeswap") && *what != "Rust";
    let consumers: Vec<_> = writer.pinners(writer.root()).into_iter().filter(patient).collect();
    assert_eq!(consumers.len(), 4);
    for (what, command) in consumers {
        let first = writer.publish(1);
        let place = fs::canonicalize(writer.root().join("..data")).unwrap();
        let reaped = fs::File::open(&place).unwrap();
        rustix::fs::flock(&reaped, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut consumer = Talker::start(&command);
        let descriptors = format!("/proc/{}/fd", consumer.child.id());
        let has_it_open = || {
            let all = fs::read_dir(&descriptors).unwrap().flatten();
            all.into_iter().any(|one| fs::read_link(one.path()).is_ok_and(|path| path == place))
        };
        let end = Instant::now() + Duration::from_secs(60);
        while !has_it_open() {
            assert!(Instant::now() < end, "{what}: it has not opened the generation");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!consumer.has_said(), "{what}: it went on although the lock is held exclusively");
        let second = writer.publish(2);
        drop(reaped);
        assert_eq!(consumer.line(), "pinned", "{what}");
        writer.reaps(&first, &format!("{what}: it has to hold the newer one"));
        writer.publish(3);
        assert!(!writer.reap().contains(&second), "{what}: a pinned generation was reaped");
        consumer.say("go on");
        assert_eq!(consumer.rest(), "2\n2\n2\n", "{what}");
        assert!(consumer.ended().success(), "{what}");
        writer.reaps(&second, &format!("{what}: nobody pins it any more"));
    }
}

#[test]
fn rusts_examples_wait_for_a_lock_that_is_kept_for_longer_than_the_library_tries() {
    let writer = Writer::started();
    let consumers = writer.pinners(writer.root()).into_iter().chain(writer.watchers());
    let rust: Vec<_> = consumers.filter(|(what, _)| *what == "Rust").collect();
    assert_eq!(rust.len(), 2);
    for ((_, command), said) in rust.iter().zip(["pinned", "loaded 1 1 1"]) {
        let kept = fs::File::open(writer.root().join("..data")).unwrap();
        rustix::fs::flock(&kept, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut consumer = Talker::start(command);
        std::thread::sleep(Duration::from_secs(1));
        assert!(!consumer.has_said(), "{said}: it ended, or went on without the lock");
        drop(kept);
        assert_eq!(consumer.line(), said);
    }
}

#[test]
fn pins_that_are_taken_while_generations_come_and_go_hold_whole_ones() {
    let mut writer = Writer::started();
    let mut numbers = (2..200).cycle();
    for (what, command) in writer.pinners(writer.root()) {
        let mut consumer = Talker::start(&command);
        let mut swaps = 0;
        while !consumer.has_said() {
            writer.publish(numbers.next().unwrap());
            writer.reap();
            swaps += 1;
            // Slower and slower: what starts a process between its steps does not come between two fast swaps.
            std::thread::sleep(Duration::from_micros(100 * swaps));
        }
        assert_eq!(consumer.line(), "pinned", "{what}");
        for _ in 0..3 {
            writer.publish(numbers.next().unwrap());
            writer.reap();
        }
        consumer.say("go on");
        let read = consumer.rest();
        let lines: Vec<&str> = read.lines().collect();
        let [a, b, c] = lines[..] else { panic!("{what}: it read {read:?}") };
        assert!(a == b && b == c, "{what}: it read {read:?}");
        assert!(consumer.ended().success(), "{what}");
    }
}

#[test]
fn the_librarys_pin_holds_and_moves_on_when_renewed() {
    let mut writer = Writer::new();
    let first = writer.publish(1);
    let mut pin = Pin::take(writer.root(), &pin::Options::default()).unwrap();
    let second = writer.publish(2);
    writer.publish(3);
    writer.reaps(&second, "nobody pins it");
    assert_eq!(fs::read(pin.path().join("sub/c")).unwrap(), b"1\n");
    assert_eq!(pin.location(), writer.root().join(first.as_str()));
    assert!(pin.renew().unwrap());
    writer.reaps(&first, "the pin has moved on");
    assert_eq!(fs::read(pin.path().join("sub/c")).unwrap(), b"3\n");
}

#[test]
fn a_pin_ends_with_a_killed_holder() {
    let mut writer = Writer::new();
    let first = writer.publish(1);
    let mut consumer = Talker::start(&writer.pinner(writer.root()));
    consumer.line();
    writer.publish(2);
    assert!(writer.reap().is_empty());
    consumer.signal(Signal::KILL);
    consumer.ended();
    writer.reaps(&first, "its holder was killed");
}

#[test]
fn the_documented_shell_lines_fail_where_there_is_no_flock_instead_of_reading_unpinned() {
    let writer = Writer::started();
    let script = writer.script("pin.sh");
    for shell in ["dash", "bash"] {
        let shell =
            ["/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(shell)).find(|path| path.exists());
        let mut command = Command::new(shell.unwrap());
        let ran =
            run::to_end(command.arg(&script).arg(writer.root()).env("PATH", "/nowhere").stdin(Stdio::null()));
        assert!(!ran.ok() && ran.stdout.is_empty() && ran.stderr.contains("flock"), "{ran:?}");
    }
}

#[test]
fn the_pinned_command_gets_the_path_and_gives_its_exit_code() {
    let writer = Writer::started();
    let root = writer.root().to_str().unwrap();
    let current = fs::canonicalize(writer.root().join("..data")).unwrap();
    let ran = treeswap(&[
        "pin",
        root,
        "--",
        "sh",
        "-c",
        "echo $TREESWAP_DIR $1 $2; pwd; exit 7",
        "sh",
        "{}",
        "--x={}/a",
    ]);
    let place = current.display();
    let here = std::env::current_dir().unwrap();
    assert_eq!(ran.stdout, format!("{place} {place} --x={place}/a\n{}\n", here.display()));
    assert_eq!((ran.status.code(), ran.stderr.as_str()), (Some(7), ""));
}

#[test]
fn the_pinned_command_takes_the_place_of_treeswap_so_that_signals_reach_it() {
    let writer = Writer::started();
    let root = writer.root().to_str().unwrap().to_owned();
    let mut words = vec![env!("CARGO_BIN_EXE_treeswap").to_owned(), "pin".into(), root, "--".into()];
    words.extend(["sh", "-c", "echo $$; exec sleep 1000"].map(str::to_owned));
    let mut consumer = Talker::start(&words);
    assert_eq!(consumer.line(), consumer.child.id().to_string());
    consumer.signal(Signal::TERM);
    assert_eq!(consumer.ended().signal(), Some(15));
}

#[test]
fn a_command_that_cannot_be_run_is_told_apart_as_shells_do() {
    let writer = Writer::started();
    let root = writer.root().to_str().unwrap();
    let absent = treeswap(&["pin", root, "--", "/no/such/command"]);
    assert_eq!(absent.status.code(), Some(127));
    assert!(absent.complaint().contains("/no/such/command"), "{}", absent.stderr);
    let inert = treeswap(&["pin", root, "--", root]);
    assert_eq!(inert.status.code(), Some(126));
}

#[test]
fn where_nothing_is_published_a_pin_fails_with_a_hint_or_waits() {
    let mut writer = Writer::new();
    let root = writer.root().to_str().unwrap().to_owned();
    treeswap(&["pin", &root, "--", "true"])
        .expect_failure("pinning nothing")
        .names(&["no generation", "..data"]);
    let mut waiting = Talker::spawn(Command::new(env!("CARGO_BIN_EXE_treeswap")).args([
        "pin",
        "--wait=60s",
        &root,
        "--",
        "cat",
        "{}/a",
    ]));
    writer.publish(1);
    assert_eq!(waiting.rest(), "1\n");
}

#[test]
fn git_syncs_link_can_be_pinned_and_other_links_are_refused() {
    let writer = Writer::started();
    let at = |name: &str| writer.dir.path().join(name).to_str().unwrap().to_owned();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir_all(at(&format!(".worktrees/{commit}"))).unwrap();
    std::os::unix::fs::symlink(format!(".worktrees/{commit}"), at("live")).unwrap();
    let ran = treeswap(&["pin", &at("live"), "--", "echo", "{}"]);
    assert!(ran.stdout.trim_end().ends_with(commit), "{}{}", ran.stdout, ran.stderr);
    let sub = writer.root().join("sub");
    treeswap(&["pin", "--link", sub.to_str().unwrap(), "--", "true"])
        .expect_failure("pinning a directory in the root")
        .names(&["not a generation"]);
}
