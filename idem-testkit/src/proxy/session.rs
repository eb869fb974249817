//! What the proxy knows about one connection, and what it decides about each message: a pure state
//! machine over frames, with no socket in it. Messages are judged in the order of their delivery.

use std::collections::HashMap;
use std::sync::Arc;

use super::trigger::{Effect, Fault, Moment, Point, Side};
use super::wire::Frame;

/// What to do with a message.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Pass,
    /// Keep it from its receiver.
    Withhold,
    /// The fault, in place of the message.
    Fail(Effect),
    /// The message, then the fault.
    PassAndFail(Effect),
}

#[derive(Debug, Default)]
pub(super) struct Session {
    /// Text by name of prepared statements, and statement by name of portals.
    statements: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, Vec<u8>>,
    /// Whether the client has been told that its session is ready.
    started: bool,
    /// The client has sent something since the last counted answer.
    asked: bool,
    /// Messages that the server will answer by ReadyForQuery, and has not yet.
    unanswered: usize,
    watched: Vec<Watch>,
    withheld: Option<Withheld>,
    /// Fires when the Sync that completes the forwarded statement has been forwarded too.
    at_sync: Option<Arc<Fault>>,
}

/// A fault that waits for its moment on this connection.
#[derive(Debug)]
struct Watch {
    fault: Arc<Fault>,
    seen: usize,
    done: bool,
}

/// The answer that the client does not get, once `before` others have passed.
#[derive(Debug)]
struct Withheld {
    fault: Arc<Fault>,
    before: usize,
}

impl Session {
    /// The faults that are armed now: new ones start to count here, others are forgotten.
    pub(super) fn watch(&mut self, armed: &[Arc<Fault>]) {
        self.watched.retain(|watch| armed.iter().any(|fault| Arc::ptr_eq(fault, &watch.fault)));
        for fault in armed {
            if !self.watched.iter().any(|watch| Arc::ptr_eq(fault, &watch.fault)) {
                self.watched.push(Watch { fault: fault.clone(), seen: 0, done: false });
            }
        }
    }

    /// Something came from the client. A round trip begins when it is the first since an answer.
    pub(super) fn asked(&mut self) {
        self.asked = true;
    }

    /// A message of the client is due at the server.
    pub(super) fn frontend(&mut self, frame: &Frame) -> Verdict {
        let runs = self.track(frame);
        let numbered = self.numbered(Side::Frontend);
        let before = self.unanswered;
        if let Some(b'Q' | b'S' | b'F') = frame.tag {
            self.unanswered += 1;
        }
        if let Some(effect) = numbered {
            return Verdict::Fail(effect);
        }
        if frame.tag == Some(b'S')
            && let Some(fault) = self.at_sync.take()
        {
            return Verdict::PassAndFail(fault.fire());
        }
        let Some(text) = runs else { return Verdict::Pass };
        for watch in self.watched.iter_mut().filter(|watch| !watch.done) {
            let Point::Statement { contains, moment } = &watch.fault.trigger.point else { continue };
            if !text.contains(contains) || !watch.fault.take() {
                continue;
            }
            watch.done = true;
            match moment {
                Moment::Before => return Verdict::Fail(watch.fault.fire()),
                Moment::Forwarded if frame.tag == Some(b'Q') => {
                    return Verdict::PassAndFail(watch.fault.fire());
                }
                Moment::Forwarded => {
                    self.at_sync = Some(watch.fault.clone());
                    self.withheld = Some(Withheld { fault: watch.fault.clone(), before });
                }
                Moment::Answered => self.withheld = Some(Withheld { fault: watch.fault.clone(), before }),
            }
        }
        Verdict::Pass
    }

    /// A message of the server is due at the client. True in the second place: a round trip ends.
    pub(super) fn backend(&mut self, frame: &Frame) -> (Verdict, bool) {
        if let Some(effect) = self.numbered(Side::Backend) {
            return (Verdict::Fail(effect), false);
        }
        let ready = frame.tag == Some(b'Z');
        if let Some(withheld) = &mut self.withheld {
            let verdict = match (withheld.before, ready) {
                (0, true) => Verdict::Fail(withheld.fault.fire()),
                (0, false) => Verdict::Withhold,
                (before, ready) => {
                    withheld.before = before - usize::from(ready);
                    Verdict::Pass
                }
            };
            if verdict != Verdict::Pass {
                return (verdict, false);
            }
        }
        if !ready {
            return (Verdict::Pass, false);
        }
        if !self.started {
            self.started = true;
            return (Verdict::Pass, false);
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        (Verdict::Pass, std::mem::take(&mut self.asked))
    }

    /// Counts the message for the faults that wait for a number; the effect of one that has come to it.
    fn numbered(&mut self, from: Side) -> Option<Effect> {
        let mut effect = None;
        for watch in self.watched.iter_mut().filter(|watch| !watch.done) {
            let Point::Message { number, side } = watch.fault.trigger.point else { continue };
            if side != Side::Both && side != from {
                continue;
            }
            watch.seen += 1;
            if watch.seen == number && watch.fault.take() {
                watch.done = true;
                effect.get_or_insert_with(|| watch.fault.fire());
            }
        }
        effect
    }

    /// Keeps the names of statements and portals; the text of the statement that this message runs.
    fn track(&mut self, frame: &Frame) -> Option<String> {
        let mut texts = frame.texts(0);
        match frame.tag? {
            b'Q' => return texts.next().map(lower),
            b'P' => {
                let (name, text) = (texts.next()?, texts.next()?);
                self.statements.insert(name.to_vec(), lower(text));
            }
            b'B' => {
                let (portal, statement) = (texts.next()?, texts.next()?);
                self.portals.insert(portal.to_vec(), statement.to_vec());
            }
            b'E' => return self.statements.get(self.portals.get(texts.next()?)?).cloned(),
            b'C' => {
                let name = frame.texts(1).next()?;
                match frame.bytes.get(5)? {
                    b'S' => _ = self.statements.remove(name),
                    _ => _ = self.portals.remove(name),
                }
            }
            _ => {}
        }
        None
    }
}

fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::super::trigger::Trigger;
    use super::super::wire::tests::frame;
    use super::*;

    fn session(fault: &Arc<Fault>) -> Session {
        let mut session = Session::default();
        assert_eq!(session.backend(&frame(b'Z', b"I")), (Verdict::Pass, false), "the session's start");
        session.watch(std::slice::from_ref(fault));
        session
    }

    fn armed(trigger: Trigger) -> Arc<Fault> {
        Arc::new(Fault::new(trigger, Effect::Reset))
    }

    /// Sends these, and returns the verdicts.
    fn send(session: &mut Session, frames: &[(u8, &[u8])]) -> Vec<Verdict> {
        session.asked();
        frames.iter().map(|(tag, body)| session.frontend(&frame(*tag, body))).collect()
    }

    #[test]
    fn what_was_sent_together_is_one_round_trip() {
        let mut session = session(&armed(Trigger::before_statement("nothing like this")));
        send(&mut session, &[(b'Q', b"BEGIN\0"), (b'Q', b"SELECT 1\0")]);
        assert!(!session.backend(&frame(b'C', b"BEGIN\0")).1);
        assert!(session.backend(&frame(b'Z', b"T")).1);
        assert!(!session.backend(&frame(b'Z', b"T")).1, "the second answer to one question");
        send(&mut session, &[(b'Q', b"COMMIT\0")]);
        assert!(session.backend(&frame(b'Z', b"I")).1);
    }

    #[test]
    fn a_prepared_statement_runs_when_it_is_executed() {
        let fault = armed(Trigger::before_statement("insert INTO t"));
        let mut session = session(&fault);
        let prepare: [(u8, &[u8]); 2] = [(b'P', b"s1\0INSERT into t\0\0\0"), (b'S', b"")];
        assert_eq!(send(&mut session, &prepare), [Verdict::Pass, Verdict::Pass]);
        assert!(!fault.fired());
        let run: [(u8, &[u8]); 2] = [(b'B', b"\0s1\0\0\0"), (b'E', b"\0\0\0\0\0")];
        assert_eq!(send(&mut session, &run), [Verdict::Pass, Verdict::Fail(Effect::Reset)]);
        assert!(fault.fired());
    }

    #[test]
    fn a_prepared_statement_is_forwarded_with_its_sync() {
        let fault = armed(Trigger::forwarded_statement("insert"));
        let mut session = session(&fault);
        let all: [(u8, &[u8]); 3] = [(b'P', b"\0INSERT\0\0\0"), (b'B', b"\0\0\0\0"), (b'E', b"\0\0\0\0\0")];
        assert!(send(&mut session, &all).iter().all(|verdict| *verdict == Verdict::Pass));
        assert_eq!(session.backend(&frame(b'1', b"")).0, Verdict::Withhold);
        assert_eq!(send(&mut session, &[(b'S', b"")]), [Verdict::PassAndFail(Effect::Reset)]);
    }

    #[test]
    fn only_the_answer_to_the_statement_is_withheld() {
        let fault = armed(Trigger::answered_statement("COMMIT"));
        let mut session = session(&fault);
        send(&mut session, &[(b'Q', b"UPDATE t\0"), (b'Q', b"COMMIT\0")]);
        assert_eq!(session.backend(&frame(b'C', b"UPDATE\0")).0, Verdict::Pass);
        assert_eq!(session.backend(&frame(b'Z', b"T")).0, Verdict::Pass);
        assert!(!fault.fired());
        assert_eq!(session.backend(&frame(b'C', b"COMMIT\0")).0, Verdict::Withhold);
        assert_eq!(session.backend(&frame(b'Z', b"I")).0, Verdict::Fail(Effect::Reset));
        assert!(fault.fired());
    }

    #[test]
    fn messages_are_counted_from_the_arming_and_a_fault_fires_once() {
        let fault = armed(Trigger::message(2));
        let (mut one, mut two) = (session(&fault), session(&fault));
        for (session, second) in [(&mut one, Verdict::Fail(Effect::Reset)), (&mut two, Verdict::Pass)] {
            assert_eq!(send(session, &[(b'Q', b"SELECT 1\0")]), [Verdict::Pass]);
            assert_eq!(session.backend(&frame(b'C', b"SELECT 1\0")).0, second);
        }

        let fault = armed(Trigger::backend_message(1).every_connection());
        for _ in 0..2 {
            let mut session = session(&fault);
            assert_eq!(send(&mut session, &[(b'Q', b"SELECT 1\0")]), [Verdict::Pass]);
            assert_eq!(session.backend(&frame(b'C', b"SELECT 1\0")).0, Verdict::Fail(Effect::Reset));
        }
    }
}
