//! A browser without a screen, driven through chromedriver (W3C WebDriver) on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// For one command; a page of this size is there in a moment.
const LIMIT: Duration = Duration::from_secs(120);

/// What makes Chromium start as root and leave the network alone.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--hide-scrollbars",
];

/// A session, with a driver and a profile of its own; both end with it.
#[derive(Debug)]
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// Home and profile.
    directory: TempDir,
}

/// Where a program is that tests do not build.
fn program(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .map(|directory| Path::new(directory).join(name))
        .into_iter()
        .find(|path| path.is_file())
}

impl Browser {
    /// A browser, or why there is none here.
    pub(crate) fn start() -> Result<Self, String> {
        let found =
            |name| program(name).ok_or(format!("there is no {name}: run `cargo xtask setup`"));
        let (chromium, driver) = (found("chromium")?, found("chromedriver")?);
        let directory = tempfile::tempdir().unwrap();
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .env("HOME", directory.path())
            .env("TMPDIR", directory.path())
            .env("XDG_CONFIG_HOME", directory.path())
            .env("XDG_CACHE_HOME", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // The browser is in the driver's group, so that both can be ended.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        // Made now, so that the driver is ended whatever comes.
        let mut browser = Self {
            driver,
            port: port.unwrap_or_default(),
            session: String::new(),
            directory,
        };
        if port.is_none() {
            return Err("chromedriver does not start".to_owned());
        }
        // Read on, or the driver would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        browser.open_session(&chromium)?;
        Ok(browser)
    }

    fn open_session(&mut self, chromium: &Path) -> Result<(), String> {
        let profile = self.directory.path().join("profile");
        let mut flags = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", profile.display()));
        let options = json!({ "binary": chromium, "args": flags });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let made = self.request("POST", "/session", Some(&wanted))?;
        self.session = made["sessionId"].as_str().unwrap_or_default().into();
        Ok(())
    }

    /// Loads a file as a page, and waits until it is there.
    pub(crate) fn open(&self, page: &Path) {
        let url = format!("file://{}", page.display());
        self.command("POST", "/url", Some(&json!({ "url": url })));
    }

    pub(crate) fn title(&self) -> String {
        let title = self.command("GET", "/title", None);
        title.as_str().unwrap().to_owned()
    }

    /// The value of a function's body in the page.
    pub(crate) fn evaluate(&self, body: &str) -> Value {
        let script = json!({ "script": body, "args": [] });
        self.command("POST", "/execute/sync", Some(&script))
    }

    /// Presses the first element that a selector finds, as a user does: where it is on the screen.
    pub(crate) fn click(&self, selector: &str) {
        let using = json!({ "using": "css selector", "value": selector });
        let found = self.command("POST", "/element", Some(&using));
        let id = found.as_object().unwrap().values().next().unwrap();
        let path = format!("/element/{}/click", id.as_str().unwrap());
        self.command("POST", &path, Some(&json!({})));
    }

    /// A command of the DevTools protocol.
    pub(crate) fn devtools(&self, name: &str, parameters: &Value) -> Value {
        let command = json!({ "cmd": name, "params": parameters });
        self.command("POST", "/goog/cdp/execute", Some(&command))
    }

    /// Light or dark, as the user asks for it.
    pub(crate) fn scheme(&self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let parameters = json!({ "features": feature });
        self.devtools("Emulation.setEmulatedMedia", &parameters);
    }

    /// The size of the page's window.
    pub(crate) fn viewport(&self, width: u32, height: u32) {
        let parameters = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &parameters);
    }

    /// A picture of the window, as PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let picture = self.command("GET", "/screenshot", None);
        STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// Whether a dialog is open, as `alert` makes one.
    pub(crate) fn has_dialog(&self) -> bool {
        let path = format!("/session/{}/alert/text", self.session);
        match self.request("GET", &path, None) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.contains("no such alert"), "{error}");
                false
            }
        }
    }

    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let path = format!("/session/{}{path}", self.session);
        self.request(method, &path, body)
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let text = |error: std::io::Error| format!("chromedriver: {error}");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(text)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(text)?;
        let body = body.map(ToString::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).map_err(text)?;
        let mut stream = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).map_err(text)? == 0 || line == "\r\n" {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).map_err(text)?;
        let mut answer: Value =
            serde_json::from_slice(&answer).map_err(|error| format!("chromedriver: {error}"))?;
        let value = answer["value"].take();
        match value["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", value["message"])),
            None => Ok(value),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session; what does not is ended with the driver's group.
        if !self.session.is_empty() {
            let _ = self.request("DELETE", &format!("/session/{}", self.session), None);
        }
        let group = Pid::from_child(&self.driver);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.driver.wait();
    }
}
