//! The member of a pool that serves a call.

use super::CallContext;

/// The member of a pool to which the request of a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) index: usize,
    /// Whether the request must go to this member: it has its permit from the member's limiter, or the member may have
    /// processed it.
    pub(crate) is_fixed: bool,
    /// Whether the member has throttled the request, so that its limiter pauses.
    pub(crate) is_throttled: bool,
}

impl CallContext {
    pub(crate) fn member(&self) -> Option<Member> {
        self.0.shared.state().member
    }

    pub(crate) fn set_member(&self, member: Member) {
        self.0.shared.state().member = Some(member);
    }

    /// Returns whether the next attempt may go to another member than the one that has throttled this one. The delay that
    /// the server requested then concerns only the limiter of that member.
    pub(crate) fn may_leave_throttled_member(&self) -> bool {
        self.member().is_some_and(|member| member.is_throttled && !member.is_fixed)
    }
}
