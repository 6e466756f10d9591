//! Refspecs in git-sync's `--ref`. git-sync passes `--ref` to `git fetch` as a refspec, `[+]<from>[:<to>]`
//! (git-fetch(1)); we follow `<from>` and ignore the rest. Pure.
//!
//! git-sync v4.7.1: an empty `<from>` and `@` are `HEAD`. `<to>` is written into the root's repository, which its
//! documentation does not promise; without a `+`, every update fails that git does not know to be a fast-forward,
//! which at the default depth is every update. So `<to>` is validated, but not written. A pattern publishes whichever
//! ref comes first, and is refused here.

use crate::revision::Ref;

/// The ref that the refspec fetches from.
///
/// # Errors
/// Why the text is no refspec, or names no ref that can be followed.
pub(super) fn source(text: &str) -> Result<&str, String> {
    let (from, to) = sides(text);
    if text.starts_with('^') {
        return Err("it excludes a ref, and names none to follow".to_owned());
    }
    if text.contains('*') {
        return Err("a pattern matches many refs, but only one can be followed".to_owned());
    }
    if let Some(tag) = from.strip_suffix("^{}") {
        return Err(format!("a tag is followed to its commit anyway: write {tag}"));
    }
    from.parse::<Ref>().map_err(|error| error.why().to_owned())?;
    // git prefixes `<to>` with `refs/heads/` and the like unless it begins with `refs/`.
    let local = to.is_empty() || format!("refs/heads/{to}").parse::<Ref>().is_ok();
    if local { Ok(from) } else { Err(format!("{to:?}, behind the colon, is not the name of a ref")) }
}

/// The warning for a refspec with a `<to>`.
pub(super) fn warning(flag: &str, text: &str) -> Option<String> {
    let (from, to) = sides(text);
    (!to.is_empty()).then(|| format!("{flag}={text} follows {from}; {to} is not written"))
}

/// Splits a refspec into `<from>`, `HEAD` if it is empty, and `<to>`, which may be empty.
fn sides(text: &str) -> (&str, &str) {
    let spec = text.strip_prefix('+').unwrap_or(text);
    let (from, to) = spec.rsplit_once(':').unwrap_or((spec, ""));
    (if from.is_empty() { "HEAD" } else { from }, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn what_git_fetch_takes_is_followed_on_its_remote_side() {
        let forced = format!("+{ID}");
        let stored = format!("{ID}:refs/heads/x");
        for (text, from) in [
            ("main", "main"),
            ("+main", "main"),
            ("main:x", "main"),
            ("+main:x", "main"),
            ("main:-x", "main"),
            ("main:", "main"),
            ("+refs/heads/main:refs/remotes/origin/main", "refs/heads/main"),
            ("tags/v1", "tags/v1"),
            ("@", "@"),
            ("HEAD:x", "HEAD"),
            (":x", "HEAD"),
            ("+", "HEAD"),
            (":", "HEAD"),
            ("+:", "HEAD"),
            ("++main", "+main"),
            (&forced, ID),
            (&stored, ID),
        ] {
            assert_eq!(source(text), Ok(from), "{text}");
        }
        assert_eq!(warning("--ref", "+main:x").unwrap(), "--ref=+main:x follows main; x is not written");
        assert_eq!((warning("--ref", "+main"), warning("--ref", "main:")), (None, None));
    }

    #[test]
    fn what_it_refuses_is_refused_with_the_reason() {
        for (text, word) in [
            ("v1^{}", "write v1"),
            ("+v1^{}:x", "write v1"),
            ("v1^{commit}", "a full commit id"),
            ("HEAD~1", "a full commit id"),
            ("^main", "excludes a ref"),
            ("refs/heads/*", "a pattern"),
            ("refs/heads/*:refs/x/*", "a pattern"),
            ("main:a:b", "a full commit id"),
            ("main:a..b", "\"a..b\", behind the colon"),
            ("main:x.lock", "behind the colon"),
            ("main:/x", "behind the colon"),
            ("tag v1", "a full commit id"),
            ("-q", "starts with `/` or `-`"),
        ] {
            let why = source(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
