//! What a server of git's smart protocol says when we write it ourselves (gitprotocol-v2(5), gitprotocol-pack(5)).

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::common::{Remote, run};
use super::port::{Behaviour, head, http};

pub const FLUSH: &[u8] = b"0000";
pub const DELIMITER: &[u8] = b"0001";

/// A packet line.
pub fn line(content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut line = format!("{:04x}", content.len() + 4).into_bytes();
    line.extend_from_slice(content);
    line
}

/// Bytes on a side-band.
pub fn band(number: u8, bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(65_515).flat_map(|chunk| line([&[number], chunk].concat())).collect()
}

/// Version 2's capabilities, as they stand before the first question.
pub fn capabilities() -> Vec<u8> {
    let lines = [
        "version 2\n",
        "agent=git/2.39\n",
        "ls-refs=unborn\n",
        "fetch=shallow filter\n",
        "object-format=sha1\n",
    ];
    lines.iter().flat_map(line).chain(FLUSH.iter().copied()).collect()
}

/// What comes first over HTTP, with a version's own beginning after it.
pub fn service() -> Vec<u8> {
    [line("# service=git-upload-pack\n"), FLUSH.to_vec()].concat()
}

/// The first line of version 0: a ref, and the capabilities.
pub fn first_ref(id: &str) -> Vec<u8> {
    line(format!("{id} HEAD\0multi_ack_detailed side-band-64k shallow ofs-delta agent=git/2.39\n"))
}

/// The end of an answer without a length.
pub fn end(stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Both)
}

/// A server over HTTP whose `main` is this commit, and which sends whatever is written where the pack's side-bands
/// should come.
pub fn smart(
    tip: &str,
    pack: impl Fn(&mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> Behaviour {
    let tip = tip.to_owned();
    http(move |asked, stream| {
        if asked.method == "GET" {
            stream.write_all(head("advertisement").as_bytes())?;
            stream.write_all(&[service(), capabilities()].concat())?;
            return end(stream);
        }
        stream.write_all(head("result").as_bytes())?;
        if asked.body.contains("command=ls-refs") {
            stream.write_all(&line(format!("{tip} refs/heads/main\n")))?;
            stream.write_all(FLUSH)?;
            return end(stream);
        }
        if asked.body.contains("deepen ") {
            stream.write_all(&line("shallow-info\n"))?;
            stream.write_all(&line(format!("shallow {tip}")))?;
            stream.write_all(DELIMITER)?;
        }
        stream.write_all(&line("packfile\n"))?;
        pack(stream)?;
        end(stream)
    })
}

/// A server that sends these bytes as the pack, complete in its framing.
pub fn packed(tip: &str, pack: impl Into<Vec<u8>>) -> Behaviour {
    let pack: Arc<[u8]> = pack.into().into();
    smart(tip, move |stream| {
        stream.write_all(&band(1, &pack))?;
        stream.write_all(FLUSH)
    })
}

/// The objects of one commit, without its history: the commit first.
pub fn objects(remote: &Remote, commit: &str) -> Vec<String> {
    let listing = remote.git(&["rev-list", "--objects", "--max-count=1", "--no-object-names", commit]);
    listing.lines().map(str::to_owned).collect()
}

/// A pack of these objects.
pub fn pack(remote: &Remote, objects: &[String]) -> Vec<u8> {
    let list = remote.path.with_extension("objects");
    std::fs::write(&list, objects.join("\n") + "\n").unwrap();
    let mut command = remote.command(&["pack-objects", "--stdout", "-q"]);
    let out = command.stdin(std::fs::File::open(&list).unwrap()).output().unwrap();
    assert!(out.status.success(), "git pack-objects: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// The header of a pack that claims so many objects.
pub fn pack_header(objects: u32) -> Vec<u8> {
    [b"PACK".as_slice(), &2u32.to_be_bytes(), &objects.to_be_bytes()].concat()
}

/// A commit of one file of so many zeros, which packs into a thousandth.
pub fn bomb(remote: &Remote, bytes: u64) -> String {
    let mut command = run::clean("sh", remote.path.parent().unwrap());
    command.current_dir(&remote.path).arg("-c").arg(format!(
        "blob=$(head -c {bytes} /dev/zero | git -c core.compression=1 hash-object -w --stdin) &&
         kept=$(printf 'the old generation\\n' | git hash-object -w --stdin) &&
         tree=$(printf '100644 blob %s\\tbomb\\n100644 blob %s\\tkept\\n' $blob $kept | git mktree) &&
         git commit-tree -m bomb -p main $tree"
    ));
    run::to_end(&mut command).expect_ok("making a bomb").stdout.trim().to_owned()
}
