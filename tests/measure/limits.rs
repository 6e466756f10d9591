//! Measures the limits of the machine, the server and git in the same run, for comparison.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::repository::Repository;
use crate::table::Table;
use crate::{Bench, directory};

/// The column of values that do not belong to a sidecar.
const ALONE: &str = "alone";

pub fn measure(bench: &Bench, table: &mut Table) {
    if !bench.wants("limit") {
        return;
    }
    bench.repository.publish(0);
    let world = directory(&bench.options);
    let mut row = |name: &str, limit: &dyn Fn(&Path)| {
        let start = Instant::now();
        limit(world.path());
        table.add(&format!("limit: {name}"), "s", ALONE, start.elapsed().as_secs_f64());
    };
    row("the files written, by all processors", &|dir| {
        make_each(&bench.repository, &dir.join("written"), |path, _, content| std::fs::write(path, content));
    });
    row("a tree of hard links to them, by all processors", &|dir| {
        make_each(&bench.repository, &dir.join("links"), |path, name, _| {
            std::fs::hard_link(dir.join("written").join(name), path)
        });
    });
    row("the server's pack of depth 1, read", &|_| drain(bench));
    row("git clone --depth=1 --bare", &|dir| clone(&bench.url(), &dir.join("bare"), &["--bare"]));
    row("git clone --depth=1", &|dir| clone(&bench.url(), &dir.join("clone"), &[]));
}

/// Makes the repository's files below `dir`, each with its directory, by `make`, which gets the path, the name in the
/// repository and the content.
fn make_each(
    repository: &Repository,
    dir: &Path,
    make: impl Fn(&Path, &str, &[u8]) -> std::io::Result<()> + Sync,
) {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for part in repository.files.chunks(repository.files.len().div_ceil(threads)) {
            let make = &make;
            scope.spawn(move || {
                let mut made = PathBuf::new();
                for (name, content) in part {
                    let path = dir.join(name);
                    let parent = path.parent().expect("it has one");
                    if made != parent {
                        std::fs::create_dir_all(parent).expect("space");
                        made = parent.to_owned();
                    }
                    make(&path, name, content).expect("space");
                }
            });
        }
    });
}

/// Requests a pack as a client does, and discards it.
fn drain(bench: &Bench) {
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let want = line(&format!("want {}\n", bench.repository.commits[0]));
    let rest = [line("deepen 1\n"), line("done\n")].concat();
    let body = format!("{}0001{}{want}{rest}0000", line("command=fetch\n"), line("ofs-delta\n"));
    let mut stream = TcpStream::connect(bench.server.address).expect("the server listens");
    let head = format!(
        "POST /repository.git/git-upload-pack HTTP/1.1\r\nHost: localhost\r\nGit-Protocol: version=2\r\n\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("the server listens");
    stream.shutdown(std::net::Shutdown::Write).expect("the server listens");
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        bytes += read;
    }
    assert!(bytes > bench.repository.files.len() * 20, "the answer is no pack: {bytes} bytes");
}

fn clone(url: &str, dir: &Path, more: &[&str]) {
    let mut command = Command::new("git");
    command.args(["clone", "--quiet", "--depth=1"]).args(more).arg(url).arg(dir);
    let status = command.stdin(Stdio::null()).status().expect("git runs");
    assert!(status.success(), "git clone failed");
}
