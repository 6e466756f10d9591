//! Whoever watches hears of every swap once.

use super::*;

/// A `treeswap watch` whose command writes lines to a log.
pub(super) struct Watching {
    talker: Talker,
    log: PathBuf,
}

impl Watching {
    fn start(writer: &Writer, options: &[&str], script: &str) -> Self {
        Self::start_by(writer, options, script, &[])
    }

    /// Under the words of another program. The script finds the log in `$log`.
    fn start_by(writer: &Writer, options: &[&str], script: &str, by: &[&str]) -> Self {
        Self::over(writer.root(), writer.dir.path().join("log"), options, script, by)
    }

    /// Of any directory.
    pub(super) fn over(path: &Path, log: PathBuf, options: &[&str], script: &str, by: &[&str]) -> Self {
        Self::running(path, log, options, &["sh", "-c", script], by)
    }

    /// With any command.
    fn running(path: &Path, log: PathBuf, options: &[&str], command: &[&str], by: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_treeswap");
        let mut words: Vec<&str> = by.to_vec();
        words.extend([program, "watch"]);
        words.extend(options);
        words.extend([path.to_str().unwrap(), "--"]);
        words.extend(command);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("log", &log)
            .stderr(fs::File::create(log.with_extension("err")).unwrap());
        Self { talker: Talker::spawn(&mut command), log }
    }

    pub(super) fn log(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub(super) fn complaints(&self) -> String {
        fs::read_to_string(self.log.with_extension("err")).unwrap()
    }

    /// Waits until it has complained in these words.
    #[track_caller]
    pub(super) fn complains(&self, words: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.complaints().contains(words) {
            assert!(Instant::now() < end, "no {words:?} came: {}", self.complaints());
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Waits until the log's last line is this one.
    #[track_caller]
    pub(super) fn until(&self, last: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.log().last().is_none_or(|line| line != last) {
            assert!(Instant::now() < end, "no line {last:?} came: {:?}\n{}", self.log(), self.complaints());
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Waits until signals are handled: before, they simply kill it or are lost. Its other thread is started after that.
    #[track_caller]
    fn until_it_listens(&self) {
        let status = format!("/proc/{}/status", self.talker.child.id());
        let threads = || {
            let text = fs::read_to_string(&status).unwrap();
            let threads = text.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
            threads.trim().parse::<u32>().unwrap()
        };
        let end = Instant::now() + Duration::from_secs(60);
        while threads() < 2 {
            assert!(Instant::now() < end, "{}", self.complaints());
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

/// Long enough that nothing is found by polling in a test about events.
pub(super) const NO_POLL: &str = "--poll=1h";
const NOTE: &str = "cat \"$TREESWAP_DIR/a\" >> \"$log\"";

#[test]
fn the_watching_command_runs_at_the_start_and_once_a_swap() {
    let mut writer = Writer::started();
    let watching = Watching::start(&writer, &[NO_POLL], NOTE);
    watching.until("1");
    for n in 2..20 {
        writer.publish(n);
        watching.until(&n.to_string());
        writer.reap(); // events of the reaper's are none of a swap
    }
    let expected: Vec<String> = (1..20).map(|n| n.to_string()).collect();
    assert_eq!(watching.log(), expected);
}

#[test]
fn the_first_run_can_be_left_out() {
    let mut writer = Writer::started();
    let watching = Watching::start(&writer, &[NO_POLL, "--skip-first"], NOTE);
    watching.until_it_listens();
    std::thread::sleep(Duration::from_millis(500)); // a first run takes milliseconds
    // It cannot be seen from outside when it has begun to watch, but a swap before that moment is the first one.
    let end = Instant::now() + Duration::from_secs(60);
    for n in (2..200).cycle() {
        writer.publish(n);
        if watching.log().len() > 1 {
            break;
        }
        assert!(Instant::now() < end, "{}", watching.complaints());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!watching.log().contains(&"1".to_owned()), "{:?}", watching.log());
}

#[test]
fn the_watching_command_never_runs_twice_at_once_and_the_newest_generation_wins() {
    let mut writer = Writer::started();
    // Each run says that it begins, and ends at a line on the watch's own standard input, which it inherits.
    let script = "mkdir \"$log.busy\" || echo overlap >> \"$log\"; cat \"$TREESWAP_DIR/a\" >> \"$log\"; \
                  read -r _; cat \"$TREESWAP_DIR/sub/c\" >> \"$log\"; rmdir \"$log.busy\"; echo done >> \"$log\"";
    let mut watching = Watching::start(&writer, &[NO_POLL], script);
    watching.until("1");
    (2..10).for_each(|n| {
        writer.publish(n);
        writer.reap();
    });
    watching.talker.say("go on");
    watching.until("9");
    watching.talker.say("go on");
    watching.until("done");
    assert_eq!(
        watching.log(),
        ["1", "1", "done", "9", "9", "done"],
        "what was swapped meanwhile is one change"
    );
}

#[test]
fn the_old_generation_stays_until_the_command_has_run_for_the_new_one() {
    let mut writer = Writer::started();
    let mut watching =
        Watching::start(&writer, &[NO_POLL], &format!("{NOTE}; read -r _; echo done >> \"$log\""));
    watching.until("1");
    watching.talker.say("go on");
    watching.until("done");
    writer.publish(2);
    watching.until("2");
    assert!(writer.reap().is_empty(), "somebody may still read the old one: the command has not ended");
    watching.talker.say("go on");
    watching.until("done");
    let end = Instant::now() + Duration::from_secs(60);
    while writer.reap().is_empty() {
        assert!(Instant::now() < end, "the old generation is still pinned");
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn a_failing_command_is_reported_and_the_next_swap_runs_it_again() {
    let mut writer = Writer::started();
    let watching = Watching::start(&writer, &[NO_POLL], &format!("{NOTE}; exit 3"));
    watching.until("1");
    writer.publish(2);
    watching.until("2");
    assert!(watching.complaints().contains("exit status: 3"), "{}", watching.complaints());
    let mut strict = Watching::start(&writer, &[NO_POLL, "--exit-on-failure"], "exit 3");
    assert_eq!(strict.talker.ended().code(), Some(3));
    let absent = writer.root().to_str().unwrap();
    assert_eq!(treeswap(&["watch", absent, "--", "/no/such/command"]).status.code(), Some(127));
}

#[test]
fn a_command_that_cannot_be_started_after_it_has_run_ends_no_watch() {
    let mut writer = Writer::started();
    let (root, dir) = (writer.root().to_owned(), writer.dir.path().to_owned());
    let [command, script, next] = ["command", "script", "next"].map(|name| dir.join(name));
    run::executable(&script, &format!("#!/bin/sh\n{NOTE}\n"));
    let becomes = |target: &str| {
        std::os::unix::fs::symlink(target, &next).unwrap();
        fs::rename(&next, &command).unwrap();
    };
    let start = |log: &str, options: &[&str]| {
        Watching::running(&root, dir.join(log), options, &[command.to_str().unwrap()], &[])
    };
    becomes("script");
    let watching = start("log", &[NO_POLL]);
    let mut strict = start("strict", &[NO_POLL, "--exit-on-failure"]);
    watching.until("1");
    strict.until("1");
    becomes("command"); // a link to itself, which nobody can follow
    writer.publish(2);
    watching.complains("(os error 40); trying again");
    assert_eq!(strict.talker.ended().code(), Some(126), "{}", strict.complaints());
    becomes("script");
    watching.until("2");
    becomes("absent");
    writer.publish(3);
    watching.complains("No such file or directory (os error 2)\n");
    becomes("script");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(watching.log(), ["1", "2"], "the next swap runs it again, and nothing else");
    writer.publish(4);
    watching.until("4");
    becomes("command");
    assert_eq!(start("first", &[NO_POLL]).talker.ended().code(), Some(126), "it has never run");
    let mut skipping = start("skipping", &[NO_POLL, "--skip-first"]);
    let end = Instant::now() + Duration::from_secs(60);
    for number in (5..200).cycle() {
        std::thread::sleep(Duration::from_millis(20));
        writer.publish(number); // a swap before it watches is the one that is left out
        if skipping.complaints().contains("; trying again") {
            break;
        }
        assert!(Instant::now() < end, "{}", skipping.complaints());
    }
    becomes("absent");
    assert_eq!(skipping.talker.ended().code(), Some(127), "one that has never run may be misspelt");
}

#[test]
fn a_process_is_told_of_every_swap_by_its_name() {
    let mut writer = Writer::started();
    let name = format!("gw-{}", std::process::id()); // a process' name has 15 bytes at most
    let service = writer.dir.path().join(&name);
    run::executable(&service, "#!/bin/sh\ntrap 'echo told' HUP\necho up\nwhile :; do sleep 0.05; done\n");
    // A shell cannot trap a signal that it was started to ignore, as under nohup.
    let heard = ["env", "--default-signal=HUP", service.to_str().unwrap()];
    let mut service = Talker::start(&heard.map(str::to_owned));
    assert_eq!(service.line(), "up");
    let log = writer.dir.path().join("log");
    let command = ["pkill", "-HUP", "-x", name.as_str()];
    let watching = Watching::running(writer.root(), log, &[NO_POLL], &command, &[]);
    for n in 2..5 {
        assert_eq!(service.line(), "told", "{}", watching.complaints());
        writer.publish(n);
    }
    assert_eq!(service.line(), "told", "{}", watching.complaints());
    assert_eq!(watching.complaints(), "");
}

#[test]
fn sigterm_reaches_the_command_and_then_ends_the_watch() {
    let writer = Writer::started();
    let script =
        "trap 'echo told >> \"$log\"; exit 1' TERM; echo up >> \"$log\"; while :; do read -r _; done";
    let mut watching = Watching::start(&writer, &[], script);
    watching.until("up");
    watching.talker.signal(Signal::TERM);
    watching.talker.say("so that a shell that waits in read looks at its signals");
    assert_eq!(watching.talker.ended().code(), Some(0));
    assert_eq!(watching.log(), ["up", "told"]);
}

#[test]
fn a_second_sigterm_kills_a_command_that_does_not_listen() {
    let writer = Writer::started();
    let mut watching =
        Watching::start(&writer, &[], "trap '' TERM; echo up >> \"$log\"; while :; do sleep 1; done");
    watching.until("up");
    let end = Instant::now() + Duration::from_secs(60);
    while watching.talker.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it still runs");
        watching.talker.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(watching.talker.ended().code(), Some(0));
}

#[test]
fn an_idle_watch_ends_at_sigterm_also_where_nothing_is_published() {
    for writer in [Writer::new(), Writer::started()] {
        let mut watching = Watching::start(&writer, &["--skip-first"], NOTE);
        watching.until_it_listens();
        watching.talker.signal(Signal::TERM);
        assert_eq!(watching.talker.ended().code(), Some(0));
    }
}

/// In git-sync's layout it is the link that is watched, and a consumer may well start before there is one.
#[test]
fn what_is_not_there_yet_may_turn_out_to_be_a_link() {
    let mut writer = Writer::new();
    let link = writer.dir.path().join("link");
    let (log, note) = (writer.dir.path().join("log"), format!("{NOTE}; read -r _"));
    let watching = Watching::over(&link, log, &[NO_POLL], &note, &[]);
    let program = env!("CARGO_BIN_EXE_treeswap");
    let words =
        [program, "pin", "--wait=1h", link.to_str().unwrap(), "--", "sh", "-c", "cat $TREESWAP_DIR/a"];
    let mut pinning = Talker::start(&words.map(str::to_owned));
    let end = Instant::now() + Duration::from_secs(60);
    while !watching.complaints().contains("waiting for it") {
        assert!(Instant::now() < end, "it does not wait: {}", watching.complaints());
        std::thread::sleep(Duration::from_millis(3));
    }
    let generation = writer.publish(1);
    std::os::unix::fs::symlink(writer.root().join(generation.as_str()), &link).unwrap();
    watching.until("1");
    assert_eq!(pinning.line(), "1");
}

#[test]
fn the_root_of_git_syncs_layout_is_not_waited_for_but_its_link_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".worktrees")).unwrap();
    for command in [&["pin", "--wait=1h"][..], &["watch"]] {
        let ran = treeswap(&[command, &[dir.path().to_str().unwrap(), "--", "true"]].concat());
        assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
        assert!(ran.complaint().contains("is a root in git-sync's layout"), "{}", ran.stderr);
        assert!(ran.stderr.contains("hint: name its link instead: ROOT/LINK"), "{}", ran.stderr);
    }
}

#[test]
fn where_inotify_is_exhausted_a_hint_names_the_sysctl_and_swaps_are_found_by_polling() {
    for (limit, sysctl) in [
        ("max_inotify_instances", "fs.inotify.max_user_instances"),
        ("max_inotify_watches", "fs.inotify.max_user_watches"),
    ] {
        let mut writer = Writer::started();
        // The limits of a user namespace are its own, and reached like the node's.
        let enter = format!("echo 0 > /proc/sys/user/{limit} && exec \"$@\"");
        let by = ["unshare", "--user", "--map-root-user", "sh", "-c", &enter, "sh"];
        let watching = Watching::start_by(&writer, &["--poll=50ms"], NOTE, &by);
        watching.until("1");
        let complaints = watching.complaints();
        assert!(
            complaints.contains("by polling every 50ms") && complaints.contains("\nhint: raise "),
            "{complaints}"
        );
        assert!(complaints.contains(sysctl), "{complaints}");
        writer.publish(2);
        watching.until("2");
    }
}

#[test]
fn a_process_without_descriptors_blames_no_limit_of_the_node() {
    let writer = Writer::started();
    let program = env!("CARGO_BIN_EXE_treeswap");
    let mut told = 0;
    // How many it needs to get so far is not known here; with fewer it ends with an error before.
    for limit in 6..24 {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {limit} && exec \"$@\"")).args(["sh", program, "watch"]);
        shell.args(["--exit-on-failure", writer.root().to_str().unwrap(), "--", "false"]);
        let ran = run::to_end(shell.stdin(Stdio::null()));
        assert!(!ran.stderr.contains("inotify instance"), "{limit}: {}", ran.stderr);
        told += usize::from(ran.stderr.contains("this process has no file descriptor left (ulimit -n)"));
    }
    assert!(told > 0, "it never watched without descriptors");
}

#[test]
fn the_watching_programs_pass_over_a_generation_that_they_cannot_load() {
    let mut writer = Writer::new();
    for (what, command) in writer.watchers() {
        writer.publish(1);
        let errors = writer.dir.path().join(format!("{what}.err"));
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]).stderr(fs::File::create(&errors).unwrap());
        let mut consumer = Talker::spawn(&mut program);
        assert_eq!(consumer.line(), "loaded 1 1 1", "{what}");
        writer.publish_without(2, b"b");
        let end = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(&errors).unwrap().to_lowercase().contains("no such file") {
            assert!(Instant::now() < end && !consumer.has_said(), "{what} says nothing of the missing file");
            std::thread::sleep(Duration::from_millis(3));
        }
        writer.publish(3);
        assert_eq!(consumer.line(), "loaded 3 3 3", "{what}");
    }
}

#[test]
fn the_watching_programs_load_whole_generations_at_every_swap_and_hold_none_in_between() {
    let mut writer = Writer::new();
    for (what, command) in writer.watchers() {
        let mut before = writer.publish(1);
        writer.reap();
        let mut consumer = Talker::start(&command);
        assert_eq!(consumer.line(), "loaded 1 1 1", "{what}");
        for n in 2..6 {
            let current = writer.publish(n);
            assert_eq!(consumer.line(), format!("loaded {n} {n} {n}"), "{what}");
            writer.reaps(&before, &format!("{what}: it was loaded, and another one since"));
            before = current;
        }
        assert!(!consumer.has_said(), "{what}: it loaded one generation twice, or ended");
    }
}

#[test]
fn a_lasting_failure_is_reported_once_and_so_is_the_next_one() {
    let mut writer = Writer::started();
    let watching = Watching::start(&writer, &["--poll=50ms"], NOTE);
    watching.until("1");
    let (link, next) = (writer.root().join("..data"), writer.root().join("..next"));
    fs::create_dir(writer.root().join("odd")).unwrap();
    let said = |words: &str| watching.complaints().matches(words).count();
    let says = |words: &str, times: usize| {
        let end = Instant::now() + Duration::from_secs(60);
        while said(words) < times {
            assert!(Instant::now() < end, "{words:?} was not said: {}", watching.complaints());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for n in 1..=2_u8 {
        let published = fs::read_link(&link).unwrap();
        std::os::unix::fs::symlink("odd", &next).unwrap();
        fs::rename(&next, &link).unwrap();
        says("which is not a generation; trying again", n.into());
        // It is tried again every second.
        std::thread::sleep(Duration::from_millis(3500));
        assert_eq!(said("trying again"), usize::from(n), "{}", watching.complaints());
        fs::remove_file(&link).unwrap();
        says("waiting for it", n.into());
        std::os::unix::fs::symlink(&published, &link).unwrap();
        writer.publish(n + 1);
        watching.until(&(n + 1).to_string());
    }
}
