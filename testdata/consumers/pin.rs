//! Reads one complete generation, however slowly: pin ROOT
//!
//! ROOT is required, and has the files a, b and sub/c. They are read after a line has arrived on standard input.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use treeswap::pin::{self, Pin};

/// Pins the current generation with a lock. It may take a while until a writer that starts beside this program has
/// published something, for which `Pin::take` waits; or until whoever keeps the lock for itself has let it go.
fn pinned(root: &Path) -> Result<Pin, pin::Error> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let wait = end.saturating_duration_since(Instant::now());
        match Pin::take(root, &pin::Options { wait }).and_then(Pin::locked) {
            Err(error) if error.is_transient() && !wait.is_zero() => sleep(Duration::from_millis(50)),
            taken => return taken,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::args_os().nth(1).ok_or("usage: pin ROOT")?);
    let config = pinned(&root)?;
    println!("pinned");
    io::stdin().read_line(&mut String::new())?;
    for name in ["a", "b", "sub/c"] {
        print!("{}", fs::read_to_string(config.path().join(name))?);
    }
    Ok(())
}
