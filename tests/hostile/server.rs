//! A git server without git's own checks: it sends all objects of a repository, malformed ones included, whatever is
//! asked for.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::common::{Remote, run};

/// Protocol version 2 as far as one fetch goes (gitprotocol-v2(5)).
const SCRIPT: &str = r#"#!/bin/bash
LC_ALL=C
pkt() { printf '%04x%s' $((${#1} + 4)) "$1"; }
request() {
  asked=
  while IFS= read -r -N4 size; do
    case $size in
      0000) return 0 ;;
      0001 | 0002) continue ;;
    esac
    IFS= read -r -N$((16#$size - 4)) line
    asked+=$line$'\n'
  done
  return 1
}
pkt $'version 2\n'; pkt $'ls-refs\n'; pkt $'fetch=shallow\n'; printf 0000
while request; do
  case $asked in
    *command=ls-refs*)
      pkt "$TIP refs/heads/main"$'\n'; printf 0000 ;;
    *command=fetch*)
      case $asked in
        *deepen*) pkt $'shallow-info\n'; pkt "shallow $TIP"$'\n'; printf 0001 ;;
      esac
      pkt $'packfile\n'; printf '%04x\x01' $((SIZE + 5)); /bin/cat "$PACK"; printf 0000 ;;
  esac
done
"#;

/// Makes a directory for `PATH` whose program `git` is that server.
pub(crate) fn unchecked_server(remote: &Remote, tip: &str, place: &Path) -> PathBuf {
    let bin = place.join("home/bin");
    std::fs::create_dir(&bin).unwrap();
    let pack = pack_of_everything(remote);
    let size = pack.len();
    assert!(size < 65_000, "{size} bytes do not fit one packet");
    let pack_at = bin.join("pack");
    std::fs::write(&pack_at, pack).unwrap();
    let settings = format!("TIP={tip}\nSIZE={size}\nPACK='{}'\n", pack_at.display());
    let script = SCRIPT.replacen("LC_ALL=C\n", &format!("LC_ALL=C\n{settings}"), 1);
    run::executable(&bin.join("git"), &script);
    bin
}

/// Ids of all objects, whatever they are.
pub(crate) fn objects(remote: &Remote) -> Vec<String> {
    let all = remote.git(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
    all.lines().map(str::to_owned).collect()
}

/// `git pack-objects` does not check objects that are listed by id.
fn pack_of_everything(remote: &Remote) -> Vec<u8> {
    let mut list = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut list, (objects(remote).join("\n") + "\n").as_bytes()).unwrap();
    std::io::Seek::rewind(&mut list).unwrap();
    let mut command = run::clean("git", &remote.path);
    command.arg("-C").arg(&remote.path).args(["pack-objects", "--stdout", "--quiet", "--window=0"]);
    let out = command.stdin(Stdio::from(list)).output().unwrap();
    assert!(out.status.success(), "git pack-objects: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}
