//! Computes the desired state: from a revision's tree and rules to what every cluster should hold.
//!
//! The rules come from their own file or from the tree. The [`Tree`] is listed as far as the rules reach (`tree`).
//! `configmap` computes a plan from both, and the plan becomes the [`Desired`] state, with a digest of everything
//! besides the tree that determined it. The last plan is reused, so that the next one costs what changed. This module
//! writes to no cluster.

mod known;
mod tree;

pub use known::KnownValues;
pub use tree::{Changes, Commit, Directory, Listing, Tree};

use std::sync::Arc;
use std::time::Duration;

use crate::configmap::apply::{Desired, ExtraKeys, Placement, VersionKey, rules_digest};
use crate::configmap::{
    self, BadLink, Dialect, Matches, Plan, Policies, Refused, RuleSet, RulesError, Setting, TimeLimit,
};
use crate::fsx;
use crate::mirror::{self, Objects};
use crate::payload::{BlobError, Limits};
use crate::revision::{ObjectId, Revision};

/// Where rules come from.
#[derive(Clone, Debug)]
pub enum Rules {
    /// The same rules for every revision.
    Given(Arc<RuleSet>),
    /// A file of the tree, by its path, so that each revision has its own rules.
    InTree(String),
}

/// How rules are read and applied.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace that an empty one stands for.
    pub default_namespace: String,
    /// The pattern dialect, unless the rules name one.
    pub dialect: Dialect,
    /// Whether unknown and removed fields cause a warning instead of an error.
    pub ignore_unknown: bool,
    /// The repository's `ORGANISATION/NAME`, for rules that are restricted to some repositories.
    pub repository: Option<String>,
    /// What to do with ambiguous or oversized content.
    pub policies: Policies,
    /// Limit on the memory that a plan's keys and values take together, in bytes; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// The keys that are written besides the data.
    pub shape: ExtraKeys,
    /// Prints a warning: to the log of a daemon, or to standard error.
    pub warn: fn(&dyn std::fmt::Display),
}

impl Options {
    /// Reads rules and prints their warnings. `file` is their name in errors.
    pub fn read(&self, file: &str, text: &str) -> Result<RuleSet, RulesError> {
        let rules = RuleSet::read(text, &self.setting(file), &|name| std::env::var(name).ok())?;
        rules.warnings.iter().for_each(|warning| (self.warn)(warning));
        Ok(rules)
    }

    fn setting<'a>(&'a self, file: &'a str) -> Setting<'a> {
        Setting {
            file,
            default_namespace: &self.default_namespace,
            dialect: self.dialect,
            ignore_unknown: self.ignore_unknown,
        }
    }
}

/// The most time for matching a tree against the rules. Rules in the tree are an author's: thousands of patterns that
/// begin with `**/` take microseconds each per file. 129 rules and 90,000 files take less than a second.
const MATCHING_LIMIT: TimeLimit = TimeLimit { time: Duration::from_secs(60), set_by: None };

/// Computes plans and desired states, each from one tree.
#[derive(Clone, Debug)]
pub struct Planner {
    options: Options,
    rules: Rules,
    matching_limit: TimeLimit,
}

impl Planner {
    /// A planner for these rules.
    pub fn new(options: Options, rules: Rules) -> Self {
        Self { options, rules, matching_limit: MATCHING_LIMIT }
    }

    /// The same planner, but comparing a tree's links with the rules and matching the tree each take at most this long:
    /// an operator's timeout that is shorter than the limit so far ends them. A longer one changes nothing.
    #[must_use]
    pub fn within(self, limit: TimeLimit) -> Self {
        if limit.time < self.matching_limit.time { Self { matching_limit: limit, ..self } } else { self }
    }

    /// The limit on the time for matching a tree.
    #[cfg(test)]
    pub(crate) fn matching_limit(&self) -> TimeLimit {
        self.matching_limit
    }

    /// Computes the desired state of a revision; fails if the plan is refused. `sources` has the sources of a composed
    /// tree and is empty for a single repository. `last` is the second result of the previous call, which makes this
    /// one cheaper. Blocking.
    pub fn desired(
        &self,
        tree: &dyn Tree,
        revision: Revision,
        sources: &Placement,
        last: Option<LastPlan>,
    ) -> Result<(Desired, LastPlan), Error> {
        if let Rules::InTree(path) = &self.rules
            && let Some(why) = sources.hold_reason_below([path.as_bytes()])
        {
            return Err(Error::RulesHeld(why));
        }
        let shape = &self.options.shape;
        // The stamp here is a dummy of the right length, so that a new revision does not change the plan. What is
        // written has the actual revision.
        let stamp = (shape.version_key != VersionKey::Off).then(|| Revision(ObjectId([0; 20])).to_string());
        let text = self.rules_text(tree)?;
        let last = last.filter(|last| last.rules_text == text);
        let rules = match &last {
            Some(last) => Arc::clone(&last.rules),
            None => self.rules_of(text.as_deref())?,
        };
        let options = self.plan_options(stamp);
        let next = |matches, entries| LastPlan {
            revision,
            rules_text: text,
            rules: Arc::clone(&rules),
            matches,
            entries,
        };
        let (plan, last) = match self.incremental(tree, last)? {
            Some((plan, matches, entries)) => (plan, next(matches, entries)),
            None => {
                let (plan, matches, entries) = self.whole(tree, &rules, options.clone())?;
                (plan, next(matches, entries))
            }
        };
        let plan = self.accepted(plan, true)?;
        let digest = rules_digest(&rules, &options, shape);
        let made_of = (revision, sources.clone());
        let prefix = |rule: usize| rules.patterns.get(rule).prefix();
        let desired = Desired::new(&plan, made_of, digest, shape.clone(), prefix)
            .map_err(|finding| Refused(vec![finding]))?;
        Ok((desired, last))
    }

    /// Computes the plan for a tree, stamped with `stamp`; fails if the plan is refused. Blocking.
    pub fn plan(&self, tree: &dyn Tree, stamp: Option<String>) -> Result<Plan, Error> {
        let rules = self.rules_of(self.rules_text(tree)?.as_deref())?;
        let (plan, ..) = self.whole(tree, &rules, self.plan_options(stamp))?;
        self.accepted(plan, false)
    }

    /// The value cache for plans of these objects. It has a file, unless memory is limited and the mirror is on a file
    /// system in memory, where the file would count against the same limit.
    pub fn known_values(&self, objects: &Objects) -> KnownValues {
        let file = objects.values_file();
        if self.options.memory_limit.is_some() && fsx::is_in_memory(&file) {
            KnownValues::default()
        } else {
            KnownValues::with_file(file)
        }
    }

    fn plan_options(&self, stamp: Option<String>) -> configmap::Options {
        let Options { repository, policies, memory_limit, shape, .. } = &self.options;
        configmap::Options {
            repository: repository.clone(),
            stamp,
            stamp_key: shape.stamp_key.clone(),
            policies: *policies,
            memory_limit: *memory_limit,
            matching_limit: Some(self.matching_limit),
        }
    }

    /// The plan computed from the last one and the changes since. `None` if the whole tree has to be listed: there is
    /// no last plan, the changes are not available or do not determine the result, or the plan would be refused.
    fn incremental(
        &self,
        tree: &dyn Tree,
        last: Option<LastPlan>,
    ) -> Result<Option<(Plan, Matches, usize)>, Error> {
        let Some(LastPlan { revision, rules, mut matches, mut entries, .. }) = last else { return Ok(None) };
        let reach = |path: &[u8]| rules.patterns.reach_below(path);
        let Some((changes, mut contents)) = tree.changes(revision, &reach)? else { return Ok(None) };
        entries += changes.iter().filter(|change| change.now.is_some()).count();
        entries = entries.saturating_sub(changes.iter().filter(|change| change.before).count());
        if entries as u64 > Limits::default().entries || !matches.follow(&changes) {
            return Ok(None);
        }
        let plan = matches.plan(contents.as_mut())?;
        Ok(plan.refused.is_empty().then_some((plan, matches, entries)))
    }

    /// The plan computed from the whole tree, with its matches and the number of entries listed.
    fn whole(
        &self,
        tree: &dyn Tree,
        rules: &Arc<RuleSet>,
        options: configmap::Options,
    ) -> Result<(Plan, Matches, usize), Error> {
        let (listed, mut contents) = tree::reached(tree, rules, self.matching_limit)?;
        let mut matches = Matches::of(Arc::clone(rules), options, &listed);
        let entries = listed.len();
        drop(listed);
        Ok((matches.plan(contents.as_mut())?, matches, entries))
    }

    /// Prints the plan's warnings and returns it; fails if it is refused. `applies`: it is for clusters.
    fn accepted(&self, plan: Plan, applies: bool) -> Result<Plan, Error> {
        let Options { policies, warn, .. } = &self.options;
        let plan = plan.accepted()?;
        for finding in &plan.noted {
            warn(&format_args!("{finding}{}", finding.consequence(policies, applies)));
        }
        Ok(plan)
    }

    /// The rules: those given, or those parsed from `text`.
    fn rules_of(&self, text: Option<&str>) -> Result<Arc<RuleSet>, Error> {
        match (&self.rules, text) {
            (Rules::InTree(path), Some(text)) => Ok(Arc::new(self.options.read(path, text)?)),
            (Rules::InTree(path), None) => Err(Error::NoRules { path: path.clone() }),
            (Rules::Given(rules), _) => Ok(Arc::clone(rules)),
        }
    }

    /// The text of the rules in the tree; `None` if the rules are not in the tree.
    fn rules_text(&self, tree: &dyn Tree) -> Result<Option<String>, Error> {
        let Rules::InTree(path) = &self.rules else { return Ok(None) };
        let unusable = |why: String| Error::Rules { path: path.clone(), why };
        let (listed, mut contents) = tree::on_the_way_to(tree, path.as_bytes())?;
        let file = listed.resolve(path.as_bytes()).map_err(|why| match why {
            BadLink::Dangling => Error::NoRules { path: path.clone() },
            why => unusable(format!("in the tree it is {why}")),
        })?;
        let bytes = contents.read(file).map_err(|error| unusable(error.to_string()))?;
        String::from_utf8(bytes).map(Some).map_err(|_| unusable("it is not UTF-8 text".to_owned()))
    }
}

/// The state of an accepted plan that the next one starts from.
#[derive(Debug)]
pub struct LastPlan {
    revision: Revision,
    /// The text of the rules, if they are in the tree.
    rules_text: Option<String>,
    rules: Arc<RuleSet>,
    matches: Matches,
    /// Number of tree entries that were listed.
    entries: usize,
}

/// Why there is no desired state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rules' file in the tree is not usable.
    #[error("invalid value {path:?} for --rules-in-tree: {why}")]
    Rules {
        /// Its path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The tree has no such file.
    #[error("invalid value {path:?} for --rules-in-tree: the tree has no such file")]
    NoRules {
        /// Its path.
        path: String,
    },
    /// The rules are in a source that did not answer where its ref is.
    #[error("the rules are in the tree, and {0}")]
    RulesHeld(String),
    /// The rules are not valid.
    #[error(transparent)]
    Text(#[from] RulesError),
    /// A directory cannot be read.
    #[error(transparent)]
    Directory(#[from] std::io::Error),
    /// The mirror failed.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
    /// A blob of the mirror cannot be read.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A file that a rule matches cannot be read.
    #[error(transparent)]
    File(#[from] configmap::ReadFailed),
    /// The plan is refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Error {
    /// Returns true if a later attempt may succeed without a change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::RulesHeld(_) => true,
            Self::Mirror(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Text(error) => error.hints(),
            Self::Mirror(error) => error.hints(),
            Self::Refused(refused) => refused.hints(),
            Self::NoRules { .. } => vec![
                "the path counts from the top of the repository; with --sources from the root, where each source lies \
                 at its `to`"
                    .to_owned(),
            ],
            Self::RulesHeld(_) => vec!["they are read once it answers".to_owned()],
            Self::Rules { .. } => vec!["it has to be a file of UTF-8 text that can be read".to_owned()],
            Self::Directory(_) => vec!["see that this user may read all of the directory".to_owned()],
            Self::File(failed) if failed.source.is::<tree::TooLarge>() => {
                vec!["make it smaller, or take it out of the globs of the rules".to_owned()]
            }
            Self::File(_) => vec!["see that this user may read it, and that its volume is healthy".to_owned()],
            Self::Blob(_) => vec!["see whether the volume of the mirror is healthy".to_owned()],
        }
    }
}

#[cfg(test)]
mod tests;
