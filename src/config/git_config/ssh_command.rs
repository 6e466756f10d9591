//! `GIT_SSH_COMMAND`: which of its options have an effect, and the names of the others for a warning. Its other words
//! are never kept for a message: one of them may be a password (`sshpass -p PASSWORD ssh`).

use std::path::PathBuf;

use crate::secret;

/// The options of ssh(1) that take a value.
const WITH_VALUE: &str = "BDEFIJLOPQRSWbceilmopw";
/// The options of ssh(1) that do not.
const WITHOUT_VALUE: &str = "1246ACGKMNTVXYafgknqstvxy";

/// The options in `GIT_SSH_COMMAND` that are understood.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::config) struct SshCommand {
    /// Private keys: `-i`, `-o IdentityFile`.
    pub(in crate::config) keys: Vec<PathBuf>,
    /// `-o UserKnownHostsFile`.
    pub(in crate::config) known_hosts: Option<PathBuf>,
    /// `-o StrictHostKeyChecking`: whether host keys are checked, if that is said.
    pub(in crate::config) checks: Option<bool>,
    /// Whether that is said by `accept-new`. Keys of unknown hosts are never added to a file, so it counts as `yes`.
    pub(in crate::config) accepts_new: bool,
    /// What has no effect: options by their names, other words by where they are.
    pub(in crate::config) ignored: Vec<String>,
}

impl SshCommand {
    fn ignore(&mut self, what: &str) {
        if !self.ignored.iter().any(|known| known == what) {
            self.ignored.push(what.to_owned());
        }
    }
}

/// Parses the variable, split into words as a shell does, which is what git runs it by. Nothing is expanded in it
/// (`$HOME`). As in ssh_config(5), the first value of an option counts.
pub(in crate::config) fn ssh_command(text: &str) -> SshCommand {
    let mut found = SshCommand::default();
    let mut known_hosts = None;
    let words = secret::shell_words(text);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Programs such as env(1), nice(1) and sshpass(1) come before the ssh that they run.
    // Without an ssh, the first word is a wrapper that takes its options.
    let program_at = words.iter().position(|word| *word == "ssh" || word.ends_with("/bin/ssh")).unwrap_or(0);
    if program_at > 0 {
        found.ignore("the words before ssh");
    }
    for (letter, value) in options(words.get(program_at + 1..).unwrap_or_default()) {
        let (name, setting) = match letter {
            Some('i') => ("identityfile".to_owned(), value),
            Some('o') => {
                // In one word, which is a quoted one, a blank separates them as well.
                let is_separator = |c: char| c == '=' || c.is_ascii_whitespace();
                let (name, setting) = value.trim().split_once(is_separator).unwrap_or_default();
                (name.to_ascii_lowercase(), setting.trim_start_matches(is_separator))
            }
            Some(letter) => {
                found.ignore(&format!("-{letter}"));
                continue;
            }
            None => {
                found.ignore("words that are not options");
                continue;
            }
        };
        match name.as_str() {
            "identityfile" => found.keys.push(setting.into()),
            "userknownhostsfile" => known_hosts = known_hosts.or(Some(setting)),
            // No effect: no agent is used, nothing is prompted for, and ssh logs nothing.
            "identitiesonly" | "batchmode" | "loglevel" => {}
            "stricthostkeychecking" => {
                let is = |words: &[&str]| words.iter().any(|word| setting.eq_ignore_ascii_case(word));
                found.accepts_new |= found.checks.is_none() && is(&["accept-new"]);
                found.checks = found.checks.or(Some(!is(&["no", "off", "false"])));
            }
            _ => found.ignore(&shown(value)),
        }
    }
    // `/dev/null` goes with `StrictHostKeyChecking=no`: no key is known by it. Where keys are checked all the same, the
    // file of --ssh-known-hosts-file counts.
    let files = known_hosts.unwrap_or_default().split_ascii_whitespace();
    let mut files = files.filter(|file| *file != "/dev/null");
    found.known_hosts = files.next().map(PathBuf::from);
    if files.next().is_some() {
        found.ignore("the second file of -o UserKnownHostsFile");
    }
    found
}

/// Splits words into options as getopt(3) does for ssh: the letter, and the value of one that takes a value. `None`
/// stands for a word, or the rest of one, that is not an option.
fn options<'a>(words: &[&'a str]) -> Vec<(Option<char>, &'a str)> {
    let mut found = Vec::new();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let mut rest = word.strip_prefix('-').unwrap_or_default();
        if rest.is_empty() {
            found.push((None, word));
        }
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            if WITH_VALUE.contains(letter) {
                let value = if rest.is_empty() { words.next().unwrap_or_default() } else { rest };
                found.push((Some(letter), value));
                break;
            }
            if !WITHOUT_VALUE.contains(letter) {
                found.push((None, rest));
                break;
            }
            found.push((Some(letter), ""));
        }
    }
    found
}

/// An option of `-o` by its name, without its value. What does not look like a name may be a value, and is left out.
fn shown(option: &str) -> String {
    let is_name =
        |name: &str| (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    match option.split_once('=') {
        Some((name, _)) if is_name(name) => format!("-o {name}"),
        _ => "-o".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_known_hosts_are_understood() {
        let found = ssh_command(
            "ssh -i /a -o IdentityFile=/b -oStrictHostKeyChecking=no -o UserKnownHostsFile=/k -qi/c -v -p 22",
        );
        let keys = ["/a", "/b", "/c"].map(PathBuf::from).to_vec();
        let ignored = ["-q", "-v", "-p"].map(str::to_owned).to_vec();
        let known_hosts = Some("/k".into());
        assert_eq!(found, SshCommand { keys, known_hosts, checks: Some(false), accepts_new: false, ignored });
        for nothing in ["", "ssh", "/usr/bin/ssh -o BatchMode=yes"] {
            assert_eq!(ssh_command(nothing), SshCommand::default(), "{nothing}");
        }
        let wrapped = ssh_command("wrapper -i /etc/git-secret/ssh");
        assert_eq!(wrapped.keys, [PathBuf::from("/etc/git-secret/ssh")]);
    }

    #[test]
    fn of_two_options_the_first_counts_and_accept_new_still_checks() {
        let found = ssh_command(
            "ssh -o StrictHostKeyChecking=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/a -o UserKnownHostsFile=/b",
        );
        assert_eq!((found.checks, found.known_hosts), (Some(true), Some("/a".into())));
        let found = ssh_command("ssh -oStrictHostKeyChecking=accept-new -o StrictHostKeyChecking=no");
        assert_eq!((found.checks, found.accepts_new), (Some(true), true));
        assert_eq!(found.ignored, [""; 0], "it has an effect");
        let found = ssh_command("ssh -oStrictHostKeyChecking=no -o StrictHostKeyChecking=accept-new");
        assert_eq!((found.checks, found.accepts_new), (Some(false), false));
        let found = ssh_command(
            "ssh -o UserKnownHostsFile=/dev/null -o UserKnownHostsFile=/b -o stricthostkeychecking=NO",
        );
        assert_eq!((found.checks, found.known_hosts), (Some(false), None));
        for (value, checks) in [("off", false), ("False", false), ("ask", true), ("YES", true)] {
            let text = format!("ssh -o StrictHostKeyChecking={value}");
            assert_eq!(ssh_command(&text).checks, Some(checks), "{text}");
        }
        assert_eq!(ssh_command("ssh -o UserKnownHostsFile=/k").checks, None, "left to the flag");
        for (files, first, ignored) in [
            ("/a /b", Some("/a"), &["the second file of -o UserKnownHostsFile"][..]),
            ("/dev/null /b", Some("/b"), &[]),
            ("/dev/null /dev/null", None, &[]),
        ] {
            let found = ssh_command(&format!("ssh -o 'UserKnownHostsFile={files}'"));
            assert_eq!(found.known_hosts, first.map(PathBuf::from), "{files}");
            assert_eq!(found.ignored, ignored, "{files}");
        }
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        let plain = ssh_command("ssh -i /k -o StrictHostKeyChecking=no -o UserKnownHostsFile=/hosts");
        for text in [
            r#"ssh -i "/k" -o 'StrictHostKeyChecking=no' -o "UserKnownHostsFile=/hosts""#,
            r#""ssh" -i'/k' -o StrictHostKeyChecking="no" -oUserKnownHostsFile=/h\osts"#,
            "ssh -i /k -o 'StrictHostKeyChecking no' -o \"UserKnownHostsFile = /hosts\"",
        ] {
            assert_eq!(ssh_command(text), plain, "{text}");
        }
        assert_eq!(ssh_command("ssh -i '/a key'").keys, [PathBuf::from("/a key")]);
    }

    #[test]
    fn what_is_ignored_is_named_without_a_value() {
        const BEFORE: &str = "the words before ssh";
        const WORDS: &str = "words that are not options";
        let cases: &[(&str, &[&str])] = &[
            ("sshpass -p s3cret ssh -o StrictHostKeyChecking=no", &[BEFORE]),
            (
                "env SSHPASS=s3cret sshpass -e /usr/bin/ssh -o ConnectTimeout=5",
                &[BEFORE, "-o ConnectTimeout"],
            ),
            ("sshpass -p s3cret ssh-wrapper -i /key", &["-p", WORDS]),
            ("sshpass -ps3cret my-ssh", &["-p", WORDS]),
            ("plink -pw s3cret", &["-p", WORDS]),
            ("tool --password=s3cret --token s3cret", &[WORDS]),
            (
                "ssh -o ConnectTimeout=5 -o ServerAliveInterval=5 -oConnectTimeout=6",
                &["-o ConnectTimeout", "-o ServerAliveInterval"],
            ),
            ("ssh -o ProxyCommand=sshpass -p s3cret ssh", &["-o ProxyCommand", "-p", WORDS]),
            ("ssh -o 'ProxyCommand=s3cret x'", &["-o ProxyCommand"]),
            ("ssh -o 'ProxyCommand s3cret' -o 'hunter two'", &["-o"]),
            ("ssh -o s3cret -o s3cret=x -o", &["-o"]),
            ("ssh -4Cp s3cret -l s3cret -J s3cret@h", &["-4", "-C", "-p", "-l", "-J"]),
            ("ssh - é -é -vs3cret", &[WORDS, "-v", "-s"]),
        ];
        for (text, ignored) in cases {
            assert_eq!(ssh_command(text).ignored, *ignored, "{text}");
        }
    }
}
