//! The page of a log as a browser shows it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![cfg(target_os = "linux")]

#[path = "support/browser.rs"]
mod browser;
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use browser::Browser;
use serde_json::json;
use tempfile::TempDir;
use varek_core::{
    Answer, Arguments, Cause, Cleanup, Denial, Enforcement, Event, EventKind, RunId, Termination,
    Usage,
};

/// Ends a script, opens a tag whose load fails, and would open a dialog in either.
const HOSTILE: &str = "/tmp/</script><script>alert(1);window.ran=1</script><img src=x onerror=\"window.ran=1;alert(2)\">";
const LONG: &str = "/tmp/a-directory-whose-name-goes-on-and-on-and-on-and-on-and-on-and-on-and-on-and-on-and-on-and-on/program";

fn log() -> String {
    let programs = ["/usr/bin/python3", HOSTILE, "/bin/true", LONG];
    let mut log = String::new();
    for (number, program) in programs.into_iter().enumerate() {
        let number = u64::try_from(number).unwrap();
        let mut sequence = 0;
        let mut add = |kind| {
            let event = Event {
                run: RunId::from_bits(u128::from(number + 1) << 64 | 7),
                sequence,
                time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + number),
                elapsed: Duration::from_millis((100 - 9 * number) * sequence),
                kind,
            };
            sequence += 1;
            log += &serde_json::to_string(&event).unwrap();
            log.push('\n');
        };
        add(EventKind::RunStarted {
            program: program.into(),
            interpreter: None,
            arguments: Arguments::None { count: 2 },
            policy: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            enforcement: Enforcement::default(),
            traceparent: None,
        });
        add(EventKind::GuestStarted { pid: 9 });
        for count in 0..number {
            add(EventKind::SyscallDenied(Denial {
                syscall: Some("socket".into()),
                number: 41,
                abi: "x86_64".into(),
                arguments: [2, 1, 0, 0, 0, 0],
                thread: 7,
                answer: Answer::Errno(1),
                count: 11 * (count + 1),
                unverified: Vec::new(),
            }));
        }
        let termination = match number {
            0 => Termination::Exited(0),
            1 => Termination::Killed(Cause::Syscall {
                name: HOSTILE.into(),
            }),
            _ => Termination::Killed(Cause::WallClock),
        };
        add(EventKind::RunFinished {
            termination,
            usage: Usage::default(),
            cleanup: Cleanup::Complete,
        });
    }
    log
}

/// The page of the log, open in a browser; or none, which is said.
fn open(test: &str) -> Option<(Browser, PathBuf, TempDir)> {
    let browser = match Browser::start() {
        Ok(browser) => browser,
        Err(reason) => {
            support::not_run(test, &reason);
            return None;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    fs::write(&path, log()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_report"))
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = directory.path().join("log.jsonl.html");
    browser.open(&page);
    Some((browser, page, directory))
}

/// The texts of a column of the first table.
fn column(browser: &Browser, index: usize) -> Vec<String> {
    let body = format!(
        "return [...document.querySelector('table').tBodies[0].rows].map(row => row.children[{index}].textContent)"
    );
    serde_json::from_value(browser.evaluate(&body)).unwrap()
}

#[test]
fn the_page_shows_every_run_and_asks_nobody_for_anything() {
    let Some((browser, page, _directory)) =
        open("the_page_shows_every_run_and_asks_nobody_for_anything")
    else {
        return;
    };
    assert_eq!(browser.title(), "VAREK: runs");
    assert_eq!(column(&browser, 0).len(), 4);
    let count = browser.evaluate("return document.querySelectorAll('section.run svg').length");
    assert_eq!(count, 4);
    let dots = browser.evaluate("return document.querySelectorAll('svg circle').length");
    assert_eq!(dots, 3 * 4 + 1 + 2 + 3);
    let asked = "return performance.getEntriesByType('resource').map(entry => entry.name)";
    assert_eq!(browser.evaluate(asked), json!([]));
    let refused =
        "return document.querySelectorAll('link, img, iframe, script[src], object, embed').length";
    assert_eq!(browser.evaluate(refused), 0);
    let text = fs::read_to_string(page).unwrap();
    assert!(!text.contains("http://") && !text.contains("https://"));
}

#[test]
fn a_heading_that_is_pressed_sorts_its_table_up_and_then_down() {
    let Some((browser, _page, _directory)) =
        open("a_heading_that_is_pressed_sorts_its_table_up_and_then_down")
    else {
        return;
    };
    let press = |index: usize| {
        browser.click(&format!("table th:nth-child({}) button", index + 1));
        let order = "return document.querySelector('th[aria-sort]').getAttribute('aria-sort')";
        browser.evaluate(order)
    };
    // By numbers, where 66 is more than 11 and than 0.
    let before = column(&browser, 5);
    assert_eq!(press(5), "ascending");
    let up: Vec<u64> = column(&browser, 5)
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    assert!(up.is_sorted() && up[0] < up[3], "{up:?}");
    assert_eq!(press(5), "descending");
    let down: Vec<u64> = column(&browser, 5)
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    assert!(down.is_sorted_by(|a, b| a >= b), "{down:?}");
    assert_ne!(column(&browser, 5), before);
    // By text.
    assert_eq!(press(2), "ascending");
    let up = column(&browser, 2);
    assert_eq!(press(2), "descending");
    let mut down = column(&browser, 2);
    assert_ne!(up, down);
    down.reverse();
    assert_eq!(up, down);
    assert_eq!(
        browser.evaluate("return document.querySelectorAll('th[aria-sort]').length"),
        1
    );
}

/// The least contrast of a text to what is behind it (WCAG 2.2, 1.4.3), and the colour of the page.
const CONTRAST: &str = r"
const parse = (text) => { const n = text.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
const canvas = document.createElement('div');
canvas.style.cssText = 'background: Canvas'; document.body.append(canvas);
const page = parse(getComputedStyle(canvas).backgroundColor); canvas.remove();
const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
const light = (c) => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
let least = 21, where = '';
for (const element of document.querySelectorAll('body *')) {
  if (['SCRIPT', 'STYLE', 'TITLE'].includes(element.tagName) || element.closest('svg')) continue;
  if (![...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
  const style = getComputedStyle(element);
  let opacity = 1;
  for (let up = element; up; up = up.parentElement) opacity *= Number(getComputedStyle(up).opacity);
  const colour = parse(style.color); colour[3] *= opacity;
  const [a, b] = [light(over(colour, page)), light(page)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < least) { least = ratio; where = element.tagName + ' ' + element.className + ' ' + style.color; }
}
return { least, where, page: page.slice(0, 3) };";

#[test]
fn light_and_dark_are_both_there_and_can_be_read() {
    let Some((browser, _page, _directory)) = open("light_and_dark_are_both_there_and_can_be_read")
    else {
        return;
    };
    let mut pages = Vec::new();
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        browser.viewport(1100, 1600);
        let found = browser.evaluate(CONTRAST);
        assert!(found["least"].as_f64().unwrap() >= 4.5, "{scheme}: {found}");
        keep(&browser, scheme);
        pages.push(found["page"][0].as_f64().unwrap());
    }
    assert!(pages[0] > 200.0 && pages[1] < 60.0, "{pages:?}");
}

#[test]
fn a_narrow_window_is_wide_enough() {
    let Some((browser, _page, _directory)) = open("a_narrow_window_is_wide_enough") else {
        return;
    };
    for width in [320, 480, 800] {
        browser.viewport(width, 800);
        let body = "return [document.documentElement.scrollWidth, innerWidth, document.querySelector('table').offsetWidth]";
        let [whole, window, table]: [u32; 3] =
            serde_json::from_value(browser.evaluate(body)).unwrap();
        assert_eq!(window, width);
        assert!(table > 0 && whole <= width, "{whole} in {width}");
        keep(&browser, &width.to_string());
    }
}

#[test]
fn what_a_guest_chose_is_text_and_nothing_of_it_runs() {
    let Some((browser, _page, _directory)) =
        open("what_a_guest_chose_is_text_and_nothing_of_it_runs")
    else {
        return;
    };
    assert!(!browser.has_dialog());
    assert_eq!(browser.evaluate("return window.ran ?? null"), json!(null));
    assert_eq!(browser.evaluate("return document.scripts.length"), 1);
    assert_eq!(browser.evaluate("return document.images.length"), 0);
    assert!(column(&browser, 2).iter().any(|text| text == HOSTILE));
    // The policy of the page holds where markup does get in: the handler of an element does not run either.
    let inject = "const box = document.createElement('div'); document.body.append(box); \
                  box.innerHTML = '<b onclick=\"window.ran=1\">x</b>'; box.firstChild.click(); return window.ran ?? null";
    assert_eq!(browser.evaluate(inject), json!(null));
    // The control: a click does reach what a script of ours listens with.
    let control = "const box = document.createElement('b'); box.addEventListener('click', () => { window.ran = 2; }); \
                   document.body.append(box); box.click(); return window.ran";
    assert_eq!(browser.evaluate(control), 2);
}

/// Puts a picture where the environment says, for people to look at.
fn keep(browser: &Browser, name: &str) {
    if let Some(place) = std::env::var_os("VAREK_SCREENSHOTS") {
        let path = PathBuf::from(place).join(format!("{name}.png"));
        fs::write(path, browser.screenshot()).unwrap();
    }
}
