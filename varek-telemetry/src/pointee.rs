//! What pointer arguments of denied calls lead to: texts and addresses that a guest wrote, made harmless to show.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use serde::{Deserialize, Deserializer, Serialize};

use crate::ArgumentDetail;

/// Stands behind a text of which more was there. The guest's own is escaped.
const CUT: char = '…';

/// What a pointer argument of a denied call led to, when the call was denied.
///
/// It was read from the guest's memory while the thread that made the call was held in it. Nothing was decided from it,
/// and other threads of the guest could change it before and after: it says what was probably meant, not what was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unverified {
    /// Which argument, from 0.
    pub argument: usize,
    /// What was there.
    #[serde(flatten)]
    pub pointee: Pointee,
}

/// What a pointer leads to.
///
/// `Display` writes it as [`Denial::decoded`](crate::Denial::decoded) does: `"/etc/shadow"`, `127.0.0.1:80`,
/// `unix:"/run/x.sock"`, `unix:@"name"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Pointee {
    /// A path.
    Path(GuestText),
    /// A name that is no path: of an extended attribute, a file system, a key.
    Name(GuestText),
    /// The address of an internet socket (`AF_INET`, `AF_INET6`).
    Internet(SocketAddr),
    /// The path of a local socket (`AF_UNIX`).
    Unix(GuestText),
    /// The name of a local socket in the abstract namespace, unix(7).
    Abstract(GuestText),
}

impl fmt::Display for Pointee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(text) | Self::Name(text) => write!(f, "\"{text}\""),
            Self::Internet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:\"{path}\""),
            Self::Abstract(name) => write!(f, "unix:@\"{name}\""),
        }
    }
}

/// Text that a guest wrote, fit to be shown.
///
/// It has at most [`GuestText::LONGEST`] bytes of the guest's, and `…` behind them where there were more. What cannot be seen,
/// what is not UTF-8, quotes, backslashes and the characters that HTML gives a meaning (`<`, `>`, `&`, `'`) are escaped as in
/// Rust's literals (`\n`, `\u{202e}`, `\xff`, `\x3c`), so that it can neither end a line, nor steer a terminal, nor
/// become markup. One that is read back from a log is escaped again where it has such a character.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct GuestText(String);

impl GuestText {
    /// Bytes of the guest's, at most.
    pub const LONGEST: usize = 256;

    /// These bytes; a NUL among them is a character like any other.
    pub fn new(bytes: &[u8]) -> Self {
        let mut text = String::with_capacity(bytes.len().min(Self::LONGEST));
        let cut = bytes.len() > Self::LONGEST;
        let mut rest = bytes
            .get(..Self::LONGEST)
            .unwrap_or(bytes)
            .utf8_chunks()
            .peekable();
        while let Some(chunk) = rest.next() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\\' | '"' => text.extend(letter.escape_debug()),
                    CUT => text.extend(letter.escape_unicode()),
                    letter => push(&mut text, letter),
                }
            }
            // A character that was cut in two is left out.
            if cut && rest.peek().is_none() && begins_a_character(chunk.invalid()) {
                continue;
            }
            for byte in chunk.invalid() {
                text.extend(format!("\\x{byte:02x}").chars());
            }
        }
        if cut {
            text.push(CUT);
        }
        Self(text)
    }

    /// The text, escaped.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there was more of it.
    pub fn is_cut(&self) -> bool {
        self.0.ends_with(CUT)
    }
}

impl fmt::Display for GuestText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for GuestText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A log may be anybody's.
        let read = String::deserialize(deserializer)?;
        let mut text = String::with_capacity(read.len());
        read.chars().for_each(|letter| push(&mut text, letter));
        Ok(Self(text))
    }
}

/// Puts a character into a text that may have escapes in it already, and the mark of a cut.
fn push(text: &mut String, letter: char) {
    match letter {
        '<' | '>' | '&' | '\'' => text.extend(format!("\\x{:02x}", u32::from(letter)).chars()),
        '\\' | '"' => text.push(letter),
        // As Rust's literals have it; what can be seen is left as it is.
        letter => text.extend(letter.escape_debug()),
    }
}

fn begins_a_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// What kind of thing is behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerKind {
    Path,
    Name,
    /// `struct sockaddr` of so many bytes.
    SocketAddress(u64),
}

/// A pointer argument of a denied call whose memory an event may show; from [`Denial::pointers`](crate::Denial::pointers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    pub(crate) argument: usize,
    pub(crate) address: u64,
    pub(crate) kind: PointerKind,
    /// Texts may be shown.
    pub(crate) texts: bool,
}

/// `struct sockaddr_storage`: no address is longer.
const LONGEST_ADDRESS: usize = 128;

impl Pointer {
    /// Which, as the arguments of this call go; `None` where nothing of it may be shown.
    pub(crate) fn new(
        argument: usize,
        address: u64,
        kind: PointerKind,
        detail: ArgumentDetail,
    ) -> Option<Self> {
        let texts = detail == ArgumentDetail::Full;
        let shown = texts || matches!(kind, PointerKind::SocketAddress(_));
        (shown && address != 0).then_some(Self {
            argument,
            address,
            kind,
            texts,
        })
    }

    /// Which argument, from 0.
    pub const fn argument(&self) -> usize {
        self.argument
    }

    /// Where it leads to in the guest.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that are to be read from there, at most. As many as there are will do.
    pub fn longest(&self) -> usize {
        match self.kind {
            // One byte more says whether there is more.
            PointerKind::Path | PointerKind::Name => GuestText::LONGEST + 1,
            PointerKind::SocketAddress(length) => usize::try_from(length)
                .map_or(LONGEST_ADDRESS, |length| length.min(LONGEST_ADDRESS)),
        }
    }

    /// What these bytes are that were read from there; `None` where they are nothing of the kind, or nothing that may be
    /// shown.
    pub fn read(&self, memory: &[u8]) -> Option<Unverified> {
        let pointee = match self.kind {
            PointerKind::Path => Pointee::Path(text(memory)?),
            PointerKind::Name => Pointee::Name(text(memory)?),
            PointerKind::SocketAddress(_) if memory.len() < self.longest() => return None,
            PointerKind::SocketAddress(_) => socket_address(memory)?,
        };
        if !self.texts && !matches!(pointee, Pointee::Internet(_)) {
            return None;
        }
        Some(Unverified {
            argument: self.argument,
            pointee,
        })
    }
}

/// Up to the NUL; without one, all of it if there is more than is shown, and else it runs out of the memory and is no text.
fn text(memory: &[u8]) -> Option<GuestText> {
    match memory.iter().position(|byte| *byte == 0) {
        Some(end) => memory.get(..end).map(GuestText::new),
        None => (memory.len() > GuestText::LONGEST).then(|| GuestText::new(memory)),
    }
}

/// As ip(7), ipv6(7) and unix(7) lay addresses out, by the numbers of Linux.
fn socket_address(memory: &[u8]) -> Option<Pointee> {
    const UNIX: u16 = 1;
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let (family, rest) = memory.split_first_chunk::<2>()?;
    match u16::from_ne_bytes(*family) {
        UNIX => match rest {
            // One that asks for a name has none yet.
            [] => None,
            [0, name @ ..] => Some(Pointee::Abstract(GuestText::new(name))),
            path => {
                let end = path.iter().position(|byte| *byte == 0);
                let path = path.get(..end.unwrap_or(path.len()))?;
                Some(Pointee::Unix(GuestText::new(path)))
            }
        },
        // What follows the address are zeroes that the kernel does not read, but wants to be there.
        INET if memory.len() >= 16 => {
            let (port, rest) = rest.split_first_chunk()?;
            let address = Ipv4Addr::from(*rest.first_chunk::<4>()?);
            let port = u16::from_be_bytes(*port);
            Some(Pointee::Internet(SocketAddrV4::new(address, port).into()))
        }
        // Shorter ones have no scope (RFC 2133). The flow label is none of the address.
        INET6 if memory.len() >= 24 => {
            let (port, rest) = rest.split_first_chunk()?;
            let (_flow, rest) = rest.split_first_chunk::<4>()?;
            let (address, rest) = rest.split_first_chunk::<16>()?;
            let scope = rest
                .first_chunk()
                .map_or(0, |scope| u32::from_ne_bytes(*scope));
            let (address, port) = (Ipv6Addr::from(*address), u16::from_be_bytes(*port));
            let address = SocketAddrV6::new(address, port, 0, scope);
            Some(Pointee::Internet(address.into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        GuestText::new(bytes).to_string()
    }

    #[test]
    fn nothing_of_a_guest_s_text_ends_a_line_steers_a_terminal_or_is_markup() {
        for (bytes, text) in [
            (&b"/etc/shadow"[..], "/etc/shadow"),
            ("/tmp/größe 日本".as_bytes(), "/tmp/größe 日本"),
            (b"a\nb\r\t\0", r"a\nb\r\t\0"),
            (b"\x1b[2J\x07\x7f", r"\u{1b}[2J\u{7}\u{7f}"),
            (b"<script>&'", r"\x3cscript\x3e\x26\x27"),
            (br#"say "\n""#, r#"say \"\\n\""#),
            (b"\xff/\xc3\x28", r"\xff/\xc3("),
            // A character that turns the direction of the text round, and one without width.
            (
                "\u{202e}\u{200b}\u{2028}".as_bytes(),
                r"\u{202e}\u{200b}\u{2028}",
            ),
            ("wait…".as_bytes(), r"wait\u{2026}"),
            (b"", ""),
        ] {
            assert_eq!(shown(bytes), text);
        }
        for byte in 0..=u8::MAX {
            let text = shown(&[byte]);
            assert!(
                text.chars().all(|c| c == ' ' || c.is_ascii_graphic()),
                "{text:?}"
            );
            assert!(!text.contains(['<', '>', '&', '\'']), "{text:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_and_says_so_and_no_guest_can_say_it() {
        let whole = GuestText::new(&[b'a'; 256]);
        assert_eq!((whole.as_str().len(), whole.is_cut()), (256, false));
        let cut = GuestText::new(&[b'a'; 257]);
        assert_eq!(cut.as_str(), format!("{}…", "a".repeat(256)));
        assert!(cut.is_cut());
        assert!(!GuestText::new("a…".as_bytes()).is_cut());
        // A character that is cut in two is left out, and what is no character is not.
        let split = [&[b'a'; 255][..], "ü".as_bytes(), b"b"].concat();
        assert_eq!(shown(&split), format!("{}…", "a".repeat(255)));
        let wrong = [&[b'a'; 255][..], b"\xffb"].concat();
        assert_eq!(shown(&wrong), format!("{}\\xff…", "a".repeat(255)));
        let ends = [&[b'a'; 254][..], "ü".as_bytes()].concat();
        assert_eq!(shown(&ends), format!("{}ü", "a".repeat(254)));
    }

    #[test]
    fn a_text_reads_back_as_it_was_and_one_that_others_wrote_is_escaped() {
        for bytes in [&b"a\"\\\n<\xff"[..], "…ü".as_bytes(), &[b'x'; 300]] {
            let text = GuestText::new(bytes);
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<GuestText>(&json).unwrap(), text);
        }
        let forged = serde_json::to_string("\u{1b}[2J\n<b>").unwrap();
        let text: GuestText = serde_json::from_str(&forged).unwrap();
        assert_eq!(text.as_str(), r"\u{1b}[2J\n\x3cb\x3e");
    }

    fn pointer(kind: PointerKind, detail: ArgumentDetail) -> Option<Pointer> {
        Pointer::new(1, 0x1000, kind, detail)
    }

    fn read(kind: PointerKind, memory: &[u8]) -> Option<String> {
        let pointer = pointer(kind, ArgumentDetail::Full).unwrap();
        let memory = memory.get(..pointer.longest()).unwrap_or(memory);
        let found = pointer.read(memory)?;
        assert_eq!(found.argument, 1);
        Some(found.pointee.to_string())
    }

    #[test]
    fn a_path_ends_at_its_nul_and_without_one_is_none_or_cut() {
        let path = |memory: &[u8]| read(PointerKind::Path, memory);
        assert_eq!(path(b"/etc/shadow\0garbage").unwrap(), "\"/etc/shadow\"");
        assert_eq!(path(b"\0").unwrap(), "\"\"");
        assert_eq!(path(b"/runs/out/of/the/mapping"), None);
        assert_eq!(path(b""), None);
        let long = path(&[b'/'; 4096]).unwrap();
        assert_eq!(long, format!("\"{}…\"", "/".repeat(256)));
        let just = [&[b'/'; 256][..], b"\0"].concat();
        assert_eq!(path(&just).unwrap(), format!("\"{}\"", "/".repeat(256)));
    }

    /// An address as the kernel has it.
    fn address(family: u16, rest: &[&[u8]]) -> Vec<u8> {
        [&family.to_ne_bytes()[..], &rest.concat()].concat()
    }

    #[test]
    fn addresses_of_sockets_are_read_as_the_kernel_reads_them() {
        let all = |memory: &[u8]| read(PointerKind::SocketAddress(memory.len() as u64), memory);
        let v4 = address(2, &[&80_u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]]);
        assert_eq!(all(&v4).unwrap(), "127.0.0.1:80");
        // Too short for the kernel, and one that ends where nothing is mapped.
        assert_eq!(all(&v4[..15]), None);
        assert_eq!(read(PointerKind::SocketAddress(16), &v4[..8]), None);
        let one = Ipv6Addr::LOCALHOST.octets();
        let v6 = address(10, &[&443_u16.to_be_bytes(), &[9; 4], &one]);
        assert_eq!(all(&v6).unwrap(), "[::1]:443");
        let scoped = [&v6[..], &3_u32.to_ne_bytes()].concat();
        assert_eq!(all(&scoped).unwrap(), "[::1%3]:443");
        assert_eq!(all(&v6[..20]), None);
        let path = address(1, &[b"/run/x.sock\0garbage"]);
        assert_eq!(all(&path).unwrap(), "unix:\"/run/x.sock\"");
        let unended = address(1, &[&[b'x'; 108]]);
        assert_eq!(
            all(&unended).unwrap(),
            format!("unix:\"{}\"", "x".repeat(108))
        );
        let hidden = address(1, &[b"\0the\0name"]);
        assert_eq!(all(&hidden).unwrap(), r#"unix:@"the\0name""#);
        for nothing in [address(1, &[]), address(16, &[&[7; 10]]), vec![], vec![2]] {
            assert_eq!(all(&nothing), None);
        }
        // A length that is no length does not make more be read.
        let kind = PointerKind::SocketAddress(u64::MAX);
        let most = pointer(kind, ArgumentDetail::Full).unwrap().longest();
        assert_eq!(most, LONGEST_ADDRESS);
    }

    #[test]
    fn texts_are_read_where_the_policy_records_arguments_in_full_and_numbers_always() {
        let local = address(1, &[b"/run/x.sock\0"]);
        let v4 = address(2, &[&80_u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]]);
        for (detail, texts) in [
            (ArgumentDetail::None, false),
            (ArgumentDetail::Digest, false),
            (ArgumentDetail::Full, true),
        ] {
            for kind in [PointerKind::Path, PointerKind::Name] {
                assert_eq!(pointer(kind, detail).is_some(), texts, "{detail:?}");
            }
            let of = |memory: &[u8]| {
                let kind = PointerKind::SocketAddress(memory.len() as u64);
                pointer(kind, detail).unwrap().read(memory)
            };
            assert_eq!(of(&local).is_some(), texts, "{detail:?}");
            assert!(of(&v4).is_some(), "{detail:?}");
        }
        assert_eq!(
            Pointer::new(1, 0, PointerKind::Path, ArgumentDetail::Full),
            None
        );
    }
}
