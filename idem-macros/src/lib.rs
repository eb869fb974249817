//! The `#[idempotent]` attribute, `#[derive(Scope)]` and `#[derive(Effect)]` of `idem-runtime`, which re-exports them.
//!
//! The attribute has four stages: `args` and `signature` parse, `check` makes a model that can no longer be wrong, `expand` writes
//! the function. A mistake in any stage is reported together with all others, and a function is emitted all the same.

mod args;
mod check;
mod derive_effect;
mod derive_scope;
mod duration;
mod errors;
mod expand;
mod fingerprint;
#[cfg(test)]
mod golden;
mod options;
mod recover;
mod signature;
mod slot;
mod template;

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;

use crate::args::Args;
use crate::errors::Errors;
use crate::signature::{Function, Signature};

/// Runs the body of an async function once for each identity, however often the function is called.
///
/// ```
/// use idem_runtime::{Outcome, PgStore, PgTx, Scope, idempotent};
/// use serde::{Deserialize, Serialize};
///
/// /// Built by the authentication layer only.
/// #[derive(Scope)]
/// pub struct TenantId(String);
/// pub struct Caller { tenant: TenantId }
///
/// pub struct Approve { operation_key: String, invoice: i64, amount: i64, note: String }
///
/// #[derive(Serialize, Deserialize)]
/// pub struct Approved { invoice: i64 }
///
/// #[derive(Debug, thiserror::Error)]
/// pub enum ApproveError {
///     #[error(transparent)]
///     Sql(#[from] sqlx::Error),
///     #[error(transparent)]
///     Idem(#[from] idem_runtime::Error),
/// }
///
/// #[idempotent(
///     operation = "invoice.approve",
///     key = "{cmd.operation_key}",
///     scope = "{caller.tenant}",
///     fingerprint(cmd { operation_key: _, invoice, amount, note: _ }),
/// )]
/// async fn approve(tx: &mut PgTx, caller: &Caller, cmd: Approve) -> Result<Approved, ApproveError> {
///     sqlx::query("UPDATE invoice SET state = 'approved' WHERE id = $1")
///         .bind(cmd.invoice)
///         .execute(&mut **tx)
///         .await?;
///     Ok(Approved { invoice: cmd.invoice })
/// }
///
/// // The generated function takes the store where the body takes the transaction:
/// async fn caller(store: &PgStore, caller: &Caller, cmd: Approve) -> Result<(), ApproveError> {
///     match approve(store, caller, cmd).await? {
///         Outcome::Applied(approved) => println!("approved {}", approved.invoice),
///         Outcome::Replayed(approved) => println!("had been approved: {}", approved.invoice),
///     }
///     Ok(())
/// }
/// ```
///
/// The generated function keeps name, visibility, attributes, generics, `where` clause, `self` and all other
/// parameters. Two things change:
///
/// - The first parameter after `self`, `tx: &mut T`, becomes `store: &dyn Store<Tx = T>`. It is a plain name, and its
///   reference has no named lifetime.
/// - The return type `Result<V, E>` becomes `Result<Outcome<V>, E>`. `V` is `Serialize` and `DeserializeOwned`, `E` is
///   `From<idem_runtime::Error>`. Aliases work, with any arguments in any order; only one that is called `Result` must
///   have `V` first.
///
/// A call claims the identity, runs the body in the transaction of the claim, stores the outcome and commits. Where the
/// identity has been claimed before, it answers with the stored outcome, as `Outcome::Replayed`. **Every `Err` rolls
/// back**, as do a panic and a dropped future, and the next call runs the body: a refusal that must be remembered is an
/// `Ok` value. The future is `Send` if the body's is.
///
/// # Options
///
/// | option | form | default |
/// |---|---|---|
/// | `key` | `key = cmd.id` or `key = "{event.source}/{event.id}"` | required |
/// | `scope` | `scope = caller.tenant`, a template, `constant("billing")` or `global` | required |
/// | `fingerprint` | `fingerprint(cmd.amount, ..)`, a pattern, or `fingerprint(none)` | required |
/// | `operation` | `operation = "invoice.approve"` | the function's name; required in `impl` blocks |
/// | `retain` | `"30d"` (`s`, `min`, `h`, `d`, `w`) or `forever` | `forever` |
/// | `remember` | as `retain`, and not shorter | as `retain` |
/// | `occurred_at` | an expression: `Into<SystemTime>`, or an `Option` of it | none |
/// | `older` | `refuse` or `run` | `refuse` |
/// | `concurrent` | `wait` or `reject` | `wait` |
/// | `crate` | the path of `idem_runtime` | `::idem_runtime` |
///
/// **`key`**: what makes two deliveries the same. A value is `Display`.
///
/// **`scope`**: whose key it is. Every value is of a type that implements `Scope`, which a raw `String` does not. The
/// words `global` and `constant(..)` are for what belongs to nobody in particular; a parameter called `global` is hidden
/// by the word.
///
/// **`fingerprint`**: the material fields. Another request under the same key is `Error::Mismatch`.
///
/// - `fingerprint(cmd.amount, cmd.currency)`: each `Serialize`, labelled by its last segment. The labels are part of the
///   record: renaming a field makes old records incomparable.
/// - `fingerprint(currency = cmd.currency.to_uppercase())`: an expression with a label of its own.
/// - `fingerprint(cmd { amount, currency, note: _ })`: all fields of the struct of a parameter. A field that is neither
///   listed nor waived by `_` is a compile error, so that one added next year is not forgotten. This is the form to
///   prefer.
/// - `fingerprint(Approve { amount, currency, note: _ } = body)`: the same, where the type cannot be read from a plain
///   parameter (a pattern such as `Json(body)`, an `Arc`, a part of a parameter).
/// - `fingerprint(cmd)`: the whole value. A field added later makes the redelivery of an old request a mismatch.
/// - `fingerprint(none)`: nothing is compared; for events whose identity already is their content.
///
/// **`operation`**: the stable name of the effect, which is stored: with it, the function can be renamed. Two handlers
/// with one operation are an error at start.
///
/// **`retain`** and **`remember`**: how long the outcome and the identity are kept. Between the two a redelivery is
/// `Error::Expired`, never a second run.
///
/// **`occurred_at`**: the event's own time, the same on every redelivery; never the time of the attempt. With it, a
/// message that is older than `remember` and has no record is `Error::BeyondHorizon`. Where it is `None` the record is
/// kept for ever.
///
/// **`older`**: what happens to a message that is older than the records can prove. A finite `remember` needs
/// `occurred_at` or `older = run`.
///
/// **`concurrent`**: whether a duplicate waits for the first run to end, or is `Error::InProgress` at once.
///
/// # Expressions and templates
///
/// A string is a template; everything else is an expression. Both only read the parameters, and are evaluated before the
/// body and before the claim, in the order scope, key, fingerprint, occurred_at. So the body may change or consume its
/// parameters: the identity is the one before it. An expression may use `?`, which returns from the function before
/// anything is claimed. It cannot use `tx`, which does not exist yet.
///
/// The placeholders of a template are parameters and their fields (`{cmd.id}`, `{pair.0}`, `{self.tenant}`,
/// `{event.r#type}`). Different values never make the same text: with several placeholders each value is percent-encoded
/// for `%` and for the characters between them. With one, `"{cmd.id}"` is the same as `cmd.id`. An empty value is
/// `Error::InvalidIdentity`.
///
/// # Where it stands
///
/// On free functions, methods (`&self`, `&mut self`, `self`, `self: Arc<Self>`), associated functions and native async
/// functions in trait impls; the trait declares the generated signature. `#[async_trait]` rewrites a function before
/// this attribute sees it: there, call a free function or an inherent method.
///
/// `#[tracing::instrument]` **above** it covers the body alone: a replay has no span, and claim and commit are outside of
/// it. **Below** it covers the whole call and sees `store` in the place of `tx` among the fields: `skip_all` leaves it
/// away, and `skip(tx)` names what is no longer there.
///
/// Without `operation`, a hidden constant beside the function makes sure that it is not in an `impl` block: there the
/// compiler reports the name of that constant.
#[proc_macro_attribute]
pub fn idempotent(
    options: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_idempotent(options.into(), function.into()).into()
}

/// Implements `Scope` for a newtype: its text is the `Display` of its one field.
///
/// Derive it for the type that your authentication builds, and for nothing that comes from a request as it was sent.
///
/// ```
/// use idem_runtime::Scope;
///
/// #[derive(Scope)]
/// pub struct TenantId(String);
///
/// assert_eq!(TenantId("acme".to_owned()).scope(), "acme");
/// ```
///
/// `#[scope(crate = path)]` says where `idem_runtime` is, if it has been renamed.
#[proc_macro_derive(Scope, attributes(scope))]
pub fn derive_scope(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    derive_scope::derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Implements `Effect` for a struct or an enum: the name under which it is stored, and what puts it into an order.
///
/// The type is `Serialize` and `DeserializeOwned`: what is staged is sent later, perhaps by a later version of the
/// program. Give a new field a default.
///
/// ```
/// use idem_runtime::Effect;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Effect)]
/// #[effect(name = "receipt.email", order = "{self.invoice}")]
/// pub struct EmailReceipt { invoice: i64, to: String }
///
/// let receipt = EmailReceipt { invoice: 7, to: "a@example.com".to_owned() };
/// assert_eq!(EmailReceipt::NAME, "receipt.email");
/// assert_eq!(receipt.order_key().as_deref(), Some("7"));
/// ```
///
/// # Options
///
/// | option | form | default |
/// |---|---|---|
/// | `name` | `name = "receipt.email"` | required |
/// | `order` | `order = "{self.invoice}"` or `order = "{self.account.bank}/{self.account.number}"` | none |
/// | `crate` | the path of `idem_runtime` | `::idem_runtime` |
///
/// **`name`**: the stable name, which is stored: with it, the type can be renamed. The worker finds the provider by it.
/// At most 128 bytes, without control characters. All instances of a generic type share it, so that only one of them can
/// have a provider.
///
/// **`order`**: effects of one name and scope whose order keys are equal are sent in the order in which their handlers
/// committed, one after the other. Without it they are sent in any order. It is a template as in `#[idempotent]`, whose
/// placeholders begin at `self`: a field (`{self.0}`, `{self.account.number}`) or the value itself (`{self}`), each
/// `Display`. Different values never make the same key: with several placeholders each value is percent-encoded for `%`
/// and for the characters between them. Unlike in a key, an **empty value** is a value: effects that have it are in one
/// line. Where some effects are to be in no line at all, or where a template does not reach, as in most enums, write
/// `impl Effect` and its `order_key`, with `None` for those.
///
/// A type parameter gets the bounds that an effect needs: `Send`, `Sync` and `'static`, and where a field stores it
/// `Serialize` and `DeserializeOwned`, as with the derives of serde. An effect borrows nothing.
#[proc_macro_derive(Effect, attributes(effect))]
pub fn derive_effect(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    derive_effect::derive(&input).into()
}

/// Input: the options and the function as written. Output: the generated function, or a `compile_error!` for each
/// mistake and the function for the editor.
fn expand_idempotent(options: TokenStream, function: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(options, &mut errors);
    let parsed = <Function as syn::parse::Parse>::parse.parse2(function.clone());
    let Some(parsed) = errors.take(parsed) else {
        let errors = errors.to_compile_errors();
        return quote!(#errors #function);
    };
    let signature = Signature::read(&parsed.sig, &mut errors);
    let krate = args.krate();
    match check::check(args, &parsed, &signature, &mut errors) {
        Some(handler) => expand::expand(&parsed, &handler),
        None => {
            let errors = errors.to_compile_errors();
            let function = recover::recover(&parsed, &signature, &krate);
            quote!(#errors #function)
        }
    }
}
