//! Desired state: a revision's tree, and rules, to what every cluster should hold.
//!
//! In reading order: the [`Tree`] is listed as far as the rules reach (`tree`), the rules are read, from their own file or
//! from the tree; `configmap` makes a plan of both; what the plan asks for is the [`Desired`] state, with a digest of all
//! that decided it besides the tree. Nothing is written anywhere.

mod known;
mod tree;

pub use known::KnownValues;
pub use tree::{Changes, Commit, Directory, Listing, Tree};

use std::sync::Arc;

use crate::configmap::apply::{Deciding, Desired, ExtraKeys, Placement, VersionKey};
use crate::configmap::{
    self, BadLink, Dialect, Finding, Matches, Plan, Policies, Refused, RuleSet, RulesError, Setting,
};
use crate::fsx;
use crate::mirror::{self, Objects};
use crate::payload::{BlobError, Limits};
use crate::revision::{ObjectId, Revision};

/// Where rules are.
#[derive(Clone, Debug)]
pub enum Rules {
    /// The same for every revision.
    Given(Arc<RuleSet>),
    /// A file of the tree, by its path: each revision by its own rules.
    InTree(String),
}

/// How rules are read and applied.
#[derive(Clone, Debug)]
pub struct Options {
    /// What an empty namespace means.
    pub default_namespace: String,
    /// How patterns are read, unless the rules name a dialect.
    pub dialect: Dialect,
    /// Whether fields that Prow does not know are ignored.
    pub ignore_unknown: bool,
    /// The repository's `ORGANISATION/NAME`, for rules that ask.
    pub repository: Option<String>,
    /// What to do with what is ambiguous or does not fit.
    pub policies: Policies,
    /// Bytes of memory that a plan's keys and values may take together.
    pub most_bytes: Option<u64>,
    /// What is written besides payloads.
    pub shape: ExtraKeys,
    /// Where warnings go: the log of a daemon, or standard error.
    pub warn: fn(&dyn std::fmt::Display),
}

impl Options {
    /// Reads rules, and warns of what in them is ignored. `file` names them in errors.
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

/// Makes plans and desired states, each from one tree.
#[derive(Clone, Debug)]
pub struct Planner {
    options: Options,
    rules: Rules,
}

impl Planner {
    /// By these rules.
    pub fn new(options: Options, rules: Rules) -> Self {
        Self { options, rules }
    }

    /// What the tree of a revision asks for, unless policies refuse it, and what the next call may be given. Blocking.
    /// `sources` is what the tree is composed of; nothing is held where it is one repository's.
    pub fn desired(
        &self,
        tree: &dyn Tree,
        revision: Revision,
        sources: &Placement,
        last: Option<LastPlan>,
    ) -> Result<(Desired, LastPlan), Error> {
        if let Rules::InTree(path) = &self.rules
            && let Some(why) = sources.held_below([path.as_bytes()])
        {
            return Err(Error::RulesHeld(why));
        }
        let shape = &self.options.shape;
        // Of any revision, so that ConfigMaps stay as they are: they are written with the text of their own, which is as
        // long.
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
        let (plan, last) = match self.followed(tree, last)? {
            Some((plan, matches, entries)) => (plan, next(matches, entries)),
            None => {
                let (plan, matches, entries) = self.whole(tree, &rules, options.clone())?;
                (plan, next(matches, entries))
            }
        };
        let plan = self.accepted(plan)?;
        let deciding =
            Deciding { rules: &rules, setting: self.options.setting(""), options: &options, shape };
        let made_of = (revision, sources.clone());
        let prefix = |rule: usize| rules.patterns.get(rule).prefix();
        let desired = Desired::new(&plan, made_of, deciding.digest(), shape.clone(), prefix)
            .map_err(|finding| Refused(vec![finding]))?;
        Ok((desired, last))
    }

    /// The plan for a tree, stamped with a text, unless policies refuse it. Blocking.
    pub fn plan(&self, tree: &dyn Tree, stamp: Option<String>) -> Result<Plan, Error> {
        let rules = self.rules_of(self.rules_text(tree)?.as_deref())?;
        let (plan, ..) = self.whole(tree, &rules, self.plan_options(stamp))?;
        self.accepted(plan)
    }

    /// What plans of these objects have in common. Values are kept in a file for the next process, unless that would be in
    /// the memory that plans are limited for.
    pub fn known_values(&self, objects: &Objects) -> KnownValues {
        let file = objects.values_file();
        match self.options.most_bytes.is_some() && fsx::is_in_memory(&file) {
            true => KnownValues::default(),
            false => KnownValues::with_file(file),
        }
    }

    fn plan_options(&self, stamp: Option<String>) -> configmap::Options {
        let Options { repository, policies, most_bytes, .. } = &self.options;
        configmap::Options {
            repository: repository.clone(),
            stamp,
            policies: *policies,
            most_bytes: *most_bytes,
        }
    }

    /// The plan that comes of what changed since the last one, if that decides it.
    fn followed(
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

    /// The plan of a whole tree, with what it matched, and how many entries were listed.
    fn whole(
        &self,
        tree: &dyn Tree,
        rules: &Arc<RuleSet>,
        options: configmap::Options,
    ) -> Result<(Plan, Matches, usize), Error> {
        let (listed, mut contents) = tree::reached(tree, &rules.patterns)?;
        let mut matches = Matches::of(Arc::clone(rules), options, &listed);
        let entries = listed.len();
        drop(listed);
        Ok((matches.plan(contents.as_mut())?, matches, entries))
    }

    fn accepted(&self, plan: Plan) -> Result<Plan, Error> {
        let plan = plan.accepted()?;
        plan.noted.iter().for_each(|finding: &Finding| (self.options.warn)(finding));
        Ok(plan)
    }

    /// The rules of a tree: those given, or those of this text.
    fn rules_of(&self, text: Option<&str>) -> Result<Arc<RuleSet>, Error> {
        match (&self.rules, text) {
            (Rules::InTree(path), Some(text)) => Ok(Arc::new(self.options.read(path, text)?)),
            (Rules::InTree(path), None) => Err(Error::NoRules { path: path.clone() }),
            (Rules::Given(rules), _) => Ok(Arc::clone(rules)),
        }
    }

    /// The text of the rules that a tree has, if they are in it.
    fn rules_text(&self, tree: &dyn Tree) -> Result<Option<String>, Error> {
        let Rules::InTree(path) = &self.rules else { return Ok(None) };
        let unusable = |why: String| Error::Rules { path: path.clone(), why };
        let (listed, mut contents) = tree::on_the_way_to(tree, path.as_bytes())?;
        let file = listed.resolve(path.as_bytes()).map_err(|why| match why {
            BadLink::Dangling => Error::NoRules { path: path.clone() },
            why => unusable(format!("in the tree it is {why}")),
        })?;
        let bytes = contents.read(file).map_err(|error| unusable(error.to_string()))?;
        String::from_utf8(bytes).map(Some).map_err(|_| unusable("it is no text".to_owned()))
    }
}

/// A plan that was accepted, with what it was made of.
#[derive(Debug)]
pub struct LastPlan {
    revision: Revision,
    /// Where the rules are in the tree.
    rules_text: Option<String>,
    rules: Arc<RuleSet>,
    matches: Matches,
    /// Files, links and others that were listed.
    entries: usize,
}

/// Why there is no desired state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rules' file in the tree.
    #[error("invalid value {path:?} for --rules-in-tree: {why}")]
    Rules {
        /// Its path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such file.
    #[error("invalid value {path:?} for --rules-in-tree: the tree has no such file")]
    NoRules {
        /// Its path.
        path: String,
    },
    /// The rules are a file of a source that does not say where its ref is.
    #[error("the rules are in the tree, and {0}")]
    RulesHeld(String),
    /// The rules' text.
    #[error(transparent)]
    Text(#[from] RulesError),
    /// A directory.
    #[error(transparent)]
    Directory(#[from] std::io::Error),
    /// A mirror.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
    /// A mirror's objects.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A file that rules name.
    #[error(transparent)]
    File(#[from] configmap::ReadFailed),
    /// What policies refuse.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Error {
    /// Whether rules are wrong, and not what they are applied to.
    pub fn is_in_rules(&self) -> bool {
        matches!(self, Self::Rules { .. } | Self::NoRules { .. } | Self::Text(_))
    }

    /// Whether it may pass by itself.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::RulesHeld(_) => true,
            Self::Mirror(error) => error.is_transient(),
            _ => false,
        }
    }

    /// What an operator can do, a line each.
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
            Self::Rules { .. } | Self::Directory(_) | Self::Blob(_) | Self::File(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
