//! The sources that a tree is composed of: which of them a ConfigMap depends on, and which writes are held while a
//! source does not answer where its ref is.

use std::collections::BTreeMap;

use crate::revision::Revision;

/// One source of a composed tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedSource {
    /// Its name.
    pub name: String,
    /// The directory of the tree that it is placed in, or would be; empty for the top.
    pub to: String,
    /// The directory that it moves to; `None` if its place does not change.
    pub moves_to: Option<String>,
    /// The commit that the tree has of it; `None` if it is not in the tree.
    pub revision: Option<Revision>,
    /// Why it is unknown whether its ref still names that commit; `None` if the source answered.
    pub unanswered: Option<String>,
}

/// The sources of a tree; empty if the tree is from a single repository.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement(Vec<PlacedSource>);

impl Placement {
    /// A placement of these sources.
    pub fn new(sources: Vec<PlacedSource>) -> Self {
        Self(sources)
    }

    /// The commit of each source that is in the tree, by name.
    pub fn revisions(&self) -> BTreeMap<String, Revision> {
        let known = |source: &PlacedSource| Some((source.name.clone(), source.revision?));
        self.0.iter().filter_map(known).collect()
    }

    /// The commit of each source to record for what is written now. For a source that did not answer, nothing is
    /// written, so its commit stays the one in `recorded`, which is what the cluster has.
    pub fn to_record(&self, recorded: &BTreeMap<String, Revision>) -> BTreeMap<String, Revision> {
        let known = |source: &PlacedSource| {
            let before = recorded.get(&source.name).copied();
            let revision = if source.unanswered.is_some() { before } else { source.revision };
            Some((source.name.clone(), revision?))
        };
        self.0.iter().filter_map(known).collect()
    }

    /// The sources that did not answer.
    pub fn unanswered(&self) -> impl Iterator<Item = &PlacedSource> {
        self.0.iter().filter(|source| source.unanswered.is_some())
    }

    /// Returns true if the same sources answered in both.
    pub fn has_same_answers(&self, other: &Self) -> bool {
        let names = |placement: &Self| -> Vec<String> {
            placement.unanswered().map(|source| source.name.clone()).collect()
        };
        names(self) == names(other)
    }

    /// Why writes that depend on all sources are held; `None` if all sources answered.
    pub fn hold_reason(&self) -> Option<String> {
        self.unanswered().next().map(hold_reason)
    }

    /// Why writes are held that are made from files whose paths begin with one of `prefixes`; `None` if no source
    /// without an answer can have such a file.
    pub fn hold_reason_below<'p>(&self, prefixes: impl IntoIterator<Item = &'p [u8]>) -> Option<String> {
        self.unanswered().next()?;
        let reached = |prefix: &[u8]| self.unanswered().find(|source| self.reaches(prefix, source));
        prefixes.into_iter().find_map(reached).map(hold_reason)
    }

    /// Returns true if a path that begins with `prefix` can belong to the source. A source owns the paths in its place
    /// that are not in a deeper place of another source.
    fn reaches(&self, prefix: &[u8], source: &PlacedSource) -> bool {
        let reaches = |place: &[u8]| {
            // A source that is not in the tree does not take its place away from others.
            let owns_deeper = |other: &PlacedSource| {
                let to = other.to.as_bytes();
                other.revision.is_some() && to.len() > place.len() && is_below(prefix, to)
            };
            place.starts_with(prefix) || is_below(prefix, place) && !self.0.iter().any(owns_deeper)
        };
        reaches(source.to.as_bytes()) || source.moves_to.as_ref().is_some_and(|to| reaches(to.as_bytes()))
    }
}

/// Returns true if every path that begins with `prefix` is below `place`.
fn is_below(prefix: &[u8], place: &[u8]) -> bool {
    place.is_empty() || prefix.strip_prefix(place).is_some_and(|rest| rest.starts_with(b"/"))
}

fn hold_reason(source: &PlacedSource) -> String {
    let why = source.unanswered.as_deref().unwrap_or_default();
    format!("source {} is not known to be at the newest commit of its ref: {why}", source.name)
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
            let why = placement.hold_reason_below([prefix.as_bytes()]);
            assert_eq!(why.is_some(), held, "{away} away, {prefix:?}");
            if let Some(why) = why {
                assert_eq!(
                    why,
                    format!("source {away} is not known to be at the newest commit of its ref: it hangs")
                );
            }
            assert!(placement.hold_reason().is_some());
        }
        let all = [("top", "", false), ("jobs", "jobs", true)];
        let mut absent = placed(&all);
        absent.0[1].revision = None;
        assert!(
            absent.hold_reason_below([&b"jobs/"[..]]).is_some(),
            "where nothing is placed, the top has it"
        );
        let mut moves = placed(&[("a", "old", false), ("b", "other", true)]);
        moves.0[0].moves_to = Some("new".to_owned());
        for (prefix, held) in [("old/", true), ("new/x", true), ("other/", false)] {
            assert_eq!(moves.hold_reason_below([prefix.as_bytes()]).is_some(), held, "{prefix}");
        }
        let well = placed(&[("top", "", true)]);
        assert!(well.hold_reason().is_none() && well.hold_reason_below([&b""[..]]).is_none());
        assert!(Placement::default().hold_reason_below([&b"x"[..]]).is_none(), "one repository");
    }

    #[test]
    fn the_commits_of_a_tree_are_those_of_the_sources_in_it() {
        let mut placement = placed(&[("a", "a", true), ("b", "b", false), ("c", "c", true)]);
        placement.0[2].revision = None;
        let commit = Revision(ObjectId([1; 20]));
        let expected = ["a", "b"].map(|name| (name.to_owned(), commit));
        assert_eq!(placement.revisions(), BTreeMap::from(expected));
    }

    #[test]
    fn answers_are_the_same_if_the_same_sources_give_one() {
        let both = |a, b| placed(&[("a", "a", a), ("b", "b", b)]);
        let known = both(true, false);
        assert!(!known.has_same_answers(&both(false, true)) && !known.has_same_answers(&both(true, true)));
        let mut refuses = both(true, false);
        refuses.0[1].unanswered = Some("it refuses".to_owned());
        assert!(known.has_same_answers(&refuses), "for whatever reason the other one gives none");
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
