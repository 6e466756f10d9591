//! Commits that were made beforehand, each with a number that all its files hold.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use crate::common::{Remote, run};

/// Files of each commit that hold nothing but the number.
pub const COPIES: [&str; 2] = ["k0", "k1"];

/// What one lists below a commit's top: the copies, and a file in a directory whose name has the number.
pub fn paths(number: usize) -> Vec<String> {
    let named = [format!("d{}", number % 4), format!("d{}/only-{number}", number % 4)];
    COPIES.map(str::to_owned).into_iter().chain(named).collect()
}

/// Commits for one repository, in a repository of their own.
pub struct Pool {
    from: Remote,
    pub commits: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Pool {
    /// So many; every fifth has no parent. What the files hold begins with the word.
    pub fn new(path: &Path, word: &str, count: usize) -> Self {
        let from = Remote::create(path);
        let mut input = Vec::new();
        for number in 0..count {
            let stamp = format!("C <c@example.com> {} +0000", 1_700_000_000 + number);
            writeln!(
                input,
                "commit refs/pool/{number:06}\nmark :{}\ncommitter {stamp}\ndata 1\nx",
                number + 1
            )
            .unwrap();
            if !number.is_multiple_of(5) {
                writeln!(input, "from :{number}").unwrap();
            }
            writeln!(input, "deleteall").unwrap();
            let text = content(word, number);
            for path in paths(number).iter().filter(|path| !path.starts_with('d') || path.contains('/')) {
                writeln!(input, "M 100644 inline {path}\ndata {}\n{text}", text.len()).unwrap();
            }
        }
        let mut child = from.command(&["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        assert!(child.wait().unwrap().success());
        let listed = from.git(&["for-each-ref", "--format=%(objectname)", "refs/pool"]);
        let commits: Vec<String> = listed.lines().map(str::to_owned).collect();
        assert_eq!(commits.len(), count);
        let numbers = commits.iter().cloned().enumerate().map(|(number, id)| (id, number)).collect();
        Self { from, commits, numbers }
    }

    /// Which commit it is, by a beginning of its id.
    pub fn number(&self, id: &str) -> Option<usize> {
        self.numbers
            .get(id)
            .copied()
            .or_else(|| self.commits.iter().position(|commit| commit.starts_with(id)))
    }

    /// Pushes commits to refs; false where the remote is not to be had.
    pub fn push(&self, to: &Path, refs: &[(usize, &str)]) -> bool {
        let mut git = self.from.command(&["push", "--quiet", "--force"]);
        git.arg(to);
        git.args(refs.iter().map(|(number, name)| format!("{}:{name}", self.commits[*number])));
        run::to_end(&mut git).ok()
    }
}

/// What every file of a commit holds.
pub fn content(word: &str, number: usize) -> String {
    format!("{word} {number}\n")
}
