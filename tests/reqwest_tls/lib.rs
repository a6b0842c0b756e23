//! This library is empty. It exists because a package needs a library or a binary. The tests are beside this file.
