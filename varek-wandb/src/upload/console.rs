//! Console output as lines of `output.log`.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::proto::{OutputRaw, OutputType};

/// Characters of one line, at most; the rest is cut. Source: the client's behaviour.
const LONGEST: usize = 100_000;

/// Lines that are not whole yet, one for each stream.
#[derive(Debug, Default)]
pub(super) struct Console {
    stdout: Option<Line>,
    stderr: Option<Line>,
}

#[derive(Debug)]
struct Line {
    text: String,
    time: String,
}

impl Console {
    /// Takes output, and gives the lines that it completes.
    pub(super) fn take(&mut self, output: &OutputRaw) -> Vec<String> {
        let is_error = output.output_type == OutputType::Stderr as i32;
        let time = stamp(output);
        let mut lines = Vec::new();
        for piece in output.line.split_inclusive('\n') {
            let open = if is_error {
                &mut self.stderr
            } else {
                &mut self.stdout
            };
            let line = open.get_or_insert_with(|| Line {
                text: String::new(),
                time: time.clone(),
            });
            line.text.push_str(piece);
            if piece.ends_with('\n')
                && let Some(line) = open.take()
            {
                lines.push(written(&line, is_error));
            }
        }
        lines
    }

    /// What is left when the run ends.
    pub(super) fn rest(&mut self) -> Vec<String> {
        let stdout = self.stdout.take().map(|line| written(&line, false));
        let stderr = self.stderr.take().map(|line| written(&line, true));
        stdout.into_iter().chain(stderr).collect()
    }
}

/// A line as the official client writes it: where from, when, what. Of a line that wrote over itself, what was last.
fn written(line: &Line, is_error: bool) -> String {
    let text = line.text.trim_end_matches(['\n', '\r']);
    let text = text.rsplit('\r').next().unwrap_or_default();
    let text: String = text.chars().take(LONGEST).collect();
    let origin = if is_error { "ERROR " } else { "" };
    format!("{origin}{} {text}", line.time)
}

fn stamp(output: &OutputRaw) -> String {
    let time = output.timestamp.as_ref().and_then(|time| {
        let seconds = Duration::from_secs(u64::try_from(time.seconds).ok()?);
        let nanos = Duration::from_nanos(u64::try_from(time.nanos).ok()?);
        Timestamp::try_from(SystemTime::UNIX_EPOCH + seconds + nanos).ok()
    });
    let time = time.unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    fn output(kind: OutputType, line: &str) -> OutputRaw {
        OutputRaw {
            output_type: kind.into(),
            timestamp: Some(proto::Timestamp {
                seconds: 1_700_000_000,
                nanos: 5_000_000,
            }),
            line: line.into(),
        }
    }

    #[test]
    fn lines_are_put_together_from_pieces_stream_by_stream() {
        let mut console = Console::default();
        let at = "2023-11-14T22:13:20.005000";
        assert!(console.take(&output(OutputType::Stdout, "he")).is_empty());
        assert!(console.take(&output(OutputType::Stderr, "bad")).is_empty());
        assert_eq!(
            console.take(&output(OutputType::Stdout, "llo\n10%\r20%\r\nrest")),
            [format!("{at} hello"), format!("{at} 20%")]
        );
        assert_eq!(
            console.rest(),
            [format!("{at} rest"), format!("ERROR {at} bad")]
        );
        assert!(console.rest().is_empty());
    }
}
