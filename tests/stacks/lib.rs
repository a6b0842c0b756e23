//! Empty, because a package needs a library or a binary. The tests are beside this file.
