//! Every combination of the libraries' features builds, without a warning.

use anyhow::Result;

use super::Report;
use crate::workspace::Workspace;
use crate::{process, ui};

pub(super) fn check(workspace: &Workspace, report: &mut Report) -> Result<()> {
    ui::headline("Combinations of features");
    for library in workspace.libraries() {
        let features: Vec<&str> = library.features.iter().map(String::as_str).collect();
        let mut passed = true;
        for features in combinations(&features) {
            let mut check =
                workspace.cargo(["clippy", "--quiet", "--lib", "--no-default-features"]);
            check.args(["--package", &library.name]);
            check.args(["--features", &features.join(","), "--", "-D", "warnings"]);
            passed &= process::status(check)?.success();
        }
        report.record(&format!("features of {}", library.name), passed);
    }
    Ok(())
}

/// All sets of features but the one that is called `default`.
fn combinations<'f>(features: &[&'f str]) -> Vec<Vec<&'f str>> {
    let mut sets = vec![Vec::new()];
    for feature in features.iter().filter(|feature| **feature != "default") {
        let with = sets
            .iter()
            .map(|set| [set.as_slice(), &[*feature]].concat());
        sets.extend(with.collect::<Vec<_>>());
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_all_sets_of_the_features() {
        assert_eq!(combinations(&[]), [Vec::<&str>::new()]);
        let sets = combinations(&["default", "a", "b"]);
        assert_eq!(sets, [vec![], vec!["a"], vec!["b"], vec!["a", "b"]]);
        assert_eq!(combinations(&["a", "b", "c", "d"]).len(), 16);
    }
}
