//! Packages from PyPI in a virtual environment, under the preset `python`. `cargo xtask setup` makes the environment.

use std::path::{Path, PathBuf};

use varek_core::{Command, Outcome, Policy};

use crate::support::{self, seconds};
use crate::{assert_honest, patient, reachable};

/// The environment, or `None`, which is said, where there is none that a guest gets to.
fn environment(test: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let place = target.join("guests").join("python");
    let interpreter = place.join("bin/python");
    let reason = if !place.join("complete").exists() {
        format!(
            "there is no environment in {}: run `cargo xtask setup`",
            place.display()
        )
    } else if !interpreter.exists() {
        format!("{} leads to no interpreter", interpreter.display())
    } else if !reachable(&interpreter) {
        format!(
            "guests have a uid of their own, which does not get to {}",
            place.display()
        )
    } else {
        return Some(place);
    };
    support::not_run(test, &reason);
    None
}

fn run(test: &str, source: &str) -> Option<Outcome> {
    let place = environment(test)?;
    // The first import reads a hundred files.
    let policy = patient(Policy::python())
        .wall_clock(seconds(60))
        .execute(&place);
    let sandbox = support::sandbox_or_not_run(test, policy)?;
    let command = Command::new(place.join("bin/python"))
        .arg("main.py")
        .file("main.py", source);
    Some(sandbox.run(command).unwrap())
}

#[test]
fn numpy_and_pandas_work() {
    let source = r"
import numpy as np, pandas as pd, sys
a = np.arange(16.).reshape(4, 4) + np.eye(4)
print(round(float(np.linalg.det(np.linalg.inv(a) @ a)), 6), int(np.fft.fft(np.ones(8)).real[0]))
np.save('a.npy', a); print(float(np.load('a.npy', mmap_mode='r').sum()))
# Large enough for OpenBLAS to use all of its threads.
b = np.random.default_rng(1).random((300, 300)); print((b @ b).shape)
table = pd.DataFrame({'k': list('aab'), 'v': [1, 2, 3], 't': pd.date_range('2024-01-01', periods=3, tz='Europe/Berlin')})
table.to_csv('t.csv'); print(pd.read_csv('t.csv').groupby('k').v.sum().to_dict())
print(sys.prefix != sys.base_prefix)
";
    let Some(outcome) = run(crate::test_name!(), source) else {
        return;
    };
    assert_honest(
        &outcome,
        "1.0 8\n124.0\n(300, 300)\n{'a': 3, 'b': 3}\nTrue\n",
        &[],
    );
}

#[test]
fn matplotlib_draws() {
    let source = r"
import matplotlib; matplotlib.use('Agg')
import matplotlib.pyplot as plot
plot.plot([1, 2, 3]); plot.title('title')
for kind in ['png', 'svg', 'pdf']: plot.savefig('p.' + kind)
print(open('p.png', 'rb').read(4), open('p.pdf', 'rb').read(4))
";
    let Some(outcome) = run(crate::test_name!(), source) else {
        return;
    };
    // It tries to start fc-list(1) when it first looks for fonts, and finds its own.
    assert_honest(&outcome, "b'\\x89PNG' b'%PDF'\n", &["execve"]);
}

#[test]
fn pip_lists_what_is_installed() {
    let source = "import runpy, sys; sys.argv = ['pip', 'list', '--format=freeze']; runpy.run_module('pip', run_name='__main__')";
    let Some(outcome) = run(crate::test_name!(), source) else {
        return;
    };
    let text = support::text(&outcome);
    assert!(
        text.contains("numpy==") && text.contains("pandas=="),
        "{text}"
    );
    // urllib3 tries at its import whether there is IPv6.
    assert_honest(&outcome, &text, &["socket"]);
}
