//! An empty library, because every package needs a library or a binary. The tests are in this file's directory.
