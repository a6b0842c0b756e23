//! Converts origins and key placements from and to the text in configuration files.

use super::{KeyPlacement, Origin};

crate::config::text::text! {
    Origin, "an origin such as https://api.example.com", Origin::parse, Origin::to_string;
    KeyPlacement, "a placement such as header:x-api-key", str::parse, KeyPlacement::to_string;
}
