//! The frames of the Postgres protocol, version 3: a type byte (not in a client's first messages), a
//! length that counts itself, and the rest. Only what faults and counts need is looked at.

/// A client's first messages have a code in place of a type byte.
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// Longer frames do not exist (Postgres itself refuses messages of 1 GiB).
const LONGEST: u32 = 1 << 30;

/// One message, with its framing.
#[derive(Debug, PartialEq)]
pub(super) struct Frame {
    /// The type byte; `None` in a client's first messages and for our own answer to them.
    pub(super) tag: Option<u8>,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    /// "No encryption here", the proxy's own answer.
    pub(super) fn no_encryption() -> Self {
        Frame { tag: None, bytes: b"N".to_vec() }
    }

    /// Whether the client asks for encryption: the proxy answers by itself.
    pub(super) fn asks_for_encryption(&self) -> bool {
        self.tag.is_none() && matches!(self.code(), Some(SSL_REQUEST | GSS_REQUEST))
    }

    fn code(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes.get(4..8)?.try_into().ok()?))
    }

    /// The zero-terminated texts at the start of the body (after `skip` bytes).
    pub(super) fn texts(&self, skip: usize) -> impl Iterator<Item = &[u8]> {
        self.bytes.get(5 + skip..).unwrap_or_default().split(|byte| *byte == 0)
    }
}

/// What came that is not Postgres's protocol.
#[derive(Debug)]
pub(super) struct Malformed;

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    tagged: bool,
}

impl Frames {
    /// The stream of a client, which starts without type bytes.
    pub(super) fn frontend() -> Self {
        Self { buffer: Vec::new(), tagged: false }
    }

    /// The stream of a server.
    pub(super) fn backend() -> Self {
        Self { buffer: Vec::new(), tagged: true }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it has come.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let head = usize::from(self.tagged);
        let Some(length) = self.buffer.get(head..head + 4) else { return Ok(None) };
        let length = u32::from_be_bytes(length.try_into().map_err(|_| Malformed)?);
        if !(if self.tagged { 4..LONGEST } else { 8..LONGEST }).contains(&length) {
            return Err(Malformed);
        }
        let end = head + length as usize;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        let frame = Frame { tag: self.tagged.then(|| bytes[0]), bytes };
        if !self.tagged && !frame.asks_for_encryption() && frame.code() != Some(CANCEL_REQUEST) {
            self.tagged = true;
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame with this type and body.
    pub(crate) fn frame(tag: u8, body: &[u8]) -> Frame {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&(4 + u32::try_from(body.len()).expect("short")).to_be_bytes());
        bytes.extend_from_slice(body);
        Frame { tag: Some(tag), bytes }
    }

    fn startup(code: u32) -> Vec<u8> {
        [8u32.to_be_bytes(), code.to_be_bytes()].concat()
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let mut stream = [startup(SSL_REQUEST), startup(196_608)].concat();
        stream.extend(frame(b'Q', b"COMMIT\0").bytes);
        stream.extend(frame(b'X', b"").bytes);
        for step in 1..=stream.len() {
            let mut frames = Frames::frontend();
            let mut found = Vec::new();
            for bytes in stream.chunks(step) {
                frames.push(bytes);
                while let Some(frame) = frames.next().expect("well formed") {
                    found.push((frame.tag, frame.asks_for_encryption()));
                }
            }
            assert_eq!(found, [(None, true), (None, false), (Some(b'Q'), false), (Some(b'X'), false)]);
        }
    }

    #[test]
    fn nonsense_is_malformed_and_not_waited_for() {
        for bytes in [b"GET / HTTP/1.1\r\n".as_slice(), &[0; 8]] {
            let mut frames = Frames::frontend();
            frames.push(bytes);
            assert!(frames.next().is_err());
        }
    }

    #[test]
    fn texts_are_the_names_and_the_statement() {
        let parse = frame(b'P', b"name\0SELECT 1\0\0\0");
        assert_eq!(parse.texts(0).take(2).collect::<Vec<_>>(), [b"name".as_slice(), b"SELECT 1"]);
        let close = frame(b'C', b"Sname\0");
        assert_eq!(close.texts(1).next(), Some(b"name".as_slice()));
        assert_eq!(frame(b'S', b"").texts(1).next(), Some(b"".as_slice()));
    }
}
