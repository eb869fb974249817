//! From options and signature to a [`Handler`]: what must be there, and what must fit together. A [`Handler`] exists
//! only if the author made no mistake, so that expanding it cannot fail.

use proc_macro2::Span;
use syn::visit::Visit;
use syn::{Expr, Ident, Path};

use crate::args::{Args, Concurrent, Key, Older, Scope};
use crate::duration::{Keep, Kept};
use crate::errors::Errors;
use crate::fingerprint::Fingerprint;
use crate::signature::{Function, Output, Signature, Tx};

/// A handler without mistakes.
pub(crate) struct Handler<'a> {
    pub(crate) operation: Operation,
    pub(crate) key: Key,
    pub(crate) scope: Scope,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) retain: Keep,
    pub(crate) remember: Keep,
    pub(crate) occurred_at: Option<Expr>,
    pub(crate) older: Older,
    pub(crate) concurrent: Concurrent,
    pub(crate) krate: Path,
    pub(crate) signature: &'a Signature,
    pub(crate) tx: &'a Tx,
    pub(crate) output: &'a Output,
}

/// The stable name of the effect.
pub(crate) enum Operation {
    Given(String),
    /// The function's name: right only outside of `impl` blocks, where no two functions can have one name.
    Function(Ident),
}

impl Operation {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Given(name) => name.clone(),
            Self::Function(ident) => syn::ext::IdentExt::unraw(ident).to_string(),
        }
    }
}

const MISSING_KEY: &str =
    "`key` is missing: it says what makes two deliveries the same, for example `key = cmd.operation_key`";
const MISSING_SCOPE: &str = "`scope` is missing: it says whose key it is, for example `scope = caller.tenant`, or `scope = global` if there is one for all";
const MISSING_FINGERPRINT: &str = "`fingerprint(..)` is missing: it lists the material fields of the request, for example `fingerprint(cmd.amount, cmd.currency)`, or `fingerprint(none)` if the key already is the content";

/// Input: the options as written and the signature as read. Output: the handler, if nothing is wrong with either.
pub(crate) fn check<'a>(
    args: Args,
    function: &Function,
    signature: &'a Signature,
    errors: &mut Errors,
) -> Option<Handler<'a>> {
    let krate = args.krate();
    let operation = operation(args.operation.get(), function, signature, errors);
    let key = args.key.require(MISSING_KEY, errors);
    match &key {
        Some(Key::Template(template)) => template.check(signature, errors),
        Some(Key::Expression(expression)) => before_tx(expression, signature, errors),
        None => {}
    }
    let scope = args.scope.require(MISSING_SCOPE, errors);
    match &scope {
        Some(Scope::Template(template)) => template.check(signature, errors),
        Some(Scope::Expression(expression)) => before_tx(expression, signature, errors),
        Some(Scope::Constant(_) | Scope::Global) | None => {}
    }
    let fingerprint = args.fingerprint.require(MISSING_FINGERPRINT, errors);
    if let Some(fingerprint) = &fingerprint {
        fingerprint.check(signature, errors);
        fingerprint.expressions().for_each(|expression| before_tx(expression, signature, errors));
    }
    let occurred_at = args.occurred_at.get();
    if let Some(expression) = &occurred_at {
        before_tx(expression, signature, errors);
    }
    let older = args.older.get().unwrap_or(Older::Refuse);
    let (retain, remember) =
        keep(args.retain.get(), args.remember.get(), occurred_at.is_some(), older, errors);
    if !errors.is_empty() {
        return None;
    }
    Some(Handler {
        operation,
        key: key?,
        scope: scope?,
        fingerprint: fingerprint?,
        retain,
        remember,
        occurred_at,
        older,
        concurrent: args.concurrent.get().unwrap_or(Concurrent::Wait),
        krate,
        signature,
        tx: signature.tx.as_ref()?,
        output: signature.output.as_ref()?,
    })
}

fn operation(
    given: Option<syn::LitStr>,
    function: &Function,
    signature: &Signature,
    errors: &mut Errors,
) -> Operation {
    match given {
        Some(name) => Operation::Given(name.value()),
        None => {
            let ident = &function.sig.ident;
            if signature.receiver.is_some() {
                errors.at(
                    ident.span(),
                    format!("a method needs the option `operation`, since another type may have a method of this name: add `operation = \"<noun>.{ident}\"`"),
                );
            }
            Operation::Function(ident.clone())
        }
    }
}

/// The options are evaluated before there is a transaction, so no expression in them may use it.
fn before_tx(expression: &Expr, signature: &Signature, errors: &mut Errors) {
    struct Uses<'a>(&'a Tx, &'a mut Errors);

    impl<'ast> Visit<'ast> for Uses<'_> {
        fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
            if path.path.is_ident(&self.0.ident) {
                self.1.under(
                    path,
                    format!("`{}` is opened later: the options see the other parameters", self.0.ident),
                );
            }
        }
    }

    if let Some(tx) = &signature.tx {
        Uses(tx, errors).visit_expr(expression);
    }
}

/// The two periods, which end in this order, and after which an old message is still told from a new one.
fn keep(
    retain: Option<Kept>,
    remember: Option<Kept>,
    has_time: bool,
    older: Older,
    errors: &mut Errors,
) -> (Keep, Keep) {
    let written = remember.as_ref().or(retain.as_ref()).map_or_else(Span::call_site, |kept| kept.span);
    let retained = retain.as_ref().map_or(Keep::Forever, |kept| kept.keep);
    let remembered = remember.as_ref().map_or(retained, |kept| kept.keep);
    if remembered.is_shorter_than(retained) {
        errors.at(
            written,
            match retain {
                Some(_) => "the identity is forgotten before its outcome: `remember` must not be shorter than `retain`",
                None => "the identity is forgotten before its outcome, which is kept for ever: add `retain`, not longer than this",
            },
        );
    } else if remembered != Keep::Forever && !has_time && older == Older::Refuse {
        errors.at(
            written,
            "after this time a redelivery cannot be told from a new message: add `occurred_at = <the event's own time>` so that it is refused, or `older = run` if it may run again, or `remember = forever`",
        );
    }
    (retained, remembered)
}
