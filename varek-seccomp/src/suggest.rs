//! The nearest known name to a misspelt one.

/// The most similar of `known`, where it is similar enough to be what was meant.
pub(crate) fn nearest(
    name: &str,
    known: impl IntoIterator<Item = &'static str>,
) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&name, &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["openat", "read", "close_range"];
        assert_eq!(nearest("opnat", known), Some("openat"));
        assert_eq!(nearest("closerange", known), Some("close_range"));
        assert_eq!(nearest("frobnicate", known), None);
    }
}
