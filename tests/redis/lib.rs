//! Empty, because a package needs a target of its own. The tests are beside this file.
