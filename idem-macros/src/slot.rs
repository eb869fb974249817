//! One place for the value of an option. Every option goes through [`Slot::set`], so that no check for a repeated
//! option can be forgotten.

use proc_macro2::Span;
use syn::Ident;

use crate::errors::Errors;

/// The value of an option, once it was given.
pub(crate) struct Slot<T> {
    value: Option<T>,
    given: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { value: None, given: false }
    }
}

impl<T> Slot<T> {
    /// Keeps the value of the option `name`; an option given twice is a mistake at its second place.
    pub(crate) fn set(&mut self, name: &Ident, value: syn::Result<T>, errors: &mut Errors) {
        if self.given {
            errors.at(name.span(), format!("`{name}` is given twice: keep one of them"));
        }
        self.given = true;
        if let Some(value) = errors.take(value) {
            self.value.get_or_insert(value);
        }
    }

    /// The value of an option that may be left out.
    pub(crate) fn get(self) -> Option<T> {
        self.value
    }

    pub(crate) fn as_ref(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// The value of an option that must be there; `missing` says what to add.
    pub(crate) fn require(self, missing: &str, errors: &mut Errors) -> Option<T> {
        self.required_at(Span::call_site(), missing, errors);
        self.value
    }

    /// An option that must be there, where the place of the mistake is not the whole macro.
    pub(crate) fn required_at(&self, span: Span, missing: &str, errors: &mut Errors) {
        if !self.given {
            errors.at(span, missing);
        }
    }
}
