//! One connection's thread: reads both sides, delivers what is due, applies what the session decides.
//!
//! A message's delay runs from its arrival, so many may be in flight. One thread waits for both sockets
//! and for the next due time at once (`ppoll` with the kernel's timer slack turned off). A processor
//! that sleeps wakes up late, so the last moments are spent in looking, giving way to whoever can run.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::Shared;
use super::session::{Session, Verdict};
use super::trigger::Effect;
use super::wire::{Frame, Frames};

/// A peer that does not read is not read from any further than this.
const FULL: usize = 1 << 20;
/// One read; also what counts as sent together at most.
const CHUNK: usize = 1 << 16;
/// How late a sleeping thread may wake up (45 µs were measured on an idle virtual machine).
const LATE: Duration = Duration::from_micros(60);

/// One direction: frames on their way, and bytes that the receiver has no room for yet.
struct Lane {
    frames: Frames,
    due: VecDeque<(Instant, Frame)>,
    out: Vec<u8>,
    ended: bool,
}

/// Why the thread ends.
enum End {
    Close,
    Reset,
}

pub(super) struct Relay {
    client: TcpStream,
    server: TcpStream,
    wake: UnixStream,
    shared: Arc<Shared>,
    session: Session,
    up: Lane,
    down: Lane,
    chunk: Vec<u8>,
}

impl Lane {
    fn new(frames: Frames) -> Self {
        Self { frames, due: VecDeque::new(), out: Vec::new(), ended: false }
    }

    /// Whether the sender is gone and all of it has been delivered.
    fn over(&self) -> bool {
        self.ended && self.due.is_empty() && self.out.is_empty()
    }

    /// Reads what is there; true if there was something.
    fn read(&mut self, from: &mut TcpStream, chunk: &mut [u8], delay: Duration) -> bool {
        match from.read(chunk) {
            Ok(0) => self.ended = true,
            Ok(length) => {
                let due = Instant::now() + delay;
                self.frames.push(&chunk[..length]);
                loop {
                    match self.frames.next() {
                        Ok(Some(frame)) => self.due.push_back((due, frame)),
                        Ok(None) => break,
                        Err(_) => {
                            self.ended = true;
                            break;
                        }
                    }
                }
                return true;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.ended = true,
        }
        false
    }

    fn write(&mut self, to: &mut TcpStream) {
        while !self.out.is_empty() {
            match to.write(&self.out) {
                Ok(length) => _ = self.out.drain(..length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The reading side will tell; what cannot be delivered is dropped.
                    self.out.clear();
                    self.ended = true;
                }
            }
        }
    }

    fn interest(&self, other: &Lane) -> PollFlags {
        let mut flags = PollFlags::empty();
        if !self.ended && self.out.len() < FULL && self.due.len() < FULL / 16 {
            flags |= PollFlags::POLLIN;
        }
        if !other.out.is_empty() {
            flags |= PollFlags::POLLOUT;
        }
        flags
    }
}

impl Relay {
    /// Both streams become non-blocking.
    pub(super) fn new(
        client: TcpStream,
        server: TcpStream,
        wake: UnixStream,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        for stream in [&client, &server] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        Ok(Self {
            client,
            server,
            wake,
            shared,
            session: Session::default(),
            up: Lane::new(Frames::frontend()),
            down: Lane::new(Frames::backend()),
            chunk: vec![0; CHUNK],
        })
    }

    /// Runs until one side has gone, a fault has ended the connection, or somebody has woken it.
    pub(super) fn run(mut self) {
        precise_timer();
        match self.pass() {
            Ok(()) => {}
            Err(Effect::Silence) => {
                // Neither read nor closed, until the proxy cuts it or goes.
                self.wait_for_wake();
                self.end(End::Reset);
            }
            Err(Effect::Reset) => self.end(End::Reset),
            Err(Effect::Close) => self.end(End::Close),
        }
    }

    fn pass(&mut self) -> Result<(), Effect> {
        loop {
            self.deliver()?;
            self.up.write(&mut self.server);
            self.down.write(&mut self.client);
            if self.up.over() || self.down.over() {
                return Ok(());
            }
            let due =
                [&self.up, &self.down].into_iter().filter_map(|lane| lane.due.front()).map(|it| it.0).min();
            let mut wanted = [
                PollFd::new(self.client.as_fd(), self.up.interest(&self.down)),
                PollFd::new(self.server.as_fd(), self.down.interest(&self.up)),
                PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            ];
            wait(&mut wanted, due.map(|due| due.saturating_duration_since(Instant::now())));
            let ready = wanted.map(|it| it.any() == Some(true));
            if ready[2] {
                return Err(Effect::Reset);
            }
            let delay = self.shared.delay();
            if ready[0] && !self.up.ended && self.up.read(&mut self.client, &mut self.chunk, delay) {
                self.session.asked();
            }
            if ready[1] && !self.down.ended {
                self.down.read(&mut self.server, &mut self.chunk, delay);
            }
        }
    }

    /// Delivers what is due, in the order of the due times.
    fn deliver(&mut self) -> Result<(), Effect> {
        let now = Instant::now();
        loop {
            let (up, down) = (self.up.due.front().map(|it| it.0), self.down.due.front().map(|it| it.0));
            let up_first = up.is_some_and(|up| down.is_none_or(|down| up <= down));
            let lane = if up_first { &mut self.up } else { &mut self.down };
            let Some((_, frame)) = lane.due.pop_front_if(|(due, _)| *due <= now) else { return Ok(()) };

            self.shared.update(&mut self.session);
            let verdict = if up_first {
                self.session.frontend(&frame)
            } else {
                let (verdict, round_trip) = self.session.backend(&frame);
                if round_trip {
                    self.shared.count_round_trip();
                }
                verdict
            };
            let out = if up_first { &mut self.up.out } else { &mut self.down.out };
            match verdict {
                Verdict::Pass | Verdict::PassAndFail(_) if up_first && frame.asks_for_encryption() => {
                    self.down.due.push_back((now + self.shared.delay(), Frame::no_encryption()));
                }
                Verdict::Pass | Verdict::PassAndFail(_) => out.extend_from_slice(&frame.bytes),
                Verdict::Withhold | Verdict::Fail(_) => {}
            }
            if let Verdict::Fail(effect) | Verdict::PassAndFail(effect) = verdict {
                self.up.write(&mut self.server);
                self.down.write(&mut self.client);
                return Err(effect);
            }
        }
    }

    fn wait_for_wake(&mut self) {
        wait(&mut [PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)], None);
    }

    /// Closing sends FIN where nothing unread is left; to send RST whatever is left, linger for zero.
    fn end(self, end: End) {
        match end {
            End::Reset => {
                for stream in [&self.client, &self.server] {
                    let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                    _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &now);
                }
            }
            End::Close => {
                for stream in [&self.client, &self.server] {
                    _ = stream.shutdown(std::net::Shutdown::Write);
                }
            }
        }
    }
}

/// Waits until a socket is ready or the time is over; may return earlier, for the caller to look again.
fn wait(wanted: &mut [PollFd<'_>], timeout: Option<Duration>) {
    match timeout {
        None => sleep(wanted, None),
        Some(timeout) if timeout > LATE => sleep(wanted, Some(timeout - LATE)),
        Some(_) => {
            sleep(wanted, Some(Duration::ZERO));
            std::thread::yield_now();
        }
    }
}

#[cfg(target_os = "linux")]
fn sleep(wanted: &mut [PollFd<'_>], timeout: Option<Duration>) {
    _ = nix::poll::ppoll(wanted, timeout.map(Into::into), None);
}

/// Without `ppoll`, only whole milliseconds can be slept: the rest is spent in looking.
#[cfg(not(target_os = "linux"))]
fn sleep(wanted: &mut [PollFd<'_>], timeout: Option<Duration>) {
    use nix::poll::PollTimeout;
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout.as_millis()).unwrap_or(PollTimeout::MAX)
    });
    _ = nix::poll::poll(wanted, timeout);
}

/// Linux wakes a thread up to 50 µs late to save power: not this one.
fn precise_timer() {
    #[cfg(target_os = "linux")]
    {
        _ = nix::sys::prctl::set_timerslack(1);
    }
}
