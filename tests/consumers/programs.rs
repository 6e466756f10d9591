//! The programs of testdata/consumers, built where they are to be built, and the command lines that start them.

use std::sync::OnceLock;

use super::*;

/// A consumer's name in a test's complaint, and its command line.
pub(super) type Consumer = (&'static str, Vec<String>);

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory with `pin` and `watch` of the Go module.
fn go() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let found = run::to_end(Command::new(home().join("tests/cluster/build")).arg("--go"));
        let found = found.expect_ok("tests/cluster/build --go");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers-go");
        fs::create_dir_all(&built).unwrap();
        let mut go = Command::new(found.stdout.trim());
        go.env("CGO_ENABLED", "0").arg("-C").arg(home().join("testdata/consumers/go"));
        run::to_end(go.args(["build", "-trimpath", "-o"]).arg(&built).arg("./...")).expect_ok("go build");
        built
    })
}

/// The directory with `pin` and `watch` of Rust. `cargo test` has built the examples, `cargo test --test consumers` has
/// not; what is built already is not built again here.
fn rust() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(home()).args(["build", "--locked", "--offline", "--examples"]);
        let built = run::to_end(cargo.arg("--message-format=json")).expect_ok("cargo build --examples");
        let messages = built.stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
        let pin = messages
            .filter(|message: &serde_json::Value| message["target"]["name"] == "pin")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from));
        pin.expect("cargo names what it built").parent().unwrap().to_owned()
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Writer {
    /// A copy of a program where other users can reach it, wherever this was built; as text, for a command line.
    fn reachable(&self, from: &Path, name: &str) -> String {
        let copy = self.dir.path().join(name);
        if !copy.exists() {
            run::copy(from, &copy);
        }
        copy.into_os_string().into_string().unwrap()
    }

    /// treeswap itself.
    pub(super) fn program(&self) -> String {
        self.reachable(Path::new(env!("CARGO_BIN_EXE_treeswap")), "treeswap")
    }

    /// A script of testdata/consumers.
    pub(super) fn script(&self, name: &str) -> String {
        self.reachable(&home().join("testdata/consumers").join(name), name)
    }

    /// `pin` or `watch` in every language there is an example of.
    fn examples(&self, name: &str, root: &str) -> Vec<Consumer> {
        let shell = self.script(&format!("{name}.sh"));
        let python = self.script(&format!("{name}.py"));
        let go = self.reachable(&go().join(name), &format!("{name}-go"));
        let rust = self.reachable(&rust().join(name), &format!("{name}-rust"));
        vec![
            ("dash", words(&["dash", &shell, root])),
            ("bash", words(&["bash", &shell, root])),
            ("Python", words(&["python3", &python, root])),
            ("Go", words(&[&go, root])),
            ("Rust", words(&[&rust, root])),
        ]
    }

    /// `treeswap pin` with a command that reads as the examples do.
    pub(super) fn pinner(&self, root: &Path) -> Vec<String> {
        let read = "echo pinned; read -r _; cd \"$TREESWAP_DIR\" && cat a b sub/c";
        words(&[&self.program(), "pin", root.to_str().unwrap(), "--", "sh", "-c", read])
    }

    /// Every consumer that pins from outside: a command line that says `pinned`, waits for a line, and reads.
    pub(super) fn pinners(&self, root: &Path) -> Vec<Consumer> {
        let direct = self.pinner(root);
        let mut by_a_grandchild = direct.clone();
        let read = by_a_grandchild.pop().unwrap();
        by_a_grandchild.push(format!("sh -c '{read}'; true"));
        let mut all = vec![("treeswap pin", direct), ("treeswap pin, by a grandchild", by_a_grandchild)];
        all.extend(self.examples("pin", root.to_str().unwrap()));
        all
    }

    /// Every example that says `loaded` and what it read, at the start and at every swap.
    pub(super) fn watchers(&self) -> Vec<Consumer> {
        self.script("pin.py"); // watch.py imports it
        self.examples("watch", self.root().to_str().unwrap())
    }
}
