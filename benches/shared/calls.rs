//! Calls to a service, one after another: nanoseconds and allocations, the rows in turns.

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

use super::{BoxError, Column, Table, median, now};

/// Answers at once, whatever the body.
#[derive(Debug, Clone)]
pub struct Answers;

impl<B> Service<Request<B>> for Answers {
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

/// What every row is asked.
pub fn get() -> Result<Request<Empty<Bytes>>, http::Error> {
    // A caller's request is seldom bare: one header, so that the map is there.
    Request::get("https://api.example.com/v1/resources")
        .header("accept", "application/json")
        .body(Empty::new())
}

/// Makes so many calls.
type Work = Box<dyn FnMut(usize) -> Result<(), BoxError>>;

/// A service that is called.
pub struct Call {
    name: &'static str,
    peer: Option<&'static str>,
    work: Work,
    /// Nanoseconds a call, by round.
    rounds: Vec<f64>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Call {
    /// Polled once for readiness and once for the answer: it must not wait.
    pub fn new<S, R, E>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = E> + 'static,
        E: Into<BoxError>,
    {
        let work = move |calls| (0..calls).try_for_each(|_| call(&mut service));
        Self { name, peer: None, work: Box::new(work), rounds: Vec::new() }
    }

    /// Awaited on the runtime, which is entered once for all calls of a round: for what needs another task to answer.
    pub fn awaited<S, R, E>(name: &'static str, runtime: &Rc<Runtime>, mut service: S) -> Self
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = E> + 'static,
        E: Into<BoxError>,
    {
        let runtime = Rc::clone(runtime);
        let work = move |calls| {
            runtime.block_on(async {
                for _ in 0..calls {
                    let ready = service.ready().await.map_err(Into::into)?;
                    succeeded(ready.call(get()?).await)?;
                }
                Ok(())
            })
        };
        Self { name, peer: None, work: Box::new(work), rounds: Vec::new() }
    }

    /// With the row of the name `peer`, which does the same work.
    pub fn beside(self, peer: &'static str) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// On the runtime's clock.
    pub fn on(mut self, runtime: &Rc<Runtime>) -> Self {
        let runtime = Rc::clone(runtime);
        let work = move |calls| {
            let _entered = runtime.enter();
            (self.work)(calls)
        };
        Self { work: Box::new(work), ..self }
    }

    fn round(&mut self, calls: usize) -> Result<f64, BoxError> {
        let start = now();
        (self.work)(calls).map_err(|error| format!("{}: {error}", self.name))?;
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    }

    /// Allocations and bytes a call.
    fn heap(&mut self) -> Result<(f64, f64), BoxError> {
        let mut outcome = Ok(());
        let heap = allocation_counter::measure(|| outcome = (self.work)(1_000));
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
        return Err("the service was not ready".into());
    }
    match pin!(service.call(get()?)).poll(cx) {
        Poll::Ready(response) => succeeded(response),
        Poll::Pending => Err("the call had to wait".into()),
    }
}

fn succeeded<R>(response: Result<Response<R>, impl Into<BoxError>>) -> Result<(), BoxError> {
    let response = response.map_err(Into::into)?;
    if black_box(&response).status() != StatusCode::OK {
        return Err("the call failed in the end".into());
    }
    Ok(())
}

/// How often, and how long a turn is.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// The turns of each row.
    pub rounds: usize,
    /// Of each row in a round.
    pub calls: usize,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "medians of {} rounds of {} calls, turn by turn", self.rounds, self.calls)
    }
}

/// What the ratio to the peer is of.
#[derive(Debug, Clone, Copy)]
pub enum Ratio {
    /// The whole call.
    Call,
    /// What comes on top of the bare service.
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

/// Measures the rows turn by turn, against the first, which is bare. A difference or a ratio is the median of the
/// rounds' own.
pub fn compare_calls(
    id: &'static str,
    title: &str,
    ratio: Ratio,
    mut rows: Vec<Call>,
    settings: Calls,
) -> Result<Table, BoxError> {
    for round in 0..=settings.rounds {
        for row in &mut rows {
            let nanos = row.round(settings.calls)?;
            // The first round warms up.
            if round > 0 {
                row.rounds.push(nanos);
            }
        }
    }
    let heaps = rows.iter_mut().map(Call::heap).collect::<Result<Vec<_>, _>>()?;

    let columns = [
        Column::new("a call", "ns", 0),
        Column::new("over bare", "ns", 0).plotted(),
        Column::new("× bare", "", 2),
        Column::new("× peer", "", 2),
        Column::new("allocations over bare", "", 1).plotted(),
        Column::new("bytes over bare", "", 0),
    ];
    let mut table = Table::new(id, title, columns);
    let Some((bare, least)) = rows.first().map(|row| &row.rounds).zip(heaps.first()) else {
        return Ok(table);
    };
    for (row, heap) in rows.iter().zip(&heaps) {
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
            Some(heap.0 - least.0),
            Some(heap.1 - least.1),
        ];
        table.row(row.name, values);
    }
    Ok(table)
}
