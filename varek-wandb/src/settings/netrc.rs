//! The part of netrc(5) that is needed: the password of a machine.

/// The password of a machine, or of the default entry; or the number of the line that is not understood.
///
/// Source: Python's `netrc` module, which the official client reads the file with.
pub(super) fn password(text: &str, machine: &str) -> Result<Option<String>, usize> {
    let mut tokens = Tokens {
        rest: text,
        line: 1,
    };
    let mut of_machine = None;
    let mut of_default = None;
    let mut token = tokens.next();
    while let Some(word) = token {
        let entry = match word.as_str() {
            "machine" => Some(tokens.next().ok_or(tokens.line)?),
            "default" => None,
            "macdef" => {
                tokens.skip_macro();
                token = tokens.next();
                continue;
            }
            _ => return Err(tokens.line),
        };
        let mut password = None;
        token = loop {
            match tokens.next() {
                Some(word) if matches!(word.as_str(), "login" | "user" | "account") => {
                    tokens.next().ok_or(tokens.line)?;
                }
                Some(word) if word == "password" => {
                    password = Some(tokens.next().ok_or(tokens.line)?);
                }
                other => break other,
            }
        };
        let password = password.filter(|password| !password.is_empty());
        match entry {
            // The last of several entries counts.
            Some(name) if name == machine => of_machine = password,
            Some(_) => {}
            None => of_default = password,
        }
    }
    Ok(of_machine.or(of_default))
}

struct Tokens<'a> {
    rest: &'a str,
    line: usize,
}

impl Tokens<'_> {
    fn advance(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let character = characters.next()?;
        self.rest = characters.as_str();
        if character == '\n' {
            self.line += 1;
        }
        Some(character)
    }

    fn next(&mut self) -> Option<String> {
        loop {
            let character = self.advance()?;
            match character {
                '#' => while self.advance().is_some_and(|c| c != '\n') {},
                '"' => {
                    let mut word = String::new();
                    while let Some(next) = self.advance() {
                        match next {
                            '"' => return Some(word),
                            '\\' => word.extend(self.advance()),
                            other => word.push(other),
                        }
                    }
                    return Some(word);
                }
                space if space.is_whitespace() => {}
                first => return Some(self.word(first)),
            }
        }
    }

    fn word(&mut self, first: char) -> String {
        let mut word = String::new();
        let mut character = Some(first);
        while let Some(next) = character.filter(|c| !c.is_whitespace()) {
            match next {
                '\\' => word.extend(self.advance()),
                other => word.push(other),
            }
            character = self.advance();
        }
        word
    }

    /// A macro ends with an empty line.
    fn skip_macro(&mut self) {
        let mut before = None;
        while let Some(character) = self.advance() {
            if character == '\n' && before == Some('\n') {
                return;
            }
            before = Some(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::password;

    fn of(text: &str) -> Result<Option<String>, usize> {
        password(text, "api.wandb.ai")
    }

    #[test]
    fn the_password_of_the_machine_is_found_in_every_form() {
        for text in [
            "machine api.wandb.ai login user password key",
            "machine api.wandb.ai\n  login user\n  password key\n",
            "# a note\nmachine other login a password b\nmachine api.wandb.ai password \"key\" login user # end",
            "macdef init\n machine api.wandb.ai password no\n\nmachine api.wandb.ai login u account x password key",
            "default login a password key\nmachine other password b",
            "machine api.wandb.ai login user password old\nmachine api.wandb.ai login user password k\\ey",
        ] {
            assert_eq!(of(text).unwrap().as_deref(), Some("key"), "{text}");
        }
    }

    #[test]
    fn other_machines_and_empty_passwords_have_no_key() {
        for text in [
            "",
            "machine api.wandb.ai.evil.example password key",
            "machine api.wandb.ai login user",
            "machine api.wandb.ai login user password \"\"",
        ] {
            assert_eq!(of(text), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_is_no_netrc_is_refused_with_its_line() {
        assert_eq!(of("machine a login b password c\nhello"), Err(2));
        assert_eq!(of("machine api.wandb.ai password"), Err(1));
    }
}
