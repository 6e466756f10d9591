//! The sources that a tree is composed of: which of them a ConfigMap depends on, and what is held while one of them does
//! not say where its ref is.

use std::collections::BTreeMap;

use crate::revision::Revision;

/// One of several sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedSource {
    /// What it is called.
    pub name: String,
    /// Where it is placed in the tree, or would be; empty for the top.
    pub to: String,
    /// Where it is to be placed, as far as that is another place.
    pub moves_to: Option<String>,
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

    /// The commit of each source that what is written now is made of, where `recorded` are those that what is there is
    /// made of: nothing is written of a source that did not answer.
    pub fn to_record(&self, recorded: &BTreeMap<String, Revision>) -> BTreeMap<String, Revision> {
        let known = |source: &PlacedSource| {
            let before = recorded.get(&source.name).copied();
            let revision = if source.unanswered.is_some() { before } else { source.revision };
            Some((source.name.clone(), revision?))
        };
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
        let reaches = |place: &[u8]| {
            // Only what is in the tree keeps others out of its place.
            let longer = |other: &PlacedSource| {
                let to = other.to.as_bytes();
                other.revision.is_some() && to.len() > place.len() && is_below(prefix, to)
            };
            place.starts_with(prefix) || is_below(prefix, place) && !self.0.iter().any(longer)
        };
        reaches(source.to.as_bytes()) || source.moves_to.as_ref().is_some_and(|to| reaches(to.as_bytes()))
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
            moves_to: None,
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
        let all = [("top", "", false), ("jobs", "jobs", true)];
        let mut absent = placed(&all);
        absent.0[1].revision = None;
        assert!(absent.held_below([&b"jobs/"[..]]).is_some(), "where nothing is placed, the top has it");
        let mut moves = placed(&[("a", "old", false), ("b", "other", true)]);
        moves.0[0].moves_to = Some("new".to_owned());
        for (prefix, held) in [("old/", true), ("new/x", true), ("other/", false)] {
            assert_eq!(moves.held_below([prefix.as_bytes()]).is_some(), held, "{prefix}");
        }
        let well = placed(&[("top", "", true)]);
        assert!(well.held().is_none() && well.held_below([&b""[..]]).is_none());
        assert!(Placement::default().held_below([&b"x"[..]]).is_none(), "one repository");
    }

    #[test]
    fn what_is_on_record_of_a_source_that_is_away_stays() {
        let [old, new] = [[7; 20], [1; 20]].map(|id| Revision(ObjectId(id)));
        let mut placement = placed(&[("a", "a", true), ("b", "b", false), ("c", "c", false)]);
        placement.0[2].revision = None;
        let recorded = ["a", "b", "c", "gone"].map(|name| (name.to_owned(), old)).into();
        let expected = [("a", new), ("b", old), ("c", old)].map(|(name, id)| (name.to_owned(), id));
        assert_eq!(placement.to_record(&recorded), BTreeMap::from(expected));
        assert_eq!(placement.to_record(&BTreeMap::new()), BTreeMap::from([("a".to_owned(), new)]));
    }
}
