//! Choices out of bytes.

/// Bytes that are taken one after the other; after the last one come zeros, so that every input means something.
pub(crate) struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    pub(crate) fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// One of so many.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// As many as there are, at most.
    pub(crate) fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (head, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// A length and so many bytes.
    pub(crate) fn piece(&mut self) -> &'d [u8] {
        let count = usize::from(self.byte());
        self.bytes(count)
    }

    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.piece()).into_owned()
    }

    pub(crate) fn rest(&mut self) -> &'d [u8] {
        std::mem::take(&mut self.0)
    }
}
