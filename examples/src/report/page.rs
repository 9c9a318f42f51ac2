//! The page: one file, with nothing to load and no text that is not escaped.

use std::fmt;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::{Report, Run, milliseconds};
use crate::terminal::is_unseen;

const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// The height of a timeline, and where its marks are.
const HEIGHT: u32 = 46;

/// Text from the log, or from anywhere else, as text of a page.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                letter if letter.is_control() || is_unseen(letter) => {
                    write!(f, "{}", letter.escape_default())?;
                }
                letter => write!(f, "{letter}")?,
            }
        }
        Ok(())
    }
}

/// The one style and the one script that the page may have, whatever else gets into it.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

impl Report {
    /// Writes the page.
    ///
    /// # Errors
    ///
    /// Where it cannot be written.
    pub fn page(&self, out: &mut impl Write) -> io::Result<()> {
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{}'; \
             script-src '{}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>VAREK: runs</title>\n<style>{CSS}</style></head><body>\n<h1>Sandboxed runs</h1>\n<ul class=\"totals\">",
            hash(CSS),
            hash(JS),
        )?;
        for (what, count) in self.totals() {
            write!(out, "<li><b>{count}</b> {}</li>", Text(what))?;
        }
        out.write_all(b"</ul>\n")?;
        self.faults_list(out)?;
        self.runs_table(out)?;
        self.denials_table(out)?;
        self.limits_table(out)?;
        out.write_all(b"<h2>Timelines</h2>\n")?;
        for run in &self.runs {
            run.section(out)?;
        }
        writeln!(out, "<script>{JS}</script>\n</body></html>")
    }

    fn faults_list(&self, out: &mut impl Write) -> io::Result<()> {
        if self.faults.is_empty() {
            return Ok(());
        }
        out.write_all(b"<h2>Unreadable lines</h2>\n<ul class=\"bad\">")?;
        for fault in &self.faults {
            write!(out, "<li>{}</li>", Text(fault))?;
        }
        if self.more_faults > 0 {
            write!(out, "<li>and {} more</li>", self.more_faults)?;
        }
        out.write_all(b"</ul>\n")
    }

    fn runs_table(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"<h2>Runs</h2>\n")?;
        let columns = ["run", "began", "program", "end", "ms", "denied", "limits"];
        heading(out, &columns)?;
        for run in &self.runs {
            let began = humantime::format_rfc3339_millis(run.began).to_string();
            let class = match run.termination {
                Some(varek_core::Termination::Exited(0)) if run.denied == 0 => "good",
                _ => "bad",
            };
            writeln!(
                out,
                "<tr><td><a href=\"#{0}\"><code>{1}</code></a></td><td class=\"when\">{2}</td><td><code class=\"long\">{3}</code></td>\
                 <td class=\"{class}\">{4}</td><td class=\"n\" data-value=\"{5}\">{6}</td>\
                 <td class=\"n\">{7}</td><td class=\"n\">{8}</td></tr>",
                run.id,
                Text(&run.short()),
                Text(&began),
                Text(&run.program),
                Text(&run.end()),
                run.elapsed.as_micros(),
                Text(&milliseconds(run.elapsed)),
                run.denied,
                run.limits.len(),
            )?;
        }
        out.write_all(b"</tbody></table></div>\n")
    }

    fn denials_table(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"<h2>Denied calls</h2>\n")?;
        heading(out, &["run", "program", "call", "answer", "count"])?;
        for run in &self.runs {
            for ((call, answer), count) in &run.calls {
                writeln!(
                    out,
                    "<tr><td><a href=\"#{}\"><code>{}</code></a></td><td><code class=\"long\">{}</code></td><td><code>{}</code></td>\
                     <td>{}</td><td class=\"n\">{count}</td></tr>",
                    run.id,
                    Text(&run.short()),
                    Text(&run.program),
                    Text(call),
                    Text(answer),
                )?;
            }
        }
        out.write_all(b"</tbody></table></div>\n")
    }

    fn limits_table(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"<h2>Limits met</h2>\n")?;
        heading(
            out,
            &["run", "program", "limit", "bound", "count", "evidence"],
        )?;
        for run in &self.runs {
            for hit in &run.limits {
                let bound = hit
                    .limit
                    .map_or_else(|| "above the run".into(), |limit| limit.to_string());
                writeln!(
                    out,
                    "<tr><td><a href=\"#{}\"><code>{}</code></a></td><td><code class=\"long\">{}</code></td><td>{}</td>\
                     <td class=\"n\">{}</td><td class=\"n\">{}</td><td><code>{}</code></td></tr>",
                    run.id,
                    Text(&run.short()),
                    Text(&run.program),
                    Text(&hit.resource.to_string()),
                    Text(&bound),
                    hit.count,
                    Text(&hit.evidence),
                )?;
            }
        }
        out.write_all(b"</tbody></table></div>\n")
    }
}

fn heading(out: &mut impl Write, columns: &[&str]) -> io::Result<()> {
    out.write_all(b"<div class=\"wide\"><table><thead><tr>")?;
    for column in columns {
        write!(
            out,
            "<th><button type=\"button\">{}</button></th>",
            Text(column)
        )?;
    }
    out.write_all(b"</tr></thead><tbody>\n")
}

impl Run {
    fn section(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "<section class=\"run\" id=\"{}\"><h3><code>{}</code> {}</h3>",
            self.id,
            Text(&self.program),
            Text(&self.end()),
        )?;
        self.timeline(out)?;
        out.write_all(b"<dl>")?;
        let run = self.id.to_string();
        let own = [("run", &run), ("policy", &self.policy)];
        let used = self.facts.iter().map(|(name, text)| (*name, text));
        let missing = self.missing.iter().map(|text| ("not enforced", text));
        for (name, text) in own.into_iter().chain(used).chain(missing) {
            write!(out, "<dt>{}</dt><dd>{}</dd>", Text(name), Text(text))?;
        }
        out.write_all(b"</dl>\n<details><summary>Events</summary>\n")?;
        heading(out, &["ms", "event", "what"])?;
        for mark in &self.marks {
            writeln!(
                out,
                "<tr><td class=\"n\" data-value=\"{}\">{}</td><td>{}</td><td><code class=\"long\">{}</code></td></tr>",
                mark.at.as_micros(),
                Text(&milliseconds(mark.at)),
                Text(mark.kind),
                Text(&mark.text),
            )?;
        }
        out.write_all(b"</tbody></table></div>")?;
        if self.more_marks > 0 {
            write!(out, "<p>and {} more events, not shown</p>", self.more_marks)?;
        }
        out.write_all(b"</details></section>\n")
    }

    /// A line from the run's beginning to its end, with a dot for every event.
    fn timeline(&self, out: &mut impl Write) -> io::Result<()> {
        let middle = HEIGHT / 2;
        write!(
            out,
            "<svg role=\"img\" aria-label=\"timeline of {} events in {}\">\
             <line x1=\"1%\" x2=\"99%\" y1=\"{middle}\" y2=\"{middle}\"/>",
            self.marks.len(),
            Text(&milliseconds(self.elapsed)),
        )?;
        let whole = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        for mark in &self.marks {
            let place = 1.0 + 98.0 * (mark.at.as_secs_f64() / whole).clamp(0.0, 1.0);
            write!(
                out,
                "<circle class=\"{}\" cx=\"{place:.2}%\" cy=\"{middle}\" r=\"5\"><title>{} {}: {}</title></circle>",
                Text(mark.kind),
                Text(&milliseconds(mark.at)),
                Text(mark.kind),
                Text(&mark.text),
            )?;
        }
        out.write_all(b"</svg>\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_leaves_its_place_on_the_page() {
        let hostile = "</script><img src=x onerror='alert(1)'>\"&\u{202e}\u{0}\u{1b}[2J";
        let shown = Text(hostile).to_string();
        for wrong in ['<', '>', '"', '\'', '\u{202e}', '\0', '\u{1b}'] {
            assert!(!shown.contains(wrong), "{shown}");
        }
        assert!(
            shown.contains("&lt;/script&gt;") && shown.contains("&amp;"),
            "{shown}"
        );
        assert_eq!(Text("/usr/bin/ü").to_string(), "/usr/bin/ü");
    }
}
