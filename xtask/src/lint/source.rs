//! Just enough of Rust's lexer to tell code from comments and literals.

/// The source with every comment and every string or character literal blanked out, so that a
/// word that is found in it is a word of the program. Lines keep their numbers.
pub(crate) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let length = if is_word(previous) {
            None
        } else {
            prefixed_literal(rest)
        }
        .or_else(|| comment(rest))
        .or_else(|| quoted(rest))
        .or_else(|| character(rest));
        let (skipped, tail) = rest.split_at(length.unwrap_or(first.len_utf8()));
        if length.is_some() {
            code.extend(skipped.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            previous = ' ';
        } else {
            code.push(first);
            previous = first;
        }
        rest = tail;
    }
    code
}

/// The numbers, from 1, of the lines that hold a word: not as a part of a longer one.
pub(crate) fn lines_with_word(text: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line.get(..at).and_then(|head| head.chars().next_back());
            let after = line
                .get(at + word.len()..)
                .and_then(|tail| tail.chars().next());
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| holds(line))
        .map(|(index, _)| index + 1)
        .collect()
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// `// ...` up to the line's end, `/* ... */` with others inside.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(tail) = rest.get(at..).filter(|tail| !tail.is_empty()) {
        if tail.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(rest.len())
}

/// `"..."`
fn quoted(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('"')?;
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 2),
            _ => {}
        }
    }
    Some(rest.len())
}

/// `r"..."`, `r#"..."#`, and the same or a plain string or character behind `b` or `c`. A raw
/// identifier (`r#type`) is none of them.
fn prefixed_literal(rest: &str) -> Option<usize> {
    let kind = usize::from(rest.starts_with(['b', 'c']));
    let body = rest.get(kind..)?;
    let Some(raw) = body.strip_prefix('r') else {
        // Without any prefix this is the plain case, which is not looked at here.
        return (kind == 1)
            .then(|| quoted(body).or_else(|| character(body)))?
            .map(|n| n + kind);
    };
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let text = raw.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let opening = kind + 1 + hashes + 1;
    Some(
        text.find(&end)
            .map_or(rest.len(), |at| opening + at + end.len()),
    )
}

/// `'a'` or `'\n'`, but not the lifetime `'a`.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let mut chars = body.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let (_, _) = chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 2);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn unsafe_lines(source: &str) -> Vec<usize> {
        lines_with_word(&code_only(source), "unsafe")
    }

    #[test]
    fn the_keyword_is_found_wherever_code_is() {
        assert_eq!(unsafe_lines("unsafe { f() }"), [1]);
        assert_eq!(unsafe_lines("fn a() {}\n\npub unsafe fn b() {}\n"), [3]);
        assert_eq!(unsafe_lines("#[unsafe(no_mangle)]\nfn a() {}"), [1]);
        assert_eq!(
            unsafe_lines("unsafe impl Send for A {}\nunsafe extern \"C\" {}"),
            [1, 2]
        );
    }

    #[test]
    fn comments_strings_and_longer_words_do_not_count() {
        assert_eq!(unsafe_lines("// unsafe\n/// unsafe\n//! unsafe"), NONE);
        assert_eq!(
            unsafe_lines("/* unsafe /* unsafe */ unsafe */ fn a() {}"),
            NONE
        );
        assert_eq!(unsafe_lines(r#"let a = "unsafe \" unsafe";"#), NONE);
        assert_eq!(unsafe_lines(r##"let a = r#"unsafe " unsafe"#;"##), NONE);
        assert_eq!(
            unsafe_lines("let a = b\"unsafe\"; let b = br\"unsafe\"; let c = c\"unsafe\";"),
            NONE
        );
        assert_eq!(
            unsafe_lines("#![expect(unsafe_code, reason = \"x\")]\nlet not_unsafe = 1;"),
            NONE
        );
    }

    #[test]
    fn a_literal_does_not_hide_the_code_behind_it() {
        assert_eq!(unsafe_lines("let q = '\"'; unsafe {}"), [1]);
        assert_eq!(unsafe_lines(r"let q = '\''; unsafe {}"), [1]);
        assert_eq!(unsafe_lines(r"let q = '\u{22}'; unsafe {}"), [1]);
        assert_eq!(unsafe_lines("let q = b'\"'; unsafe {}"), [1]);
        assert_eq!(unsafe_lines("fn a<'a>(b: &'a str) { unsafe {} }"), [1]);
        assert_eq!(unsafe_lines("let r#type = \"\"; unsafe {}"), [1]);
        assert_eq!(unsafe_lines("let a = \"\\\\\"; unsafe {}"), [1]);
        assert_eq!(unsafe_lines("/* a */ unsafe {}"), [1]);
        assert_eq!(unsafe_lines("let a = for_\"x\"; unsafe {}"), [1]);
    }

    #[test]
    fn line_numbers_survive_literals_of_many_lines() {
        assert_eq!(unsafe_lines("let a = \"one\ntwo\nthree\";\nunsafe {}"), [4]);
        assert_eq!(unsafe_lines("/* one\ntwo */\nunsafe {}"), [3]);
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        for source in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "b", "r"] {
            assert_eq!(
                code_only(source).chars().count(),
                source.chars().count(),
                "{source}"
            );
        }
    }
}
