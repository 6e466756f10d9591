//! Measures treeswap from outside, in turns with git-sync if its binary is given, and the limits of the machine in the
//! same run. `tests/bench` starts it.
//!
//! Fetches use smart HTTP from git's own backend on loopback. Processor time is that of the process and of all children
//! it waited for. Each commit has its number in the file [`repository::NUMBER`], which is read through the link, as a
//! reader would.
#![allow(unreachable_pub, missing_docs)] // a test binary exports nothing

#[path = "../common/mod.rs"]
mod common;
mod first;
mod in_a_row;
#[path = "../cluster/kubernetes/mod.rs"]
mod kubernetes;
mod limits;
mod maps;
mod plots;
mod repository;
mod scale;
mod sources;
mod subject;
mod table;
mod updates;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use clap::Parser;

use common::http_backend::{HttpBackend, Kind};
use repository::Repository;
use subject::Subject;
use table::Table;

/// Measures treeswap, and git-sync beside it, on a repository made for it
#[derive(Clone, Parser)]
#[command(name = "tests/bench")]
struct Options {
    /// Files of the repository, 5 kB each on average
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// Commits of each kind of update
    #[arg(long, default_value_t = 12)]
    updates: usize,
    /// How often each row is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// git-sync's binary, measured beside treeswap in turns
    #[arg(long)]
    git_sync: Option<PathBuf>,
    /// Where everything lies: tmpfs, or a disk with a journal
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Rows of ConfigMaps on a real API server too (tests/cluster/build makes it)
    #[arg(long)]
    cluster: bool,
    /// The same update in repositories of these sizes, instead
    #[arg(long, value_delimiter = ',', num_args = 0..=1, default_missing_value = "3000,30000,90000")]
    scale: Vec<usize>,
    /// So many updates one right after the other, instead
    #[arg(long)]
    in_a_row: Option<usize>,
    /// The same files from 1, 8 and 64 sources, instead
    #[arg(long)]
    sources: bool,
    /// Only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Every value as a line: row, unit, subject, value, load
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Directory for plots, as SVG
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Said under the plots: the machine, the commit
    #[arg(long, default_value = "")]
    label: String,
}

/// The environment of all rows.
struct Bench {
    options: Options,
    subjects: Vec<Subject>,
    repository: Repository,
    server: HttpBackend,
    /// When the server received the first request since this was reset.
    asked: Arc<Mutex<Option<Instant>>>,
    home: tempfile::TempDir,
}

impl Bench {
    fn new(options: Options) -> Self {
        let home = directory(&options);
        let path = home.path().join("repository.git");
        std::fs::create_dir(&path).expect("a directory");
        let commits = (updates::PACES * options.updates).max(updates::KEPT);
        let repository = Repository::generate(&path, options.files, commits);
        let asked: Arc<Mutex<Option<Instant>>> = Arc::default();
        let first = Arc::clone(&asked);
        let hook = move |_: &_| {
            first.lock().expect("no thread panicked").get_or_insert_with(Instant::now);
            None
        };
        let server = HttpBackend::start(home.path(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let subjects = subject::all(options.git_sync.as_deref(), home.path());
        Self { options, subjects, repository, server, asked, home }
    }

    fn url(&self) -> String {
        self.server.url("repository.git")
    }

    fn wants(&self, row: &str) -> bool {
        self.options.only.as_deref().is_none_or(|only| row.contains(only))
    }
}

fn directory(options: &Options) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("treeswap-bench-").tempdir_in(&options.dir);
    dir.unwrap_or_else(|error| panic!("{}: {error}", options.dir.display()))
}

fn main() {
    let options = Options::parse();
    if options.sources {
        return sources::measure(&options);
    }
    let csv = options.csv.clone();
    let plots = options.plots.clone();
    let label = options.label.clone();
    let mut table = Table::default();
    if let Some(updates) = options.in_a_row {
        in_a_row::measure(Options { updates, ..options }, &mut table);
    } else if options.scale.is_empty() {
        let bench = Bench::new(options);
        println!("{}", bench.repository.describe());
        for round in 1..=bench.options.rounds {
            eprintln!("round {round} of {}", bench.options.rounds);
            limits::measure(&bench, &mut table);
            first::measure(&bench, &mut table);
            updates::measure(&bench, &mut table);
            maps::measure(&bench, &mut table);
        }
    } else {
        scale::measure(&options, &mut table);
    }
    table.print();
    if let Some(path) = csv {
        std::fs::write(&path, table.csv()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    if let Some(dir) = plots {
        plots::draw(&table, &dir, &label).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    }
}
