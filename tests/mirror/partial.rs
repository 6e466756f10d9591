//! `--filter`: what is left out, and fetched once a selection names it.

use treeswap::mirror::{Depth, Submodules};

use super::common::Remote;
use super::common::http_backend::{HttpBackend, Kind};
use super::*;

/// A mirror of a repository with large files, most of which a selection leaves out.
fn bench(filter: &str) -> (Bench, Files) {
    let mut bench = Bench::new("main");
    bench.options.filter = Some(filter.into());
    let files = (0..20).fold(Files::new(), |files, n| files.file(format!("big/{n}"), noise(n, 20_000)));
    (bench, files.file("small/a", "a").file("small/b", "b"))
}

fn sparse(patterns: &str) -> Selection {
    Selection { sparse: Some(patterns.to_owned()), ..Selection::default() }
}

fn filled(mirror: &mut Mirror, held: &[Revision], selection: &Selection) -> Revision {
    wait(async {
        let tip = mirror.resolve().await.unwrap();
        let at = mirror.fetch(&tip, held).await.unwrap();
        mirror.fill(at, selection).await.unwrap();
        let payload = mirror.objects().payload(at, selection).unwrap();
        let blobs = mirror.objects().blobs();
        let mut reader = blobs.reader().unwrap();
        for entry in &payload.entries {
            reader.read(&entry.id, &mut |_| Ok(())).unwrap();
        }
        at
    })
}

#[test]
fn only_the_files_that_are_selected_come() {
    for filter in ["blob:none", "blob:limit=1k", "tree:0"] {
        let (bench, files) = bench(filter);
        bench.world.remote.commit(&files);
        let mut mirror = bench.open();
        let first = filled(&mut mirror, &[], &sparse("/small/\n"));
        let received = mirror.complete_pack_bytes();
        assert!(received < 20_000, "{filter}: {received}");
        // An update, with one more of the large files selected.
        bench.world.remote.commit(&files.clone().file("small/c", "c"));
        let second = filled(&mut mirror, &[first], &sparse("/small/\n/big/7\n"));
        let more = mirror.complete_pack_bytes() - received;
        assert!((20_000..40_000).contains(&more), "{filter}: {more}");
        // It is as good after a restart, and everything comes when everything is selected.
        drop(mirror);
        let mut mirror = bench.open();
        assert_eq!(filled(&mut mirror, &[second], &sparse("/small/\n")), second);
        assert_eq!(mirror.complete_pack_bytes(), 0, "{filter}: it is all here");
        filled(&mut mirror, &[second, first], &Selection::default());
        bench.assert_whole(&mirror, second);
        let marked = bench.packs().iter().filter(|pack| pack.with_extension("promisor").exists()).count();
        assert_eq!(marked, bench.packs().len());
        mirror.housekeep(&[second]).unwrap();
        filled(&mut mirror, &[second], &Selection::default());
    }
}

#[test]
fn the_record_that_all_is_there_names_the_packs_of_what_was_filled_in() {
    let (bench, files) = bench("blob:none");
    bench.world.remote.commit(&files);
    let mut mirror = bench.open();
    filled(&mut mirror, &[], &sparse("/small/\n"));
    drop(mirror);
    let recorded = || std::fs::read_to_string(bench.dir().join("treeswap-complete")).unwrap();
    let before = recorded();
    drop(bench.open());
    assert_eq!(recorded(), before, "it did not fit, so that all trees were read again");
}

#[test]
fn merged_packs_still_say_that_what_they_lack_was_left_out() {
    let (mut bench, files) = bench("blob:none");
    bench.options.max_packs = 2;
    let mut mirror = bench.open();
    let mut held = Vec::new();
    for n in 0..3 {
        bench.world.remote.commit(&files.clone().file("small/c", n.to_string()));
        held.insert(0, filled(&mut mirror, &held, &sparse("/small/\n")));
    }
    let before = bench.packs().len();
    mirror.housekeep(&held).unwrap();
    let packs = bench.packs();
    assert!(packs.len() < before, "{before} packs were not merged");
    assert!(packs.iter().all(|pack| pack.with_extension("promisor").exists()), "{packs:?}");
}

#[test]
fn adopted_packs_still_say_that_what_they_lack_was_left_out() {
    let (mut bench, files) = bench("blob:none");
    bench.world.remote.commit(&files);
    filled(&mut bench.open(), &[], &sparse("/small/\n"));
    bench.options.others = vec![bench.dir().to_owned()];
    bench.options.dir = bench.world.dir().join("another");
    let mut mirror = bench.open();
    filled(&mut mirror, &[], &sparse("/small/\n"));
    assert_eq!(mirror.complete_pack_bytes(), 0, "nothing was adopted");
    let packs = bench.packs();
    assert!(packs.iter().all(|pack| pack.with_extension("promisor").exists()), "{packs:?}");
}

#[test]
fn of_a_directory_only_its_files_come() {
    // Without the trees on the way, too.
    for filter in ["blob:none", "tree:0", "tree:1"] {
        let (bench, files) = bench(filter);
        bench.world.remote.commit(&files.file("way/to/it/c", "c"));
        let mut mirror = bench.open();
        for path in ["small", "way/to/it"] {
            let path = Some(path.parse().unwrap());
            filled(&mut mirror, &[], &Selection { path, ..Selection::default() });
        }
        let received = mirror.complete_pack_bytes();
        assert!(filter != "blob:none" || received < 20_000, "{received}");
    }
}

#[test]
fn trees_that_no_pattern_reaches_do_not_come() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("tree:0".into());
    let deep = |top: &str, n: u64| format!("{top}/{n}/b/c/d/e/f/g/h/i/file");
    let mut files = Files::new();
    for n in 0..50 {
        files = files.file(deep("left-out", n), noise(n, 10)).file(deep("wanted", n), noise(n, 10));
    }
    bench.world.remote.commit(&files);
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    bench.options.wire.remote = server.url("remote");
    let mut mirror = bench.open();
    let selection = sparse("/wanted/*7/\n");
    let first = filled(&mut mirror, &[], &selection);
    assert_eq!(mirror.objects().payload(first, &selection).unwrap().entries.len(), 5);
    // A commit, the top, `wanted`, and nine directories and a file of each of the five.
    assert_eq!(bench.objects(), 3 + 5 * 10);
    // An update costs the trees on the way to what changed, and nothing where nothing of it is selected.
    bench.world.remote.commit(&files.clone().file(deep("left-out", 7), "x"));
    let second = filled(&mut mirror, &[first], &selection);
    assert_eq!(bench.objects(), 3 + 5 * 10 + 2, "a commit and its top");
    bench.world.remote.commit(&files.file(deep("left-out", 7), "x").file(deep("wanted", 7), "y"));
    filled(&mut mirror, &[second], &selection);
    assert_eq!(bench.objects(), 3 + 5 * 10 + 2 + 13);
}

#[test]
fn without_the_filter_the_rest_is_fetched() {
    let (mut bench, files) = bench("blob:none");
    bench.world.remote.commit(&files);
    let mut mirror = bench.open();
    let at = filled(&mut mirror, &[], &sparse("/small/\n"));
    drop(mirror);
    bench.options.filter = None;
    let mut mirror = bench.open();
    assert_eq!(update(&mut mirror, &[at]), at);
    bench.assert_whole(&mirror, at);
}

#[test]
fn a_mirror_of_a_filter_that_is_gone_is_not_called_damaged() {
    let (bench, files) = bench("blob:none");
    let tip = bench.world.remote.commit(&files);
    let patterns = bench.world.dir().join("patterns");
    std::fs::write(&patterns, "/small/\n").unwrap();
    let patterns = format!("--sparse-checkout-file={}", patterns.display());
    bench.world.sync_once(&["--filter=blob:none", &patterns]).expect_ok("with the filter");
    let ran = bench.world.sync_once(&[]).expect_ok("without it");
    bench.world.assert_published(&tip);
    assert!(ran.stderr.contains("was fetched with --filter"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("damaged"), "{}", ran.stderr);
}

#[test]
fn a_server_that_cannot_filter_sends_everything() {
    let (mut bench, files) = bench("blob:none");
    bench.world.remote.git(&["config", "uploadpack.allowFilter", "false"]);
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    bench.options.wire.remote = server.url("remote");
    bench.world.remote.commit(&files);
    let mut mirror = bench.open();
    let at = filled(&mut mirror, &[], &sparse("/small/\n"));
    bench.assert_whole(&mirror, at);
}

#[test]
fn a_program_that_fetches_filters_too() {
    let (mut bench, files) = bench("blob:none");
    bench.world.remote.commit(&files);
    bench.options.wire.program = git();
    let mut mirror = bench.open();
    let first = filled(&mut mirror, &[], &sparse("/small/\n"));
    assert!(mirror.complete_pack_bytes() < 20_000, "{}", mirror.complete_pack_bytes());
    bench.world.remote.commit(&files.file("small/c", "c"));
    filled(&mut mirror, &[first], &sparse("/small/\n/big/7\n"));
}

/// A git program that fetches in the client's place.
fn git() -> Option<wire::Program> {
    let config = vec![("safe.directory".to_owned(), "*".to_owned())];
    Some(wire::Program { path: "git".into(), config, mirror: PathBuf::new() })
}

#[test]
fn a_program_fetches_what_was_left_out_of_any_repository() {
    for (filter, depth) in [
        ("blob:none", Depth::Commits(1)),
        ("tree:0", Depth::Commits(1)),
        ("blob:none", Depth::Full),
        ("tree:0", Depth::Full),
    ] {
        let mut bench = Bench::at_depth("main", depth);
        bench.options.filter = Some(filter.into());
        bench.options.wire.program = git();
        bench.world.remote.commit(&wide());
        bench.world.remote.commit(&wide().file("d/f", "1"));
        // Only of packed repositories a server knows all objects of a commit that the client seems to have.
        bench.world.remote.git(&["gc", "--quiet"]);
        let mut mirror = bench.open();
        let at = filled(&mut mirror, &[], &Selection::default());
        bench.assert_whole(&mirror, at);
        let tip = bench.world.remote.commit(&wide().file("d/f", "2").file("e", "3"));
        assert_eq!(filled(&mut mirror, &[at], &Selection::default()), revision(&tip), "{filter} {depth:?}");
    }
}

#[test]
fn a_directory_that_another_wanted_one_contains_comes_in_the_next_round() {
    for program in [None, git()] {
        for n in 0..6 {
            // Which of the two is named first depends on their ids.
            let file = n.to_string();
            let files = (0..5).fold(Files::new(), |files, deep| {
                files.file(format!("{}f", "d/".repeat(deep + 1)), "same").file(format!("t{deep}/d/f"), "same")
            });
            let files = files.file("one/file", file.clone()).file("two/copy-of-one/file", file);
            let mut bench = Bench::new("main");
            bench.options.filter = Some("tree:0".into());
            bench.options.wire.program = program.clone();
            let url = format!("file://{}", bench.world.remote.path.display());
            bench.options.wire.remote = url;
            bench.options.wire.git = "git".into();
            bench.world.remote.commit(&files);
            let mut mirror = bench.open();
            let at = filled(&mut mirror, &[], &Selection::default());
            bench.assert_whole(&mirror, at);
        }
    }
}

#[test]
fn a_remote_that_sends_nothing_of_what_was_left_out_is_named_as_the_cause() {
    let (mut bench, files) = bench("blob:none");
    bench.world.remote.commit(&files);
    let program = bench.world.dir().join("program");
    // A second fetch brings nothing.
    let script = "#!/bin/sh\ncase \"$*\" in *--depth*) exec git \"$@\";; esac\n";
    run::executable(&program, script);
    bench.options.wire.program = git().map(|git| wire::Program { path: program, ..git });
    let error = fill_all(&bench).unwrap_err();
    assert!(matches!(error, Error::Incomplete { .. }), "{error:?}");
    assert!(error.to_string().contains("the remote's answer for"), "{error}");
}

/// Fetches, and then all that was left out.
fn fill_all(bench: &Bench) -> Result<(), Error> {
    let mut mirror = bench.open();
    wait(async {
        let tip = mirror.resolve().await.unwrap();
        let at = mirror.fetch(&tip, &[]).await.unwrap();
        mirror.fill(at, &Selection::default()).await
    })
}

/// So many files of so many bytes, no two the same.
fn many(count: u64, bytes: usize) -> Files {
    (0..count).fold(Files::new(), |files, n| files.file(format!("{}/{n}", n / 100), noise(n, bytes)))
}

#[test]
fn what_was_left_out_comes_in_few_requests() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("blob:none".into());
    bench.world.remote.commit(&many(20_100, 10));
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    bench.options.wire.remote = server.url("remote");
    fill_all(&bench).unwrap();
    let hits = server.hits();
    let asked: Vec<_> = hits.iter().filter(|hit| hit.method == "POST" && hit.up > 4_000).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].up < 1 << 20, "a proxy may take no more: {}", asked[0].up);
}

#[test]
fn the_most_bytes_of_a_fetch_are_those_of_all_requests_for_what_was_left_out() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("blob:none".into());
    // A program is asked twice for so many, for each of which alone there is room.
    let log = bench.world.dir().join("calls");
    let program = bench.world.dir().join("program");
    let script = format!("#!/bin/sh\necho \"$1 $#\" >> {}\nexec git \"$@\"\n", log.display());
    run::executable(&program, &script);
    let config = vec![("safe.directory".to_owned(), "*".to_owned())];
    bench.options.wire.program = Some(wire::Program { path: program, config, mirror: PathBuf::new() });
    bench.world.remote.commit(&many(3_000, 300));
    for (limit, fits) in [(800_000, false), (2_000_000, true)] {
        bench.options.wire.max_fetch_bytes = limit;
        match fill_all(&bench) {
            Ok(()) => assert!(fits),
            Err(Error::FetchBytes { limit: named }) => assert!(!fits && named == limit),
            Err(error) => panic!("{error:?}"),
        }
        let calls = std::fs::read_to_string(&log).unwrap();
        let arguments = calls.lines().filter_map(|line| line.strip_prefix("fetch "));
        let with_ids = arguments.filter(|count| count.parse::<u32>().unwrap() > 900).count();
        assert_eq!(with_ids, 2, "{calls}");
        std::fs::remove_file(&log).unwrap();
        std::fs::remove_dir_all(bench.dir()).unwrap();
    }
}

#[test]
fn the_most_bytes_of_a_fetch_are_those_of_all_requests_for_what_lists_submodules() {
    let mut bench = Bench::new("main");
    bench.options.filter = Some("tree:0".into());
    bench.options.modules.submodules = Submodules::Recursive;
    bench.options.modules.local = true;
    let below = Remote::create(&bench.world.dir().join("below"));
    let commit = below.commit(&Files::new().file("f", "below"));
    let list = "[submodule \"m\"]\n\tpath = way/to/m\n\turl = ../below\n";
    // Two directories are on the way, each of some 50,000 bytes.
    let mut files = (0..2_000).fold(Files::new().file(".gitmodules", list), |files, n| {
        files.file(format!("way/{n}"), n.to_string()).file(format!("way/to/{n}"), (n + 5_000).to_string())
    });
    files.0.insert("way/to/m".to_owned(), ("160000", commit.as_str().into()));
    bench.world.remote.commit(&files);
    for (limit, fits) in [(75_000, false), (300_000, true)] {
        bench.options.wire.max_fetch_bytes = limit;
        match try_update(&mut bench.open(), &[]) {
            Ok(_) => assert!(fits),
            Err(Error::FetchBytes { limit: named }) => assert!(!fits && named == limit),
            Err(error) => panic!("{error:?}"),
        }
        std::fs::remove_dir_all(bench.dir()).unwrap();
    }
}

#[test]
fn what_lists_submodules_comes_although_it_was_left_out() {
    for filter in ["blob:none", "tree:0"] {
        let mut bench = Bench::new("main");
        bench.options.filter = Some(filter.into());
        bench.options.modules.submodules = Submodules::Recursive;
        bench.options.modules.local = true;
        let below = Remote::create(&bench.world.dir().join("below"));
        let commit = below.commit(&Files::new().file("f", "below"));
        let list = "[submodule \"m\"]\n\tpath = way/to/m\n\turl = ../below\n";
        let mut files = Files::new().file(".gitmodules", list).file("a", "a");
        files.0.insert("way/to/m".to_owned(), ("160000", commit.as_str().into()));
        bench.world.remote.commit(&files);
        let mut mirror = bench.open();
        let revision = filled(&mut mirror, &[], &Selection::default());
        let payload = mirror.objects().payload(revision, &Selection::default()).unwrap();
        assert_eq!(payload.entries.len(), 3, "{filter}: .gitmodules, a, way/to/m/f");
    }
}
