//! Which process a sink belongs to.

/// The process that made a sink.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still the process that made the sink, and no forked copy of it.
    pub(crate) fn is_here(self) -> bool {
        self.0 == std::process::id()
    }
}
