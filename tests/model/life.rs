//! One life: a history that is carried out on a program while a reader checks what is published.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::common::run::{self, Background};
use crate::common::{Random, Remote, Snapshot, World, git_sync, mounts, root};
use crate::fakes::Fake;
use crate::faults::{self, Kind, LateWrite, Spare};
use crate::history::{self, History, Step};
use crate::judge::{Held, Judge};
use crate::port::{self, Port, Relay};
use crate::tree::{Entry, How, SPARSE, Tree};

/// The program that publishes.
pub enum Program {
    Treeswap,
    GitSync(PathBuf),
    Fake(Fake),
}

/// Counts of what happened in one life or several.
#[derive(Default, Debug)]
pub struct Lived {
    pub lives: usize,
    pub pushes: usize,
    pub generations: usize,
    pub reads: usize,
    pub pins: usize,
    pub faults: BTreeMap<Kind, usize>,
}

pub struct Life<'a> {
    history: &'a History,
    pub world: World,
    pub remotes: Arc<Vec<Remote>>,
    /// For each source, the ids of the pushed commits.
    ids: Vec<Vec<String>>,
    trees: Vec<Vec<Tree>>,
    modules: Vec<Tree>,
    /// The content of each ref's file.
    pub named: Vec<String>,
    pub judge: Arc<Judge>,
    pub service: Service,
    /// The relay at which the remotes are served.
    pub port: Option<Port>,
    /// The server behind the relay, which works correctly.
    pub behind: Option<Port>,
    pub late: Vec<LateWrite>,
    held: Vec<Held>,
    lived: Lived,
}

/// Carries out the history. An error says what a reader saw that must not be, or what was not published in time.
pub fn live(history: &History, program: &mut Program) -> Result<Lived, String> {
    let world = World::new();
    let disk = world.dir().join("disk");
    std::fs::create_dir(&disk).unwrap();
    mounts::tmpfs("size=48m", &disk);
    let mut life = Life::new(history, world, &disk.join("root"));
    let judge = Arc::clone(&life.judge);
    let stop = AtomicBool::new(false);
    let lived = std::thread::scope(|scope| {
        scope.spawn(|| judge.watch(&stop));
        let _stop = OnDrop(&stop);
        life.run(program)
    });
    life.service.kill();
    let log = life.service.log();
    life.service.panicked |= log.contains("panicked at");
    run::to_end(Command::new("umount").arg("-l").arg(&disk)).expect_ok("umount");
    let tail: Vec<&str> = log.lines().rev().take(12).collect();
    let wrong = if life.service.panicked { Err("it panicked".into()) } else { lived };
    wrong.map_err(|wrong| format!("{wrong}\n  it said last, the last first:\n    {}", tail.join("\n    ")))
}

/// Stops the reader when dropped, also in a panic.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Life<'a> {
    fn new(history: &'a History, world: World, root: &Path) -> Self {
        let how = &history.how;
        let modules = history::modules();
        let sub = Remote::create(&world.dir().join("sub"));
        let of_modules = commits(&sub, &modules, &[]);
        let (trees, _) = history.pushed(&modules);
        let remote = |n: usize| Remote::create(&world.dir().join(format!("r{n}")));
        let remotes: Arc<Vec<Remote>> = Arc::new((0..trees.len()).map(remote).collect());
        let ids =
            remotes.iter().zip(&trees).map(|(remote, trees)| commits(remote, trees, &of_modules)).collect();
        let (behind, port) = if history.ways.daemon {
            let behind = Port::open(port::daemon(world.dir()));
            let port = Port::open(Relay::all(behind.address).behaviour());
            (Some(behind), Some(port))
        } else {
            (None, None)
        };
        let service = Service {
            log: world.dir().join("service.log"),
            process: None,
            panicked: false,
            wall: 0,
            boot: 0,
        };
        let named = vec![String::new(); trees.len()];
        let judge = Arc::new(Judge::new(root, how));
        let life = Self {
            history,
            world,
            remotes,
            ids,
            trees,
            modules,
            named,
            judge,
            service,
            port,
            behind,
            late: Vec::new(),
            held: Vec::new(),
            lived: Lived::default(),
        };
        life.configure();
        life
    }

    /// Writes the files that flags refer to.
    fn configure(&self) {
        let how = &self.history.how;
        std::fs::write(self.world.dir().join("sparse"), SPARSE).unwrap();
        let mut text = "version: 1\nsources:\n".to_owned();
        for n in 0..how.sources {
            let path = if how.below_a { ", path: a" } else { "" };
            let sparse = if how.sparse { ", sparse: ['/*', '!/*/', '/a/', '/b/']" } else { "" };
            text +=
                &format!("  - {{name: s{n}, repo: '{}', ref: main, to: s{n}{path}{sparse}}}\n", self.url(n));
        }
        std::fs::write(self.world.dir().join("sources.yaml"), text + "end: true\n").unwrap();
    }

    fn url(&self, source: usize) -> String {
        match &self.port {
            Some(port) => format!("git://{}/r{source}", port.address),
            None => self.remotes[source].path.display().to_string(),
        }
    }

    /// Returns the command that runs treeswap with the service's clocks.
    pub fn command(&self, more: &[&str]) -> Command {
        let how = &self.history.how;
        let dir = self.world.dir();
        let mut words: Vec<String> = vec!["sync".into()];
        let mut say = |word: &str| words.push(word.to_owned());
        if how.sources > 0 {
            say(&format!("--sources={}", dir.join("sources.yaml").display()));
        } else {
            say(&format!("--repo={}", self.url(0)));
            say("--ref=main");
            if how.below_a {
                say("--path=a");
            }
            if how.sparse {
                say(&format!("--sparse-checkout-file={}", dir.join("sparse").display()));
            }
            if how.submodules {
                say("--submodules=recursive");
                say("--git-config=protocol.file.allow:always");
            }
        }
        say(&format!("--root={}", self.judge.root.display()));
        if how.git_sync {
            root::GIT_SYNC.iter().for_each(|word| say(word));
        }
        if how.keep_links {
            say("--symlinks=keep");
        }
        let pace =
            ["--period=10ms", "--min-interval=0s", "--jitter=0", "--max-backoff=60ms", "--lock-wait=20s"];
        let patience = [
            "--max-pin=10000d",
            "--connect-timeout=1s",
            "--idle-timeout=1s",
            "--sync-timeout=10s",
            "--max-generations=1000",
        ];
        pace.iter().chain(&patience).chain(more).for_each(|word| say(word));
        words.extend(self.history.ways.flags.iter().cloned());
        self.service.with_clocks(self.world.treeswap(&words))
    }

    /// What the spare is made of with these flags.
    pub fn spare(&self) -> Spare {
        let has = |flag: &str| self.history.ways.flags.iter().any(|given| given == flag);
        if has("--spare=recycle") {
            Spare::UsedAgain
        } else if has("--spare=copy") || has("--spare=off") {
            Spare::New
        } else {
            Spare::Links
        }
    }

    pub fn start(&mut self) {
        let command = self.command(&[]);
        self.service.start(command);
    }

    /// Makes the relay work correctly again.
    pub fn heal(&self) {
        if let (Some(port), Some(behind)) = (&self.port, &self.behind) {
            port.behave(Relay::all(behind.address).behaviour());
        }
    }

    /// Replaces the content of the source's ref file.
    pub fn set_ref(&self, source: usize, text: &str) {
        let heads = self.remotes[source].path.join("refs/heads");
        std::fs::write(heads.join("main.lock"), text).unwrap();
        std::fs::rename(heads.join("main.lock"), heads.join("main")).unwrap();
    }

    fn push(&mut self, source: usize, which: usize, program: &mut Program) {
        let visible = self.trees[source][which].visible(&self.history.how, &self.modules);
        self.judge.pushes(source, visible.clone());
        self.named[source] = format!("{}\n", self.ids[source][which]);
        self.set_ref(source, &self.named[source].clone());
        self.lived.pushes += 1;
        if let Program::Fake(fake) = program {
            fake.pushed(&self.judge.root, visible, &self.remotes[source], &self.ids[source][which]);
        }
    }

    fn run(&mut self, program: &mut Program) -> Result<Lived, String> {
        let (_, which) = self.history.pushed(&self.modules);
        let mut which = which.into_iter();
        match program {
            Program::Treeswap => self.start(),
            Program::GitSync(path) => {
                let mut command = git_sync::command(&self.world, path);
                command.args(["--link=live", "--max-failures=-1", "--period=10ms", "--submodules=off"]);
                command.arg("--ref=main").arg("--repo");
                command.arg(self.url(0)).arg("--root").arg(&self.judge.root);
                self.service.start(command);
            }
            Program::Fake(_) => {}
        }
        let is_real = matches!(program, Program::Treeswap);
        let patience = self.history.patience;
        for (at, (_, step)) in self.history.steps.iter().enumerate() {
            self.let_go(at)?;
            match step {
                Step::Edit { .. } => {}
                Step::Push { source, .. } | Step::Rewind { source, .. } => {
                    let (_, which) = which.next().unwrap();
                    if which < self.trees[*source].len() {
                        self.push(*source, which, program);
                        if !matches!(step, Step::Push { wait: false, .. }) {
                            self.settle(patience)?;
                        }
                    }
                }
                Step::Pin { steps } => {
                    self.lived.pins += 1;
                    self.held.extend(self.judge.hold(at + steps));
                }
                Step::Fault(fault) if is_real => {
                    *self.lived.faults.entry(fault.kind).or_default() += 1;
                    faults::happen(fault, self);
                    self.settle(patience)?;
                }
                Step::Fault(_) => {}
            }
        }
        self.let_go(usize::MAX)?;
        if is_real {
            self.end(patience)?;
        }
        self.lived.generations = self.judge.generations();
        self.lived.reads = self.judge.reads();
        Ok(std::mem::take(&mut self.lived))
    }

    /// Releases pins and carries out late writes that are due at this step.
    fn let_go(&mut self, at: usize) -> Result<(), String> {
        let (over, held) = std::mem::take(&mut self.held).into_iter().partition(|held| held.until <= at);
        self.held = held;
        for held in over {
            self.judge.release(held)?;
        }
        let spare = self.spare();
        for mut late in std::mem::take(&mut self.late) {
            late.steps = late.steps.saturating_sub(1);
            if late.steps == 0 { late.write(&self.judge, spare) } else { self.late.push(late) }
        }
        self.judge.wrong().map_or(Ok(()), Err)
    }

    /// Waits until the newest revision is published, unless it must be refused.
    fn settle(&self, patience: Duration) -> Result<(), String> {
        let Some(newest) = self.judge.newest() else { return Ok(()) };
        let end = Instant::now() + patience;
        loop {
            if let Some(wrong) = self.judge.wrong() {
                return Err(wrong);
            }
            let lacks = self.judge.lacks(&newest);
            if lacks.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!(
                    "after {patience:?} the newest is not served:\n    {}",
                    lacks.join("\n    ")
                ));
            }
            std::thread::sleep(Duration::from_micros(700));
        }
    }

    /// Checks at the end that a harmless revision is published, that nothing is left behind, and that git's checkout of
    /// a commit agrees with the model.
    fn end(&mut self, patience: Duration) -> Result<(), String> {
        for source in 0..self.remotes.len() {
            let place: &[u8] = if self.history.how.below_a { b"a/the end" } else { b"the end" };
            let tree =
                Tree([(place.to_vec(), Entry::File { executable: false, content: Vec::new() })].into());
            let ids = commits(&self.remotes[source], std::slice::from_ref(&tree), &[]);
            self.ids[source].extend(ids);
            self.trees[source].push(tree);
            self.push(source, self.trees[source].len() - 1, &mut Program::Treeswap);
        }
        self.settle(patience)?;
        let end = Instant::now() + patience;
        loop {
            let left = root::left_behind(&self.judge.root, 1);
            if left.is_empty() {
                break;
            }
            if Instant::now() > end {
                return Err(format!("left behind:\n    {}", left.join("\n    ")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut random = Random::new(self.history.seed);
        self.control(random.below(self.trees[0].len()))
    }

    /// Compares git's checkout of a pushed commit with the model's tree.
    fn control(&self, which: usize) -> Result<(), String> {
        let checkout = self.world.dir().join("checkout");
        std::fs::create_dir(&checkout).unwrap();
        let mut git = self.remotes[0].command(&["-c", "core.bare=false", "-c", "core.protectNTFS=false"]);
        git.arg("--work-tree").arg(&checkout).args(["checkout", "--quiet", "-f", &self.ids[0][which]]);
        run::to_end(&mut git).expect_ok("git checkout");
        let how = How { keep_links: true, git_sync: true, ..How::default() };
        let lines =
            self.trees[0][which].visible(&how, &[]).unwrap().differences(&Snapshot::read(&checkout).unwrap());
        if lines.is_empty() {
            Ok(())
        } else {
            Err(format!("git's checkout is another:\n    {}", lines.join("\n    ")))
        }
    }
}

/// The first lines, for messages.
pub fn few(lines: &[String]) -> String {
    let more = if lines.len() > 12 { format!("\n    and {} more", lines.len() - 12) } else { String::new() };
    lines.iter().take(12).map(String::as_str).collect::<Vec<_>>().join("\n    ") + &more
}

/// Writes the trees as commits, every fifth without a parent, and returns their ids.
fn commits(remote: &Remote, trees: &[Tree], modules: &[String]) -> Vec<String> {
    let mut input = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        if number.is_multiple_of(5) {
            writeln!(input, "reset refs/pool/x").unwrap();
        }
        let stamp = format!("C <c@example.com> {} +0000", 1_700_000_000 + number);
        writeln!(input, "commit refs/pool/x\nmark :{}\ncommitter {stamp}\ndata 1\nx\ndeleteall", number + 1)
            .unwrap();
        for (path, entry) in &tree.0 {
            let quoted: String = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
            let (mode, content) = match entry {
                Entry::Module(revision) => {
                    let id = modules.get(revision % modules.len().max(1)).expect("a submodule's revision");
                    writeln!(input, "M 160000 {id} \"{quoted}\"").unwrap();
                    continue;
                }
                Entry::Link(target) => ("120000", target),
                Entry::File { executable: true, content } => ("100755", content),
                Entry::File { executable: false, content } => ("100644", content),
            };
            writeln!(input, "M {mode} inline \"{quoted}\"\ndata {}", content.len()).unwrap();
            input.extend_from_slice(content);
            input.push(b'\n');
        }
    }
    let marks = remote.path.join("marks");
    let mut git = remote.command(&["fast-import", "--quiet", "--force"]);
    git.arg(format!("--export-marks={}", marks.display()));
    let mut child = git.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    assert!(child.wait().unwrap().success(), "git fast-import");
    let text = std::fs::read_to_string(marks).unwrap();
    let mut ids: Vec<(usize, String)> = (text.lines())
        .map(|line| line.strip_prefix(':').unwrap().split_once(' ').unwrap())
        .map(|(mark, id)| (mark.parse().unwrap(), id.to_owned()))
        .collect();
    ids.sort();
    ids.into_iter().map(|(_, id)| id).collect()
}

/// The running program, and its clocks.
pub struct Service {
    log: PathBuf,
    process: Option<Background>,
    panicked: bool,
    /// By how many seconds its wall clock is ahead of the machine's.
    pub wall: i64,
    /// By how many seconds its `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC` are ahead of the machine's.
    pub boot: i64,
}

impl Service {
    fn start(&mut self, mut command: Command) {
        assert!(self.process.is_none());
        self.panicked |= self.log().contains("panicked at");
        self.process = Some(Background::start(&mut command, &self.log));
    }

    pub fn kill(&mut self) {
        self.process = None; // dropping it kills the process
    }

    pub fn terminate(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Before the program handles signals, SIGTERM ends it as well.
            process.terminate();
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            let _ = rustix::process::kill_process(Pid::from_child(&process.child), signal);
        }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the command with the service's clocks: in a time namespace, and with a preloaded library for the wall
    /// clock, which time namespaces do not cover.
    fn with_clocks(&self, command: Command) -> Command {
        if self.boot == 0 && self.wall == 0 {
            return command;
        }
        let mut with = Command::new("unshare");
        with.args(["--time", "--boottime", &self.boot.to_string(), "--monotonic", &self.boot.to_string()]);
        with.arg(command.get_program()).args(command.get_args()).env_clear();
        with.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        with.env("LD_PRELOAD", wall_clock()).env("MODEL_WALL", self.wall.to_string()).stdin(Stdio::null());
        with
    }
}

/// Builds the library that moves the wall clock by `MODEL_WALL` seconds.
fn wall_clock() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let (source, library) =
            ["wall.c", "wall.so"].map(|name| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)).into();
        std::fs::write(&source, include_str!("wall.c")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        run::to_end(&mut cc).expect_ok("cc, which the build needs as well");
        library
    })
}
