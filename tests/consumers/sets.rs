//! Several ConfigMaps on one projected volume, swapped as a kubelet does it: whoever asks for sets never gets a mixed
//! one, and whoever doesn't, does.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::sync::mpsc::channel;

use serde_yaml::Value;
use treeswap::configmap::apply::{Entry, Marker};
use treeswap::marker::set::Stamps;
use treeswap::watch::{self, SetReader};

use super::watches::{NO_POLL, Watching};
use super::*;

/// The data of a ConfigMap.
type Data = BTreeMap<String, String>;

/// A projected volume, written by a kubelet's steps: the new directory, the swap, the visible links, and the old
/// directory removed at once, file by file.
struct Volume {
    dir: tempfile::TempDir,
    serial: u64,
}

impl Volume {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("treeswap-volume-").tempdir().unwrap(), serial: 0 }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn swap(&mut self, files: &Data) -> String {
        let volume = self.path();
        self.serial += 1;
        let name = format!("..2026_11_20_15_04_05.{}", 1_000_000_000 + self.serial);
        for (path, content) in files {
            let path = volume.join(&name).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let old = fs::read_link(volume.join("..data"));
        symlink(&name, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        for path in files.keys() {
            let first = path.split('/').next().unwrap();
            let link = volume.join(first);
            if link.symlink_metadata().is_err() {
                symlink(format!("..data/{first}"), link).unwrap();
            }
        }
        if let Ok(old) = old {
            fs::remove_dir_all(volume.join(old)).unwrap();
        }
        name
    }
}

fn digest(map: &str, n: usize) -> String {
    format!("{n:012x}{map:0>52}")
}

/// A ConfigMap as it is written at revision `n`: one key, named as the map, beside its stamp.
fn map(name: &str, n: usize) -> Data {
    [(name.to_owned(), format!("{n}\n")), (format!(".{name}.stamp"), digest(name, n))].into()
}

/// The marker as treeswap writes it once everything is at revision `n`.
fn marker(names: &[&str], n: usize) -> Data {
    let entry = |name: &&str| {
        let entry = Entry {
            digest: digest(name, n),
            uid: "7c6e9d7a-0000-4000-8000-000000000000".into(),
            version: n.to_string(),
            revision: format!("{n:040x}"),
            wanted: None,
        };
        ((*name).to_owned(), entry)
    };
    let entries = names.iter().map(entry).collect();
    Marker { revision: format!("{n:040x}"), rules: "r".into(), entries, ..Marker::default() }.data()
}

/// A volume that shows the maps `a` and `b`, and the marker's lines for them, at these revisions.
fn shown(a: usize, b: usize, marked: usize) -> Data {
    let marker = marker(&["a", "b", "elsewhere"], marked);
    let lines = ["a", "b"].map(|name| (format!(".treeswap/{name}"), marker[name].clone()));
    map("a", a).into_iter().chain(map("b", b)).chain(lines).collect()
}

/// What a volume shows on the way from one revision to the next: the kubelet is late with one thing or another.
fn between(n: usize) -> [Data; 4] {
    [shown(n, n - 1, n - 1), shown(n, n - 1, n), shown(n - 1, n, n), shown(n, n, n - 1)]
}

const NOTE: &str = "echo $(cat \"$TREESWAP_DIR/a\" \"$TREESWAP_DIR/b\") >> \"$log\"";

#[test]
fn the_command_runs_for_complete_sets_only_and_without_the_flag_for_mixed_ones_too() {
    for (options, complete_only) in [(&[NO_POLL, "--set"][..], true), (&[NO_POLL][..], false)] {
        let mut volume = Volume::new();
        volume.swap(&shown(1, 1, 1));
        let log = volume.dir.path().join("log");
        let watching = Watching::over(&volume.path(), log, options, NOTE, &[]);
        watching.until("1 1");
        let mut expected = vec!["1 1".to_owned()];
        for n in 2..6 {
            for files in between(n) {
                let name = volume.swap(&files);
                let seen = format!("{} {}", files["a"].trim(), files["b"].trim());
                // It has looked at this one when it has said why not; or when the command has run for it.
                let refused = format!("no complete set is in {}", volume.path().join(&name).display());
                let end = Instant::now() + Duration::from_secs(60);
                let count = expected.len();
                while if complete_only {
                    !watching.complaints().contains(&refused)
                } else {
                    watching.log().len() == count
                } {
                    assert!(Instant::now() < end, "{name} was not looked at: {}", watching.complaints());
                    std::thread::sleep(Duration::from_millis(3));
                }
                if !complete_only {
                    expected.push(seen);
                }
            }
            volume.swap(&shown(n, n, n));
            expected.push(format!("{n} {n}"));
            let end = Instant::now() + Duration::from_secs(60);
            while watching.log().len() < expected.len() {
                assert!(Instant::now() < end, "set {n} did not come: {}", watching.complaints());
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        assert_eq!(watching.log(), expected, "{}", watching.complaints());
        let mixed =
            watching.log().iter().filter(|line| line.split_once(' ').is_none_or(|(a, b)| a != b)).count();
        assert_eq!(mixed > 0, !complete_only, "the volume did show mixed sets");
    }
}

#[test]
fn what_others_wrote_into_a_stamp_moves_no_cursor() {
    let mut volume = Volume::new();
    let mut files = shown(1, 1, 1);
    files.insert(".a.stamp".to_owned(), "\u{1b}[2J\u{7}red".to_owned());
    volume.swap(&files);
    let log = volume.dir.path().join("log");
    let watching = Watching::over(&volume.path(), log, &[NO_POLL, "--set"], NOTE, &[]);
    watching.complains("a is \u{fffd}[2J\u{fffd}red, and the marker has ");
    assert!(!watching.complaints().contains(['\u{1b}', '\u{7}']), "{:?}", watching.complaints());
}

#[test]
fn a_watch_outlives_an_error_also_before_the_first_complete_set() {
    let mut volume = Volume::new();
    volume.swap(&shown(1, 2, 1));
    let log = volume.dir.path().join("log");
    let watching = Watching::over(&volume.path(), log, &[NO_POLL, "--set"], NOTE, &[]);
    watching.complains("no complete set is in ");
    let (link, away) = (volume.path().join("..data"), volume.path().join("..away"));
    fs::rename(&link, &away).unwrap();
    fs::create_dir(&link).unwrap();
    watching.complains("is not a symbolic link; trying again");
    fs::remove_dir(&link).unwrap();
    fs::rename(&away, &link).unwrap();
    volume.swap(&shown(2, 2, 2));
    watching.until("2 2");
}

#[test]
fn the_library_delivers_no_mixed_set_however_the_volume_is_swapped() {
    let mut volume = Volume::new();
    let link = volume.path().join("..data");
    let (done, delivered) = channel();
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for set in SetReader::new(link, Stamps::default(), &watch::Options::default()) {
            let read = |name: &str| fs::read_to_string(set.path().join(name));
            let (a, b) = (read("a"), read("b"));
            if !set.is_current() {
                continue; // the kubelet may have been removing it
            }
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!(a, b, "a mixed set");
            let n: usize = a.trim().parse().unwrap();
            seen.push(n);
            if done.send(n).is_err() {
                break;
            }
        }
        seen
    });
    let rounds = 200;
    for n in 1..=rounds {
        between(n).iter().for_each(|files| drop(volume.swap(files)));
        volume.swap(&shown(n, n, n));
        // What stays for a while is delivered; in between the volume is swapped faster than anybody can read it.
        if n % 10 == 0 {
            while delivered.recv_timeout(Duration::from_secs(60)).expect("the complete set is delivered") < n
            {
            }
        }
    }
    drop(delivered);
    volume.swap(&shown(rounds + 1, rounds + 1, rounds + 1));
    let seen = reader.join().unwrap();
    assert!(seen.is_sorted(), "never back: {seen:?}");
    assert_eq!(seen.last(), Some(&(rounds + 1)));
}

#[test]
fn a_reader_says_what_is_missing_and_waits() {
    let mut volume = Volume::new();
    let mut sets =
        SetReader::new(volume.path().join("..data"), Stamps::default(), &watch::Options::default());
    assert!(sets.wait(Duration::from_millis(1)).unwrap().is_none(), "there is no volume yet");
    volume.swap(&shown(1, 1, 1));
    let first = sets.wait(Duration::from_secs(60)).unwrap().expect("a complete set");
    assert!(first.is_current());
    let mut lacks = |files: &Data| {
        volume.swap(files);
        let dir = fs::File::open(volume.path().join("..data")).unwrap();
        let gaps = watch::set::read_gaps(std::os::fd::AsFd::as_fd(&dir), &Stamps::default()).unwrap();
        gaps.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(lacks(&shown(2, 1, 1)), "a is 000000000002, and the marker has 000000000001");
    let mut without = shown(2, 2, 2);
    without.remove(".b.stamp");
    assert_eq!(lacks(&without), "b has no stamp: there is no .b.stamp");
    without.retain(|path, _| !path.starts_with(".treeswap"));
    assert_eq!(lacks(&without), "no marker is in .treeswap");
    assert!(!first.is_current());
    volume.swap(&shown(3, 2, 3));
    assert!(sets.wait(Duration::from_millis(100)).unwrap().is_none(), "it is not complete");
    volume.swap(&shown(3, 3, 3));
    let set = sets.wait(Duration::from_secs(60)).unwrap().expect("a complete set");
    assert_eq!(fs::read_to_string(set.path().join("b")).unwrap(), "3\n");
    assert!(set.is_current() && sets.gaps().is_empty());
}

/// The ConfigMaps that the guide's volume names, as the guide has them written, projected as a kubelet does it.
fn projected(sources: &[Value], configmaps: &BTreeMap<String, Data>) -> Data {
    let mut files = Data::new();
    for source in sources {
        let source = &source["configMap"];
        let data = &configmaps[source["name"].as_str().unwrap()];
        match source["items"].as_sequence() {
            None => files.extend(data.clone()),
            Some(items) => files.extend(items.iter().map(|item| {
                let key = item["key"].as_str().unwrap();
                (item["path"].as_str().unwrap().to_owned(), data[key].clone())
            })),
        }
    }
    files
}

#[test]
fn the_volume_in_the_guide_works() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/configmaps.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (before, rest) = guide.split_once("## Several ConfigMaps that belong together").unwrap();
    assert!(rest.contains("--stamp-key='.{name}.stamp'") && before.contains("--owner=acme"));
    let example = rest.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let example: Value = serde_yaml::from_str(example).unwrap();
    let container = &example["containers"][0];
    let words: Vec<&str> =
        container["command"].as_sequence().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let mount = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let (ours, _) = words.split_at(words.iter().position(|word| *word == "--").unwrap());
    let (path, options) = ours.split_last().unwrap();
    assert_eq!((*path, &options[..2]), (mount, &["treeswap", "watch"][..]));
    let sources = example["volumes"][0]["projected"]["sources"].as_sequence().unwrap();

    let configmaps = |plugins: usize, jobs: usize, marked: usize| -> BTreeMap<String, Data> {
        let names = ["plugins", "job-config", "elsewhere"];
        [
            ("plugins".to_owned(), map("plugins", plugins)),
            ("job-config".to_owned(), map("job-config", jobs)),
            ("treeswap-set-acme".to_owned(), marker(&names, marked)),
        ]
        .into()
    };
    let mut volume = Volume::new();
    volume.swap(&projected(sources, &configmaps(2, 1, 1)));
    let script = "echo $(cat \"$TREESWAP_DIR/plugins\" \"$TREESWAP_DIR/job-config\") >> \"$log\"";
    let log = volume.dir.path().join("log");
    let watching = Watching::over(&volume.path(), log, &options[2..], script, &[]);
    let end = Instant::now() + Duration::from_secs(60);
    while !watching.complaints().contains("treeswap: plugins is ") {
        assert!(Instant::now() < end, "{}", watching.complaints());
        std::thread::sleep(Duration::from_millis(3));
    }
    volume.swap(&projected(sources, &configmaps(2, 2, 2)));
    watching.until("2 2");
    assert_eq!(watching.log(), ["2 2"]);
}
