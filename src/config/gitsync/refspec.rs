//! What git-sync's `--ref` takes besides a ref: it is handed to `git fetch` as a refspec, `[+]<from>[:<to>]`
//! (git-fetch(1)). Here only where it fetches from counts. Pure.
//!
//! Seen on v4.7.1: an empty `<from>` and `@` are `HEAD`. `<to>` is written into the root's repository, which is not
//! promised, and without a `+` it ends every update that git does not know to be a fast-forward: at the default depth
//! that is every update. So it is checked, and not written. A pattern publishes whichever ref comes first; it is
//! refused.

use crate::revision::Ref;

/// The ref that the refspec fetches from.
///
/// # Errors
/// Why it is none, or none that can be followed.
pub(super) fn source(text: &str) -> Result<&str, String> {
    let (from, to) = sides(text);
    if text.starts_with('^') {
        return Err("it leaves a ref out, and names none to follow".to_owned());
    }
    if text.contains('*') {
        return Err("a pattern names many refs, and one is followed".to_owned());
    }
    if let Some(tag) = from.strip_suffix("^{}") {
        return Err(format!("a tag is followed to its commit anyway: write {tag}"));
    }
    from.parse::<Ref>().map_err(|error| error.why().to_owned())?;
    // Where it has no `refs/` in front git puts some there.
    let local = to.is_empty() || format!("refs/heads/{to}").parse::<Ref>().is_ok();
    if local { Ok(from) } else { Err(format!("{to:?}, behind the colon, is not the name of a ref")) }
}

/// The warning for a refspec that names where to write to.
pub(super) fn note(flag: &str, text: &str) -> Option<String> {
    let (from, to) = sides(text);
    (!to.is_empty()).then(|| format!("{flag}={text} follows {from}; {to} is not written"))
}

/// From where, and to where if that is said.
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
        assert_eq!(note("--ref", "+main:x").unwrap(), "--ref=+main:x follows main; x is not written");
        assert_eq!((note("--ref", "+main"), note("--ref", "main:")), (None, None));
    }

    #[test]
    fn what_it_refuses_is_refused_with_the_reason() {
        for (text, word) in [
            ("v1^{}", "write v1"),
            ("+v1^{}:x", "write v1"),
            ("v1^{commit}", "a full commit id"),
            ("HEAD~1", "a full commit id"),
            ("^main", "leaves a ref out"),
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
