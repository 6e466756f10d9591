//! What rules make of a tree, in memory: an author of commits chooses how much they match. Where memory has a limit, a
//! plan that does not fit is refused, in words; no process is killed.

use std::io::Write as _;
use std::path::Path;

use super::common::{World, full, noise, run};
use super::{Watch, mib};

/// The limit that `deploy/` gives who applies ConfigMaps, in bytes.
fn shipped_limit() -> u64 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/apply/deployment.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("limits: {memory: ").unwrap();
    rest.split_once("Mi}").unwrap().0.parse::<u64>().unwrap() << 20
}

struct Place {
    world: World,
    limit: u64,
}

impl Place {
    fn new() -> Self {
        let place = Self { world: World::new(), limit: shipped_limit() };
        std::fs::create_dir(place.tree()).unwrap();
        place
    }

    fn tree(&self) -> std::path::PathBuf {
        self.world.dir().join("tree")
    }

    /// A file of so many bytes, almost all of them zeros that take no room on the disk. It is no text.
    fn sparse(&self, name: &str, bytes: u64) {
        let mut file = std::fs::File::create(self.tree().join(name)).unwrap();
        file.write_all(b"\xff").unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Manifests of the tree by these rules, each a pattern and a name, under the limit; what was said, and the peak.
    fn render(&self, rules: impl Iterator<Item = (String, String)>) -> (run::Ran, u64) {
        self.render_under(&(self.limit >> 10).to_string(), rules)
    }

    /// The same under another limit, in KiB or `unlimited`.
    fn render_under(&self, limit: &str, rules: impl Iterator<Item = (String, String)>) -> (run::Ran, u64) {
        let map =
            |(pattern, name)| (pattern, serde_json::json!({ "name": name, "use_full_path_as_key": true }));
        let maps: serde_json::Map<String, serde_json::Value> = rules.map(map).collect();
        let file = self.world.dir().join("rules.yaml");
        std::fs::write(&file, serde_json::json!({ "config_updater": { "maps": maps } }).to_string()).unwrap();
        let mut command = run::clean("sh", &self.world.dir().join("home"));
        let script = format!("ulimit -d {limit}; exec \"$0\" \"$@\" >&3 3>&-");
        command.args(["-c", &format!("exec 3>{}/out; {script}", self.world.dir().display())]);
        command.arg(super::common::binary()).args(["render", "--rules"]).arg(&file);
        let log = self.world.dir().join("log");
        let mut process = run::Background::start(command.arg("--tree").arg(self.tree()), &log);
        // The shell becomes the program, which is what is watched.
        let watch = Watch::becoming(process.pid(), &super::common::binary());
        let status = process.ended();
        let ran = run::Ran { status, stdout: String::new(), stderr: process.log() };
        let peak = watch.take();
        assert!(peak > 1 << 20, "{peak} bytes: it was not watched");
        (ran, peak)
    }
}

#[test]
fn a_plan_that_does_not_fit_into_memory_is_refused_and_the_largest_that_fits_is_made() {
    let place = Place::new();
    let count = if full() { 800 } else { 200 };
    for n in 0..count {
        std::fs::write(place.tree().join(format!("f{n}")), noise(n, 900_000)).unwrap();
    }
    let rules = |count| (0..count).map(|n| (format!("f{n}"), format!("map-{n}")));
    let (ran, peak) = place.render(rules(count));
    println!("| {count} ConfigMaps of 0.9 MB | {} | refused |", mib(peak));
    ran.expect_failure("more than fits").names(&["the ConfigMaps take more than", "of memory"]);
    assert!(peak < place.limit / 2, "{}", mib(peak));
    let (ran, peak) = place.render(rules(120));
    println!("| 120 ConfigMaps of 0.9 MB | {} | made |", mib(peak));
    ran.expect_ok("what fits");
    assert!(peak < place.limit / 2, "{}", mib(peak));
}

#[test]
fn what_no_configmap_can_hold_is_not_held_even_where_memory_has_no_limit() {
    let place = Place::new();
    let (large, many) = if full() { (24, 400) } else { (4, 200) };
    (0..large).for_each(|n| place.sparse(&format!("large-{n}"), 66_000_000));
    (0..many).for_each(|n| place.sparse(&format!("many-{n}"), 900_000));
    let each = (0..large).map(|n| (format!("large-{n}"), format!("map-{n}")));
    let rules = each.chain([("many-*".to_owned(), "all".to_owned())]);
    let (ran, peak) = place.render_under("unlimited", rules);
    println!("| {large} files of 66 MB, one ConfigMap of {many} of 0.9 MB | {} | refused |", mib(peak));
    let ran = ran.expect_failure("none of them fits");
    ran.names(&[&format!("ConfigMap all has {} bytes of values, the limit is", many * 900_000)]);
    let alone = "key large-0 (large-0) of ConfigMap map-0 alone has 66000000 bytes of values, the limit is";
    assert!(ran.stderr.contains(alone), "{}", ran.stderr);
    // One file at a time, and less than 1 MiB for each ConfigMap.
    assert!(peak < 112 << 20, "{}", mib(peak));
}

#[test]
fn a_rule_for_every_file_of_a_large_tree_stays_below_the_limit() {
    let place = Place::new();
    let count = if full() { 990_000 } else { 100_000 };
    for dir in 0..count / 1_000 {
        let dir = place.tree().join(format!("d{dir:03}"));
        std::fs::create_dir(&dir).unwrap();
        for n in 0..1_000 {
            std::fs::write(dir.join(format!("file-{n:04}.yaml")), "").unwrap();
        }
    }
    let each = |first: usize| (first..count / 1_000).map(|n| (format!("d{n:03}/*"), format!("map-{n}")));
    let all = std::iter::once(("**/*".to_owned(), "all".to_owned()));
    for (name, rules) in
        [("one rule", all.collect::<Vec<_>>()), ("a rule for each thousand", each(0).collect())]
    {
        let (ran, peak) = place.render(rules.into_iter());
        assert!(!ran.stderr.contains("no file matches"), "{}", ran.stderr);
        println!("| {count} files, {name} | {} | {} |", mib(peak), ran.status);
        match name {
            "one rule" => drop(ran.expect_failure("more than one ConfigMap takes")),
            _ if full() => ran.expect_failure("more than fits").names(&["of memory"]),
            _ => drop(ran.expect_ok("what fits")),
        }
        // What lists a tree grows with it; a plan has what is left.
        let allowed = place.limit * 3 / 4;
        assert!(peak < if full() { allowed } else { allowed / 3 }, "{}", mib(peak));
    }
}
