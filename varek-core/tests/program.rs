//! Which program a command names.
#![allow(missing_docs, reason = "a test program")]

mod support;

use support::{python, run};
use varek_core::{Command, Error};

#[test]
fn a_program_that_the_command_brings_along_runs_from_scratch() {
    let sandbox = sandbox!(python());
    let script = "#!/usr/bin/python3\nimport sys; print('ran', sys.argv[1])\n";
    for name in ["./tool", "bin/tool"] {
        let command = Command::new(name).arg("it").executable(name, script);
        let outcome = sandbox.run(command).unwrap();
        assert_eq!(outcome.stdout.to_text(), "ran it\n", "{outcome}");
    }
    // The control: the same name, not brought along, is the embedder's to have.
    let error = sandbox.run(Command::new("./tool")).unwrap_err();
    assert!(matches!(error, Error::Program { .. }), "{error}");
    // And one that is brought along without being executable says so.
    let error = sandbox
        .run(Command::new("./tool").file("tool", script))
        .unwrap_err();
    assert!(error.to_string().contains("not executable"), "{error}");
}

#[test]
fn a_bare_name_is_looked_up_in_the_policys_path_and_not_the_embedders() {
    let sandbox = sandbox!(python());
    let outcome = run(&sandbox, "import sys; print(sys.executable)");
    let path = outcome.stdout.to_text().into_owned();
    assert!(
        ["/usr/local/bin/", "/usr/bin/", "/bin/"]
            .iter()
            .any(|place| path.starts_with(place)),
        "{path}"
    );
    let mut policy = python();
    policy.search_path = vec!["/nowhere".into()];
    let error = sandbox!(policy).run(Command::new("python3")).unwrap_err();
    assert!(matches!(error, Error::ProgramNotFound { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere"), "{error}");
}
