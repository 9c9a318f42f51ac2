//! Runs an attack, and its control.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use varek_core::{
    Answer, Command, EventKind, Host, Layer, LayerStatus, Outcome, Policy, Termination,
    UserNamespaces,
};

use crate::entry::{Attack, Control, Ends, Gain, Needs, Place, Program};
use crate::prelude;
use crate::scene::Scene;
use crate::support::{
    assert_gone, compiled, hits, not_run, open_directory, recording_or_not_run, root, text,
};

/// What a program said of its attempts.
#[derive(Debug)]
struct Answers {
    lines: Vec<(String, String)>,
    ended: bool,
}

impl Answers {
    fn of(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        Self {
            lines: lines.map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
            ended: text.ends_with("end\n"),
        }
    }

    fn won(&self) -> Vec<&str> {
        // Of a filter around this program such an answer may be as well.
        let reached = !Host::probe().outer_filter;
        let won = self
            .lines
            .iter()
            .filter(|(_, answer)| answer == "won" || reached && answer == "reached");
        won.map(|(name, _)| name.as_str()).collect()
    }
}

/// A program as it is started.
struct Prepared {
    program: Program,
    /// Of C.
    binary: Option<PathBuf>,
    _directory: tempfile::TempDir,
}

impl Prepared {
    fn new(attack: &Attack) -> Option<Self> {
        let directory = open_directory();
        let mut binary = None;
        if let Program::C(source) = attack.program {
            let source = format!("{}{source}{}", prelude::C, prelude::C_MAIN);
            let made = compiled(
                attack.name,
                directory.path(),
                "attack",
                &source,
                &["-pthread"],
            )?;
            binary = Some(made);
        }
        Some(Self {
            program: attack.program,
            binary,
            _directory: directory,
        })
    }

    /// The words that start it, where its source may be a file of this name.
    fn words(&self, file: Option<&str>) -> Vec<String> {
        let words = match (self.program, file) {
            (Program::Python(_), Some(file)) => vec!["python3", file],
            (Program::Python(_), None) => {
                return vec!["python3".into(), "-c".into(), self.source()];
            }
            (Program::C(_), _) => vec![self.binary.as_deref().and_then(Path::to_str).unwrap()],
            (Program::Shell(_), _) => {
                return ["bash", "-c", &self.source(), "bash"]
                    .map(str::to_owned)
                    .to_vec();
            }
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn source(&self) -> String {
        match self.program {
            Program::Python(source) => {
                let numbers = prelude::numbers();
                let (begin, end) = (prelude::PYTHON, prelude::PYTHON_END);
                format!("{numbers}{begin}{source}{end}")
            }
            Program::C(source) => source.to_owned(),
            Program::Shell(source) => format!("{source}\necho end\n"),
        }
    }

    fn guest(&self, attack: &Attack, run: &str, scene: &Scene) -> Command {
        let words = self.words(Some("main.py"));
        let mut command = Command::new(&words[0]).args(&words[1..]).arg(run);
        if let Program::Python(_) = self.program {
            command = command.file("main.py", self.source());
        }
        if let Some(file) = scene.stdin(attack.stdin) {
            command = command.stdin(file);
        }
        command.envs(scene.variables())
    }

    fn sandboxed(
        &self,
        attack: &Attack,
        run: &str,
        scene: &Scene,
        policy: fn(&Scene) -> Policy,
    ) -> Option<Outcome> {
        let mut policy = policy(scene);
        if let Some(binary) = &self.binary {
            policy = policy.execute(binary);
        }
        let (sandbox, events) = recording_or_not_run(attack.name, policy)?;
        let outcome = match sandbox.run(self.guest(attack, run, scene)) {
            Ok(outcome) => outcome,
            Err(error) => panic!("{}: {error}", attack.name),
        };
        // What is queued arrives before the last handle is gone.
        drop(sandbox);
        let mut denied = BTreeMap::<String, u64>::new();
        for event in events.lock().unwrap().iter() {
            if let EventKind::SyscallDenied(denial) = &event.kind {
                *denied.entry(denial.name()).or_default() += denial.count;
            }
        }
        let counted = outcome.denials.iter();
        let counted = counted.map(|(name, call)| (name.to_owned(), call.count));
        assert_eq!(denied, counted.collect(), "{}: {outcome}", attack.name);
        Some(outcome)
    }

    /// What it says where nothing holds it back, but for these words in front of it.
    fn free(&self, attack: &Attack, run: &str, scene: &Scene, before: &[&str]) -> Answers {
        let words = before.iter().map(|word| (*word).to_owned());
        let words: Vec<String> = words.chain(self.words(None)).collect();
        let work = open_directory();
        let stdin = scene.stdin(attack.stdin);
        let output = std::process::Command::new(&words[0])
            .args(&words[1..])
            .arg(run)
            .envs(scene.variables())
            .current_dir(work.path())
            .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if !errors.is_empty() {
            eprintln!("{}: {errors}", attack.name);
        }
        Answers::of(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Each of its runs, and the control of each.
pub(crate) fn play(attack: &'static Attack) {
    if let Some(reason) = (attack.lacks)() {
        not_run(attack.name, reason);
        return;
    }
    let Some(prepared) = Prepared::new(attack) else {
        return;
    };
    let missing = lacking(attack.control.needs);
    if let Some(missing) = missing {
        not_run(attack.name, missing);
    }
    for run in attack.runs {
        let mut scene = Scene::set();
        let Some(outcome) = prepared.sandboxed(attack, run, &scene, attack.policy) else {
            return;
        };
        let shown = format!(
            "{} {run}: {outcome}\n{}\n{}",
            attack.name,
            text(&outcome),
            outcome.stderr.to_text()
        );
        let answers = Answers::of(&text(&outcome));
        assert_eq!(answers.won(), Vec::<&str>::new(), "{shown}");
        scene.assert_untouched(&shown);
        assert_gone(&outcome);
        if Host::probe().outer_filter {
            not_run(
                attack.name,
                "a seccomp filter around this program may answer first: no verdict and no control",
            );
            return;
        }
        verdict(attack, run, &outcome, &answers, &shown);
        if missing.is_none() {
            control(attack, run, &prepared, &answers);
        }
    }
}

/// How the run ended, and what its outcome says.
fn verdict(attack: &Attack, run: &'static str, outcome: &Outcome, answers: &Answers, shown: &str) {
    let itself = outcome.termination == Termination::Exited(0) && answers.ended;
    let killed = |causes: &[varek_core::Cause]| match &outcome.termination {
        Termination::Killed(cause) => causes.contains(cause),
        _ => false,
    };
    let ended = match attack.ends {
        Ends::Itself => itself,
        Ends::Met(resource) => itself && !hits(outcome, resource).is_empty(),
        Ends::Limited(causes) => itself || killed(causes),
        Ends::Killed(causes) => killed(causes),
        Ends::Forbidden => killed(&[varek_core::Cause::Syscall { name: run.into() }]),
        Ends::Foreign(abi) => {
            let foreign = |abi: &str| {
                outcome.denials.iter().any(|(name, call)| {
                    call.first.abi == abi
                        && killed(&[varek_core::Cause::Syscall { name: name.into() }])
                })
            };
            foreign(abi)
        }
    };
    assert!(ended, "not {:?}: {shown}", attack.ends);

    if root() {
        for (name, answer) in attack.answers {
            let said = answers.lines.iter().filter(|(said, _)| said == name);
            let said: Vec<_> = said.map(|(_, answer)| answer.as_str()).collect();
            assert!(
                !said.is_empty() && said.iter().all(|said| said == answer),
                "{name} is not {answer}: {shown}"
            );
        }
    }

    let reports = outcome.enforcement.status(Layer::DenialReports);
    if !matches!(reports, Some(LayerStatus::Enforced { .. })) {
        not_run(attack.name, "the verdict: denied calls are not reported");
        return;
    }
    let expected = attack.denials(run);
    for denial in &expected {
        let count = outcome.denials.count(denial.call);
        assert!(count >= denial.count, "{}: {shown}", denial.call);
    }
    // A gate reads the violation.
    let refused = expected
        .iter()
        .any(|denial| !denial.probe && denial.count > 0);
    let evident = !matches!(attack.ends, Ends::Itself | Ends::Limited(_));
    if refused || evident {
        assert!(outcome.violation().is_some(), "no violation: {shown}");
    }
    // The first of them is named.
    if refused && !evident && root() {
        let first = outcome.violation().and_then(varek_core::Violation::syscall);
        let named = expected.iter().any(|denial| Some(denial.call) == first);
        assert!(named, "{first:?}: {shown}");
    }
    // Under a shared uid more is refused than an entry lists.
    if root() && !matches!(attack.ends, Ends::Foreign(_)) {
        for (name, call) in outcome.denials.iter() {
            let listed = call.first.answer == Answer::Probe
                || expected.iter().any(|denial| denial.call == name);
            assert!(listed, "{name} is not listed: {shown}");
        }
    }
}

/// Why an embedder like this one cannot run the control.
fn lacking(needs: Needs) -> Option<&'static str> {
    match needs {
        Needs::Nothing => None,
        Needs::Root => (!root()).then_some("the control: it takes root"),
        Needs::UserNamespaces => {
            let usable = Host::probe().user_namespaces == UserNamespaces::Usable;
            (!usable).then_some("the control: it takes user namespaces")
        }
    }
}

/// The same program where it succeeds.
fn control(attack: &Attack, run: &str, prepared: &Prepared, confined: &Answers) {
    let Control { place, gain, .. } = attack.control;
    let scene = Scene::set();
    let answers = match place {
        Place::Under(policy) => {
            let Some(outcome) = prepared.sandboxed(attack, run, &scene, policy) else {
                return;
            };
            let stderr = outcome.stderr.to_text();
            let shown = format!(
                "control of {} {run}: {outcome}\n{}\n{stderr}",
                attack.name,
                text(&outcome)
            );
            assert_gone(&outcome);
            let answers = Answers::of(&text(&outcome));
            if let Gain::Reached = gain {
                assert!(outcome.denials.is_empty(), "{shown}");
            }
            eprintln!("{shown}");
            answers
        }
        Place::Outside => prepared.free(attack, run, &scene, &[]),
        Place::Unshared(options) => {
            let words: Vec<&str> = ["unshare"]
                .into_iter()
                .chain(options.iter().copied())
                .chain(["--"])
                .collect();
            prepared.free(attack, run, &scene, &words)
        }
        Place::None => panic!("{} has no control", attack.name),
    };
    let won = answers.won();
    let wins = |names: &[&str]| names.iter().all(|name| won.contains(name));
    let confined: Vec<&str> = confined
        .lines
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let succeeds = match gain {
        Gain::All => !won.is_empty() && won.len() == answers.lines.len() && wins(&confined),
        Gain::These(names) => wins(names),
        Gain::Run => wins(&[run]),
        Gain::Reached => answers.ended,
    };
    assert!(
        succeeds,
        "the control of {} {run} does not gain {gain:?}: {answers:?}",
        attack.name
    );
}
