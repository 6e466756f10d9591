//! Reads one complete generation, however slowly: pin ROOT
//!
//! ROOT is required, and has the files a, b and sub/c. They are read after a line has arrived on standard input.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io};

use treeswap::pin::{self, Pin};

/// It may take a while until a writer that starts beside this program has published something, or until whoever keeps
/// the lock for itself has let it go.
const WAIT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::args_os().nth(1).ok_or("usage: pin ROOT")?);
    let config = Pin::take_locked(&root, &pin::Options { wait: WAIT })?;
    println!("pinned");
    io::stdin().read_line(&mut String::new())?;
    for name in ["a", "b", "sub/c"] {
        print!("{}", fs::read_to_string(config.path().join(name))?);
    }
    Ok(())
}
