//! One response, as it goes out.

use serde::Serialize;
use serde_json::value::RawValue;
use varek_core::{Error, Event, Outcome, Usage};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The guest ran; `outcome` says how it ended, whichever way that was.
    Ok,
    /// This host or this version cannot enforce what was asked. Nothing was started.
    Unsupported,
    /// The program could not be started.
    SpawnError,
    /// The line is no request, or its policy contradicts itself. Nothing was started.
    Invalid,
    /// VAREK itself failed.
    Error,
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Any status but `Ok`.
    pub status: Status,
    /// In words.
    pub reason: String,
}

impl Refusal {
    /// The request makes no sense.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self {
            status: Status::Invalid,
            reason: reason.into(),
        }
    }

    /// It makes sense, and cannot be had.
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self {
            status: Status::Unsupported,
            reason: reason.into(),
        }
    }

    /// The program cannot be started.
    pub fn spawn(reason: impl Into<String>) -> Self {
        Self {
            status: Status::SpawnError,
            reason: reason.into(),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Unsupported { .. } => Status::Unsupported,
            Error::Policy { .. } | Error::Syscalls { .. } => Status::Invalid,
            Error::ProgramNotFound { .. }
            | Error::Program { .. }
            | Error::Command { .. }
            | Error::Setup { .. }
            | Error::SetupDied { .. } => Status::SpawnError,
            _ => Status::Error,
        };
        Self {
            status,
            reason: crate::evidence::chain(&error),
        }
    }
}

/// What a run used, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Seconds {
    /// From the start of the guest to the end of its tree.
    pub wall_clock: f64,
    /// User and system time of the tree.
    pub cpu: f64,
}

impl From<&Usage> for Seconds {
    fn from(usage: &Usage) -> Self {
        Self {
            wall_clock: usage.wall_clock.as_secs_f64(),
            cpu: (usage.cpu_user + usage.cpu_system).as_secs_f64(),
        }
    }
}

/// One response.
#[derive(Debug, Serialize)]
pub struct Response {
    /// The request's line number, from 1.
    pub line: u64,
    /// The request's id; null where it had none or none could be read.
    pub id: Option<Box<RawValue>>,
    /// What became of it.
    pub status: Status,
    /// Why there is no outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The outcome in one line, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// What the run used, in seconds; `outcome.usage` has the same as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Seconds>,
    /// The digest of the policy that was in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<Outcome>>,
    /// The run's events, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Event>>,
    /// How many events are missing in `events`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_omitted: Option<u64>,
}

impl Response {
    /// The response to a request that led to no outcome.
    pub fn refused(line: u64, id: Option<Box<RawValue>>, refusal: Refusal) -> Self {
        Self {
            line,
            id,
            status: refusal.status,
            reason: Some(refusal.reason),
            summary: None,
            seconds: None,
            policy: None,
            outcome: None,
            events: None,
            events_omitted: None,
        }
    }

    /// The response as one line, without its end.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON, which no part of it gives a reason for.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_refusal_is_one_line_with_line_id_status_and_reason() {
        let id = RawValue::from_string("1.50".into()).unwrap();
        let response = Response::refused(7, Some(id), Refusal::invalid("a\nb"));
        assert_eq!(
            String::from_utf8(response.to_line().unwrap()).unwrap(),
            r#"{"line":7,"id":1.50,"status":"invalid","reason":"a\nb"}"#
        );
    }

    #[test]
    fn the_library_s_errors_have_their_status() {
        let program = || PathBuf::from("/nothing");
        let io = || std::io::Error::from_raw_os_error(5);
        let missing = Error::ProgramNotFound {
            program: "x".into(),
            searched: vec![program()],
        };
        assert_eq!(Refusal::from(missing).status, Status::SpawnError);
        let cannot = Error::Program {
            program: program(),
            reason: "is not there".into(),
        };
        assert_eq!(Refusal::from(cannot).status, Status::SpawnError);
        assert_eq!(
            Refusal::from(Error::Policy { problems: vec![] }).status,
            Status::Invalid
        );
        assert_eq!(
            Refusal::from(Error::Unsupported { missing: vec![] }).status,
            Status::Unsupported
        );
        assert_eq!(
            Refusal::from(Error::Full { limit: 1 }).status,
            Status::Error
        );
        let failed = Error::Io {
            operation: "open",
            path: Some(program()),
            source: io(),
        };
        let refusal = Refusal::from(failed);
        assert_eq!(refusal.status, Status::Error);
        assert!(refusal.reason.contains("/nothing"), "{}", refusal.reason);
    }
}
