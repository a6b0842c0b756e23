use std::{fmt, io, ops::Range, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    time::Instant,
};
use tower_outbound::BoxError;

use super::WorkerConfig;

/// The running worker processes. Dropping this value kills the processes.
#[derive(Debug)]
pub(crate) struct Workers {
    children: Vec<Child>,
    /// The stdin of each worker. A worker ends when its stdin is closed, for example because this process was killed.
    inputs: Vec<ChildStdin>,
    incoming: mpsc::UnboundedReceiver<Event>,
    events: Vec<Event>,
}

/// A message from a worker, with the time when the message arrived.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) at: Instant,
    pub(crate) process: usize,
    pub(crate) message: Message,
}

/// A message that a worker writes to stdout as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Ready,
    /// The state of the limiter's connection to Redis has changed.
    State(String),
    /// The results of the worker's calls, sent when the worker stops.
    End {
        completed: u64,
        refused: u64,
        failed: u64,
        longest: Duration,
    },
    /// The end of the worker's stdout, which shows that the process has ended.
    Exited,
}

/// The timeout for the start or the end of a worker. Even a busy machine needs less time.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Workers {
    /// Starts `count` workers with `command`. The workers send no requests before [`go`](Self::go) is called.
    pub(crate) async fn start(
        count: usize,
        config: &WorkerConfig,
        command: impl Fn() -> Result<Command, BoxError>,
    ) -> Result<Self, BoxError> {
        let (sender, incoming) = mpsc::unbounded_channel();
        let mut workers = Self { children: Vec::new(), inputs: Vec::new(), incoming, events: Vec::new() };
        for number in 0..count {
            let mut command = command()?;
            config.pass_to(number, &mut command);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let mut child = command.spawn()?;
            let (stdin, stdout) = child
                .stdin
                .take()
                .zip(child.stdout.take())
                .ok_or("the worker process has no pipe for stdin or stdout")?;
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                let forward = |message| sender.send(Event { at: Instant::now(), process: number, message });
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Some(message) = Message::parse(&line) {
                        let _ = forward(message);
                    }
                }
                let _ = forward(Message::Exited);
            });
            workers.children.push(child);
            workers.inputs.push(stdin);
        }
        workers.wait_for_all(|message| *message == Message::Ready).await?;
        Ok(workers)
    }

    /// Lets the workers send requests.
    pub(crate) async fn go(&mut self) -> io::Result<()> {
        for input in &mut self.inputs {
            input.write_all(b"go\n").await?;
        }
        Ok(())
    }

    /// Stops the workers and returns all their events. The events of a killed worker contain no [`Message::End`].
    pub(crate) async fn stop(mut self) -> Result<Vec<Event>, BoxError> {
        for input in &mut self.inputs {
            let _ = input.write_all(b"stop\n").await;
        }
        self.wait_for_all(|message| matches!(message, Message::End { .. } | Message::Exited)).await?;
        Ok(self.events)
    }

    /// Returns the last state that each worker reported.
    pub(crate) fn states(&mut self) -> Vec<String> {
        self.drain();
        let mut states = vec!["starting".to_owned(); self.children.len()];
        for event in &self.events {
            if let Message::State(state) = &event.message {
                states[event.process].clone_from(state);
            }
        }
        states
    }

    pub(crate) async fn kill(&mut self, number: usize) -> io::Result<()> {
        self.children[number].kill().await
    }

    /// Waits until every worker has sent a matching message. Returns an error if a worker ends without such a message.
    async fn wait_for_all(&mut self, matches: impl Fn(&Message) -> bool) -> Result<(), BoxError> {
        let end = Instant::now() + TIMEOUT;
        let mut missing: Vec<_> = (0..self.children.len()).collect();
        self.drain();
        let received = std::mem::take(&mut self.events);
        for event in received {
            self.store(event, &matches, &mut missing);
        }
        while !missing.is_empty() {
            let event = tokio::time::timeout_at(end, self.incoming.recv());
            let event = event
                .await
                .map_err(|_| format!("no message from the worker processes {missing:?} in {TIMEOUT:?}"))?;
            let Some(event) = event else { break };
            let exited = event.message == Message::Exited && !matches(&Message::Exited);
            let number = event.process;
            self.store(event, &matches, &mut missing);
            if exited && missing.contains(&number) {
                return Err(format!("the worker process {number} has ended early").into());
            }
        }
        Ok(())
    }

    fn store(&mut self, event: Event, matches: impl Fn(&Message) -> bool, missing: &mut Vec<usize>) {
        if matches(&event.message) {
            missing.retain(|number| *number != event.process);
        }
        self.events.push(event);
    }

    /// Stores the events that have arrived so far.
    fn drain(&mut self) {
        while let Ok(event) = self.incoming.try_recv() {
            self.events.push(event);
        }
    }
}

/// Returns when the process first reported the state within the given interval.
pub(crate) fn first_seen(
    events: &[Event],
    process: usize,
    state: &str,
    time: Range<Instant>,
) -> Option<Instant> {
    let state = Message::State(state.to_owned());
    let mut events = events.iter().filter(|event| event.process == process && event.message == state);
    events.find(|event| time.contains(&event.at)).map(|event| event.at)
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("@ready"),
            Self::State(state) => write!(f, "@state {state}"),
            Self::End { completed, refused, failed, longest } => {
                write!(f, "@end {completed} {refused} {failed} {}", longest.as_micros())
            }
            Self::Exited => f.write_str("@exited"),
        }
    }
}

impl Message {
    /// Parses a message. Returns `None` for other output, such as the lines of the test harness.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.strip_prefix('@')?.split(' ').collect();
        match fields[..] {
            ["ready"] => Some(Self::Ready),
            ["state", state] => Some(Self::State(state.to_owned())),
            ["end", completed, refused, failed, longest] => Some(Self::End {
                completed: completed.parse().ok()?,
                refused: refused.parse().ok()?,
                failed: failed.parse().ok()?,
                longest: Duration::from_micros(longest.parse().ok()?),
            }),
            _ => None,
        }
    }
}
