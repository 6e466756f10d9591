//! Histories: the steps of a life, generated from one seed.
//!
//! A step does not depend on the others, so that a history without some of its steps is a valid history: that is how a
//! failing one is reduced. `SEED:STEPS` names a history, as in `42:0-3,17`; `SEED` alone has all steps.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::Random;
use crate::faults::Fault;
use crate::tree::{Edit, Entry, How, Tree};

/// The number of rounds of a history. Each pushes or rewinds, and some push once more before a fault.
const ROUNDS: usize = 110;

#[derive(Clone, Debug)]
pub enum Step {
    Edit {
        source: usize,
        edit: Edit,
    },
    Push {
        source: usize,
        wait: bool,
        tame: bool,
        stamp: bool,
    },
    /// The ref moves back to the commit that was pushed that many pushes ago.
    Rewind {
        source: usize,
        back: usize,
    },
    /// A reader pins a generation, and reads it again this many steps later.
    Pin {
        steps: usize,
    },
    Fault(Fault),
}

/// Settings of the program that do not affect what a reader sees.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// Serve the remotes over git's protocol through a relay that can misbehave, instead of a local path.
    pub daemon: bool,
    pub flags: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct History {
    pub seed: u64,
    pub how: How,
    pub ways: Ways,
    /// How long it may take until the newest revision is published.
    pub patience: Duration,
    /// The steps with their numbers.
    pub steps: Vec<(usize, Step)>,
}

impl History {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 7));
        for _ in 0..8 {
            random.below(2);
        }
        let how = how(&mut random);
        let ways = ways(&how, &mut random);
        let sources = how.sources.max(1);
        let mut steps = Vec::new();
        for source in 0..sources {
            steps.push(Step::Push { source, wait: source + 1 == sources, tame: true, stamp: true });
        }
        let mut pushes = 0;
        while pushes < ROUNDS {
            let source = random.below(sources);
            for _ in 0..random.below(5) {
                steps.push(Step::Edit { source, edit: Edit::random(&mut random) });
            }
            pushes += 1;
            let wait = random.below(12) != 0;
            if random.below(14) == 0 {
                steps.push(Step::Rewind { source, back: 1 + random.below(4) });
            } else {
                let (tame, stamp) = (random.below(12) != 0, random.below(12) != 0);
                steps.push(Step::Push { source, wait, tame, stamp });
            }
            if random.below(15) == 0 {
                steps.push(Step::Pin { steps: 1 + random.below(25) });
            }
            if random.below(8) == 0 {
                steps.push(Step::Push { source, wait: false, tame: true, stamp: true });
                steps.push(Step::Fault(Fault::random(&mut random)));
            }
        }
        let patience = Duration::from_secs(30);
        Self { seed, how, ways, patience, steps: steps.into_iter().enumerate().collect() }
    }

    /// The history of a name, `SEED:STEPS`.
    pub fn named(name: &str) -> Self {
        let (seed, kept) = name.split_once(':').unwrap_or((name, ""));
        let all = Self::new(seed.parse().expect("a seed is a number"));
        if kept.is_empty() {
            return all;
        }
        let number = |text: &str| text.parse::<usize>().expect("steps are numbers");
        let ranges = kept.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            number(first)..=number(last)
        });
        let kept: BTreeSet<usize> = ranges.flatten().collect();
        all.only(|step| kept.contains(&step))
    }

    pub fn only(&self, keep: impl Fn(usize) -> bool) -> Self {
        let steps = self.steps.iter().filter(|(number, _)| keep(*number)).cloned().collect();
        Self { steps, ..self.clone() }
    }

    pub fn name(&self) -> String {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (number, _) in &self.steps {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ => ranges.push((*number, *number)),
            }
        }
        let range = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
        format!("{}:{}", self.seed, ranges.iter().map(range).collect::<Vec<_>>().join(","))
    }

    /// The pushed trees of each source in order; and, for each step that pushes or rewinds, its number and the index of
    /// its tree.
    pub fn pushed(&self, modules: &[Tree]) -> (Vec<Vec<Tree>>, Vec<(usize, usize)>) {
        let count = self.how.sources.max(1);
        let mut now = vec![Tree::default(); count];
        let mut trees = vec![Vec::<Tree>::new(); count];
        let mut which = Vec::new();
        for (number, step) in &self.steps {
            match step {
                Step::Edit { source, edit } => now[*source].edit(edit),
                Step::Push { source, tame, stamp, .. } => {
                    let (tree, all) = (&mut now[*source], &mut trees[*source]);
                    if *stamp {
                        let place: &[u8] = if self.how.below_a { b"a/stamp" } else { b"stamp" };
                        let content = number.to_string().into_bytes();
                        tree.put(place, Entry::File { executable: false, content });
                    }
                    if *tame {
                        tree.tame(&self.how, modules);
                    }
                    which.push((*number, all.len()));
                    all.push(tree.sealed());
                }
                Step::Rewind { source, back } => {
                    let last = trees[*source].len();
                    which.push((*number, last.saturating_sub(*back).min(last.saturating_sub(1))));
                }
                Step::Pin { .. } | Step::Fault(_) => {}
            }
        }
        (trees, which)
    }
}

fn how(random: &mut Random) -> How {
    let mut one_in = |n| random.below(n) == 0;
    let mut how = How { keep_links: one_in(3), sparse: one_in(5), ..How::default() };
    if one_in(4) {
        how.sources = 2 + usize::from(one_in(2));
        how.below_a = one_in(4);
    } else if one_in(5) {
        how.git_sync = true;
        how.submodules = !how.sparse && one_in(3);
    } else if one_in(5) {
        how.below_a = true;
    } else if !how.sparse {
        how.submodules = one_in(3);
    }
    how
}

fn ways(how: &How, random: &mut Random) -> Ways {
    let mut flags = Vec::new();
    let mut say = |text: String| flags.push(text);
    say(format!("--grace={}ms", [0, 0, 20, 300][random.below(4)]));
    match random.below(6) {
        0 => say("--spare=copy".into()),
        1 => say("--spare=recycle".into()),
        2 => say("--spare=off".into()),
        _ => {}
    }
    if how.sources == 0 && random.below(4) == 0 {
        say("--depth=0".into());
    }
    if how.sources == 0 && random.below(5) == 0 {
        say("--filter=blob:none".into());
    }
    if random.below(4) == 0 {
        say("--durability=none".into());
    }
    if random.below(4) == 0 {
        say("--git-gc=always".into());
    }
    Ways { daemon: random.below(5) == 0, flags }
}

/// The revisions of the submodules' repository.
pub fn modules() -> Vec<Tree> {
    let file = |text: &str| Entry::File { executable: text.len().is_multiple_of(2), content: text.into() };
    let tree =
        |entries: Vec<(&str, Entry)>| Tree(entries.into_iter().map(|(path, e)| (path.into(), e)).collect());
    vec![
        tree(vec![("m", file("one"))]),
        tree(vec![("m", file("two!")), ("in/side", file("deep"))]),
        tree(vec![("m/was a file", file("x")), ("link", Entry::Link(b"m".to_vec()))]),
        tree(vec![("in", file("was a directory"))]),
    ]
}

/// A short history with every kind of entry, so that each fake has something to violate.
pub fn of_every_kind() -> History {
    let file = |content: &str, executable| Entry::File { executable, content: content.into() };
    let link = |target: &str| Entry::Link(target.into());
    let put = |path: &str, entry| Step::Edit { source: 0, edit: Edit::Put(path.into(), entry) };
    let push = |tame| Step::Push { source: 0, wait: true, tame, stamp: true };
    let steps = vec![
        put("f", file("first\n", false)),
        put("run", file("#!/bin/sh\n", true)),
        put("link", link("run")),
        put("d/e/g", file("deep\n", false)),
        put("d/h", file("a directory later\n", false)),
        put("0", file("removed later\n", false)),
        Step::Edit { source: 0, edit: Edit::Module(0, 0) },
        push(true),
        put("f", file("second\n", false)),
        Step::Edit { source: 0, edit: Edit::Remove(0) },
        push(true),
        Step::Pin { steps: 6 },
        put("d/e/changes", file("directories change\n", false)),
        put("d/h/now a directory", file("type change\n", false)),
        push(true),
        put("out", link("../out")),
        push(false),
        put("out", link("d/e/g")),
        push(true),
        put("f", file("last\n", false)),
        push(true),
    ];
    let (how, ways) = (How::default(), Ways::default());
    let patience = Duration::from_secs(30);
    History { seed: 0, how, ways, patience, steps: steps.into_iter().enumerate().collect() }
}
