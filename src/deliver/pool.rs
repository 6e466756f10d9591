//! Only so many instances of a fleet work at once: a few Leases, of which each that has something to write takes one.
//!
//! It is for a fleet that is moved by one push: whatever their owners and clusters are, no more of them than that write,
//! and their API servers, webhooks and watchers have a bounded load. A process takes one place, when the first of its
//! clusters has something to write, and lets it go when the last one is done. Nothing rests on it: without the rights or
//! the API, or when all places stay taken for too long, the work goes on without, and that is said once.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use futures_util::future;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Directory;
use super::hold::{Kept, Look, Named, Taker};
use super::lease::Leases;
use super::source::Source;
use super::worker::Worker;
use super::write::Stop;
use crate::cluster::{Cluster, DEFAULT};
use crate::configmap::apply::{Place, Standing, choose, names};
use crate::human;
use crate::retry::dice;

/// No fleet needs more, and each look reads all of them.
const MOST: u16 = 100;

/// The Leases NAMESPACE/NAME-0, NAMESPACE/NAME-1 and so on, of the cluster that is called `default`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    namespace: String,
    leases: Vec<String>,
}

/// The text names no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPlaces {
    /// It has another form.
    #[error("it is not of the form NAMESPACE/NAME:COUNT")]
    Form,
    /// The API server would not take it.
    #[error(
        "a name consists of a-z, 0-9 and -, begins and ends with a letter or digit, and has at most 63 of them"
    )]
    Name,
    /// None, or far too many.
    #[error("the count is a number from 1 to {MOST}")]
    Count,
}

impl FromStr for Places {
    type Err = BadPlaces;

    fn from_str(text: &str) -> Result<Self, BadPlaces> {
        let (namespace, rest) = text.split_once('/').ok_or(BadPlaces::Form)?;
        let (name, count) = rest.split_once(':').ok_or(BadPlaces::Form)?;
        if !is_name(namespace) || !is_name(name) {
            return Err(BadPlaces::Name);
        }
        let count = count.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or(BadPlaces::Count)?;
        let leases = (0..count).map(|number| format!("{name}-{number}")).collect();
        Ok(Self { namespace: namespace.to_owned(), leases })
    }
}

/// Whether it is a DNS label.
fn is_name(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inner = |byte: u8| ends(Some(byte)) || byte == b'-';
    text.len() <= 63 && text.bytes().all(inner) && ends(text.bytes().next()) && ends(text.bytes().next_back())
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, last) = (self.leases.first(), self.leases.last());
        let named = |name: Option<&String>| name.cloned().unwrap_or_default();
        match self.leases.len() {
            1 => write!(f, "{}/{}", self.namespace, named(first)),
            _ => write!(f, "{}/{} to {}", self.namespace, named(first), named(last)),
        }
    }
}

/// The pool as one delivery uses it.
#[derive(Debug)]
pub(super) struct Pool {
    places: Places,
    home: Result<Cluster, String>,
    leases: Leases,
    taker: Taker,
    cancel: CancellationToken,
    inside: Mutex<Inside>,
}

/// Who of this delivery works, and by which place.
#[derive(Debug, Default)]
struct Inside {
    workers: usize,
    place: Option<Kept>,
}

impl Pool {
    /// If one is asked for.
    pub(super) fn of(
        leases: Option<&Leases>,
        clusters: &impl Directory,
        cancel: &CancellationToken,
    ) -> Option<Self> {
        let leases = leases?.clone();
        let places = leases.pool()?.clone();
        let (key, value) = names::MANAGED_BY;
        let labels = [(key.to_owned(), value.to_owned())].into();
        let taker = Taker::new(leases.duration(), labels, BTreeMap::new(), cancel.clone());
        let home = clusters.find(DEFAULT).map_err(|error| human::one_line(&error));
        Some(Self { places, home, leases, taker, cancel: cancel.clone(), inside: Mutex::default() })
    }

    /// Returns when this worker may work, or all is to end. What is to be said about it, if anything.
    async fn enter(&self) -> Option<String> {
        let mut inside = self.inside.lock().await; // whoever has it ends soon when all is to end
        inside.workers += 1;
        if inside.workers > 1 {
            return None; // by the place of those who came before, or without, as they do
        }
        match self.place().await {
            Ok(place) => {
                inside.place = Some(place);
                None
            }
            Err(why) => {
                let says = !self.cancel.is_cancelled() && self.leases.is_news("the pool");
                says.then(|| {
                    format!("no place among the Leases {} ({why}); the work goes on without", self.places)
                })
            }
        }
    }

    /// A worker is done: whoever waits for a place may have ours when it was the last.
    pub(super) async fn leave(&self) {
        let mut inside = self.inside.lock().await;
        inside.workers = inside.workers.saturating_sub(1);
        if inside.workers == 0
            && let Some(place) = inside.place.take()
        {
            place.let_go().await;
        }
    }

    /// Waits for a place.
    async fn place(&self) -> Result<Kept, String> {
        let home = self.home.as_ref().map_err(Clone::clone)?;
        let lease = |at: usize| Named {
            cluster: home,
            namespace: &self.places.namespace,
            name: &self.places.leases[at],
        };
        let count = self.places.leases.len();
        let first = (dice() * count as f64) as usize; // not all begin with the same
        let mut looks: Vec<Option<Look>> = vec![None; count];
        let mut unusable: BTreeMap<usize, String> = BTreeMap::new();
        let began = Instant::now();
        for pause in 1.. {
            let again = (0..count).filter(|at| !unusable.contains_key(at));
            let again = again.map(async |at| (at, self.taker.look(lease(at), looks[at].as_ref()).await));
            for (at, seen) in future::join_all(again).await {
                match seen {
                    Ok(look) => looks[at] = Some(look),
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            // One that is gone before we have it leaves the others.
            loop {
                let standings: Vec<Option<&Standing>> = (0..count)
                    .map(|at| {
                        looks[at].as_ref().filter(|_| !unusable.contains_key(&at)).map(|look| &look.standing)
                    })
                    .collect();
                let at = match choose(&standings, first) {
                    Place::Take(at) => at,
                    Place::Wait => break,
                    Place::Nowhere => return Err(unusable.into_values().next().unwrap_or_default()),
                };
                let Some(look) = &looks[at] else { break };
                match self.taker.take(lease(at), look).await {
                    Ok(Some(kept)) => return Ok(kept),
                    Ok(None) => break,
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            if self.leases.is_over(began) {
                let waited = Duration::from_secs(began.elapsed().as_secs());
                return Err(format!("all were taken for {waited:?}"));
            }
            if pause == 1 {
                info!("others work by the Leases {}: a place is waited for", self.places);
            }
            tokio::select! {
                () = sleep(self.leases.pause(pause)) => {}
                () = self.cancel.cancelled() => break,
            }
        }
        Err(Stop::Cancelled.to_string())
    }
}

impl<S: Source> Worker<S> {
    /// Returns when there is a place for us, or none can be had.
    pub(super) async fn enter_pool(&mut self) {
        if let Some(pool) = self.pool.clone().filter(|_| !self.pooled) {
            self.pooled = true;
            self.notes.extend(pool.enter().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_by_namespace_name_and_count() {
        let places: Places = "ci/treeswap-pool:3".parse().unwrap();
        assert_eq!(places.leases, ["treeswap-pool-0", "treeswap-pool-1", "treeswap-pool-2"]);
        assert_eq!(places.to_string(), "ci/treeswap-pool-0 to treeswap-pool-2");
        assert_eq!("ci/x:1".parse::<Places>().unwrap().to_string(), "ci/x-0");
        for (text, why) in [
            ("treeswap-pool:3", BadPlaces::Form),
            ("ci/treeswap-pool", BadPlaces::Form),
            ("/x:3", BadPlaces::Name),
            ("ci/X:3", BadPlaces::Name),
            ("ci/-x:3", BadPlaces::Name),
            ("ci/x:0", BadPlaces::Count),
            ("ci/x:101", BadPlaces::Count),
            ("ci/x:many", BadPlaces::Count),
        ] {
            assert_eq!(text.parse::<Places>(), Err(why), "{text}");
        }
    }
}
