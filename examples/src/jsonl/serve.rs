//! Lines in, lines out.

use std::io::{self, BufRead, ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::respond::Response;

/// One line of the input, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// All of it.
    Whole(Vec<u8>),
    /// It is too long to be kept.
    TooLong {
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        limit: usize,
    },
}

/// Who answers.
pub trait Answer: Send + Sync + 'static {
    /// Answers one line, from any thread.
    fn answer(&self, number: u64, line: Line) -> Response;

    /// Nobody reads the answers any more: lets what is going on end soon.
    fn stop(&self);

    /// The session is over: gives everything back.
    fn close(&self);
}

/// What a session did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Responses written.
    pub responses: u64,
    /// Whether the reader of the responses went away before the requests ended.
    pub abandoned: bool,
}

/// Answers every line of `input`, `jobs` at a time, and writes the responses to `output` as they come,
/// each in one piece and flushed.
///
/// Lines of white space alone are counted and not answered. A reader that goes away (EPIPE) ends the session,
/// and is no error; the guests that run then are killed.
///
/// # Errors
///
/// When `input` cannot be read or `output` cannot be written.
pub fn serve(
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
    jobs: usize,
    longest: usize,
    answer: &Arc<impl Answer>,
) -> io::Result<Served> {
    let jobs = jobs.clamp(1, 1024);
    let gate = Arc::new(Gate::default());
    // No room beside what the workers hold: lines are read when somebody is free to take them.
    let (lines, queue) = sync_channel(0);
    let queue = Arc::new(Mutex::new(queue));
    let (responses, results) = sync_channel(jobs);
    for number in 0..jobs {
        let work = Work {
            queue: queue.clone(),
            responses: responses.clone(),
            gate: gate.clone(),
            answer: answer.clone(),
        };
        std::thread::Builder::new()
            .name(format!("request-{number}"))
            .spawn(move || work.run())?;
    }
    drop((queue, responses));
    // Not joined: it may be blocked in a read for as long as the other side likes.
    let reader = std::thread::Builder::new().name("requests".into());
    let (failed, failure) = sync_channel(1);
    reader.spawn(move || {
        if let Err(error) = read(input, longest, &lines) {
            let _ = failed.try_send(error);
        }
    })?;

    let mut written = 0;
    let mut result = Ok(());
    for response in &results {
        result = write(&mut output, &response);
        if result.is_err() {
            break;
        }
        written += 1;
    }
    // With no receiver no worker waits to be heard.
    drop(results);
    gate.close();
    if result.is_err() {
        answer.stop();
    }
    gate.wait_empty();
    answer.close();
    let served = Served {
        responses: written,
        abandoned: result.is_err(),
    };
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        Err(_) => Ok(served),
        Ok(()) => failure.try_recv().map_or(Ok(served), Err),
    }
}

fn write(output: &mut impl Write, response: &Response) -> io::Result<()> {
    let mut line = response.to_line().map_err(io::Error::other)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// Counts the requests that are being answered.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, bool)>,
    left: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> bool {
        let mut state = self.state();
        let open = !state.1;
        state.0 += usize::from(open);
        open
    }

    fn leave(&self) {
        self.state().0 -= 1;
        self.left.notify_all();
    }

    fn close(&self) {
        self.state().1 = true;
    }

    fn wait_empty(&self) {
        let mut state = self.state();
        while state.0 > 0 {
            state = self
                .left
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One worker.
struct Work<A> {
    queue: Arc<Mutex<Receiver<(u64, Line)>>>,
    responses: SyncSender<Response>,
    gate: Arc<Gate>,
    answer: Arc<A>,
}

impl<A: Answer> Work<A> {
    fn run(self) {
        loop {
            let next = self
                .queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok((number, line)) = next else { return };
            if !self.gate.enter() {
                return;
            }
            let response = self.answer.answer(number, line);
            let heard = self.responses.send(response).is_ok();
            self.gate.leave();
            if !heard {
                return;
            }
        }
    }
}

fn read(
    mut input: impl BufRead,
    longest: usize,
    lines: &SyncSender<(u64, Line)>,
) -> io::Result<()> {
    let mut number = 0;
    while let Some(line) = read_line(&mut input, longest)? {
        number += 1;
        let blank = matches!(&line, Line::Whole(bytes) if bytes.trim_ascii().is_empty());
        if !blank && lines.send((number, line)).is_err() {
            break;
        }
    }
    Ok(())
}

fn read_line(input: &mut impl BufRead, longest: usize) -> io::Result<Option<Line>> {
    let mut kept = Vec::new();
    let mut total: u64 = 0;
    let mut begun = false;
    loop {
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() && !begun {
            return Ok(None);
        }
        begun = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = available
            .get(..end.unwrap_or(available.len()))
            .unwrap_or_default();
        total += part.len() as u64;
        if total <= longest as u64 {
            kept.extend_from_slice(part);
        } else {
            kept = Vec::new();
        }
        let over = end.is_some() || available.is_empty();
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if over {
            break;
        }
    }
    Ok(Some(if total > longest as u64 {
        Line::TooLong {
            bytes: total,
            limit: longest,
        }
    } else {
        Line::Whole(kept)
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    use super::super::respond::Refusal;
    use super::*;

    /// Says what it was asked.
    #[derive(Default)]
    struct Echo {
        together: Option<Barrier>,
        stopped: AtomicBool,
        closed: AtomicUsize,
    }

    impl Answer for Echo {
        fn answer(&self, number: u64, line: Line) -> Response {
            if let Some(barrier) = &self.together {
                barrier.wait();
            }
            let text = match line {
                Line::Whole(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Line::TooLong { bytes, limit } => format!("{bytes} of {limit}"),
            };
            Response::refused(number, None, Refusal::invalid(text))
        }

        fn stop(&self) {
            self.stopped.store(true, Ordering::SeqCst);
        }

        fn close(&self) {
            self.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn session(input: &[u8], jobs: usize, answer: Echo) -> (Vec<(u64, String)>, Served) {
        let mut output = Vec::new();
        // A tiny buffer, so that lines come in pieces.
        let input = BufReader::with_capacity(3, Cursor::new(input.to_vec()));
        let answer = Arc::new(answer);
        let served = serve(input, &mut output, jobs, 8, &answer).unwrap();
        assert_eq!(answer.closed.load(Ordering::SeqCst), 1);
        let lines = String::from_utf8(output).unwrap();
        let mut lines: Vec<_> = lines
            .lines()
            .map(|line| {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                (
                    value["line"].as_u64().unwrap(),
                    value["reason"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        lines.sort();
        (lines, served)
    }

    #[test]
    fn every_line_but_blank_ones_is_answered_with_its_number() {
        let (lines, served) = session(b"one\n\n  \r\ntwo\r\nthree", 1, Echo::default());
        let wanted = [(1, "one"), (4, "two\r"), (5, "three")];
        assert_eq!(
            lines,
            wanted.map(|(number, text)| (number, text.to_owned()))
        );
        assert_eq!(
            served,
            Served {
                responses: 3,
                abandoned: false
            }
        );
        assert_eq!(session(b"", 4, Echo::default()).0, []);
    }

    #[test]
    fn a_line_that_is_too_long_is_counted_and_the_next_one_is_whole() {
        let (lines, _) = session(b"12345678\n123456789\nabc\n", 2, Echo::default());
        let wanted = [(1, "12345678"), (2, "9 of 8"), (3, "abc")];
        assert_eq!(
            lines,
            wanted.map(|(number, text)| (number, text.to_owned()))
        );
    }

    #[test]
    fn as_many_lines_as_jobs_are_answered_at_a_time() {
        // Nobody passes the barrier alone: one job less would hang.
        let echo = Echo {
            together: Some(Barrier::new(4)),
            ..Echo::default()
        };
        assert_eq!(session(b"a\nb\nc\nd\n", 4, echo).0.len(), 4);
    }

    /// Fails at the second write.
    struct Gone(usize, ErrorKind);

    impl Write for Gone {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 1 {
                Err(self.1.into())
            } else {
                Ok(bytes.len())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Gives two lines, and then nothing until the other end is dropped.
    struct Open(Cursor<Vec<u8>>, mpsc::Receiver<()>);

    impl io::Read for Open {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => {
                    let _ = self.1.recv();
                    Ok(0)
                }
                read => Ok(read),
            }
        }
    }

    fn abandoned(kind: ErrorKind) -> (io::Result<Served>, Arc<Echo>) {
        let (_keep, open) = mpsc::channel();
        let input = BufReader::new(Open(Cursor::new(b"a\nb\n".to_vec()), open));
        let answer = Arc::new(Echo::default());
        (serve(input, Gone(0, kind), 2, 8, &answer), answer)
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_session_though_the_input_goes_on() {
        let (served, answer) = abandoned(ErrorKind::BrokenPipe);
        assert_eq!(
            served.unwrap(),
            Served {
                responses: 1,
                abandoned: true
            }
        );
        assert!(answer.stopped.load(Ordering::SeqCst));
        assert_eq!(answer.closed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let (served, _) = abandoned(ErrorKind::StorageFull);
        assert_eq!(served.unwrap_err().kind(), ErrorKind::StorageFull);
    }

    struct Broken;

    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::UnexpectedEof.into())
        }
    }

    #[test]
    fn input_that_cannot_be_read_is_an_error() {
        let answer = Arc::new(Echo::default());
        let error = serve(BufReader::new(Broken), Vec::new(), 2, 8, &answer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
