//! The stream: read ahead by a bounded number of lines, handled by several workers, settled in the order of the lines.
//!
//! **Which of two contradicting deliveries came first stays decided**, although workers run at once: all deliveries of
//! one identity go to one worker, in the order of their lines, and a worker that fails does nothing more. So the second
//! never runs before the first is settled, however far apart they are, and in whichever run: after a crash the stream
//! is read again from its start, and meets the first one first. The bound on reading ahead keeps the memory small.
//! (Were deliveries given to any free worker instead, only the bound would decide: two that are further apart than it
//! never run at once.)
//!
//! A crash needs no care here. What was committed is replayed by the next run, what was not is run by it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idem_runtime::Error;
use tokio::fs::File;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::booking::BookingError;
use crate::database::Database;
use crate::event::{Delivery, Refused};
use crate::report::{Progress, Tally};

/// The stream that comes with the program.
const BUNDLED: &[u8] = include_bytes!("../deliveries.jsonl");

/// So many lines may be read and not settled.
const READ_AHEAD: usize = 300;

/// A longer line is no event.
const MAX_LINE: usize = 1 << 20;

/// How long a delivery is tried again while the database is away. A program that runs for ever would go on trying.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two tries; doubled after each.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// What became of a delivery.
#[derive(Debug)]
enum Verdict {
    Applied,
    Replayed,
    Mismatched(Error),
    Refused(Refused),
}

/// Its line has been read; the verdict comes later.
struct Pending {
    line: u64,
    /// Where the line ends.
    bytes: u64,
    verdict: oneshot::Receiver<anyhow::Result<Verdict>>,
}

/// What a worker gets.
struct Job {
    delivery: Delivery,
    verdict: oneshot::Sender<anyhow::Result<Verdict>>,
}

/// A stream that has been opened.
pub(crate) struct Stream {
    lines: Lines<Box<dyn AsyncBufRead + Unpin>>,
    bytes: Option<u64>,
}

impl Stream {
    /// The file, `-` for standard input, or what comes with the program.
    pub(crate) async fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let (input, bytes): (Box<dyn AsyncBufRead + Unpin>, _) = match file {
            None => (Box::new(BUNDLED), Some(BUNDLED.len() as u64)),
            Some(path) if path == Path::new("-") => (Box::new(BufReader::new(tokio::io::stdin())), None),
            Some(path) => {
                let file = File::open(path).await.with_context(|| format!("opening {}", path.display()))?;
                let metadata = file.metadata().await?;
                (Box::new(BufReader::new(file)), metadata.is_file().then_some(metadata.len()))
            }
        };
        Ok(Self { lines: Lines::new(input), bytes })
    }

    /// How long it is, if that is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Books every event of the stream.
    ///
    /// Ends early only if a delivery can be neither handled nor refused. It is not skipped: the next run begins with it.
    pub(crate) async fn book(
        mut self,
        database: &Database,
        workers: u16,
        progress: &Progress,
    ) -> anyhow::Result<Tally> {
        // Dropped on return, which cancels what still runs; a cancelled run is rolled back.
        let mut tasks = JoinSet::new();
        let lanes = Vec::from_iter((0..workers).map(|_| {
            let (lane, jobs) = mpsc::unbounded_channel(); // READ_AHEAD bounds it.
            tasks.spawn(work(database.clone(), jobs));
            lane
        }));

        let mut tally = Tally::default();
        let mut window: VecDeque<Pending> = VecDeque::new();
        let mut at_end = false;
        while !(at_end && window.is_empty()) {
            let (may_read, oldest) = (!at_end && window.len() < READ_AHEAD, window.front_mut());
            tokio::select! {
                biased;
                verdict = settled(oldest) => {
                    let Some(Pending { line, bytes, .. }) = window.pop_front() else { continue };
                    let verdict = verdict.with_context(|| format!("line {line}"))?;
                    count(&mut tally, line, verdict, progress);
                    progress.settled(bytes, &tally);
                }
                line = self.lines.next(), if may_read => {
                    let read = line.with_context(|| format!("reading line {}", self.lines.number + 1))?;
                    let Some(content) = read else { at_end = true; continue };
                    let (verdict, receiver) = oneshot::channel();
                    window.push_back(Pending {
                        line: self.lines.number,
                        bytes: self.lines.bytes,
                        verdict: receiver,
                    });
                    // A receiver that has gone belongs to a worker that has failed, and its verdict ends the loop.
                    match parse(content) {
                        Ok(delivery) => {
                            let lane = &lanes[lane_of(&delivery, lanes.len())];
                            _ = lane.send(Job { delivery, verdict });
                        }
                        Err(refused) => _ = verdict.send(Ok(Verdict::Refused(refused))),
                    }
                }
            }
        }
        Ok(tally)
    }
}

/// The verdict on the oldest line; never, where there is none.
async fn settled(oldest: Option<&mut Pending>) -> anyhow::Result<Verdict> {
    match oldest {
        Some(pending) => (&mut pending.verdict).await.context("its worker has ended")?,
        None => std::future::pending().await,
    }
}

fn parse(content: Line) -> Result<Delivery, Refused> {
    match content {
        Line::Whole(bytes) => Delivery::parse(&bytes),
        Line::TooLong => Err(Refused::Invalid(format!("longer than {MAX_LINE} bytes"))),
    }
}

/// The same for all deliveries of one identity.
fn lane_of(delivery: &Delivery, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (delivery.source.get(), &delivery.event.id).hash(&mut hasher);
    (hasher.finish() % lanes as u64) as usize
}

fn count(tally: &mut Tally, line: u64, verdict: Verdict, progress: &Progress) {
    tally.deliveries += 1;
    match verdict {
        Verdict::Applied => tally.applied += 1,
        Verdict::Replayed => tally.replayed += 1,
        Verdict::Mismatched(error) => {
            tally.mismatched += 1;
            progress.refused(line, format_args!("mismatched: {error}"));
        }
        Verdict::Refused(refused) => {
            match refused {
                Refused::Invalid(_) => tally.invalid += 1,
                Refused::Source(_) => tally.refused_source += 1,
            }
            progress.refused(line, refused);
        }
    }
}

/// A worker: one delivery after the other, until there are no more or one fails for good.
async fn work(database: Database, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(Job { delivery, verdict }) = jobs.recv().await {
        let result = handle(&database, &delivery).await;
        let failed = result.is_err();
        _ = verdict.send(result);
        if failed {
            return;
        }
    }
}

/// Calls the handler until the answer is one that stays.
async fn handle(database: &Database, delivery: &Delivery) -> anyhow::Result<Verdict> {
    let started = Instant::now();
    let mut wait = SHORTEST_WAIT;
    loop {
        match database.invoice_paid(delivery).await {
            Ok(outcome) if outcome.is_replay() => return Ok(Verdict::Replayed),
            Ok(_) => return Ok(Verdict::Applied),
            Err(BookingError::Idem(error @ Error::Mismatch { .. })) => return Ok(Verdict::Mismatched(error)),
            // An id that is too long. Nothing was touched.
            Err(BookingError::Idem(error @ Error::InvalidIdentity { .. })) => {
                return Ok(Verdict::Refused(Refused::Invalid(error.to_string())));
            }
            // The same key again is always safe: if this try did commit, the next one is a replay.
            Err(error) if error.is_retryable() && started.elapsed() + wait < PATIENCE => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A line without its end.
#[derive(Debug, PartialEq)]
enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// Lines of bounded length.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    too_long: bool,
    begun: bool,
    /// Of the last line that was read, from 1.
    number: u64,
    /// Where it ends.
    bytes: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, line: Vec::new(), too_long: false, begun: false, number: 0, bytes: 0 }
    }

    /// The next line. Dropped unfinished, it has lost nothing: what was read of the line is kept here.
    async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let read = self.input.fill_buf().await?;
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            let at_end = read.is_empty();
            let room = MAX_LINE - self.line.len();
            self.too_long |= part.len() > room;
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            self.bytes += used as u64;
            self.begun |= used > 0;
            if end.is_some() || (at_end && self.begun) {
                self.number += 1;
                self.begun = false;
                let line = std::mem::take(&mut self.line);
                let too_long = std::mem::take(&mut self.too_long);
                return Ok(Some(if too_long { Line::TooLong } else { Line::Whole(line) }));
            }
            if at_end {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_bounded_and_none_is_lost() {
        let long = "x".repeat(MAX_LINE);
        let text = format!("a\n\n{long}\n{long}y\nlast");
        // Also where the pieces are smaller than a line.
        let mut lines = Lines::new(BufReader::with_capacity(1000, text.as_bytes()));
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.expect("readable") {
            read.push(line);
        }
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        assert_eq!(read, [whole("a"), whole(""), whole(&long), Line::TooLong, whole("last")]);
        assert_eq!((lines.number, lines.bytes), (5, text.len() as u64));
    }
}
