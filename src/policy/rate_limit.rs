//! What an answer says is left of the server's quotas.

use std::{
    array,
    cell::LazyCell,
    cmp::Reverse,
    collections::HashMap,
    fmt, iter, slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, header::AGE};

use super::{
    MAX_ASK,
    feedback::{served, values, whole_number},
    structured::{members, name, natural},
};

/// The most policies that are read of an answer: of more, those with the least left.
///
/// Services have one or two, such as Brave's for a second and for a month; this leaves room.
///
/// ```
/// assert_eq!(tower_outbound::policy::MAX_POLICIES, 8);
/// ```
pub const MAX_POLICIES: usize = 8;

/// What is left of one of the server's quotas, and when more comes.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderName, HeaderValue};
/// use tower_outbound::policy::remaining;
///
/// let field = (HeaderName::from_static("ratelimit"), HeaderValue::from_static(r#""burst";r=50;t=30"#));
/// for quota in remaining(&HeaderMap::from_iter([field]), SystemTime::now) {
///     assert_eq!((quota.left(), quota.more_in()), (50, Duration::from_secs(30)));
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    policy: u64,
    left: u64,
    more_in: Duration,
}

impl Remaining {
    const NONE: Self = Self { policy: 0, left: 0, more_in: Duration::ZERO };

    fn new(policy: u64, left: u64, more_in: Duration) -> Self {
        Self { policy, left, more_in: more_in.min(MAX_ASK) }
    }

    /// Which of the server's quotas this is: the same number in every answer that names the same policy and
    /// partition key. Means nothing between two servers.
    pub const fn policy(&self) -> u64 {
        self.policy
    }

    /// How many units are left. A request may cost several, or none.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// How long until there are more, if not all, counted from the receipt of the answer; at most
    /// [`MAX_ASK`]. Zero when that moment has passed.
    pub const fn more_in(&self) -> Duration {
        self.more_in
    }
}

/// What [`remaining()`] found: at most [`MAX_POLICIES`], the one with the least left first; of equals the one
/// that has the longest to go.
#[derive(Clone, PartialEq, Eq)]
pub struct RemainingList {
    items: [Remaining; MAX_POLICIES],
    len: usize,
}

impl RemainingList {
    const EMPTY: Self = Self { items: [Remaining::NONE; MAX_POLICIES], len: 0 };

    /// Those that were found, in order.
    pub fn as_slice(&self) -> &[Remaining] {
        self.items.get(..self.len).unwrap_or_default()
    }

    /// Keeps the order and the cap, so any number may be added in linear time.
    fn add(&mut self, new: Remaining) {
        let rank = |item: &Remaining| (item.left, Reverse(item.more_in));
        let place = self.as_slice().partition_point(|kept| rank(kept) <= rank(&new));
        if place == MAX_POLICIES {
            return;
        }
        self.len = (self.len + 1).min(MAX_POLICIES);
        self.items[place..self.len].rotate_right(1);
        self.items[place] = new;
    }
}

impl Default for RemainingList {
    /// Nothing.
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for RemainingList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl IntoIterator for RemainingList {
    type Item = Remaining;
    type IntoIter = iter::Take<array::IntoIter<Remaining, MAX_POLICIES>>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().take(self.len)
    }
}

impl<'a> IntoIterator for &'a RemainingList {
    type Item = &'a Remaining;
    type IntoIter = slice::Iter<'a, Remaining>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A way to write down how much is left and when more comes, with the names of the two.
enum Spelling {
    /// A List in `RateLimit`, an Item for each policy; the window is a parameter in `RateLimit-Policy`.
    Items(Parameters),
    /// A Dictionary in `RateLimit`, of one nameless policy.
    Dictionary { left: &'static str, more_in: &'static str },
    /// A field each, of one number or a list of them.
    Fields { left: HeaderName, more_in: HeaderName },
}

struct Parameters {
    left: &'static str,
    more_in: &'static str,
    partition: &'static str,
    window: &'static str,
}

/// The first that an answer has is read. A draft that renames a parameter is one row more.
static SPELLINGS: [Spelling; 4] = [
    // draft-ietf-httpapi-ratelimit-headers-10
    Spelling::Items(Parameters { left: "r", more_in: "t", partition: "pk", window: "w" }),
    // -07
    Spelling::Dictionary { left: "remaining", more_in: "reset" },
    // Up to -06
    Spelling::Fields {
        left: HeaderName::from_static("ratelimit-remaining"),
        more_in: HeaderName::from_static("ratelimit-reset"),
    },
    // Never specified. GitHub, Reddit, Brave and many more
    Spelling::Fields {
        left: HeaderName::from_static("x-ratelimit-remaining"),
        more_in: HeaderName::from_static("x-ratelimit-reset"),
    },
];

/// What the server says is left of its quotas; empty when it says nothing that can be read.
///
/// Reads the first of these that has anything valid:
///
/// 1. `RateLimit: "burst";r=50;t=30`, draft-ietf-httpapi-ratelimit-headers-10. Without `t` the `w` of the
///    same name in `RateLimit-Policy` counts, and without both the item is passed over, since nothing says
///    when more comes. A name may be a Token too;
/// 2. `RateLimit: limit=10, remaining=10, reset=4`, draft -07;
/// 3. `RateLimit-Remaining` and `RateLimit-Reset`, up to draft -06;
/// 4. `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
///
/// In the last two the reset is seconds, or over 10^9 the second since 1970 at which it comes, read against
/// the answer's own `Date`, since the server's clock isn't ours, and without one against `wall`, which is
/// called at most once. From 10^12 on it can't be seconds, and what it is would be a guess. A list of numbers
/// is a policy each. Fractions are read so that nothing comes early: less is left, later comes more.
///
/// A malformed field is ignored as a whole, as RFC 9651 has it, and so is everything in an answer that has
/// an `Age`: it tells what was left when it went into the cache.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderName, HeaderValue, header::DATE};
/// use tower_outbound::policy::remaining;
///
/// let headers = HeaderMap::from_iter([
///     (DATE, HeaderValue::from_static("Tue, 20 Aug 2013 14:50:41 GMT")),
///     (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("0")),
///     (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("1377013266")),
/// ]);
/// let found = remaining(&headers, SystemTime::now);
/// let [quota] = found.as_slice() else { unreachable!() };
/// assert_eq!((quota.left(), quota.more_in()), (0, Duration::from_secs(3_025)));
/// ```
pub fn remaining(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> RemainingList {
    if values(headers, &AGE).any(|age| whole_number(age).is_some_and(|age| age > 0)) {
        return RemainingList::EMPTY;
    }
    let served = LazyCell::new(|| served(headers, wall).duration_since(UNIX_EPOCH).unwrap_or_default());
    let read = |spelling: &Spelling| match spelling {
        Spelling::Items(names) => items(headers, names),
        Spelling::Dictionary { left, more_in } => dictionary(headers, left, more_in),
        Spelling::Fields { left, more_in } => fields(headers, left, more_in, || *served),
    };
    SPELLINGS.iter().filter_map(read).find(|list| list.len > 0).unwrap_or(RemainingList::EMPTY)
}

fn items(headers: &HeaderMap, names: &Parameters) -> Option<RemainingList> {
    let windows = LazyCell::new(|| windows(headers, names.window));
    let mut list = RemainingList::EMPTY;
    members(headers, &RATELIMIT, |text| {
        let name = name(text.value()?)?;
        let (mut left, mut more_in, mut partition) = (None, None, None);
        while let Some((key, value)) = text.parameter()? {
            if key == names.left {
                left = Some(value);
            } else if key == names.more_in {
                more_in = Some(value);
            } else if key == names.partition {
                partition = Some(value);
            }
        }
        let more_in = match more_in {
            Some(value) => Some(Duration::from_secs(natural(value)?)),
            None => windows.get(name).copied(),
        };
        if let (Some(left), Some(more_in)) = (left.map(natural), more_in) {
            list.add(Remaining::new(policy(name, partition.map(str::as_bytes)), left?, more_in));
        }
        Some(())
    })?;
    Some(list)
}

/// The window of every name; the longest, when partitions differ.
fn windows<'a>(headers: &'a HeaderMap, window_name: &str) -> HashMap<&'a str, Duration> {
    let mut windows = HashMap::new();
    let read = members(headers, &RATELIMIT_POLICY, |text| {
        let name = name(text.value()?)?;
        let mut window = None;
        while let Some((key, value)) = text.parameter()? {
            if key == window_name {
                window = Some(value);
            }
        }
        if let Some(window) = window {
            let window = natural(window).filter(|seconds| *seconds > 0)?;
            let longest = windows.entry(name).or_insert(Duration::ZERO);
            *longest = Duration::from_secs(window).max(*longest);
        }
        Some(())
    });
    read.map(|()| windows).unwrap_or_default()
}

fn dictionary(headers: &HeaderMap, left_name: &str, more_in_name: &str) -> Option<RemainingList> {
    let (mut left, mut more_in) = (None, None);
    members(headers, &RATELIMIT, |text| {
        let (key, value) = text.pair()?;
        while text.parameter()?.is_some() {}
        if key == left_name {
            left = Some(value);
        } else if key == more_in_name {
            more_in = Some(value);
        }
        Some(())
    })?;
    let (left, more_in) = (natural(left?)?, Duration::from_secs(natural(more_in?)?));
    let mut list = RemainingList::EMPTY;
    list.add(Remaining::new(policy(RATELIMIT.as_str(), None), left, more_in));
    Some(list)
}

/// The numbers of the two fields belong together by their place, as in Brave's `X-RateLimit-Remaining: 1,
/// 1000` and `X-RateLimit-Reset: 1, 1419704`.
fn fields(
    headers: &HeaderMap,
    left_name: &HeaderName,
    more_in_name: &HeaderName,
    served: impl Fn() -> Duration,
) -> Option<RemainingList> {
    headers.get(left_name)?;
    let mut resets = numbers(headers, more_in_name);
    let mut list = RemainingList::EMPTY;
    for (place, left) in (0u64..).zip(numbers(headers, left_name)) {
        let ((left, _), (seconds, fraction)) = (left?, resets.next()??);
        let more_in = match seconds.saturating_add(fraction.into()) {
            seconds @ ..=1_000_000_000 => Duration::from_secs(seconds),
            // Not only with `X-`: GitLab's `RateLimit-Reset` is such a moment too.
            moment @ ..1_000_000_000_000 => Duration::from_secs(moment).saturating_sub(served()),
            _ => return None, // OpenRouter's are milliseconds
        };
        list.add(Remaining::new(policy(left_name.as_str(), Some(&place.to_be_bytes())), left, more_in));
    }
    resets.next().is_none().then_some(list)
}

/// The members of all lines: whole numbers, and if there is a fraction. Reddit has `X-Ratelimit-Remaining:
/// 599.0`.
fn numbers(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = Option<(u64, bool)>> {
    let lines = headers.get_all(name).iter();
    let members = lines.flat_map(|line| line.to_str().unwrap_or_default().split(','));
    members.map(|text| {
        let text = text.trim_matches([' ', '\t']);
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        Some((whole_number(whole)?, whole_number(fraction)? > 0))
    })
}

/// FNV-1a with 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>): the same in every build and process.
fn policy(name: &str, partition: Option<&[u8]>) -> u64 {
    // No name has a zero byte, so that none is another with its partition.
    let partition = partition.map(|partition| [b"\0", partition]);
    let parts = iter::once(name.as_bytes()).chain(partition.into_iter().flatten());
    parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use http::HeaderValue;
    use proptest::{prelude::*, sample::select};

    use super::*;

    type Lines<'a> = &'a [(&'static str, &'a str)];

    const LONGEST: u64 = MAX_ASK.as_secs();

    const NAMES: [&str; 7] = [
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "date",
    ];

    /// The clock of the tests, Tue, 20 Aug 2013 14:50:41 GMT.
    const NOW: u64 = 1_377_010_241;

    fn headers<'a>(lines: impl IntoIterator<Item = (&'static str, &'a [u8])>) -> HeaderMap {
        // `collect` would keep only the last of several lines.
        lines.into_iter().fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
            headers
        })
    }

    fn list(lines: Lines<'_>) -> RemainingList {
        let headers = headers(lines.iter().map(|(name, value)| (*name, value.as_bytes())));
        let reads = Cell::new(0);
        let list = remaining(&headers, || {
            reads.set(reads.get() + 1);
            UNIX_EPOCH + Duration::from_secs(NOW)
        });
        assert!(reads.get() <= 1);
        list
    }

    /// What is left, and the seconds until more comes.
    fn read(lines: Lines<'_>) -> Vec<(u64, u64)> {
        list(lines).into_iter().map(|item| (item.left(), item.more_in().as_secs())).collect()
    }

    fn one(field: &'static str, value: &str) -> Vec<(u64, u64)> {
        read(&[(field, value)])
    }

    #[test]
    fn a_list_is_walked_and_shown_from_the_tightest_on() {
        let list = list(&[("ratelimit", r#""daily";r=7;t=36000, "burst";r=90;t=1, "hour";r=7;t=60"#)]);
        let left: Vec<_> = (&list).into_iter().map(|item| (item.left(), item.more_in().as_secs())).collect();
        assert_eq!(left, [(7, 36_000), (7, 60), (90, 1)]);
        assert_eq!(format!("{list:?}"), format!("{:?}", list.as_slice()));
        assert_eq!(format!("{:?}", RemainingList::default()), "[]");
    }

    #[test]
    fn reads_every_form() {
        type Case<'a> = (Lines<'a>, &'a [(u64, u64)]);
        let cases: [Case<'_>; 20] = [
            (&[], &[]),
            // draft-ietf-httpapi-ratelimit-headers-10
            (
                &[("ratelimit-policy", r#""default";q=100;w=60"#), ("ratelimit", r#""default";r=50;t=30"#)],
                &[(50, 30)],
            ),
            (&[("ratelimit", r#""burst";r=90;t=1, "daily";r=7;t=36000"#)], &[(7, 36_000), (90, 1)]),
            (
                &[("ratelimit", r#""burst";r=90;t=1"#), ("ratelimit", r#""daily";r=7;t=36000"#)],
                &[(7, 36_000), (90, 1)],
            ),
            (&[("ratelimit", "default;r=50;t=30")], &[(50, 30)]),
            (&[("ratelimit", "\t\"a\"; r=1;  t=2\t ,\t \"b\";x;r=3;t=4;y=?0 ")], &[(1, 2), (3, 4)]),
            (&[("ratelimit", r#""a";r=9;t=9;r=1;t=2"#)], &[(1, 2)]), // the last counts
            (&[("ratelimit", r#""a";r=0;t=0"#)], &[(0, 0)]),
            (
                &[
                    ("ratelimit", r#""hour";r=5, "day";r=3;t=7, "week";r=1"#),
                    ("ratelimit-policy", r#""hour";q=1000;w=3600,"day";q=5000;w=86400"#),
                ],
                &[(3, 7), (5, 3_600)],
            ),
            // A name's longest window, whichever line has it.
            (
                &[
                    ("ratelimit", r#"hour;r=5"#),
                    ("ratelimit-policy", r#""hour";q=1;w=60;pk=:YQ==:"#),
                    ("ratelimit-policy", r#""day";q=1, "hour";q=2;w=70"#),
                    ("ratelimit-policy", r#""hour";q=3;w=65"#),
                ],
                &[(5, 70)],
            ),
            // draft -07; a window is `limit;w=` there
            (&[("ratelimit", "limit=10, remaining=9, reset=4"), ("ratelimit-policy", "10;w=60")], &[(9, 4)]),
            (&[("ratelimit", "reset=4;x=1"), ("ratelimit", "remaining=9, also, limit=10")], &[(9, 4)]),
            // draft -06, as Kong has it
            (
                &[("ratelimit-limit", "10"), ("ratelimit-remaining", "9"), ("ratelimit-reset", "50")],
                &[(9, 50)],
            ),
            // GitLab
            (&[("ratelimit-remaining", "59"), ("ratelimit-reset", "1377010300")], &[(59, 59)]),
            // GitHub
            (
                &[
                    ("x-ratelimit-limit", "60"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "1377013266"),
                    ("x-ratelimit-resource", "core"),
                ],
                &[(0, 3_025)],
            ),
            // Reddit
            (&[("x-ratelimit-remaining", "599.0"), ("x-ratelimit-reset", "372")], &[(599, 372)]),
            // Brave
            (
                &[
                    ("x-ratelimit-limit", "1, 15000"),
                    ("x-ratelimit-policy", "1;w=1, 15000;w=2592000"),
                    ("x-ratelimit-remaining", "1, 1000"),
                    ("x-ratelimit-reset", "1, 1419704"),
                ],
                &[(1, 1), (1_000, 1_419_704)],
            ),
            (
                &[
                    ("x-ratelimit-remaining", "8"),
                    ("x-ratelimit-reset", "6"),
                    ("x-ratelimit-remaining", "7"),
                    ("x-ratelimit-reset", "5"),
                ],
                &[(7, 5), (8, 6)],
            ),
            // OpenAI's and Spring's don't say when more comes in a way that is known here.
            (&[("x-ratelimit-remaining-requests", "59"), ("x-ratelimit-reset-requests", "1s")], &[]),
            (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-burst-capacity", "4")], &[]),
        ];
        for (lines, expected) in cases {
            assert_eq!(read(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_malformed_field_is_ignored_as_a_whole() {
        let good = r#""a";r=1;t=2"#;
        assert_eq!(one("ratelimit", good), [(1, 2)]);
        let bad = r#"
            x,  ,x  x;  x=1  (x)  "x  1  ?1  @1  :YQ==:  %"a"  remaining=1,reset=1
            x;r=-1;t=2  x;r=1.0;t=2  x;r="1";t=2  x;r;t=2  x;r=?1;t=2  x;r=one;t=2  x;r=1234567890123456;t=2
            x;r=1;t=-2  x;r=1;t=2.5  x;r=1;t="2"  x;r=1;t  x;r=1;t=@2  x;t=-2
        "#;
        for bad in bad.split_whitespace() {
            for text in [format!("{bad},{good}"), format!("{good}, {bad}")] {
                assert_eq!(one("ratelimit", &text), [], "{text}");
            }
            assert_eq!(read(&[("ratelimit", good), ("ratelimit", bad)]), [], "{bad}");
        }
        // Without what is needed an item is passed over, and what isn't known is no harm.
        for text in ["x", "x;r=1", "x;t=2", "x;q=5;qu=\"bytes\";a=1.5;r=1", "x;remaining=1;reset=1"] {
            let text = format!("{text},{good}");
            assert_eq!(one("ratelimit", &text), [(1, 2)], "{text}");
        }

        let bad = r#"a;w=0  a;w=-1  a;w=1.0  a;w  a;w="6"  10;w=60  a;w=60,  a;w=60,("#;
        for text in bad.split_whitespace() {
            let lines = [("ratelimit", "a;r=1"), ("ratelimit-policy", text)];
            assert_eq!(read(&lines), [], "{text}");
            assert_eq!(read(&[lines[0], ("ratelimit-policy", "a;w=6"), lines[1]]), [], "{text}");
            assert_eq!(read(&[("ratelimit", good), lines[1]]), [(1, 2)], "{text}");
        }

        let bad = "
            remaining=1  reset=1  remaining=1,reset  remaining=1,reset=-1  remaining=1,reset=1.0
            remaining=1,reset=1,  remaining=1,reset=1;  remaining=1;reset=1  remaining=one,reset=1
            Remaining=1,reset=1  remaining=1,reset=1,x=(1)
        ";
        for text in bad.split_whitespace().chain(["remaining=1 reset=1", "remaining = 1, reset = 1"]) {
            assert_eq!(one("ratelimit", text), [], "{text}");
        }

        let bad =
            ["", "x", "-1", "+1", "1,", ",1", "1,2", "1 2", "1s", "1.", ".5", "1.5.5", "1e3", "0x1", "1,x"];
        for text in bad {
            assert_eq!(read(&[("ratelimit-remaining", text), ("ratelimit-reset", "1")]), [], "{text}");
            assert_eq!(read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", text)]), [], "{text}");
        }
    }

    #[test]
    fn what_is_not_ascii_is_malformed() {
        for name in ["ratelimit", "x-ratelimit-remaining"] {
            for bytes in ["ü;r=1;t=2".as_bytes(), b"\xff", b"\"\xfc\";r=1;t=2", "١".as_bytes()] {
                let lines = [(name, bytes), ("ratelimit", b"a;r=1;t=2"), ("x-ratelimit-reset", b"3")];
                let found = remaining(&headers(lines), || UNIX_EPOCH);
                let expected = if name == "ratelimit" { 0 } else { 1 };
                assert_eq!(found.as_slice().len(), expected, "{bytes:?}");
            }
        }
    }

    #[test]
    fn the_newest_form_that_is_valid_is_read() {
        let x = [("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "4")];
        let draft_6 = [("ratelimit-remaining", "3"), ("ratelimit-reset", "3")];
        let draft_7 = ("ratelimit", "limit=9, remaining=2, reset=2");
        let draft_10 = ("ratelimit", "x;r=1;t=1");
        assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1], draft_10]), [(1, 1)]);
        assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1], draft_7]), [(2, 2)]);
        assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1]]), [(3, 3)]);
        assert_eq!(read(&x), [(4, 4)]);

        // What can't be used makes way.
        for text in ["", "x;r=1", "x;t=1", "x;r=1;t=1,", "remaining=1"] {
            assert_eq!(read(&[x[0], x[1], ("ratelimit", text)]), [(4, 4)], "{text}");
        }
        assert_eq!(read(&[x[0], x[1], draft_6[0]]), [(4, 4)]);
        assert_eq!(read(&[x[0], x[1], draft_6[0], ("ratelimit-reset", "soon")]), [(4, 4)]);
    }

    #[test]
    fn a_caches_answer_says_nothing() {
        let cases = [("0", 1), ("000", 1), ("", 1), ("-1", 1), ("old", 1), ("1", 0), (" 60 ", 0)];
        for (age, expected) in cases {
            let forms: [Lines<'_>; 2] = [
                &[("ratelimit", "x;r=1;t=1"), ("age", age)],
                &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1"), ("age", age)],
            ];
            for lines in forms {
                assert_eq!(read(lines).len(), expected, "{lines:?}");
            }
        }
        assert_eq!(read(&[("ratelimit", "x;r=1;t=1"), ("age", "0"), ("age", "9999999999999999999999")]), []);
    }

    #[test]
    fn a_reset_is_seconds_or_a_moment() {
        let cases: [(&str, Option<u64>); 17] = [
            ("0", Some(0)),
            ("007", Some(7)),
            ("1.5", Some(2)),
            ("1.0", Some(1)),
            ("0.000000000000000000000000001", Some(1)),
            ("946080001", Some(LONGEST)),
            ("1000000000", Some(LONGEST)),
            ("1000000000.5", Some(0)),
            ("1000000001", Some(0)),
            ("1377010240", Some(0)),
            ("1377010241", Some(0)),
            ("1377010301.001", Some(61)),
            ("999999999999", Some(LONGEST)),
            ("999999999999.9", None),
            ("1377010301000", None),
            ("18446744073709551615.5", None),
            ("99999999999999999999999999999999999999999", None),
        ];
        for (text, expected) in cases {
            let found = read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", text)]);
            assert_eq!(found.first().map(|item| item.1), expected, "{text}");
        }
        let served = |date| {
            read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1377010301"), ("date", date)])[0].1
        };
        assert_eq!(served("Tue, 20 Aug 2013 14:50:51 GMT"), 50);
        assert_eq!(served("Tue, 20 Aug 2013 14:51:51 GMT"), 0);
        assert_eq!(served("Tuesday, 20-Aug-13 14:50:51 GMT"), 50);
        assert_eq!(served("Tue, 20 Aug 2013"), 60);
        // Our own clock has parts of a second.
        let lines = [("x-ratelimit-remaining", "1".as_bytes()), ("x-ratelimit-reset", b"1377010301")];
        let found = remaining(&headers(lines), || UNIX_EPOCH + Duration::from_millis(1_377_010_300_900));
        assert_eq!(found.as_slice()[0].more_in(), Duration::from_millis(100));
        let found = remaining(&headers(lines), || UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(found.as_slice()[0].more_in(), MAX_ASK);
    }

    #[test]
    fn large_numbers_are_capped() {
        let most = 999_999_999_999_999;
        assert_eq!(one("ratelimit", &format!("x;r={most};t={most}")), [(most, LONGEST)]);
        assert_eq!(one("ratelimit", &format!("remaining={most}, reset={most}")), [(most, LONGEST)]);
        let window = format!("x;w={most}");
        assert_eq!(read(&[("ratelimit", "x;r=1"), ("ratelimit-policy", &window)]), [(1, LONGEST)]);
        let left = "9".repeat(100);
        assert_eq!(read(&[("ratelimit-remaining", &left), ("ratelimit-reset", "1")]), [(u64::MAX, 1)]);
    }

    #[test]
    fn a_policy_is_its_name_and_its_partition() {
        let policies = |text: &str| -> Vec<u64> {
            let text = text.replace('|', ";r=1;t=1,") + ";r=1;t=1";
            list(&[("ratelimit", &text)]).into_iter().map(|item| item.policy()).collect()
        };
        // The test vector of FNV's authors.
        assert_eq!(policies("\"foobar\""), [0x8594_4171_f739_67e8]);
        let same = policies(r#""foobar"|foobar|foobar;q=7"#);
        assert!(same.iter().all(|policy| *policy == same[0]), "{same:?}");
        let mut differ = policies(r#"a|b|ab|a;pk=:b:|ab;pk=::|a;pk=:c:|"a:b:"|"""#);
        differ.sort_unstable();
        differ.dedup();
        assert_eq!(differ.len(), 8);

        let places = list(&[("ratelimit-remaining", "1, 1"), ("ratelimit-reset", "1, 1")]);
        let [first, second] = places.as_slice() else { panic!("{places:?}") };
        assert_ne!(first.policy(), second.policy());
    }

    #[test]
    fn of_a_thousand_members_the_least_are_kept() {
        let members: Vec<_> = (0..1_000).map(|left| format!("a;r={};t=1", (left * 7 + 5) % 1_000)).collect();
        let least: Vec<_> = (0..MAX_POLICIES as u64).map(|left| (left, 1)).collect();
        assert_eq!(one("ratelimit", &members.join(",")), least);
        let members: Vec<_> = members.iter().map(|member| ("ratelimit", member.as_str())).collect();
        assert_eq!(read(&members), least);

        // Of equals, those that take longest.
        let members: Vec<_> = (0..1_000).map(|more_in| format!("a;r=1;t={more_in}")).collect();
        let longest: Vec<_> = (0..MAX_POLICIES as u64).map(|place| (1, 999 - place)).collect();
        assert_eq!(one("ratelimit", &members.join(",")), longest);
    }

    /// Quadratic time would take minutes for these.
    #[test]
    fn large_fields_are_no_trouble() {
        let units =
            r#", ; " \ \" % a 0 0, 1.1, : a, "a", ;a ;a="b" a;r=1, a;r=1;t=1, a;w=1, a=1, remaining=1,"#;
        for unit in units.split(' ').chain([" ", "\t"]) {
            for (start, end) in
                [("", ""), ("", "1"), ("a", ";r=1"), ("\"", "\""), ("a;b=%\"", "\""), ("a;b=:", ":")]
            {
                let text = format!("{start}{}{end}", unit.repeat(65_536 / unit.len()));
                let value = HeaderValue::from_str(&text).unwrap();
                let fields = NAMES.map(|name| (HeaderName::from_static(name), value.clone()));
                assert!(
                    remaining(&HeaderMap::from_iter(fields), || UNIX_EPOCH).as_slice().len() <= MAX_POLICIES
                );
            }
        }
        let text: Vec<_> = (0..8_192).map(|name| format!("a{name};r=1;w=1")).collect();
        let text = text.join(",");
        assert_eq!(read(&[("ratelimit", &text), ("ratelimit-policy", &text)]), [(1, 1); MAX_POLICIES]);
    }

    #[derive(Debug, Clone)]
    struct Member {
        name: String,
        parameters: Vec<(&'static str, String)>,
        comma: &'static str,
    }

    impl Member {
        fn get(&self, key: &str) -> Option<&str> {
            self.parameters.iter().rfind(|(name, _)| *name == key).map(|(_, value)| value.as_str())
        }

        fn number(&self, key: &str) -> Option<u64> {
            self.get(key).map(|value| value.parse().unwrap())
        }
    }

    /// Members with all those parameters, some of them several times or not at all, and others of all types.
    fn members(numbers: &'static [&'static str]) -> impl Strategy<Value = Vec<Member>> {
        let quoted =
            "[ -~]{0,3}".prop_map(|text| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"")));
        let name = prop_oneof![quoted.clone(), "[a-c]".prop_map(|name| format!("\"{name}\"")), "[a-c]"];
        let number = (select(numbers), prop_oneof![1u64..4, 1u64..1_000_000_000_000_000])
            .prop_map(|(key, number)| (key, number.to_string()));
        let partition = "[a-zA-Z0-9+/]{0,4}".prop_map(|text| ("pk", format!(":{text}:")));
        let other = prop_oneof![
            quoted,
            "[a-zA-Z*][a-z!#:/]{0,5}",
            "-?[0-9]{1,15}",
            "-?[0-9]{1,12}\\.[0-9]{1,3}",
            "@-?[0-9]{1,15}",
            "\\?[01]",
            ":[a-zA-Z0-9+/]{0,4}:",
            "%\"([a-z,;]|%c3%bc){0,3}\"",
            Just(String::new()),
        ];
        let other = (select(vec!["q", "qu", "*x", "left"]), other);
        let parameters = prop::collection::vec(prop_oneof![4 => number, 1 => partition, 1 => other], 0..5);
        let comma = select(vec![",", ", ", " ,\t", "\n"]);
        let member = (name, parameters, comma).prop_map(|(name, parameters, comma)| Member {
            name,
            parameters,
            comma,
        });
        prop::collection::vec(member, 0..30)
    }

    /// The field lines of a List.
    fn format(members: &[Member]) -> Vec<String> {
        let mut text = String::new();
        for (place, member) in members.iter().enumerate() {
            text += if place == 0 { "" } else { member.comma };
            text += &member.name;
            for (key, value) in &member.parameters {
                text += if value.len() % 2 == 0 { ";" } else { ";  " };
                text += key;
                text += if value.is_empty() { "" } else { "=" };
                text += value;
            }
        }
        text.split('\n').map(str::to_owned).collect()
    }

    fn bare(name: &str) -> &str {
        name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn what_is_formatted_comes_back(items in members(&["r", "t"]), policies in members(&["w"])) {
            let (fields, policy_fields) = (format(&items), format(&policies));
            let lines = fields.iter().map(|line| ("ratelimit", line.as_bytes()));
            let lines = lines.chain(policy_fields.iter().map(|line| ("ratelimit-policy", line.as_bytes())));
            let found = remaining(&headers(lines), || panic!("no moment to read"));

            let window = |name: &str| {
                let same = policies.iter().filter(|policy| bare(&policy.name) == bare(name));
                same.filter_map(|policy| policy.number("w")).max()
            };
            let expected = items.iter().filter_map(|item| {
                let more_in = item.number("t").or_else(|| window(&item.name))?;
                let policy = policy(bare(&item.name), item.get("pk").map(str::as_bytes));
                Some((policy, item.number("r")?, Duration::from_secs(more_in).min(MAX_ASK)))
            });
            let mut expected: Vec<_> = expected.collect();
            expected.sort_by_key(|(_, left, more_in)| (*left, Reverse(*more_in)));
            expected.truncate(MAX_POLICIES);
            let found = found.into_iter().map(|item| (item.policy, item.left, item.more_in));
            prop_assert_eq!(found.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(32u8..=255, 0..60),
            near in "[a-c\"; ,=:?@%.rtw0-9\\\\-]{0,60}",
            items in members(&["r", "t", "w"]), cut in any::<prop::sample::Index>(), put in "[ -~]{0,2}",
            before: bool, seconds: u32,
        ) {
            let mut edited = format(&items).join(",");
            let cut = cut.index(edited.len() + 1);
            edited.replace_range(cut..(cut + put.len()).min(edited.len()), &put);
            let wall = Duration::from_secs(seconds.into());
            let wall = if before { UNIX_EPOCH - wall } else { UNIX_EPOCH + wall };
            for value in [bytes.as_slice(), near.as_bytes(), edited.as_bytes()] {
                let Ok(value) = HeaderValue::from_bytes(value) else { continue };
                for name in NAMES {
                    let mut headers = HeaderMap::new();
                    for (field, filler) in NAMES.iter().zip(["a;r=1", "a;w=1", "1", "1", "1", "1377010301"]) {
                        headers.insert(*field, HeaderValue::from_static(filler));
                    }
                    headers.insert(name, value.clone());
                    let found = remaining(&headers, || wall);
                    prop_assert!(found.into_iter().all(|item| item.more_in() <= MAX_ASK));
                    for field in NAMES {
                        headers.insert(field, value.clone());
                    }
                    let found = remaining(&headers, || wall);
                    prop_assert!(found.as_slice().is_sorted_by_key(Remaining::left));
                }
            }
        }
    }
}
