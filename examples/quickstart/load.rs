use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{Body, BoxError, Report};
use tower_outbound_examples::chain;

use crate::targets::Target;

/// A finished call, with its response or error.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) number: usize,
    pub(crate) method: Method,
    pub(crate) took: Duration,
    pub(crate) report: Option<Report>,
    /// The status of the response, or the error.
    pub(crate) result: Result<StatusCode, String>,
}

impl Call {
    pub(crate) fn failed(&self) -> bool {
        !matches!(self.result, Ok(status) if status.is_success())
    }
}

/// Calls all targets concurrently, each from several tasks. Each target records its calls.
pub(crate) async fn run(targets: &[Arc<Target>]) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for target in targets {
        for _ in 0..target.load.tasks {
            let target = Arc::clone(target);
            tasks.spawn(async move { call_repeatedly(&target).await });
        }
    }
    while let Some(joined) = tasks.join_next().await {
        joined?;
    }
    Ok(())
}

async fn call_repeatedly(target: &Target) {
    let end = Instant::now() + target.load.duration;
    while Instant::now() < end {
        let Some(number) = target.next() else { break };
        target.finish(call(target, number).await);
        tokio::time::sleep(target.load.pause).await;
    }
}

async fn call(target: &Target, number: usize) -> Call {
    let post = target.load.post_every.is_some_and(|every| number % every == 0);
    let path = match target.mock {
        Some(_) => format!("{}{}", target.path, query(number)),
        None => target.path.clone(),
    };
    let started = Instant::now();
    let (method, response) = if post {
        (Method::POST, target.client.post(&path).body(format!(r#"{{"number":{number}}}"#)).await)
    } else {
        (Method::GET, target.client.get(&path).await)
    };
    let (report, result) = match response {
        Ok(response) => {
            let (report, status) = (response.report().cloned(), response.status());
            (report, read(response.into_body()).await.map(|()| status))
        }
        Err(error) => (error.report().cloned(), Err(chain(&error))),
    };
    Call { number, method, took: started.elapsed(), report, result }
}

/// Reads the response body to its end, so that the connection pool can reuse the connection.
async fn read(body: Body) -> Result<(), String> {
    const LIMIT: usize = 1024 * 1024;
    body.bytes_up_to(LIMIT).await.map(drop).map_err(|error| chain(&*error))
}

/// Returns the URL query that identifies the call at the mock server.
///
/// The program finds the requests of a call by this query, and then checks their request ids. The request ids therefore
/// cannot identify the call.
pub(crate) fn query(number: usize) -> String {
    format!("?call={number}")
}
