//! The values that ConfigMaps are built from, and which of them are needed: beyond the limit on a ConfigMap's values,
//! they are only counted. So one that is refused or left out takes no more memory than one that is written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::data::VALUES_MAX;
use super::super::plan::ValueSource;
use super::fed::FedConfigMap;

/// The values of some ConfigMaps.
pub(super) struct Wanted<'m> {
    /// What to make them from, each once.
    pub(super) sources: Vec<ValueSource>,
    /// Indexed like the sources: the path of a file with this content.
    pub(super) paths: Vec<&'m Arc<[u8]>>,
    /// Which ConfigMaps have which values: for each key an index into `sources` and one into `sizes`; sorted.
    uses: Vec<(usize, usize)>,
    /// For each ConfigMap, the sum of the sizes of its values that were made so far.
    sizes: Vec<AtomicUsize>,
}

impl<'m> Wanted<'m> {
    /// The values of these ConfigMaps.
    pub(super) fn of(config_maps: impl Iterator<Item = &'m FedConfigMap>) -> Self {
        let (mut sources, mut paths) = (Vec::new(), Vec::new());
        let (mut uses, mut sizes) = (Vec::new(), Vec::new());
        let mut indices: HashMap<ValueSource, usize> = HashMap::new();
        for fed in config_maps {
            for file in fed.keys.values().filter_map(|files| files.last()) {
                let at = *indices.entry(file.source).or_insert(sources.len());
                if at == sources.len() {
                    sources.push(file.source);
                    paths.push(&file.path);
                }
                uses.push((at, sizes.len()));
            }
            sizes.push(AtomicUsize::new(0));
        }
        uses.sort_unstable();
        Self { sources, paths, uses, sizes }
    }

    /// Counts a value that was made, by its index into the sources. Returns true if a ConfigMap that has it may still
    /// fit. Only for ConfigMaps that are not split: all parts of one that is split are written.
    pub(super) fn is_needed(&self, at: usize, size: usize) -> bool {
        let first = self.uses.partition_point(|(value, _)| *value < at);
        let mut is_needed = false;
        for (_, config_map) in self.uses[first..].iter().take_while(|(value, _)| *value == at) {
            let before = self.sizes[*config_map].fetch_add(size, Ordering::Relaxed);
            is_needed |= before.saturating_add(size) <= VALUES_MAX;
        }
        is_needed
    }
}
