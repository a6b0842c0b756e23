use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{Body, BoxError, Report};
use tower_outbound_examples::chain;

use crate::targets::Target;

/// A call that has ended.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) number: usize,
    pub(crate) method: Method,
    pub(crate) took: Duration,
    pub(crate) report: Option<Report>,
    /// The answer's status, or why there was none.
    pub(crate) result: Result<StatusCode, String>,
}

impl Call {
    pub(crate) fn failed(&self) -> bool {
        !matches!(self.result, Ok(status) if status.is_success())
    }
}

/// Calls all targets concurrently, each from several tasks, and stores the calls in their target.
pub(crate) async fn run(targets: &[Arc<Target>]) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for target in targets {
        for _ in 0..target.load.tasks {
            let target = Arc::clone(target);
            tasks.spawn(async move { work(&target).await });
        }
    }
    while let Some(worked) = tasks.join_next().await {
        worked?;
    }
    Ok(())
}

async fn work(target: &Target) {
    let until = Instant::now() + target.load.lasting;
    while Instant::now() < until {
        let Some(number) = target.next() else { break };
        target.finish(call(target, number).await);
        tokio::time::sleep(target.load.pause).await;
    }
}

async fn call(target: &Target, number: usize) -> Call {
    let post = target.load.posts.is_some_and(|posts| number % posts == 0);
    let path = match target.stand_in {
        Some(_) => format!("{}{}", target.path, query(number)),
        None => target.path.clone(),
    };
    let started = Instant::now();
    let (method, answer) = if post {
        (Method::POST, target.client.post(&path, format!(r#"{{"number":{number}}}"#)).await)
    } else {
        (Method::GET, target.client.get(&path).await)
    };
    let (report, result) = match answer {
        Ok(response) => {
            let (head, body) = response.into_parts();
            (head.extensions.get().cloned(), read(body).await.map(|()| head.status))
        }
        Err(error) => (error.report().cloned(), Err(chain(&error))),
    };
    Call { number, method, took: started.elapsed(), report, result }
}

/// To the end, or its connection could not be used again.
async fn read(body: Body) -> Result<(), String> {
    const LIMIT: usize = 1024 * 1024;
    body.collect(LIMIT).await.map(drop).map_err(|error| chain(&*error))
}

/// Tells the stand-in which call a request belongs to by something else than the request id, which is to be
/// checked.
pub(crate) fn query(number: usize) -> String {
    format!("?call={number}")
}
