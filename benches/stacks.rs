//! What a call pays for a whole stack over a service that does nothing: this crate's preset beside what is built of
//! tower's, tower-http's and tower-resilience's layers.
//!
//! `cargo bench -p tower-outbound-peers --bench stacks` prints nanoseconds and allocations a call, as
//! `benches/overhead` does for each layer; every row is awaited on one runtime of one thread. After `--`:
//!
//! - `--quick` runs few rounds, to see that it works;
//! - `--only SECTION` runs one of `stacks`, `stacks-info`;
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` write the figures, a plot and the tables as well, see README.md.
//!
//! The peers' stacks have an id, a log, a limit, a retry and a key; ours has two timeouts, a report and what the server
//! says of its limits besides. "× peer" is of what comes over the bare service: ours to theirs.

use std::{rc::Rc, time::Duration};

use tokio::runtime::Runtime;
use tower::Layer;
use tower_outbound::{ApiKey, Quota, stack::StackBuilder};
use tower_outbound_peers::{
    Answers, Arguments, BoxError, Call, Calls, Ratio, Report, at_info, compare_calls, runtime,
    tower_buffered, tower_outside, tower_resilience,
};

const OUTSIDE: &str = "tower-http + tower (retries not limited)";
const BUFFERED: &str = "tower-http + tower, Buffer + RateLimit inside retry";
const RESILIENCE: &str = "tower-http + tower-resilience";

fn rows(runtime: &Rc<Runtime>) -> Result<Vec<Call>, BoxError> {
    let quota =
        Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin();
    let preset = StackBuilder::new("https://api.example.com")?
        .with_name("bench")
        .with_api_key(ApiKey::new("s3cret")?)
        .with_quota(quota)
        .layer()?;
    // For the worker behind the Buffer.
    let _entered = runtime.enter();
    let ours = |name| Call::awaited(name, runtime, preset.layer(Answers));
    Ok(vec![
        Call::awaited("bare service", runtime, Answers),
        Call::awaited(OUTSIDE, runtime, tower_outside(Answers)),
        Call::awaited(BUFFERED, runtime, tower_buffered(Answers)),
        Call::awaited(RESILIENCE, runtime, tower_resilience(Answers)?),
        ours("tower-outbound full preset stack").beside(OUTSIDE),
    ])
}

fn main() -> Result<(), BoxError> {
    let arguments = Arguments::parse(&["stacks", "stacks-info"])?;
    let settings = arguments.pick(Calls { rounds: 101, calls: 5_000 }, Calls { rounds: 5, calls: 1_000 });
    let mut report = Report::new("stacks", &format!("one thread; {settings}"));
    let runtime = Rc::new(runtime(1)?);
    let compare = |id, title| compare_calls(id, title, Ratio::OverBare, rows(&runtime)?, settings);

    if arguments.wants("stacks") {
        report.add(compare("stacks", "A call that succeeds, no subscriber")?);
    }
    if arguments.wants("stacks-info") {
        report.add(at_info(|| compare("stacks-info", "A call that succeeds, INFO to a sink"))?);
    }
    report.write(&arguments)
}
