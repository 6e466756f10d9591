//! Runs code of an attacker's choice inside the indexing child. This binary is both the test (parent) and, when started
//! with `__index-pack`, the child: it enters the sandbox as treeswap does, then runs the one attempt named in
//! `scene.json` instead of indexing.
//!
//! Each attempt must be refused in the sandbox. To show that it is the sandbox that refuses it, each is also made
//! without: there it must succeed, or fail with the error that its deliberately wrong arguments lead to.
#![allow(missing_docs, unsafe_code)] // a descriptor that stays open across exec, and prctl(2)

mod attempts;
#[path = "../common/mod.rs"]
mod common;
mod kernels;
mod layers;

use std::ffi::OsString;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use attempts::{ESCAPES, Escape, Outcome, Scene};
use common::{Files, World, noise};
use treeswap::mirror::{self, Gc, Mirror, Options, wire};
use treeswap::sandbox::Sandbox;

/// A descriptor that all children inherit, because it is not close-on-exec.
const LEFT_OPEN: i32 = 200;

/// What the child must not read from this process's memory.
static SECRET: [u8; 16] = *b"only in a memory";

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(scene) = attempts::scene(&args) {
        let limited = mirror::child_limits(args).expect("only the child gets a scene");
        attempts::run(&scene, limited);
    }
    if args.iter().any(|arg| arg == "--list") {
        return println!("0 tests, 0 benchmarks");
    }
    Sandbox::Require.check().expect("this test needs a kernel with Landlock and seccomp");
    attempts_are_refused_in_the_sandbox_and_carried_out_without_it();
    garbage_collection_can_write_nothing_but_objects_and_reflogs();
    what_is_needed_works();
    kernels::a_kernel_without_a_part_is_named_where_it_is_required();
    kernels::a_kernel_without_a_part_is_no_trouble_otherwise();
    layers::what_the_kernel_has_and_cannot_be_entered_is_an_error();
    println!("contained: {} attempts, each refused in the sandbox and carried out without it", ESCAPES.len());
}

/// A mirror, and things outside of it that the child must not reach.
struct Bench {
    world: World,
    options: Options,
    scene: Scene,
    _listeners: (std::net::TcpListener, UnixListener, UnixListener),
}

impl Bench {
    fn new(sandbox: Sandbox) -> Self {
        let world = World::new();
        world.remote.commit(&Files::new().file("a", "1"));
        let outside = world.dir().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let secret = outside.join("secret");
        std::fs::write(&secret, "secret").unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = UnixListener::bind(outside.join("socket")).unwrap();
        let name = outside.display().to_string();
        let name = <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name).unwrap();
        let abstract_socket = UnixListener::bind_addr(&name).unwrap();
        let scene = Scene {
            escape: String::new(),
            tcp: tcp.local_addr().unwrap(),
            secret,
            outside,
            parent: std::process::id(),
            memory: SECRET.as_ptr() as usize,
            left_open: LEFT_OPEN,
            mirror: world.dir().join("mirror"),
        };
        let remote = wire::Options::new(world.remote.path.to_str().unwrap());
        let mut options = Options::new(&scene.mirror, "main".parse().unwrap(), remote);
        options.indexer = common::binary();
        options.sandbox = sandbox;
        Self { world, options, scene, _listeners: (tcp, unix, abstract_socket) }
    }

    /// Opens the mirror with this program as its indexing child.
    fn open_with_hostile_child(&self) -> Mirror {
        let indexer = std::env::current_exe().unwrap();
        let mirror = Mirror::open(Options { indexer, ..self.options.clone() }).unwrap();
        let planted = self.scene.packs().join("planted");
        let _ = std::fs::remove_file(&planted);
        std::os::unix::fs::symlink(&self.scene.secret, &planted).unwrap();
        mirror
    }

    /// Has the child make an attempt. `start` is what makes the mirror start the child; it returns the mirror's error.
    fn outcome(&self, escape: &Escape, start: impl FnOnce() -> String) -> Outcome {
        let scene = Scene { escape: escape.name.to_owned(), ..self.scene.clone() };
        scene.write();
        let said = start();
        let outcome = std::fs::read_to_string(scene.outcome());
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}; it said: {said}", escape.name));
        std::fs::remove_file(scene.outcome()).unwrap();
        serde_json::from_str(&outcome).unwrap()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Fetches, which fails because the child indexes nothing. Returns the error.
fn fetch(mirror: &mut Mirror) -> String {
    let fetched = wait(async {
        let tip = mirror.resolve().await?;
        tokio::time::timeout(Duration::from_secs(30), mirror.fetch(&tip, &[])).await.expect("it hangs")
    });
    fetched.expect_err("it indexed nothing").to_string()
}

fn attempts_are_refused_in_the_sandbox_and_carried_out_without_it() {
    // Leave a descriptor open across exec. Allow any process to ptrace us, so that Yama is not what refuses it.
    let file = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), LEFT_OPEN) }, LEFT_OPEN);
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let attempt = |sandbox, escape: &Escape| {
        let bench = Bench::new(sandbox);
        let mut mirror = bench.open_with_hostile_child();
        bench.outcome(escape, || fetch(&mut mirror))
    };
    let mut wrong = Vec::new();
    for escape in ESCAPES {
        let name = escape.name;
        let confined = attempt(Sandbox::Require, escape);
        if !escape.is_refused(confined) {
            wrong.push(format!("{name}: is not refused in the sandbox: {confined:?}"));
        }
        let unconfined = attempt(Sandbox::Off, escape);
        if !escape.unconfined.contains(&unconfined) {
            let expected = escape.unconfined;
            wrong.push(format!("{name}: without the sandbox: {unconfined:?}, but expected of {expected:?}"));
        }
    }
    unsafe { libc::close(LEFT_OPEN) };
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn garbage_collection_can_write_nothing_but_objects_and_reflogs() {
    let bench = Bench::new(Sandbox::Require);
    let mut mirror = Mirror::open(bench.options.clone()).unwrap();
    let held = wait(async {
        let tip = mirror.resolve().await.unwrap();
        mirror.fetch(&tip, &[]).await.unwrap()
    });
    drop(mirror);
    let mut mirror = bench.open_with_hostile_child();
    for escape in ESCAPES {
        let collect = || mirror.make_room(&[held]).expect_err("it collected nothing").to_string();
        let outcome = bench.outcome(escape, collect);
        assert!(escape.is_refused(outcome), "{}: {outcome:?}", escape.name);
    }
}

fn what_is_needed_works() {
    for sandbox in [Sandbox::Require, Sandbox::Off] {
        let bench = Bench::new(sandbox);
        for escape in [&attempts::THREADS, &attempts::OWN_SIGNALS] {
            let mut mirror = bench.open_with_hostile_child();
            assert_eq!(bench.outcome(escape, || fetch(&mut mirror)), Outcome::Done, "{}", escape.name);
        }
        let mut mirror = bench.open_with_hostile_child();
        let mut said = String::new();
        let outcome = bench.outcome(&attempts::ABORT, || {
            said = fetch(&mut mirror);
            String::new()
        });
        assert_eq!(outcome, Outcome::NeverReturned);
        assert!(said.contains("was ended by signal 6"), "{said}");
    }
    // Every task of the child works in the sandbox: here the child is treeswap itself.
    let bench = Bench::new(Sandbox::Require);
    let options = Options { gc: Gc::Aggressive, max_packs: 2, ..bench.options.clone() };
    let mut mirror = Mirror::open(options).unwrap();
    for n in 0..6 {
        let files = (0..50).fold(Files::new(), |files, file| {
            files.file(format!("{file}"), if file == n { noise(n, 3000) } else { b"same".to_vec() })
        });
        let tip = bench.world.remote.commit(&files);
        wait(async {
            let tip = mirror.resolve().await.unwrap();
            mirror.fetch(&tip, &[]).await.unwrap()
        });
        mirror.housekeep(&[treeswap::revision::Revision(tip.parse().unwrap())]).unwrap();
    }
    let packs = std::fs::read_dir(bench.scene.packs()).unwrap();
    let packs = packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pack"));
    assert_eq!(packs.count(), 1, "garbage is collected");
}

/// The only directory that the child may write.
fn packs(mirror: &Path) -> PathBuf {
    mirror.join("objects/pack")
}
