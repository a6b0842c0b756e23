//! The tests stand beside this file; a package needs a target of its own.
