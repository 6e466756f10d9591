//! The sources that a tree is composed of: which of them a ConfigMap depends on, and what is held while one of them does
//! not say where its ref is.

use std::collections::BTreeMap;

use crate::revision::Revision;

/// One of several sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedSource {
    /// What it is called.
    pub name: String,
    /// Where it is placed in the tree; empty for the top.
    pub to: String,
    /// The commit that it has in the tree; none: it is not in it.
    pub revision: Option<Revision>,
    /// Why it is not known that its ref names that commit now.
    pub unanswered: Option<String>,
}

/// The sources of a tree; none where the tree is one repository's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement(Vec<PlacedSource>);

impl Placement {
    /// Of these sources.
    pub fn new(sources: Vec<PlacedSource>) -> Self {
        Self(sources)
    }

    /// The commit of each source that is in the tree.
    pub fn revisions(&self) -> BTreeMap<String, Revision> {
        let known = |source: &PlacedSource| Some((source.name.clone(), source.revision?));
        self.0.iter().filter_map(known).collect()
    }

    /// Those that did not answer.
    pub fn unanswered(&self) -> impl Iterator<Item = &PlacedSource> {
        self.0.iter().filter(|source| source.unanswered.is_some())
    }

    /// Whether the same sources answered.
    pub fn answers_like(&self, other: &Self) -> bool {
        let names = |placement: &Self| -> Vec<String> {
            placement.unanswered().map(|source| source.name.clone()).collect()
        };
        names(self) == names(other)
    }

    /// Why nothing may be written that depends on all sources, if so.
    pub fn held(&self) -> Option<String> {
        self.unanswered().next().map(words)
    }

    /// Why nothing may be written that is made of the files whose paths begin with one of these texts, if so.
    pub fn held_below<'p>(&self, prefixes: impl IntoIterator<Item = &'p [u8]>) -> Option<String> {
        self.unanswered().next()?;
        let reached = |prefix: &[u8]| self.unanswered().find(|source| self.reaches(prefix, source));
        prefixes.into_iter().find_map(reached).map(words)
    }

    /// Whether a path that begins with the text can be one of the source's: one in its place, and in no longer one.
    fn reaches(&self, prefix: &[u8], source: &PlacedSource) -> bool {
        let place = source.to.as_bytes();
        let longer =
            |other: &PlacedSource| other.to.len() > place.len() && is_below(prefix, other.to.as_bytes());
        place.starts_with(prefix) || is_below(prefix, place) && !self.0.iter().any(longer)
    }
}

/// Whether every path that begins with the text is below the place.
fn is_below(prefix: &[u8], place: &[u8]) -> bool {
    place.is_empty() || prefix.strip_prefix(place).is_some_and(|rest| rest.starts_with(b"/"))
}

fn words(source: &PlacedSource) -> String {
    let why = source.unanswered.as_deref().unwrap_or_default();
    format!("source {} is not known to be where its ref is: {why}", source.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::ObjectId;

    fn placed(sources: &[(&str, &str, bool)]) -> Placement {
        let source = |(name, to, answers): &(&str, &str, bool)| PlacedSource {
            name: (*name).to_owned(),
            to: (*to).to_owned(),
            revision: Some(Revision(ObjectId([1; 20]))),
            unanswered: (!answers).then(|| "it hangs".to_owned()),
        };
        Placement::new(sources.iter().map(source).collect())
    }

    #[test]
    fn what_a_source_cannot_reach_is_not_held_by_it() {
        for (away, prefix, held) in [
            ("jobs", "jobs/", true),
            ("jobs", "jobs/a/", true),
            ("jobs", "", true),
            ("jobs", "jo", true),
            ("jobs", "jobs", true),
            ("jobs", "jobsters/", false),
            ("jobs", "teams/", false),
            ("top", "", true),
            ("top", "teams/", true),
            ("top", "other/", true),
            ("top", "jobs/", false),
            ("top", "teams/a/", false),
            ("a", "teams/", true),
            ("a", "teams/a/x", true),
            ("a", "teams/b/", false),
            ("deep", "teams/a/", true),
            ("a", "teams/a/deep/", false),
            ("deep", "teams/a/deep", true),
            ("twin", "jobs/x", true),
        ] {
            let all =
                [("top", ""), ("jobs", "jobs"), ("twin", "jobs"), ("a", "teams/a"), ("deep", "teams/a/deep")];
            let placement = placed(&all.map(|(name, to)| (name, to, name != away)));
            let why = placement.held_below([prefix.as_bytes()]);
            assert_eq!(why.is_some(), held, "{away} away, {prefix:?}");
            if let Some(why) = why {
                assert_eq!(why, format!("source {away} is not known to be where its ref is: it hangs"));
            }
            assert!(placement.held().is_some());
        }
        let well = placed(&[("top", "", true)]);
        assert!(well.held().is_none() && well.held_below([&b""[..]]).is_none());
        assert!(Placement::default().held_below([&b"x"[..]]).is_none(), "one repository");
    }
}
