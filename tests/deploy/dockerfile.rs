//! `deploy/Dockerfile`: what its images run, and that it copies all that they are built from.

use std::path::Path;
use std::process::Command;

use super::{deploy, image};

#[test]
fn the_image_runs_the_binary_as_an_unprivileged_user() {
    let text = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let [ours, drop_in, ..] = text.rsplit("\nFROM ").collect::<Vec<_>>()[..] else { panic!("stages") };
    for (stage, name, user, entry) in
        [(ours, "scratch\n", 65532, "/treeswap"), (drop_in, "scratch AS git-sync\n", 65533, "/git-sync")]
    {
        assert!(stage.starts_with(name), "the image holds nothing but what is copied");
        assert!(stage.contains(&format!("\nUSER {user}:{user}\n")), "{stage}");
        assert!(stage.contains(&format!("ENTRYPOINT [\"{entry}\"]")), "{stage}");
        let kind = entry.trim_start_matches('/');
        assert_eq!(settings(stage), image::settings(kind), "deploy/Dockerfile and deploy/image: {kind}");
    }
    for line in text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        for source in line.split_whitespace().skip(1).take(line.split_whitespace().count() - 2) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
            assert!(path.exists(), "the Dockerfile copies {source}, which is not there");
        }
    }
}

/// What a stage of the Dockerfile sets for whoever runs its image, as the configuration of an image names it.
fn settings(stage: &str) -> serde_json::Value {
    let lines =
        |word: &'static str| stage.lines().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '));
    let list = |word: &'static str| {
        lines(word).next_back().map_or(serde_json::json!([]), |line| serde_json::from_str(line).unwrap())
    };
    let mut variables: Vec<&str> = lines("ENV").flat_map(str::split_whitespace).collect();
    variables.sort_unstable();
    serde_json::json!({
        "User": lines("USER").next_back(), "WorkingDir": lines("WORKDIR").next_back(),
        "Entrypoint": list("ENTRYPOINT"), "Cmd": list("CMD"), "Env": variables,
    })
}

/// What the Dockerfile copies is enough for Cargo to read the manifest, whose targets must all be there.
#[test]
fn the_image_is_built_from_all_that_the_manifest_names() {
    let text = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let context = tempfile::tempdir().unwrap();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for line in text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let (to, from) = words.split_last().unwrap();
        let to = context.path().join(to);
        std::fs::create_dir_all(if from.len() > 1 { &to } else { to.parent().unwrap() }).unwrap();
        let copied =
            Command::new("cp").arg("-r").args(from.iter().map(|path| top.join(path))).arg(&to).status();
        assert!(copied.unwrap().success(), "{line}");
    }
    // Offline, crates of other platforms may be missing; only what is said of the manifest matters here.
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["fetch", "--locked", "--offline"]).current_dir(context.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("failed to parse manifest"), "{said}");
}
