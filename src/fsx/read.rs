//! Reading files up to a limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Reads at most `limit` bytes of the regular file `name` in `at`. `None` if the name is missing; `InvalidData` if it
/// is not a regular file.
pub fn read_file(at: impl AsFd, name: impl Arg, limit: u64) -> io::Result<Option<Vec<u8>>> {
    // O_NONBLOCK: opening a FIFO that somebody put there must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(at, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(irregular()), // a link, a socket
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Err(irregular());
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a regular file")
}

/// Reads all of `from`. More than `limit` bytes are an error: a text that was cut would mean something else.
#[cfg(feature = "program")]
pub fn read_whole(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let limit =
            if limit >= 1 << 20 { format!("{} MiB", limit >> 20) } else { format!("{} KiB", limit >> 10) };
        return Err(io::Error::other(format!("it has more than {limit}")));
    }
    Ok(bytes)
}

/// The same for UTF-8. The size is checked first: the limit may be inside a character.
#[cfg(feature = "program")]
pub fn read_text(from: impl Read, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read_whole(from, limit)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8"))
}

#[cfg(all(test, feature = "program"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_said_to_be_wherever_the_limit_falls() {
        for start in ["", "x"] {
            let text = format!("{start}{}", "ü".repeat(1 << 10));
            let error = read_text(text.as_bytes(), 1 << 10).unwrap_err();
            assert_eq!(error.to_string(), "it has more than 1 KiB");
        }
        assert_eq!(read_text("ü".as_bytes(), 2).unwrap(), "ü");
        assert_eq!(read_text(&b"\xff"[..], 2).unwrap_err().to_string(), "it is not valid UTF-8");
        assert_eq!(read_whole(&[b'x'; 1024][..], 1 << 10).unwrap().len(), 1024);
    }
}
