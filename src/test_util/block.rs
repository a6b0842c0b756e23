/// How long a server rejects all requests after an excess. Times are seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    duration: f64,
    /// Whether each rejected request starts the block again.
    is_extended: bool,
    until: f64,
}

impl Block {
    pub(super) fn new(duration: f64, is_extended: bool) -> Self {
        Self { duration, is_extended, until: 0.0 }
    }

    /// Returns whether the block rejects a request.
    pub(super) fn rejects(&mut self, now: f64) -> bool {
        let is_rejected = now < self.until;
        if is_rejected && self.is_extended {
            self.start(now);
        }
        is_rejected
    }

    /// Starts the block after an excess.
    pub(super) fn start(&mut self, now: f64) {
        self.until = now + self.duration;
    }

    /// Returns the seconds until the block ends.
    pub(super) fn left(&self, now: f64) -> f64 {
        (self.until - now).max(0.0)
    }
}
