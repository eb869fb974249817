//! A person's decision to run what the records would refuse.

/// Lets the calls made through one clone of a store pass the horizon, or run again.
///
/// The label and the person are logged with each claim that is made under it. Nothing else passes: a mismatch stays a
/// mismatch.
///
/// ```
/// use idem_runtime::Override;
///
/// let decision = Override::new("restore-2026-11", "ops@example.com").beyond_horizon();
/// assert_eq!(decision.label(), "restore-2026-11");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    label: String,
    by: String,
    pub(crate) pass_horizon: bool,
    pub(crate) run_again: bool,
}

impl Override {
    /// A decision under `label` (why, for example a ticket) by the person `by`. It allows nothing yet.
    pub fn new(label: impl Into<String>, by: impl Into<String>) -> Self {
        Self { label: label.into(), by: by.into(), pass_horizon: false, run_again: false }
    }

    /// Messages older than the records can prove are run.
    #[must_use]
    pub fn beyond_horizon(mut self) -> Self {
        self.pass_horizon = true;
        self
    }

    /// Messages run also where a record says that they have been processed, and whatever their age. **Every** call
    /// through the store runs its body.
    #[must_use]
    pub fn run_again(mut self) -> Self {
        self.run_again = true;
        self
    }

    /// Why.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Who.
    pub fn by(&self) -> &str {
        &self.by
    }
}
