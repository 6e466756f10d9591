//! The chart's values: each has an effect, what is wrong is refused by its name, and what follows from them is computed.

use super::*;

#[test]
fn it_refuses_what_it_does_not_know() {
    for (set, named) in [
        ("options.maxPin=1m", "maxPin"),
        ("options.root=/elsewhere", "root"),
        ("nodes.enabled=true", "nodes"),
        ("options.repo=", "options.repo"),
        ("configMaps.mode=Job", "configMaps"),
        ("configMaps.mode=CronJob", "configMaps.options.owner"),
        ("configMaps.mode=CronJob,configMaps.options.owner=a", "configMaps.options.rules-in-tree"),
        ("configMaps.options.dry-run=true", "dry-run"),
    ] {
        let words = ["template", "--set", "options.repo=x,node.enabled=true", "--set", set];
        let ran = run_helm(&words, &chart());
        assert!(!ran.ok() && ran.stderr.contains(named), "{set}: {}", ran.stderr);
    }
}

/// The keys of the schema that these values lack.
fn lacking(schema: &Value, values: &Value, at: &str, into: &mut Vec<String>) {
    for (key, inner) in schema["properties"].as_mapping().into_iter().flatten() {
        let at = format!("{at}.{}", key.as_str().unwrap());
        match &values[key] {
            Value::Null if at != ".global" => into.push(at),
            found => lacking(inner, found, &at, into),
        }
    }
}

/// Every text in a document, keys aside.
fn texts(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Sequence(all) => all.iter().for_each(|one| texts(one, into)),
        Value::Mapping(all) => all.values().for_each(|one| texts(one, into)),
        _ => {}
    }
}

/// Each of its names reads as a number or a boolean where it is not quoted, and is in what the chart makes as the text
/// that it is.
#[test]
fn every_value_has_an_effect_and_stays_text() {
    let file = std::fs::read_to_string(every_value()).unwrap();
    let values: Value = serde_yaml::from_str(&file).unwrap();
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let mut lacks = Vec::new();
    lacking(&serde_yaml::from_str(&schema).unwrap(), &values, "", &mut lacks);
    assert!(lacks.is_empty(), "{} has no {lacks:?}", every_value());
    let file = format!("--values={}", every_value());
    let mut found = Vec::new();
    let of_one = "configMaps.mode=CronJob,sources=,options.repo=https://git.example.com/platform/config.git";
    for mode in ["configMaps.mode=Deployment", "configMaps.mode=CronJob", of_one] {
        let mode = format!("--set={mode}");
        // The release's name comes before the chart where it is given as a flag.
        let documents = made(&["template", "--name-template=123", "--namespace=on", &file, &mode], &chart());
        for (_, document) in &documents {
            assert!(document["metadata"]["name"].is_string(), "{document:?}");
            let labels = document["metadata"]["labels"].as_mapping().unwrap();
            assert!(labels.values().all(Value::is_string), "{labels:?}");
            texts(document, &mut found);
        }
        assert_accepted(&documents);
        assert_restricted(&documents);
    }
    let mut given = Vec::new();
    texts(&values, &mut given);
    assert!(given.len() > 60, "{given:?}");
    // The sidecar's are for another chart; which mode it is shows in the kind.
    given.retain(|text| !["3Gi", "Memory", "Deployment"].contains(&text.as_str()));
    for text in given {
        assert!(found.iter().any(|one| one.contains(&text)), "{text:?} has no effect, or is no text");
    }
}

#[test]
fn any_release_name_is_quoted_and_fits() {
    let long = "a23456789-".repeat(6)[..53].to_owned();
    let dotted = format!("{}.b", "a".repeat(43));
    let releases = ["n", "on", "123", "1e3", "null", "0x1f", "a.b", "1.b", &long, &dotted];
    for (release, mode) in releases.into_iter().flat_map(|one| [(one, "CronJob"), (one, "Deployment")]) {
        let name = format!("--name-template={release}");
        let mut words = vec!["template", &name, "--namespace=y", "--set=configMaps.webhookSecret=hook"];
        words.extend(ALL.iter().chain(&applier(mode)).flat_map(|one| ["--set", one]));
        let begins = release[..release.len().min(43)].replace('.', "-");
        for (_, document) in made(&words, &chart()) {
            let metadata = &document["metadata"];
            let name = metadata["name"].as_str().unwrap_or_else(|| panic!("{release}: {metadata:?}"));
            // A Service's is a DNS label, which begins with a letter.
            let is_service = document["kind"].as_str() == Some("Service");
            assert!(!is_service || !name.contains('.') && name.starts_with(char::is_alphabetic), "{name}");
            let own = if is_service { name.strip_prefix("treeswap-").unwrap_or(name) } else { name };
            assert!(own.starts_with(&begins), "{name}");
            let most = if document["kind"].as_str() == Some("CronJob") { 52 } else { 63 };
            assert!(name.len() <= most, "{name}");
            assert_eq!(metadata["labels"]["app.kubernetes.io/instance"].as_str(), Some(release));
            if let Some(labels) = document["spec"]["selector"]["matchLabels"].as_mapping() {
                assert!(labels.values().all(Value::is_string), "{labels:?}");
            }
        }
    }
}

/// Options are refused by their own names, at the install, and their values with them.
#[test]
fn a_wrong_option_is_refused_by_its_name() {
    for (set, said) in [
        ("options.perod=1s", "at '/options': additional properties 'perod' not allowed"),
        ("options.root=/elsewhere", "at '/options': additional properties 'root' not allowed"),
        ("options.period=soon", "at '/options/period'"),
        ("options.period=10", "at '/options/period'"),
        ("options.period=3sec", "at '/options/period'"),
        ("options.period=0s", "at '/options/period'"),
        ("options.max-generations=0", "at '/options/max-generations'"),
        (
            "options.submodules=deep",
            "at '/options/submodules': value must be one of 'recursive', 'shallow', 'off'",
        ),
        ("options.sync-on-signal=TERM", "at '/options/sync-on-signal'"),
        ("configMaps.options.max-prune=101", "at '/configMaps/options/max-prune'"),
        ("options.max-bytes=2GB", "at '/options/max-bytes'"),
        ("options.symlinks=maybe", "at '/options/symlinks'"),
        ("options.group-write=perhaps", "at '/options/group-write'"),
        ("options.ref=110", "at '/options/ref': got number, want string"),
        ("configMaps.options.ownr=a", "at '/configMaps/options': additional properties 'ownr' not allowed"),
        ("configMaps.options.timeout=1m", "at '/configMaps/options': additional properties 'timeout'"),
        (
            "configMaps.options.grace=1m",
            "at '/configMaps/options': additional properties 'grace' not allowed",
        ),
        (
            "configMaps.mode=CronJob,configMaps.options.period=1m",
            "'/configMaps/options': additional properties",
        ),
        ("configMaps.leasePool=places", "at '/configMaps/leasePool'"),
        ("sidecar.sizeLimit=2G", "at '/sidecar/sizeLimit'"),
    ] {
        let words = ["template", "--set", "options.repo=x,node.enabled=true", "--set", set];
        let ran = run_helm(&words, &chart());
        assert!(!ran.ok() && ran.stderr.contains(said), "{set}: {}", ran.stderr);
        assert!(!ran.stderr.contains("imagePullSecrets"), "{set}: {}", ran.stderr);
    }
}

/// The repository is the same. An applier that has credentials of its own, or another repository, gets no others.
#[test]
fn an_applier_has_the_credentials_of_the_options() {
    let password = ["--password-file=/etc/treeswap/password", "--username=bot"];
    let authority = "--ca-file=/etc/treeswap/ca.crt";
    let of_options = [password[0], password[1], authority].map(|flag| flag.replace("--", "options."));
    let given = |mode, more: &[&str]| -> Vec<String> {
        let of_options = of_options.iter().map(String::as_str);
        let set: Vec<&str> =
            applier(mode).into_iter().chain(of_options).chain(more.iter().copied()).collect();
        let made = template(&chart(), &set);
        assert_accepted(&made);
        let args = list(ours(&made)[0].container, "args").iter().map(|arg| arg.as_str().unwrap().to_owned());
        let kept = ["--ca-file", "--password-file", "--ssh-key-file", "--username", "--max-pin"];
        args.filter(|arg| kept.iter().any(|flag| arg.starts_with(flag))).collect()
    };
    for mode in ["CronJob", "Deployment"] {
        assert_eq!(given(mode, &["options.max-pin=1m"]), [authority, password[0], password[1]]);
        let own = given(mode, &["configMaps.options.ssh-key-file=/etc/treeswap/ssh"]);
        assert_eq!(own, [authority, "--ssh-key-file=/etc/treeswap/ssh"]);
        let own = given(mode, &["configMaps.options.ca-file=/own"]);
        assert_eq!(own, ["--ca-file=/own", password[0], password[1]]);
        let other = given(mode, &["configMaps.options.repo=https://other.example.com/x.git"]);
        assert_eq!(other, [""; 0]);
    }
}

/// What an applier follows, and what the notes say of it, is that of the options, or its own: never a repository beside
/// sources, which the program refuses, nor another repository at the ref of the options.
#[test]
fn an_applier_follows_what_the_options_say_or_its_own() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SOURCES).unwrap();
    let listed = format!("--set-file=sources={}", file.path().display());
    let repo = "--set=options.repo=https://a/x.git,options.ref=v1";
    let own_list = "what /own.yaml lists (configMaps.options.sources)";
    let the_list = "what the ConfigMap ci-sources lists (sources)";
    for (of_options, own, follows, named) in [
        (repo, "prune=true", "--ref=v1 --repo=https://a/x.git", "https://a/x.git (v1)"),
        (repo, "ref=v2", "--ref=v2 --repo=https://a/x.git", "https://a/x.git (v2)"),
        (repo, "repo=https://b/y.git", "--repo=https://b/y.git", "https://b/y.git (HEAD)"),
        (repo, "sources=/own.yaml", "--sources=/own.yaml", own_list),
        (&listed, "prune=true", "--sources=/etc/sources/sources.yaml", the_list),
        (&listed, "repo=https://b/y.git", "--repo=https://b/y.git", "https://b/y.git (HEAD)"),
        (&listed, "sources=/own.yaml", "--sources=/own.yaml", own_list),
        ("--set=options.repo=", "repo=https://b/y.git", "--repo=https://b/y.git", "https://b/y.git (HEAD)"),
    ] {
        let own = format!("configMaps.options.{own}");
        for mode in ["CronJob", "Deployment"] {
            let set = [&applier(mode)[2..], &[own.as_str()]].concat().join(",");
            let words = [of_options, "--set", &set];
            let documents = made(&[&["template"], &words[..]].concat(), &chart());
            let args = list(ours(&documents)[0].container, "args").iter().map(|arg| arg.as_str().unwrap());
            let kept = ["--repo=", "--ref=", "--sources="];
            let args: Vec<&str> = args.filter(|arg| kept.iter().any(|flag| arg.starts_with(flag))).collect();
            assert_eq!(args.join(" "), follows, "{mode} {of_options} {own}");
            let notes = notes(&words);
            assert!(notes.contains(&format!("The ConfigMaps of {named} are applied")), "{notes}");
        }
    }
}

/// Whatever the options say of the listener is for what runs all the time.
#[test]
fn a_run_of_the_refresh_has_no_options_of_a_listener() {
    let set = ["options.webhook-secret-file=/etc/treeswap/webhook", "options.http-pprof=true"];
    let made = template(&chart(), &[&ALL[..], &set].concat());
    assert_accepted(&made);
    let listening = ours(&made).into_iter().map(|one| {
        let args = list(one.container, "args").iter().map(|arg| arg.as_str().unwrap());
        args.filter(|arg| arg.starts_with("--webhook-secret") || arg.starts_with("--http-")).count()
    });
    let mut listening: Vec<usize> = listening.collect();
    listening.sort_unstable();
    assert_eq!(listening, [0, 3], "the CronJob's and the node's");
}

/// The volume's limit is one number; what follows from it is computed.
#[test]
fn a_sidecars_ceilings_follow_from_its_volume() {
    let dir = their_chart();
    for (size, bytes, mirror) in
        [("2Gi", "1024Mi", "256Mi"), ("64Mi", "32768Ki", "8192Ki"), ("1Ti", "512Gi", "128Gi")]
    {
        let made = template(&dir.path().join("chart"), &[&format!("treeswap.sidecar.sizeLimit={size}")]);
        let args = list(ours(&made)[0].container, "args").to_vec();
        let eighths = ["mirror", "fetch"].map(|what| format!("--max-{what}-bytes={mirror}"));
        for arg in [format!("--max-bytes={bytes}")].into_iter().chain(eighths) {
            assert!(args.iter().any(|one| one.as_str() == Some(&arg)), "{size}: {args:?}");
        }
        assert_eq!(assert_ceilings_fit(&made), 1);
    }
    let made = template(&dir.path().join("chart"), &["treeswap.options.max-bytes=1Gi"]);
    let args = list(ours(&made)[0].container, "args").to_vec();
    let of = |arg: &&Value| arg.as_str().is_some_and(|arg| arg.starts_with("--max-bytes="));
    assert_eq!(args.iter().filter(of).collect::<Vec<_>>(), ["--max-bytes=1Gi"], "who says it means it");
    let memory = ["treeswap.sidecar.medium=Memory", "treeswap.sidecar.sizeLimit=512Mi"];
    let limited = |limit: &str| {
        let limit = format!("treeswap.resources.limits.memory={limit}");
        let set = memory.into_iter().chain([limit.as_str()]).flat_map(|one| ["--set", one]);
        run_helm(&["template"].into_iter().chain(set).collect::<Vec<_>>(), &dir.path().join("chart"))
    };
    let ran = limited("639Mi");
    assert!(!ran.ok() && ran.stderr.contains("set resources.limits.memory"), "{}", ran.stderr);
    limited("640Mi").expect_ok("helm template");
    let owner = ["template", "--set", "treeswap.options.owner=team"];
    let ran = run_helm(&owner, &dir.path().join("chart"));
    assert!(!ran.ok() && ran.stderr.contains("in a Pod of their own"), "{}", ran.stderr);
    let durability = |more: &[&str]| -> Vec<String> {
        let set = ["treeswap.sidecar.medium=Memory", "treeswap.resources.limits.memory=4Gi"];
        let made = template(&dir.path().join("chart"), &[&set, more].concat());
        let args = list(ours(&made)[0].container, "args").iter().map(|arg| arg.as_str().unwrap().to_owned());
        args.filter(|arg| arg.starts_with("--durability=")).collect()
    };
    assert_eq!(durability(&[]), ["--durability=none"], "nothing in memory outlives the node");
    assert_eq!(durability(&["treeswap.options.durability=syncfs"]), ["--durability=syncfs"]);
    assert_eq!(durability(&["treeswap.sidecar.medium="]), [""; 0]);
}
