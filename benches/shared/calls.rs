//! Measures sequential calls to services, in nanoseconds and allocations per call. The rows of a table are measured in
//! turn.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::runtime::Runtime;
use tower::{Service, ServiceExt};

use super::{BoxError, Column, Table, median, now, progress};

/// Responds to every request with 200 immediately.
#[derive(Debug, Clone)]
pub struct OkService;

impl<B> Service<Request<B>> for OkService {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Empty::new())))
    }
}

/// Builds the request that every measured call sends.
pub fn get() -> Result<Request<Empty<Bytes>>, http::Error> {
    // The request has one header, because the header map allocates with its first header. Real requests have headers,
    // too.
    Request::get("https://api.example.com/v1/resources")
        .header("accept", "application/json")
        .body(Empty::new())
}

/// Makes the given number of calls to the service.
type MakeCalls = Box<dyn FnMut(usize) -> Result<(), BoxError>>;

/// A service to measure, which is one row of the table.
pub struct ServiceRow {
    name: &'static str,
    peer: Option<&'static str>,
    make_calls: MakeCalls,
    /// The nanoseconds per call, with one value for each round.
    rounds: Vec<f64>,
}

impl fmt::Debug for ServiceRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceRow").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ServiceRow {
    /// Creates a row for a service that is ready immediately and responds at the first poll. A pending poll is an
    /// error.
    pub fn new<S, R, E>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = E> + 'static,
        E: Into<BoxError>,
    {
        let make_calls = move |calls| (0..calls).try_for_each(|_| call(&mut service));
        Self { name, peer: None, make_calls: Box::new(make_calls), rounds: Vec::new() }
    }

    /// Creates a row for a service whose response depends on another task. All calls of a round run in one `block_on`.
    pub fn awaited<S, R, E>(name: &'static str, runtime: &Rc<Runtime>, mut service: S) -> Self
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = E> + 'static,
        E: Into<BoxError>,
    {
        let runtime = Rc::clone(runtime);
        let make_calls = move |calls| {
            runtime.block_on(async {
                for _ in 0..calls {
                    let ready = service.ready().await.map_err(Into::into)?;
                    check(ready.call(get()?).await)?;
                }
                Ok(())
            })
        };
        Self { name, peer: None, make_calls: Box::new(make_calls), rounds: Vec::new() }
    }

    /// Also compares this row with the row named `peer`, which does the same work.
    pub fn compared_with(self, peer: &'static str) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// Enters `runtime` while the row is measured, so that the service uses the runtime's clock.
    pub fn on(mut self, runtime: &Rc<Runtime>) -> Self {
        let runtime = Rc::clone(runtime);
        let make_calls = move |calls| {
            let _entered = runtime.enter();
            (self.make_calls)(calls)
        };
        Self { make_calls: Box::new(make_calls), ..self }
    }

    fn round(&mut self, calls: usize) -> Result<f64, BoxError> {
        let start = now();
        (self.make_calls)(calls).map_err(|error| format!("{}: {error}", self.name))?;
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    }

    /// Returns the allocations and bytes per call.
    fn allocations(&mut self) -> Result<(f64, f64), BoxError> {
        let mut outcome = Ok(());
        let heap = allocation_counter::measure(|| outcome = (self.make_calls)(1_000));
        outcome?;
        Ok((heap.count_total as f64 / 1e3, heap.bytes_total as f64 / 1e3))
    }
}

fn call<S, R, E>(service: &mut S) -> Result<(), BoxError>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = E>,
    E: Into<BoxError>,
{
    let cx = &mut Context::from_waker(Waker::noop());
    let ready = service.poll_ready(cx).map_err(Into::into)?;
    if ready.is_pending() {
        return Err("the measured service was not ready".into());
    }
    match pin!(service.call(get()?)).poll(cx) {
        Poll::Ready(response) => check(response),
        Poll::Pending => Err("the measured call was pending at its first poll".into()),
    }
}

fn check<R>(response: Result<Response<R>, impl Into<BoxError>>) -> Result<(), BoxError> {
    let response = response.map_err(Into::into)?;
    if black_box(&response).status() != StatusCode::OK {
        return Err("the measured call failed".into());
    }
    Ok(())
}

/// The numbers of rounds and calls.
#[derive(Debug, Clone, Copy)]
pub struct CallSettings {
    /// The number of measured rounds.
    pub rounds: usize,
    /// The number of calls of each row per round.
    pub calls: usize,
}

impl fmt::Display for CallSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "medians of {} rounds of {} calls, rows interleaved", self.rounds, self.calls)
    }
}

/// Selects the durations whose ratio compares a row with its peer.
#[derive(Debug, Clone, Copy)]
pub enum Ratio {
    /// The ratio compares the duration of the whole call.
    Call,
    /// The ratio compares the overhead: the duration of the call minus the duration of a call of the bare service.
    OverBare,
}

impl Ratio {
    fn of(self, own: f64, peer: f64, bare: f64) -> f64 {
        match self {
            Self::Call => own / peer,
            Self::OverBare => (own - bare) / (peer - bare),
        }
    }
}

/// Measures the rows in turn, and compares each with the first row, the bare service.
///
/// Differences and ratios are computed within each round. The table shows their medians.
pub fn compare_calls(
    id: &'static str,
    title: &str,
    ratio: Ratio,
    mut rows: Vec<ServiceRow>,
    settings: CallSettings,
) -> Result<Table, BoxError> {
    for round in 0..=settings.rounds {
        progress(format_args!("{title}: round {round} of {}", settings.rounds));
        for row in &mut rows {
            let nanos = row.round(settings.calls)?;
            // The first round only warms up and is not measured.
            if round > 0 {
                row.rounds.push(nanos);
            }
        }
    }
    let allocations = rows.iter_mut().map(ServiceRow::allocations).collect::<Result<Vec<_>, _>>()?;

    let columns = [
        Column::new("per call", "ns", 0),
        Column::new("over bare service", "ns", 0).plotted(),
        Column::new("× bare service", "", 2),
        Column::new("× peer", "", 2),
        Column::new("allocations over bare service", "", 1).plotted(),
        Column::new("bytes over bare service", "", 0),
    ];
    let mut table = Table::new(id, title, columns);
    let Some((bare, bare_heap)) = rows.first().map(|row| &row.rounds).zip(allocations.first()) else {
        return Ok(table);
    };
    for (row, heap) in rows.iter().zip(&allocations) {
        let rounds = || row.rounds.iter().zip(bare);
        let peer = rows.iter().find(|other| Some(other.name) == row.peer);
        let peer = peer.map(|peer| {
            let ratios = rounds().zip(&peer.rounds).map(|((own, bare), peer)| ratio.of(*own, *peer, *bare));
            median(ratios.collect())
        });
        let values = vec![
            Some(median(row.rounds.clone())),
            Some(median(rounds().map(|(own, bare)| own - bare).collect())),
            Some(median(rounds().map(|(own, bare)| own / bare).collect())),
            peer,
            Some(heap.0 - bare_heap.0),
            Some(heap.1 - bare_heap.1),
        ];
        table.row(row.name, values);
    }
    Ok(table)
}
