//! `deploy/image` packs what the Dockerfile makes.

use std::path::Path;
use std::process::Command;

use super::common::run;
use super::deploy;

/// A statically linked program, small and quickly made.
fn program(dir: &Path) -> std::path::PathBuf {
    let (source, program) = (dir.join("main.c"), dir.join("program"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    run::to_end(Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source)).expect_ok("cc");
    program
}

/// The environment of an image that `deploy/image` packs.
pub(super) fn variables(kind: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("image.tar");
    let mut pack = Command::new(deploy().join("image"));
    pack.arg(program(dir.path())).arg(&archive).args(["example.com/x:1", kind]);
    run::to_end(&mut pack).expect_ok("deploy/image");
    let mut tar = Command::new("tar");
    let tar = run::to_end(tar.args(["--wildcards", "-xOf"]).arg(&archive).arg("*.json")).expect_ok("tar");
    let of = |text: &str| -> Option<Vec<String>> {
        let found: serde_json::Value = serde_json::from_str(text).ok()?;
        found["config"]["Env"].as_array()?.iter().map(|one| Some(one.as_str()?.to_owned())).collect()
    };
    // The list of images comes first, in a line of its own.
    let (_, config) = tar.stdout.split_once('\n').unwrap();
    let mut variables = of(config).unwrap_or_else(|| panic!("{}", tar.stdout));
    variables.sort();
    variables
}

fn list(archive: &Path, member: Option<&str>) -> String {
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "-tvf"]).arg(archive).args(member);
    run::to_end(&mut tar).expect_ok("tar").stdout
}

#[test]
fn an_archive_holds_the_binary_and_nothing_to_run_it_with() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    for (kind, user, home) in [("treeswap", 65532, "config"), ("git-sync", 65533, "git")] {
        let pack = |name: &str| {
            let archive = dir.path().join(name);
            let mut pack = Command::new(deploy().join("image"));
            run::to_end(pack.arg(&program).arg(&archive).args(["example.com/x:1", kind]))
                .expect_ok("deploy/image");
            archive
        };
        let archive = pack("one.tar");
        assert_eq!(
            std::fs::read(&archive).unwrap(),
            std::fs::read(pack("two.tar")).unwrap(),
            "byte for byte"
        );
        let members = list(&archive, None);
        let layers: Vec<&str> = members
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .filter(|name| name.ends_with("layer.tar"))
            .collect();
        assert_eq!(layers.len(), 1, "one layer: {members}");
        run::to_end(Command::new("tar").arg("-C").arg(dir.path()).arg("-xf").arg(&archive)).expect_ok("tar");
        let listing = list(&dir.path().join(layers[0]), None);
        let mut names: Vec<&str> = listing.lines().filter_map(|line| line.split(" ./").nth(1)).collect();
        names.retain(|name| {
            !name.is_empty() && !name.ends_with('/') && *name != "etc/ssl/certs/ca-certificates.crt"
        });
        names.sort_unstable();
        let expected: &[&str] = if kind == "git-sync" {
            &["etc/passwd", "git-sync -> treeswap", "treeswap"]
        } else {
            &["etc/passwd", "treeswap"]
        };
        assert_eq!(names, expected, "{listing}");
        let own = format!("drwxrwsr-x {user}/{user}");
        assert!(
            listing.lines().any(|line| line.starts_with(&own) && line.ends_with(&format!("./{home}/"))),
            "{listing}"
        );
    }
}

#[test]
fn a_binary_that_needs_libraries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut pack = Command::new(deploy().join("image"));
    let ran = run::to_end(pack.arg("/bin/ls").arg(dir.path().join("image.tar")).arg("example.com/x:1"));
    assert!(!ran.ok() && ran.stderr.contains("linked dynamically"), "{}", ran.stderr);
    assert!(!dir.path().join("image.tar").exists());
}

/// What it needs is there wherever the tests on a node ran; elsewhere it would be installed by the script.
#[test]
fn the_script_for_a_static_binary_says_what_it_lacks() {
    // No compiler for musl, and nothing to install one with.
    let dir = tempfile::tempdir().unwrap();
    for program in ["bash", "uname", "dirname"] {
        let found = run::to_end(Command::new("which").arg(program)).expect_ok("which").stdout;
        std::os::unix::fs::symlink(found.trim(), dir.path().join(program)).unwrap();
    }
    let mut script = Command::new(deploy().join("static"));
    let ran = run::to_end(script.env("PATH", dir.path()));
    assert!(!ran.ok() && ran.stderr.contains("musl-gcc is missing"), "{}", ran.stderr);
}

/// The documentation names no other way, which would need what nothing says.
#[test]
fn the_documentation_builds_the_static_binary_with_it() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(top.join("docs/development.md")).unwrap();
    assert!(text.contains("deploy/static") && !text.contains("--target x86_64"), "{text}");
}
