//! `deploy/image`: what its archive holds. It runs with the user, entry point and variables of the image that
//! `deploy/Dockerfile` makes: `the_image_runs_the_binary_as_an_unprivileged_user` compares [`settings`] of both.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::common::run;
use super::{deploy, files_of};

/// A statically linked program, small and quickly made.
fn program(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("main.c"), dir.join("program"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    run::to_end(Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source)).expect_ok("cc");
    program
}

/// ELF's numbers of the machines.
const X86_64: u16 = 62;
const AARCH64: u16 = 183;

/// The same program, as far as its header says, for this machine, whatever machine the test runs on.
fn for_machine(program: &Path, machine: u16) -> PathBuf {
    let mut bytes = std::fs::read(program).unwrap();
    bytes[18..20].copy_from_slice(&machine.to_le_bytes()); // e_machine
    let path = program.with_file_name(machine.to_string());
    std::fs::write(&path, bytes).unwrap();
    path
}

/// An archive that `deploy/image` made, unpacked.
struct Archive(TempDir);

impl Archive {
    fn pack(kind: &str, binaries: &[&Path]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let packed = dir.path().join("image.tar");
        let mut pack = Command::new(deploy().join("image"));
        pack.args((kind == "git-sync").then_some("--git-sync"))
            .arg(&packed)
            .arg("example.com/x:1")
            .args(binaries);
        run::to_end(&mut pack).expect_ok("deploy/image");
        let mut tar = Command::new("tar");
        run::to_end(tar.arg("-C").arg(dir.path()).arg("-xf").arg(&packed)).expect_ok("tar");
        Self(dir)
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.0.path().join("image.tar")).unwrap()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.0.path().join(name)).unwrap()).unwrap()
    }

    /// Where a blob is that this description names, which must be right about it.
    fn blob(&self, described: &Value) -> String {
        let id = described["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = format!("blobs/sha256/{id}");
        let whole = self.0.path().join(&path);
        assert_eq!(described["size"], std::fs::metadata(&whole).unwrap().len(), "{described}");
        let sum = run::to_end(Command::new("sha256sum").arg(&whole)).expect_ok("sha256sum").stdout;
        assert!(sum.starts_with(id), "{described}: {sum}");
        path
    }

    /// What the index lists: manifests with their platforms.
    fn images(&self) -> Vec<(String, Value)> {
        assert_eq!(self.json("oci-layout")["imageLayoutVersion"], "1.0.0");
        let top = self.json("index.json");
        let [index] = &top["manifests"].as_array().unwrap()[..] else { panic!("one index: {top}") };
        assert_eq!(index["mediaType"], "application/vnd.oci.image.index.v1+json");
        assert_eq!(index["annotations"]["io.containerd.image.name"], "example.com/x:1");
        let listed = self.json(&self.blob(index));
        let images = listed["manifests"].as_array().unwrap().iter();
        images
            .map(|one| {
                assert_eq!(one["platform"]["os"], "linux");
                let manifest = self.json(&self.blob(one));
                assert_eq!(one["mediaType"], manifest["mediaType"]);
                (one["platform"]["architecture"].as_str().unwrap().to_owned(), manifest)
            })
            .collect()
    }

    fn config(&self, manifest: &Value) -> Value {
        self.json(&self.blob(&manifest["config"]))
    }

    /// What the one layer has, as tar lists it.
    fn listing(&self, manifest: &Value) -> String {
        let [layer] = &manifest["layers"].as_array().unwrap()[..] else { panic!("one layer: {manifest}") };
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "-tvzf"]).arg(self.0.path().join(self.blob(layer)));
        run::to_end(&mut tar).expect_ok("tar").stdout
    }

    /// Names of files and links in it, besides the certificates, which are those of the machine.
    fn names(&self, manifest: &Value) -> Vec<String> {
        let listing = self.listing(manifest);
        let names = listing.lines().filter_map(|line| line.split(" ./").nth(1));
        let names = names.filter(|name| {
            !name.is_empty() && !name.ends_with('/') && *name != "etc/ssl/certs/ca-certificates.crt"
        });
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    }
}

/// What an image that `deploy/image` packs sets for whoever runs it: everything but labels, with sorted variables.
pub(super) fn settings(kind: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let archive = Archive::pack(kind, &[&program(dir.path())]);
    let mut settings = archive.config(&archive.images()[0].1)["config"].take();
    settings.as_object_mut().unwrap().remove("Labels");
    settings["Env"].as_array_mut().unwrap().sort_by_key(|variable| variable.as_str().unwrap().to_owned());
    settings
}

#[test]
fn the_image_holds_only_the_binary_and_etc_passwd() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    for (kind, user, home, passwd) in
        [("treeswap", 65532, "config", "-rw-r--r--"), ("git-sync", 65533, "git", "-rw-rw-rw-")]
    {
        let archive = Archive::pack(kind, &[&program]);
        assert!(archive.bytes() == Archive::pack(kind, &[&program]).bytes(), "byte for byte");
        let [(_, manifest)] = &archive.images()[..] else { panic!("one image") };
        let expected: &[&str] = match kind {
            "git-sync" => &["etc/passwd", "git-sync -> treeswap", "treeswap"],
            _ => &["etc/passwd", "treeswap"],
        };
        let listing = archive.listing(manifest);
        assert_eq!(archive.names(manifest), expected, "{listing}");
        let own = format!("drwxrwsr-x {user}/{user}");
        let has = |start: &str, name: &str| {
            listing.lines().any(|line| line.starts_with(start) && line.ends_with(name))
        };
        assert!(has(&own, &format!("./{home}/")), "{listing}");
        assert!(has(&format!("{passwd} 0/0"), "./etc/passwd"), "--add-user of git-sync's image: {listing}");
    }
    let dockerfile = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let mut chmods = dockerfile.lines().filter(|line| line.contains("chmod") && line.contains("/etc/passwd"));
    assert_eq!(chmods.next(), Some(" && chmod 0666 /git-sync/etc/passwd \\"), "{dockerfile}");
    assert_eq!(chmods.next(), None, "treeswap's own is not writable");
}

#[test]
fn an_archive_for_two_processors_has_an_image_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    let [program, arm] = [X86_64, AARCH64].map(|machine| for_machine(&program, machine));
    let archive = Archive::pack("treeswap", &[&program, &arm]);
    let images = archive.images();
    let platforms: Vec<&str> = images.iter().map(|(platform, _)| platform.as_str()).collect();
    assert_eq!(platforms, ["amd64", "arm64"]);
    let docker = archive.json("manifest.json");
    for (number, (platform, manifest)) in images.iter().enumerate() {
        let config = archive.config(manifest);
        assert_eq!(config["architecture"], platform.as_str());
        assert_eq!(config["config"]["User"], "65532:65532");
        // Docker that does not read the index finds the same.
        let line = &docker[number];
        assert_eq!(line["RepoTags"][0], format!("example.com/x:1-{platform}"));
        assert_eq!(line["Config"], archive.blob(&manifest["config"]));
        assert_eq!(line["Layers"][0], archive.blob(&manifest["layers"][0]));
    }
    let one = Archive::pack("treeswap", &[&program]);
    assert_eq!(one.json("manifest.json")[0]["RepoTags"][0], "example.com/x:1");

    let mut twice = Command::new(deploy().join("image"));
    let ran = run::to_end(twice.arg(dir.path().join("twice.tar")).arg("x:1").args([&program, &program]));
    assert!(!ran.ok() && ran.stderr.contains("a second one for amd64"), "{}", ran.stderr);
    assert!(!dir.path().join("twice.tar").exists());
}

#[test]
fn licences_and_what_a_binary_is_made_of_are_in_its_image() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    for name in ["LICENSE", "LICENSES.txt", "treeswap.cdx.json"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let archive = Archive::pack("treeswap", &[&program]);
    let names = archive.names(&archive.images()[0].1);
    let documents: Vec<&str> =
        names.iter().filter_map(|name| name.strip_prefix("usr/share/doc/treeswap/")).collect();
    assert_eq!(documents, ["LICENSE", "LICENSES.txt", "treeswap.cdx.json"]);
}

#[test]
fn a_binary_that_needs_libraries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut pack = Command::new(deploy().join("image"));
    let ran = run::to_end(pack.arg(dir.path().join("image.tar")).arg("example.com/x:1").arg("/bin/ls"));
    assert!(!ran.ok() && ran.stderr.contains("linked dynamically"), "{}", ran.stderr);
    assert!(!dir.path().join("image.tar").exists());
}

#[test]
fn the_script_for_a_static_binary_says_what_it_lacks() {
    // No compiler, and nothing to install one with.
    let dir = tempfile::tempdir().unwrap();
    for program in ["bash", "uname", "dirname"] {
        let found = run::to_end(Command::new("which").arg(program)).expect_ok("which").stdout;
        std::os::unix::fs::symlink(found.trim(), dir.path().join(program)).unwrap();
    }
    let mut script = Command::new(deploy().join("static"));
    let ran = run::to_end(script.env("PATH", dir.path()));
    assert!(!ran.ok() && ran.stderr.contains("gcc make cmake"), "{}", ran.stderr);
}

/// Cargo alone does not make it: that takes what `deploy/static` installs.
#[test]
fn the_documentation_builds_the_static_binary_with_deploy_static_alone() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents = vec![top.join("README.md")];
    files_of(&top.join("docs"), "md", &mut documents);
    let read = |path: &PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
    let documents: Vec<(PathBuf, String)> = documents.iter().map(read).collect();
    assert!(documents.len() > 10, "{documents:?}");
    let of_it = documents.iter().filter(|(_, text)| text.contains("deploy/static"));
    assert!(of_it.map(|(path, _)| path).eq([&top.join("docs/development.md")]));
    for (path, text) in &documents {
        assert!(!text.contains("-linux-musl"), "{} names the target for Cargo", path.display());
    }
}
