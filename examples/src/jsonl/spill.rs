//! Source code in an argument that is longer than the kernel takes in one string.
//!
//! `python3 -c TEXT`, `sh -c TEXT`, `bash -c TEXT` and `node -e TEXT` are how programs written for
//! `subprocess` run generated code. Linux takes 131,071 bytes in one argument (MAX_ARG_STRLEN, execve(2)).
//! A longer text goes into a file of the scratch directory, and a short text that reads it takes its place.

use std::path::PathBuf;

/// The most bytes that one argument can have.
pub(super) const LONGEST: usize = 131_071;

/// How the guest finds the scratch directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is the working directory.
    Here,
    /// By this path.
    At(PathBuf),
    /// By this variable of its environment.
    Variable(&'static str),
}

/// What has to be done to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spilled {
    /// Which argument, from 0, is to be replaced.
    pub(super) index: usize,
    /// By what.
    pub(super) replacement: String,
    /// What goes into the file.
    pub(super) contents: String,
}

/// The change that makes an over-long code argument fit; none where no argument is too long, or where
/// the one that is holds no code.
pub(super) fn spill(
    program: &str,
    arguments: &[String],
    place: &Place,
    file: &str,
) -> Option<Spilled> {
    let language = Language::of(program)?;
    let code = language.code(arguments)?;
    let argument = arguments.get(code.index)?;
    let contents = argument.get(code.start..)?;
    // A NUL would end the argument; the library refuses it, whatever the length.
    if argument.len() <= LONGEST || contents.contains('\0') {
        return None;
    }
    let prefix = argument.get(..code.start)?;
    Some(Spilled {
        index: code.index,
        replacement: format!("{prefix}{}", language.loader(place, file)),
        contents: contents.to_owned(),
    })
}

/// Where code stands: in which argument, and behind how many bytes of it.
#[derive(Debug, PartialEq, Eq)]
struct Code {
    index: usize,
    start: usize,
}

#[derive(Clone, Copy)]
enum Language {
    Python,
    Shell,
    Node,
}

impl Language {
    fn of(program: &str) -> Option<Self> {
        let name = program.rsplit('/').next()?;
        let family = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        match (family, name) {
            ("python" | "pypy", _) => Some(Self::Python),
            (_, "sh" | "bash" | "dash" | "ash" | "ksh" | "zsh") => Some(Self::Shell),
            (_, "node" | "nodejs") => Some(Self::Node),
            _ => None,
        }
    }

    fn code(self, arguments: &[String]) -> Option<Code> {
        match self {
            Self::Python => python_code(arguments),
            Self::Shell => shell_code(arguments),
            Self::Node => node_code(arguments),
        }
    }

    fn loader(self, place: &Place, file: &str) -> String {
        match self {
            Self::Python => {
                let path = match place {
                    Place::Here => literal(file),
                    Place::At(directory) => literal(&directory.join(file).to_string_lossy()),
                    Place::Variable(name) => {
                        format!(
                            "__import__('os').environ['{name}'] + {}",
                            literal(&format!("/{file}"))
                        )
                    }
                };
                // An expression, so that it leaves no name behind. The file is closed, since `-X dev`
                // would tell otherwise.
                format!(
                    "exec(compile((lambda f: (f.read(), f.close())[0])(open({path}, encoding='utf-8')), \
                     '<string>', 'exec', dont_inherit=True))"
                )
            }
            Self::Shell => match place {
                Place::Here => format!(". ./{file}"),
                Place::At(directory) => {
                    let path = directory
                        .join(file)
                        .to_string_lossy()
                        .replace('\'', r"'\''");
                    format!(". '{path}'")
                }
                Place::Variable(name) => format!(". \"${name}/{file}\""),
            },
            Self::Node => {
                let path = match place {
                    Place::Here => literal(&format!("./{file}")),
                    Place::At(directory) => literal(&directory.join(file).to_string_lossy()),
                    Place::Variable(name) => {
                        format!("process.env.{name} + {}", literal(&format!("/{file}")))
                    }
                };
                format!(
                    "require('vm').runInThisContext(require('fs').readFileSync({path}, 'utf8'), \
                     {{ filename: '[eval]' }})"
                )
            }
        }
    }
}

/// A JSON string, which Python and JavaScript read alike.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// python3 [OPTION]... -c CODE [ARGUMENT]...
fn python_code(arguments: &[String]) -> Option<Code> {
    let mut index = 0;
    while let Some(argument) = arguments.get(index) {
        if argument == "--check-hash-based-pycs" {
            index += 2;
            continue;
        }
        let letters = argument
            .strip_prefix('-')
            .filter(|letters| !letters.is_empty())?;
        if !letters.starts_with('-') {
            match letters
                .char_indices()
                .find(|(_, letter)| "cmWX".contains(*letter))
            {
                Some((at, 'c')) if at + 1 < letters.len() => {
                    return Some(Code {
                        index,
                        start: at + 2,
                    });
                }
                Some((_, 'c')) => {
                    return Some(Code {
                        index: index + 1,
                        start: 0,
                    });
                }
                Some((_, 'm')) => return None,
                Some((at, _)) if at + 1 == letters.len() => index += 1,
                _ => {}
            }
        }
        index += 1;
    }
    None
}

/// sh [OPTION]... -c [OPTION]... CODE [NAME [ARGUMENT]...]
fn shell_code(arguments: &[String]) -> Option<Code> {
    let mut command = false;
    let mut index = 0;
    while let Some(argument) = arguments.get(index) {
        if matches!(argument.as_str(), "--" | "-") {
            index += 1;
            break;
        }
        if matches!(argument.as_str(), "--rcfile" | "--init-file") {
            index += 2;
            continue;
        }
        if !argument.starts_with("--") {
            let Some(letters) = argument.strip_prefix(['-', '+']) else {
                break;
            };
            command |= argument.starts_with('-') && letters.contains('c');
            // Each `o` and `O` takes a name of its own, behind the cluster.
            index += letters.matches(['o', 'O']).count();
        }
        index += 1;
    }
    command.then_some(Code { index, start: 0 })
}

/// node [OPTION]... -e CODE [ARGUMENT]...
fn node_code(arguments: &[String]) -> Option<Code> {
    const WITH_VALUE: [&str; 9] = [
        "-r",
        "--require",
        "--import",
        "-C",
        "--conditions",
        "--env-file",
        "--loader",
        "--experimental-loader",
        "--title",
    ];
    // A module has no `require`, which the replacement needs.
    if arguments
        .iter()
        .any(|argument| argument.starts_with("--input-type"))
    {
        return None;
    }
    let mut index = 0;
    while let Some(argument) = arguments.get(index) {
        if matches!(
            argument.as_str(),
            "-e" | "--eval" | "-p" | "--print" | "-pe"
        ) {
            return Some(Code {
                index: index + 1,
                start: 0,
            });
        }
        for option in ["--eval=", "--print="] {
            if argument.starts_with(option) {
                return Some(Code {
                    index,
                    start: option.len(),
                });
            }
        }
        if !argument.starts_with('-') {
            return None;
        }
        index += if WITH_VALUE.contains(&argument.as_str()) {
            2
        } else {
            1
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn code_is_found_behind_python_s_options_and_nowhere_else() {
        let at = |list: &[&str]| python_code(&words(list)).map(|code| (code.index, code.start));
        assert_eq!(at(&["-c", "x"]), Some((1, 0)));
        assert_eq!(
            at(&["-I", "-X", "dev", "-Wignore", "-Bc", "x", "-c", "y"]),
            Some((5, 0))
        );
        assert_eq!(
            at(&["-W", "error", "--check-hash-based-pycs", "never", "-c", "x"]),
            Some((5, 0))
        );
        assert_eq!(at(&["-cx"]), Some((0, 2)));
        assert_eq!(at(&["-Icx"]), Some((0, 3)));
        assert_eq!(at(&["main.py", "-c", "x"]), None);
        assert_eq!(at(&["-m", "timeit", "-c", "x"]), None);
        assert_eq!(at(&["-", "-c", "x"]), None);
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn code_is_found_behind_a_shell_s_options_and_nowhere_else() {
        let at = |list: &[&str]| shell_code(&words(list)).map(|code| code.index);
        assert_eq!(at(&["-c", "x", "name"]), Some(1));
        assert_eq!(at(&["-euo", "pipefail", "-c", "x"]), Some(3));
        assert_eq!(at(&["-c", "-e", "+x", "--", "x"]), Some(4));
        assert_eq!(at(&["--norc", "--rcfile", "c", "-lc", "x"]), Some(4));
        assert_eq!(at(&["script", "-c", "x"]), None);
        assert_eq!(at(&["-s"]), None);
    }

    #[test]
    fn code_is_found_behind_node_s_options_and_nowhere_else() {
        let at = |list: &[&str]| node_code(&words(list)).map(|code| (code.index, code.start));
        assert_eq!(at(&["-e", "x"]), Some((1, 0)));
        assert_eq!(at(&["--no-warnings", "-r", "fs", "-p", "x"]), Some((4, 0)));
        assert_eq!(at(&["--eval=x"]), Some((0, 7)));
        assert_eq!(at(&["main.js", "-e", "x"]), None);
        assert_eq!(at(&["--input-type=module", "-e", "x"]), None);
    }

    #[test]
    fn only_what_is_too_long_is_replaced() {
        let longest = "x".repeat(LONGEST);
        let over = "x".repeat(LONGEST + 1);
        let spilled = |program: &str, text: &str, file: &str| {
            spill(program, &words(&["-c", text, "a"]), &Place::Here, file)
        };
        assert_eq!(spilled("python3", &longest, "f"), None);
        let done = spilled("/usr/bin/python3.11", &over, "f").unwrap();
        assert_eq!((done.index, done.contents.len()), (1, LONGEST + 1));
        assert!(
            done.replacement.contains("open(\"f\", encoding='utf-8')"),
            "{}",
            done.replacement
        );
        assert_eq!(spilled("sh", &over, "f").unwrap().replacement, ". ./f");
        assert_eq!(spilled("cat", &over, "f"), None);
        assert_eq!(spilled("python3", &format!("{over}\0"), "f"), None);
        // Not the code but what follows it.
        assert_eq!(
            spill("python3", &words(&["-c", "x", &over]), &Place::Here, "f"),
            None
        );
    }

    #[test]
    fn glued_code_keeps_its_option() {
        let over = format!("-c{}", "x".repeat(LONGEST));
        let done = spill("python3", &words(&[&over]), &Place::Here, "f").unwrap();
        assert_eq!(done.contents.len(), LONGEST);
        assert!(
            done.replacement.starts_with("-cexec("),
            "{}",
            done.replacement
        );
    }

    #[test]
    fn a_directory_with_quotes_in_its_name_stays_a_text() {
        let place = Place::At(PathBuf::from("/tmp/it's \"here\""));
        assert_eq!(
            Language::Shell.loader(&place, "f"),
            r#". '/tmp/it'\''s "here"/f'"#
        );
        let python = Language::Python.loader(&place, "f");
        assert!(
            python.contains(r#"open("/tmp/it's \"here\"/f","#),
            "{python}"
        );
        assert_eq!(
            Language::Shell.loader(&Place::Variable("TMPDIR"), "f"),
            ". \"$TMPDIR/f\""
        );
    }
}
