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
