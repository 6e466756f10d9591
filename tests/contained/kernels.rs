//! Kernels that lack a part of the sandbox, simulated by a seccomp filter that answers as they would.
#![allow(unsafe_code)] // a filter for a child has no safe form

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{sock_filter, sock_fprog};

use crate::common::{Files, Sidecar, World, run};

/// What a kernel lacks.
#[derive(Clone, Copy, Debug)]
enum Lack {
    Landlock,
    Seccomp,
}

/// Lets the command run as on such a kernel.
fn without(lack: Lack, command: &mut Command) -> &mut Command {
    let ret = |k| sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k };
    let load = |k| sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k };
    let unless = |k: i64, skip| {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        sock_filter { code, jt: 0, jf: skip, k: k as u32 }
    };
    let errno = |errno: i32| ret(libc::SECCOMP_RET_ERRNO | errno as u32);
    let mut filter = match lack {
        Lack::Landlock => vec![load(0), unless(libc::SYS_landlock_create_ruleset, 1), errno(libc::ENOSYS)],
        Lack::Seccomp => vec![
            load(0),
            unless(libc::SYS_prctl, 3),
            load(16),
            unless(i64::from(libc::PR_SET_SECCOMP), 1),
            errno(libc::EINVAL),
        ],
    };
    filter.push(ret(libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    unsafe { command.pre_exec(install) }
}

pub(crate) fn a_kernel_without_a_part_is_named_where_it_is_required() {
    let rules = "config_updater:\n  maps:\n    a:\n      name: a\n";
    for (lack, name) in [(Lack::Landlock, "Landlock"), (Lack::Seccomp, "seccomp")] {
        let world = World::new();
        world.remote.commit(&Files::new().file("a", "1"));
        let file = world.dir().join("rules.yaml");
        std::fs::write(&file, rules).unwrap();
        let require = ["--sandbox=require", "--one-time"];
        let ran = run::to_end(without(lack, &mut world.sync(&require))).expect_failure("sync");
        ran.names(&["--sandbox=require", name]);
        assert!(!world.root.exists(), "nothing was begun");
        let mut render = world.treeswap(&["render", "--sandbox=require", "--ref=main", "--rules"]);
        render.arg(&file).arg("--repo").arg(&world.remote.path);
        run::to_end(without(lack, &mut render)).expect_failure("render").names(&["--sandbox=require", name]);
        run::to_end(&mut render_anew(&world, &file)).expect_ok("render where there is all of it");
        let mut called = world.treeswap(&["git-sync", "--one-time", "--sandbox=require", "--ref=main"]);
        called.arg("--repo").arg(&world.remote.path).arg("--root").arg(&world.root);
        let ran = run::to_end(without(lack, &mut called)).expect_failure("git-sync");
        assert!(ran.stderr.contains(&format!("this kernel has no {name}")), "{}", ran.stderr);
        let mut check = world.treeswap(&["check", "--sandbox=require", "--root=/r", "--repo=/r"]);
        let ran = run::to_end(without(lack, &mut check)).expect_ok("check");
        assert!(ran.stderr.contains(&format!("this kernel has no {name}")), "{}", ran.stderr);
    }
}

fn render_anew(world: &World, rules: &std::path::Path) -> Command {
    let mut render = world.treeswap(&["render", "--sandbox=require", "--ref=main", "--rules"]);
    render.arg(rules).arg("--repo").arg(&world.remote.path);
    render
}

pub(crate) fn a_kernel_without_a_part_is_no_trouble_otherwise() {
    let all = "treeswap_sandbox";
    let whole = World::new();
    whole.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&whole, &["--period=50ms"]);
    assert_eq!(sidecar.metric(all), Some(2.0), "both parts");
    assert!(!sidecar.process.log().contains("packs are read without"), "{}", sidecar.process.log());
    for (lack, name) in [(Lack::Landlock, "Landlock"), (Lack::Seccomp, "seccomp")] {
        let world = World::new();
        let first = world.remote.commit(&Files::new().file("a", "1"));
        let mut command = world.sync(&["--http-bind=127.0.0.1:0", "--period=50ms", "--min-interval=0s"]);
        let sidecar = Sidecar::of(&world, without(lack, &mut command));
        sidecar.publishes(&world, &first);
        assert_eq!(sidecar.metric(all), Some(1.0), "without {name}");
        let said = format!("packs are read without {name}: this kernel does not have it");
        assert_eq!(sidecar.process.log().matches(&said).count(), 1, "{}", sidecar.process.log());
        let next = world.remote.commit(&Files::new().file("a", "2"));
        sidecar.publishes(&world, &next);
    }
    let world = World::new();
    let tip = world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &["--sandbox=off"]);
    sidecar.publishes(&world, &tip);
    assert_eq!(sidecar.metric(all), Some(0.0), "none is asked for");
}
