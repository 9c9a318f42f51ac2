//! Requests, and which of them are made again.
//!
//! The pauses are those of the official client: 2 s, twice as long each time, up to a minute, with up to a quarter more at random;
//! or what the server asks for. A request is repeated for as long as somebody waits for it. Source: the client's behaviour, and its
//! retry policy in `core/internal/api`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ureq::{Agent, SendBody};

use super::server::Server;
use super::stop::{Stop, Stopped, lock};

/// The longest wait that a server can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(20);

/// How long nothing may be read or written.
const PROGRESS: Duration = Duration::from_secs(60);

/// How long an answer of the API may take in all.
const ANSWER: Duration = Duration::from_secs(180);

/// Bytes of an answer, at most.
const LARGEST_ANSWER: u64 = 64 * 1024 * 1024;

/// Redirects of one upload, at most.
const REDIRECTS: usize = 5;

/// The pauses between tries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(2),
            longest: Duration::from_secs(60),
        }
    }
}

/// Why something was not done, and will not be by doing it again.
#[derive(Debug)]
pub(super) enum Failure {
    /// The embedder waits no longer.
    Stopped,
    /// The key is not taken, or not for this.
    Key { status: u16, what: &'static str },
    /// The server refused it.
    Refused { reason: String },
    /// A file on this host.
    File { reason: String },
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl Failure {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Stopped => "nobody waited for it".into(),
            Self::Key { status, what } => format!(
                "{what}: the server answered {status}: the key is not valid there, or may not do this; \
                 the log is kept, and can be synced with another key"
            ),
            Self::Refused { reason } | Self::File { reason } => reason.clone(),
        }
    }
}

/// What came of one try.
enum Try<T> {
    Done(T),
    Again {
        reason: String,
        asked: Option<Duration>,
    },
    Never(Failure),
}

/// The part of a file that is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// What storage answered.
#[derive(Debug)]
pub(super) enum Stored {
    /// With the entity tag, where there is one.
    Done(Option<String>),
    /// Another address is needed.
    Address,
}

/// A client of one server, for several threads.
#[derive(Debug)]
pub(super) struct Client {
    api: Agent,
    storage: Agent,
    server: Server,
    pauses: Pauses,
    stop: Arc<Stop>,
    /// The API is not asked before then.
    quiet_until: Mutex<Option<Instant>>,
    /// What is in the way while tries are made again.
    trouble: Mutex<Option<String>>,
}

impl Client {
    pub(super) fn new(server: Server, pauses: Pauses, stop: Arc<Stop>) -> Self {
        // Plain http is for this machine alone; a proxy of the environment would get the key in the clear.
        let is_private = server.base_url.starts_with("https://");
        let proxy = is_private.then(ureq::Proxy::try_from_env).flatten();
        let common = || {
            Agent::config_builder()
                .proxy(proxy.clone())
                .tls_config(server.tls())
                .timeout_connect(Some(CONNECT))
                .timeout_per_read(Some(PROGRESS))
                .timeout_per_write(Some(PROGRESS))
                .timeout_recv_response(Some(ANSWER))
                .timeout_recv_body(Some(ANSWER))
                // A redirect would carry the key elsewhere; those of storage are followed by hand.
                .max_redirects(0)
                .max_redirects_will_error(false)
                .http_status_as_error(false)
                .user_agent(concat!("varek-wandb/", env!("CARGO_PKG_VERSION")))
        };
        Self {
            api: common().build().into(),
            storage: common().build().into(),
            server,
            pauses,
            stop,
            quiet_until: Mutex::new(None),
            trouble: Mutex::new(None),
        }
    }

    pub(super) fn base_url(&self) -> &str {
        &self.server.base_url
    }

    /// What is in the way at the moment, if tries are being made again.
    pub(super) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// A GraphQL operation; the answer's `data`. Answers with `errors` are refusals, as the official client takes them.
    pub(super) fn graphql(
        &self,
        what: &'static str,
        query: &str,
        variables: &Value,
    ) -> Result<Value, Failure> {
        // The run's creation may collide with itself, when an answer was lost.
        let conflicts = what == "upsertBucket";
        let body = json!({ "query": query, "variables": variables }).to_string();
        let url = format!("{}/graphql", self.server.base_url);
        self.repeated(|| {
            let (status, headers, answer) = match self.post(&url, body.as_bytes()) {
                Ok(answered) => answered,
                Err(reason) => return again(what, &reason, None),
            };
            let answer: Option<Value> = serde_json::from_slice(&answer).ok();
            let message = answer
                .as_ref()
                .and_then(|answer| answer.pointer("/errors/0/message").and_then(Value::as_str));
            match (
                status,
                answer.as_ref().and_then(|answer| answer.get("data")),
            ) {
                (200, Some(data)) if message.is_none() => Try::Done(data.clone()),
                (200, _) => match message {
                    Some(message) => refused(what, 200, message),
                    None => again(what, "half an answer", None),
                },
                (409, _) if conflicts => again(what, "409", asked(&headers)),
                _ => judge(what, status, &headers, message.unwrap_or_default()),
            }
        })
    }

    /// A request to the run's file stream; the answer.
    pub(super) fn stream(&self, path: &str, body: &[u8]) -> Result<Value, Failure> {
        let what = "file_stream";
        let url = format!("{}{path}", self.server.base_url);
        self.repeated(|| {
            let (status, headers, answer) = match self.post(&url, body) {
                Ok(answered) => answered,
                Err(reason) => return again(what, &reason, None),
            };
            match (status, serde_json::from_slice(&answer)) {
                (200, Ok(answer)) => Try::Done(answer),
                (200, Err(_)) => again(what, "half an answer", None),
                _ => judge(what, status, &headers, ""),
            }
        })
    }

    /// Sends a part of a file to the address that the server signed for it, without the key.
    pub(super) fn store(
        &self,
        url: &str,
        headers: &[(String, String)],
        file: &File,
        part: Part,
    ) -> Result<Stored, Failure> {
        let what = "upload";
        if let Some(wrong) = unusable(&self.server.base_url, url) {
            let reason = format!("{what}: the server gave an address {wrong}");
            return Err(Failure::Refused { reason });
        }
        self.repeated(|| {
            let mut url = url.to_owned();
            for _ in 0..=REDIRECTS {
                let (status, answer) = match self.put(&url, headers, file, part) {
                    Ok(answered) => answered,
                    Err(reason) => return again(what, &reason, None),
                };
                match status {
                    200..=299 => {
                        let tag = answer.get("etag").and_then(|tag| tag.to_str().ok());
                        return Try::Done(Stored::Done(tag.map(str::to_owned)));
                    }
                    307 | 308 => match redirected(&url, &answer) {
                        Some(next) => url = next,
                        None => return refused(what, status, "a redirect that leads nowhere"),
                    },
                    // What is wrong with an address may be its age; a new one is asked for.
                    400 | 401 | 403 | 404 | 410 => return Try::Done(Stored::Address),
                    _ => return judge(what, status, &answer, ""),
                }
            }
            refused(what, 307, "one redirect after the other")
        })
    }

    fn repeated<T>(&self, mut attempt: impl FnMut() -> Try<T>) -> Result<T, Failure> {
        let mut pause = self.pauses.first;
        loop {
            self.stop.check()?;
            let quiet = *lock(&self.quiet_until);
            if let Some(until) = quiet {
                self.stop.pause(until, true)?;
            }
            let (reason, asked) = match attempt() {
                Try::Done(done) => {
                    *lock(&self.trouble) = None;
                    return Ok(done);
                }
                Try::Never(failure) => return Err(failure),
                Try::Again { reason, asked } => (reason, asked),
            };
            *lock(&self.trouble) = Some(reason);
            if let Some(asked) = asked {
                let until = Instant::now() + asked.min(LONGEST_ASKED);
                self.stop.pause(until, true)?;
            } else {
                self.stop.pause(Instant::now() + jittered(pause), false)?;
                pause = (pause * 2).min(self.pauses.longest);
            }
        }
    }

    fn post(&self, url: &str, body: &[u8]) -> Result<(u16, HeaderMap, Vec<u8>), String> {
        let mut answer = self
            .api
            .post(url)
            .header("authorization", &self.server.authorization)
            .content_type("application/json")
            .send(body)
            .map_err(|error| told(&error))?;
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(LARGEST_ANSWER)
            .read_to_vec()
            .map_err(|error| told(&error))?;
        let headers = answer.headers().clone();
        self.heed(&headers);
        Ok((answer.status().as_u16(), headers, bytes))
    }

    fn put(
        &self,
        url: &str,
        headers: &[(String, String)],
        file: &File,
        part: Part,
    ) -> Result<(u16, HeaderMap), String> {
        let mut request = self.storage.put(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut body = PartReader { file, part };
        let answer = request
            .header("content-length", part.length.to_string())
            .send(SendBody::from_reader(&mut body))
            .map_err(|error| told(&error))?;
        Ok((answer.status().as_u16(), answer.headers().clone()))
    }

    /// Stays quiet ahead of time where the server says that nothing is left of its limit.
    fn heed(&self, headers: &HeaderMap) {
        let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
        if let (Some(remaining), Some(reset)) =
            (number("ratelimit-remaining"), number("ratelimit-reset"))
            && remaining < 1.0
            && let Ok(reset) = Duration::try_from_secs_f64(reset)
        {
            *lock(&self.quiet_until) = Some(Instant::now() + reset.min(LONGEST_ASKED));
        }
    }
}

fn again<T>(what: &str, reason: &str, asked: Option<Duration>) -> Try<T> {
    let reason = format!("{what}: {reason}; it is tried again");
    Try::Again { reason, asked }
}

fn refused<T>(what: &str, status: u16, message: &str) -> Try<T> {
    let mut message: String = message.chars().take(300).collect();
    if !message.is_empty() {
        message.insert_str(0, ": ");
    }
    let reason = format!("{what}: the server answered {status}{message}");
    Try::Never(Failure::Refused { reason })
}

/// What a status means, where nothing more is known of the request.
fn judge<T>(what: &'static str, status: u16, headers: &HeaderMap, message: &str) -> Try<T> {
    match status {
        401 | 403 => Try::Never(Failure::Key { status, what }),
        400 | 404 | 405 | 409 | 410 | 411 | 413 | 414 | 415 | 422 | 501 => {
            refused(what, status, message)
        }
        300..=399 => refused(
            what,
            status,
            "a redirect, which is not followed with a key; use the address that it leads to as WANDB_BASE_URL",
        ),
        _ => again(
            what,
            &format!("the server answered {status}"),
            asked(headers),
        ),
    }
}

/// How long the server asks to be left alone: seconds or a date (RFC 9110, section 10.2.3).
fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    let until = SystemTime::from(date.timestamp());
    // A date has no fractions: the second that it names is over when the next begins.
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    Some(left + Duration::from_secs(1))
}

fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without random numbers the pause is as long as it is.
    let _ = getrandom::fill(&mut byte);
    pause + pause / 4 * u32::from(byte[0]) / 255
}

/// What an error says, without the address, whose query is a signature.
fn told(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::BadUri(_) => "an address that is none".into(),
        other => other.to_string(),
    }
}

/// What keeps files from being sent to an address: it is none, or they would lose the privacy that the API has.
fn unusable(api: &str, storage: &str) -> Option<&'static str> {
    let parsed: Option<Uri> = storage.parse().ok();
    let parsed = parsed.filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    match parsed.as_ref().and_then(Uri::scheme_str) {
        Some("https") => None,
        Some("http") if !api.starts_with("https://") => None,
        Some("http") => Some("without TLS, and has one with it itself"),
        _ => Some("that is none"),
    }
}

/// Where a redirect of storage leads, which may be an address of the same host.
fn redirected(url: &str, headers: &HeaderMap) -> Option<String> {
    let location = headers.get("location")?.to_str().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        let base: Uri = url.parse().ok()?;
        let (scheme, authority) = (base.scheme_str()?, base.authority()?);
        return Some(format!("{scheme}://{authority}{location}"));
    }
    let to: Uri = location.parse().ok()?;
    // Never from https to http.
    let plain = to.scheme_str() == Some("http") && url.starts_with("http://");
    (plain || to.scheme_str() == Some("https")).then(|| location.to_owned())
}

/// Headers as the service writes them, `Name:value`.
pub(super) fn headers(lines: Option<&Value>) -> Vec<(String, String)> {
    let lines = lines.and_then(Value::as_array).into_iter().flatten();
    lines
        .filter_map(|line| {
            let (name, value) = line.as_str()?.split_once(':')?;
            let (name, value) = (name.trim(), value.trim());
            let good = HeaderName::from_bytes(name.as_bytes()).is_ok()
                && HeaderValue::from_str(value).is_ok();
            good.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect()
}

struct PartReader<'a> {
    file: &'a File,
    part: Part,
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.part.length).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let Some(room) = buffer.get_mut(..most).filter(|room| !room.is_empty()) else {
            return Ok(0);
        };
        let read = self.file.read_at(room, self.part.offset)?;
        if read == 0 {
            return Err(io::Error::other(
                "the file became shorter while it was sent",
            ));
        }
        self.part.offset += read as u64;
        self.part.length -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_wait_is_asked_for_in_seconds_or_by_a_date() {
        assert_eq!(asked(&with("3")), Some(Duration::from_secs(3)));
        assert_eq!(asked(&with("0.5")), Some(Duration::from_millis(500)));
        let past = asked(&with("Sun, 06 Nov 1994 08:49:37 GMT")).unwrap();
        assert!(past <= Duration::from_secs(1));
        let later = SystemTime::now() + Duration::from_secs(100);
        let later = jiff::Timestamp::try_from(later).unwrap();
        let text = jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&later)
            .unwrap();
        let asked_for = asked(&with(&text)).unwrap();
        assert!(asked_for > Duration::from_secs(95) && asked_for < Duration::from_secs(102));
        for nonsense in ["", "soon", "-1", "NaN"] {
            assert_eq!(asked(&with(nonsense)), None, "{nonsense}");
        }
    }

    #[test]
    fn storage_has_an_address_and_tls_where_the_api_has_it() {
        let (private, local) = ("https://wandb.example.com", "http://127.0.0.1:1");
        for good in [
            "https://storage.example.com/a?b=c",
            "HTTPS://storage.example.com/a",
        ] {
            assert_eq!(unusable(private, good), None, "{good}");
            assert_eq!(unusable(local, good), None, "{good}");
        }
        // An API on this machine may have storage on it.
        assert_eq!(unusable(local, "http://127.0.0.1:2/a"), None);
        let clear = unusable(private, "http://storage.example.com/a").unwrap();
        assert!(clear.contains("without TLS"), "{clear}");
        for none in [
            "",
            "http://[",
            "file:///etc/passwd",
            "//host/a",
            "/a",
            "http:///a",
        ] {
            assert_eq!(unusable(local, none), Some("that is none"), "{none}");
        }
    }

    #[test]
    fn a_redirect_never_leads_from_https_to_http() {
        let to = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", HeaderValue::from_str(location).unwrap());
            headers
        };
        let there = "https://storage.example.com/a?sig=1";
        assert_eq!(redirected(there, &to("http://storage.example.com/b")), None);
        assert_eq!(redirected(there, &to("//storage.example.com/b")), None);
        assert_eq!(
            redirected(there, &to("/b?sig=2")).as_deref(),
            Some("https://storage.example.com/b?sig=2")
        );
        assert!(redirected("http://127.0.0.1:1/a", &to("http://127.0.0.1:2/b")).is_some());
    }
}
