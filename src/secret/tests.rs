use super::*;

#[test]
fn a_secret_does_not_print() {
    let from = SecretFrom::Value(Secret::new("hunter2"));
    assert_eq!(format!("{from:?}"), "Value([secret])");
}

#[test]
fn the_password_in_a_command_for_ssh_is_registered_and_nothing_else_of_it() {
    for command in [
        "sshpass -p canary-kA8x-1 ssh -i /etc/keys/kept-as-it-is",
        "sshpass -pcanary-kA8x-2 /usr/bin/ssh",
        "sshpass -p 'canary-kA8x-3' ssh",
        "env TERM=kept-as-it-is SSHPASS=canary-kA8x-4 sshpass -e ssh",
        "sshpass -p qZ7w\\ x9Kv' canary-kA8x-5' ssh",
        "sshpass -p canary-kA8x-6 /opt/wrapper-of-ssh kept-as-it-is",
        r#"sh -c "sshpass -p 'canary-kA8x-7' ssh""#,
    ] {
        register_ssh_command(command);
    }
    register_ssh_command("ssh -p kept-as-it-is");
    for password in (1..=7).map(|number| format!("canary-kA8x-{number}")) {
        assert_eq!(redacted(&password), REDACTED, "{password}");
    }
    assert_eq!(redacted("qZ7w x9Kv canary-kA8x-5"), REDACTED);
    let other = "sshpass: /etc/keys/kept-as-it-is: not found";
    assert_eq!(quoted(other), other);
}

#[tokio::test]
async fn one_line_end_is_stripped_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    let read = async |path: &Path| SecretFrom::File(path.to_owned()).now(Duration::from_secs(60)).await;
    for (written, secret) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("", "")] {
        std::fs::write(&path, written).unwrap();
        assert_eq!(read(&path).await.unwrap().expose(), secret, "{written:?}");
    }
    std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
    assert!(matches!(read(&path).await, Err(Error::TooLong { .. })));
    std::fs::remove_file(&path).unwrap();
    let error = read(&path).await.unwrap_err();
    assert!(error.to_string().contains("password"), "{error}");
}

#[tokio::test]
async fn a_file_that_hangs_is_named_and_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for _ in 0..50 {
        let error = SecretFrom::File(fifo.clone()).now(Duration::from_millis(2)).await.unwrap_err();
        assert!(matches!(error, Error::Late { .. }) && error.to_string().contains("fifo"), "{error}");
    }
    assert!(threads() < before + 40, "a thread for every attempt: {before} became {}", threads());
    std::fs::write(&fifo, "of-a-fifo\n").unwrap(); // the reader that hangs gets it and ends
    let _ = rustix::fs::unlink(&fifo);
}

#[test]
fn a_child_program_gets_no_variable_with_a_secret_in_it() {
    register("canary-of-the-environment");
    register_password("jX9q");
    basic("bob", &Secret::new("mP4x"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("password"), "hT6v\n").unwrap();
    read_file(&dir.path().join("password")).unwrap();
    register_header("kV7t"); // as a precaution, like `true`, which other tests may have in their texts
    let withheld = |name: &str, value: &str| is_withheld(name.as_ref(), value.as_ref());
    for (name, value) in [
        ("TREESWAP_PASSWORD", "x"),
        ("GITSYNC_GIT_CONFIG", "x"),
        ("TREESWAP_GIT_CONFIG_ADD", "x"),
        ("GIT_SYNC_PASSWORD", "x"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "http.extraHeader"),
        ("GIT_CONFIG_VALUE_0", "x"),
        ("GIT_CONFIG_PARAMETERS", "x"),
        ("TREESWAP_REPO", "https://bob:pw@h/x"),
        ("HTTPS_PROXY", "http://bob:canary-of-the-environment@proxy"),
        ("https_proxy", "bob:pw@proxy:3128"),
        ("SSHPASS", "pw"),
        ("SOMETHING_ELSE", "canary-of-the-environment"),
        ("SHORT", "jX9q"),
        ("SENT", "mP4x"),
        ("FROM_A_FILE", "hT6v"),
        ("HEX", "63616e6172792d6f662d7468652d656e7669726f6e6d656e74"),
        ("HEX", "63616E6172792D6F662D7468652D656E7669726F6E6D656E74"),
        ("PERCENT", "%63%61%6e%61%72%79%2D%6f%66%2D%74%68%65%2D%65%6e%76%69%72%6f%6e%6d%65%6e%74"),
        ("AUTH", "eyJhdXRoIjoiYm9iOmNhbmFyeS1vZi10aGUtZW52aXJvbm1lbnQifQ=="),
    ] {
        assert!(withheld(name, value), "{name}={value}");
    }
    for (name, value) in [
        ("PATH", "/bin:/usr/bin"),
        ("TREESWAP_REPO", "https://h/x"),
        ("TREESWAP_PASSWORD_FILE", "/etc/git-secret/password"),
        ("GIT_SSH_COMMAND", "ssh -i /key"),
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("USER", "canary-of-the-environment"),
        ("WORDS", "a jX9q in other text"),
        ("FLAG", "kV7t"),
        ("MAIL", "bob@corp"),
    ] {
        assert!(!withheld(name, value), "{name}={value}");
    }
}

#[test]
fn what_is_made_of_a_password_that_is_not_registered_is_not_registered_either() {
    let pair = basic("eve9", &Secret::holder("wR3zQkQ9xVvTqLmH7dNf2sYb"));
    assert!(!is_withheld("PAIR".as_ref(), pair.expose().as_ref()));
    basic("bob", &Secret::holder("nT5y"));
    assert!(!is_withheld("SHORT".as_ref(), "nT5y".as_ref()));
}

/// Runs again with a variable that a child must not get: other tests read those of this process.
#[test]
fn a_child_program_is_started_without_such_a_variable() {
    const VARIABLE: &str = "TREESWAP_PASSWORD";
    if std::env::var_os(VARIABLE).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "secret::tests::a_child_program_is_started_without_such_a_variable"]);
        let ran = again.env(VARIABLE, "x").output().unwrap();
        let stdout = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && stdout.contains("1 passed"), "{ran:?}");
        return;
    }
    let mut command = std::process::Command::new("child");
    withhold_from(&mut command);
    let removed =
        |variable: &str| command.get_envs().any(|(name, value)| name == variable && value.is_none());
    assert!(removed(VARIABLE) && !removed("PATH"), "{command:?}");
}

#[test]
fn what_may_be_a_token_is_registered_and_what_surely_is_a_name_is_not() {
    for user in ["uK4v-zQ9x", "yJ7w_3"] {
        register_user(user);
        assert_eq!(redacted(user), REDACTED);
    }
    register_user("vQ8zx");
    assert_eq!(quoted("vQ8zx"), "vQ8zx");
    register_user("x-access-token");
    assert_eq!(redacted("x-access-token"), "x-access-token");
    let letters = "abcdefghijklmnopqrstuvwxyz-ABCDEF"; // 33
    for (name, expected) in
        [("x1_=?", true), ("x1_=?y", false), ("X-Request-Id", true), (&letters[1..], true), (letters, false)]
    {
        assert_eq!(is_name(name), expected, "{name}");
    }
    register_name("nP5w-2Rt8");
    register_name("x-zvqw-name");
    assert_eq!(quoted("nP5w-2Rt8 x-zvqw-name"), "[redacted] x-zvqw-name");
}

#[test]
fn each_word_of_a_header_is_registered_and_what_it_has_in_base64() {
    register_header("kV1 hV3w-kQ9z");
    register_header("kV2=hV4w-kQ9z,hV5w-kQ9z");
    register_header("kV3 aFY2dy1rUTl6OmhWN3cta1E5eg=="); // hV6w-kQ9z:hV7w-kQ9z
    for secret in (3..=7).map(|number| format!("hV{number}w-kQ9z")) {
        assert_eq!(redacted(&secret), REDACTED, "{secret}");
    }
}

#[test]
fn words_are_those_of_a_shell() {
    for (command, words) in [
        (" a\tb \n c", "a|b|c"),
        ("'a b' \"c 'd\" e", "a b|c 'd|e"),
        ("a'b'\"c\" ''", "abc|"),
        (r"a\ b 'c\d' e\", r"a b|c\d|e"),
        (r#""a\"b\$\`\\c\d" e"#, r#"a"b$`\c\d|e"#),
    ] {
        assert_eq!(shell_words(command).join("|"), words, "{command}");
    }
}

#[test]
fn the_longest_file_that_is_read_has_64_kib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("holder");
    std::fs::write(&path, vec![b' '; 64 << 10]).unwrap();
    assert_eq!(read_text(&path).unwrap().len(), 64 << 10);
    std::fs::write(&path, vec![b' '; (64 << 10) + 1]).unwrap();
    assert!(matches!(read_text(&path), Err(Error::TooLong { .. })));
}
