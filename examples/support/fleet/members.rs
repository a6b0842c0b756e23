use std::{fmt, io, ops::Range, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    time::Instant,
};
use tower_outbound::BoxError;

use super::Job;

/// The processes of a fleet. They end with this.
#[derive(Debug)]
pub(crate) struct Members {
    children: Vec<Child>,
    /// Closed, too, when this process ends in any other way, and with it the child.
    orders: Vec<ChildStdin>,
    coming: mpsc::UnboundedReceiver<Event>,
    events: Vec<Event>,
}

/// One of them has said something.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) at: Instant,
    pub(crate) process: usize,
    pub(crate) said: Said,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Ready,
    /// How its limiter stands with Redis now.
    State(String),
    End {
        answered: u64,
        refused: u64,
        failed: u64,
        longest: Duration,
    },
    /// It has ended.
    Gone,
}

/// Longer than a busy machine takes to start a process, or to end one.
const PATIENCE: Duration = Duration::from_secs(20);

impl Members {
    /// So many, made by `command`, which all wait for [`go`](Self::go).
    pub(crate) async fn start(
        count: usize,
        job: &Job,
        command: impl Fn() -> Result<Command, BoxError>,
    ) -> Result<Self, BoxError> {
        let (sender, coming) = mpsc::unbounded_channel();
        let mut members = Self { children: Vec::new(), orders: Vec::new(), coming, events: Vec::new() };
        for number in 0..count {
            let mut command = command()?;
            job.give(number, &mut command);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let mut child = command.spawn()?;
            let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                let note = |said| sender.send(Event { at: Instant::now(), process: number, said });
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Some(said) = Said::read(&line) {
                        let _ = note(said);
                    }
                }
                let _ = note(Said::Gone);
            });
            members.children.push(child);
            members.orders.push(stdin);
        }
        members.all(|said| *said == Said::Ready).await?;
        Ok(members)
    }

    pub(crate) async fn go(&mut self) -> io::Result<()> {
        for orders in &mut self.orders {
            orders.write_all(b"go\n").await?;
        }
        Ok(())
    }

    /// What each has said in the end: that of one which was killed is missing.
    pub(crate) async fn stop(mut self) -> Result<Vec<Event>, BoxError> {
        for orders in &mut self.orders {
            let _ = orders.write_all(b"stop\n").await;
        }
        self.all(|said| matches!(said, Said::End { .. } | Said::Gone)).await?;
        Ok(self.events)
    }

    /// The state that each has named last.
    pub(crate) fn states(&mut self) -> Vec<String> {
        self.catch_up();
        let mut states = vec!["starting".to_owned(); self.children.len()];
        for event in &self.events {
            if let Said::State(state) = &event.said {
                states[event.process].clone_from(state);
            }
        }
        states
    }

    pub(crate) async fn kill(&mut self, number: usize) -> io::Result<()> {
        self.children[number].kill().await
    }

    /// Until each has said so, or is gone.
    async fn all(&mut self, so: impl Fn(&Said) -> bool) -> Result<(), BoxError> {
        let end = Instant::now() + PATIENCE;
        let mut missing: Vec<_> = (0..self.children.len()).collect();
        self.catch_up();
        let before = std::mem::take(&mut self.events);
        for event in before {
            self.take(event, &so, &mut missing);
        }
        while !missing.is_empty() {
            let event = tokio::time::timeout_at(end, self.coming.recv());
            let event =
                event.await.map_err(|_| format!("process {missing:?} says nothing after {PATIENCE:?}"))?;
            let Some(event) = event else { break };
            let gone = event.said == Said::Gone && !so(&Said::Gone);
            let number = event.process;
            self.take(event, &so, &mut missing);
            if gone && missing.contains(&number) {
                return Err(format!("process {number} has ended").into());
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event, so: impl Fn(&Said) -> bool, missing: &mut Vec<usize>) {
        if so(&event.said) {
            missing.retain(|number| *number != event.process);
        }
        self.events.push(event);
    }

    fn catch_up(&mut self) {
        while let Ok(event) = self.coming.try_recv() {
            self.events.push(event);
        }
    }
}

/// When that process first named that state, in this time.
pub(crate) fn saw(events: &[Event], process: usize, state: &str, time: Range<Instant>) -> Option<Instant> {
    let state = Said::State(state.to_owned());
    let mut events = events.iter().filter(|event| event.process == process && event.said == state);
    events.find(|event| time.contains(&event.at)).map(|event| event.at)
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("@ready"),
            Self::State(state) => write!(f, "@state {state}"),
            Self::End { answered, refused, failed, longest } => {
                write!(f, "@end {answered} {refused} {failed} {}", longest.as_micros())
            }
            Self::Gone => f.write_str("@gone"),
        }
    }
}

impl Said {
    /// None when it is somebody else's line.
    fn read(line: &str) -> Option<Self> {
        let words: Vec<_> = line.strip_prefix('@')?.split(' ').collect();
        match words[..] {
            ["ready"] => Some(Self::Ready),
            ["state", state] => Some(Self::State(state.to_owned())),
            ["end", answered, refused, failed, longest] => Some(Self::End {
                answered: answered.parse().ok()?,
                refused: refused.parse().ok()?,
                failed: failed.parse().ok()?,
                longest: Duration::from_micros(longest.parse().ok()?),
            }),
            _ => None,
        }
    }
}
