//! The generated function. It is the author's own with two places of the signature changed; its body claims the
//! identity, runs the author's statements in the transaction, and stores the outcome. Every expression of the author
//! appears exactly once, and the locals cannot meet the author's names.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, FnArg, Type};

use crate::args::{Concurrent, Key, Older, Scope};
use crate::check::{Handler, Operation};
use crate::duration::Keep;
use crate::signature::{Function, Output, Tx};

/// The call site's hygiene, located where the author wrote `tokens`.
pub(crate) fn at(tokens: &impl Spanned) -> Span {
    Span::call_site().located_at(tokens.span())
}

/// The same path, for an expression that rustc may have to point at.
fn located(path: &TokenStream, span: Span) -> TokenStream {
    let located = |mut token: TokenTree| {
        token.set_span(token.span().located_at(span));
        token
    };
    path.clone().into_iter().map(located).collect()
}

/// A name that the author's names cannot meet: by hygiene no other local, by its underscores no constant.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(&format!("__{name}"), Span::mixed_site())
}

/// Input:
/// ```text
/// async fn approve(tx: &mut PgTx, cmd: Approve) -> Result<Approved, ApproveError> { .. }
/// ```
/// Output:
/// ```text
/// async fn approve(store: &dyn Store<Tx = PgTx>, cmd: Approve) -> Result<Outcome<Approved>, ApproveError> {
///     submit! { OperationInfo::__new("approve", ..) }
///     let handler = handler::<PgTx, Result<Approved, ApproveError>, Result<Outcome<Approved>, ApproveError>, _, _>();
///     let scope = ..; let key = ..; let fingerprint = ..;
///     let claim = claim("approve", scope, key, fingerprint).map(|claim| claim.with_retain(..));
///     let mut run = match handler.start(store, claim).await {
///         Start::Fresh(run) => run,
///         Start::Answer(answer) => return answer,
///     };
///     let (tx, inside) = Run::enter(&mut run);
///     let result = inside.run(async move { .. }).await;
///     handler.finish(store, run, result).await
/// }
/// ```
pub(crate) fn expand(function: &Function, handler: &Handler<'_>) -> TokenStream {
    let krate = &handler.krate;
    let private = quote!(#krate::__private);
    let store = store_ident(handler.tx);
    let [witness_, claim_, run_, inside_, answer_, result_] =
        ["handler", "claim", "run", "inside", "answer", "result"].map(local);
    let registration = registration(handler, &private);
    let witness = witness(handler, &private);
    let claim = claim(handler, &private);
    let Tx { attrs, mutability, ident, .. } = handler.tx;
    let block = body(function, handler.output);
    let statements = quote! {
        #registration
        #witness
        #claim
        let mut #run_ = match #witness_.start(#store, #claim_).await {
            #private::Start::Fresh(#run_) => #run_,
            #private::Start::Answer(#answer_) => return #answer_,
        };
        #(#attrs)*
        let (#mutability #ident, #inside_) = #private::Run::enter(&mut #run_);
        let #result_ = #inside_.run(#block).await;
        #witness_.finish(#store, #run_, #result_).await
    };
    let generated = emit(function, handler.tx, handler.output, krate, statements);
    match &handler.operation {
        Operation::Given(_) => generated,
        Operation::Function(function) => {
            let constant = outside_impl(function);
            let marker = quote_spanned! {at(function)=>
                #[doc(hidden)]
                #[allow(non_upper_case_globals, dead_code)]
                const #constant: () = ();
            };
            quote!(#generated #marker)
        }
    }
}

/// The author's function with the two changes and another body.
pub(crate) fn emit(
    function: &Function,
    tx: &Tx,
    output: &Output,
    krate: &syn::Path,
    body: TokenStream,
) -> TokenStream {
    let mut sig = function.sig.clone();
    if let Some(FnArg::Typed(parameter)) = sig.inputs.get_mut(tx.position) {
        let (store, ty) = (store_ident(tx), &tx.ty);
        parameter.attrs.clear();
        *parameter.pat = syn::parse_quote!(#store);
        *parameter.ty = Type::Verbatim(quote!(&dyn #krate::Store<Tx = #ty>));
    }
    if let syn::ReturnType::Type(_, ty) = &mut sig.output {
        **ty = output.wrapped(krate);
    }
    emit_with(function, &sig, body)
}

/// The author's function with another signature and another body.
pub(crate) fn emit_with(function: &Function, sig: &syn::Signature, body: TokenStream) -> TokenStream {
    let Function { attrs, vis, defaultness, brace, .. } = function;
    let block = braced(brace.span.join(), body);
    quote!(#(#attrs)* #vis #defaultness #sig #block)
}

fn braced(span: Span, content: TokenStream) -> Group {
    let mut block = Group::new(Delimiter::Brace, content);
    block.set_span(span);
    block
}

fn store_ident(tx: &Tx) -> Ident {
    Ident::new("store", Span::mixed_site().located_at(tx.ident.span()))
}

/// Input: operation and periods. Output: the entry of this handler in the list that `operations()` reads, with the
/// place of the attribute.
fn registration(handler: &Handler<'_>, private: &TokenStream) -> TokenStream {
    let krate = &handler.krate;
    let operation = handler.operation.name();
    let (retain, remember) = (handler.retain.expand(krate), handler.remember.expand(krate));
    let older = older(handler);
    let outside_impl = match &handler.operation {
        Operation::Given(_) => TokenStream::new(),
        Operation::Function(function) => {
            let constant = outside_impl(function);
            quote_spanned!(at(function)=> #[allow(unused_imports)] use #constant as _;)
        }
    };
    quote! {
        #outside_impl
        #private::inventory::submit! {
            #krate::OperationInfo::__new(#operation, #retain, #remember, #older,
                (#private::file!(), #private::line!(), #private::column!(), #private::module_path!()))
        }
    }
}

/// A function without receiver does not show whether it is in an `impl` block. So a constant stands beside it, which
/// the body imports: inside an `impl` block it is an associated constant, and the import fails by this name.
fn outside_impl(function: &Ident) -> Ident {
    quote::format_ident!("{function}_needs_the_option_operation_in_an_impl_block", span = at(function))
}

fn older(handler: &Handler<'_>) -> TokenStream {
    let krate = &handler.krate;
    match handler.older {
        Older::Refuse => quote!(#krate::Older::Refuse),
        Older::Run => quote!(#krate::Older::Run),
    }
}

/// Input: `PgTx` and `Result<Approved, ApproveError>`.
/// Output: `let handler = handler::<PgTx, Result<Approved, ApproveError>, Result<Outcome<Approved>, ApproveError>, _, _>();`,
/// where the third type is left to inference if the signature has the projection.
///
/// It asks for all bounds of the generated code at once, at the types that must meet them. What needs a bound later
/// goes through the function pointers in `handler`, so that a type that does not meet it is reported once.
fn witness(handler: &Handler<'_>, private: &TokenStream) -> TokenStream {
    let (tx, run) = (&handler.tx.ty, &handler.output.ty);
    let answer = if handler.output.is_result {
        handler.output.wrapped(&handler.krate).into_token_stream()
    } else {
        quote_spanned!(at(run)=> _)
    };
    let witness = local("handler");
    let private = located(private, at(run));
    quote_spanned!(at(run)=> let #witness = #private::handler::<#tx, #run, #answer, _, _>();)
}

/// Input: scope, key, fingerprint and the other options. Output: statements that end in `let claim = ..;`, of type
/// `Result<Claim, Error>`, in which the parameters are only read.
fn claim(handler: &Handler<'_>, private: &TokenStream) -> TokenStream {
    let Handler { krate, signature, .. } = handler;
    let operation = handler.operation.name();
    let resolve = |root: &str, span| signature.resolve(root, span);
    let [scope_, key_, fingerprint_, occurred_at_, claim_] =
        ["scope", "key", "fingerprint", "occurred_at", "claim"].map(local);
    let scope = match &handler.scope {
        Scope::Expression(expression) => read("scope", expression, private),
        Scope::Template(template) => template.expand(&operation, resolve, private),
        Scope::Constant(text) => quote!(#private::constant(#text)),
        Scope::Global => quote!(#private::constant("global")),
    };
    let key = match &handler.key {
        Key::Expression(expression) => read("key", expression, private),
        Key::Template(template) => template.expand(&operation, resolve, private),
    };
    let fingerprint = handler.fingerprint.expand(&operation, signature, private);
    let occurred_at = handler.occurred_at.as_ref().map(|expression| {
        let time = read("occurred_at", expression, private);
        quote!(let #occurred_at_ = #time;)
    });
    let options = options(handler, krate, &occurred_at_);
    quote! {
        let #scope_ = #scope;
        let #key_ = #key;
        let #fingerprint_ = #fingerprint;
        #occurred_at
        let #claim_ = #private::claim(#operation, #scope_, #key_, #fingerprint_) #options;
    }
}

/// Input: `scope` and the author's expression. Output: `scope(&(<expression>))`, so that what its type lacks is
/// reported at the expression.
fn read(function: &str, expression: &Expr, private: &TokenStream) -> TokenStream {
    let function = Ident::new(function, at(expression));
    let value = by_reference(expression);
    quote!(#private::#function(#value))
}

/// Input: `cmd.amount`. Output: `&cmd.amount`, at the author's own place: rustc reports there what the value lacks.
pub(crate) fn by_reference(expression: &Expr) -> TokenStream {
    let binds_tightly = matches!(
        expression,
        Expr::Path(_)
            | Expr::Field(_)
            | Expr::MethodCall(_)
            | Expr::Call(_)
            | Expr::Index(_)
            | Expr::Macro(_)
            | Expr::Lit(_)
            | Expr::Paren(_)
            | Expr::Try(_)
            | Expr::Await(_)
    );
    let ampersand = syn::Token![&](expression.span());
    if binds_tightly {
        quote!(#ampersand #expression)
    } else {
        quote_spanned!(expression.span()=> #ampersand (#expression))
    }
}

/// Output: `.map(|claim| claim.with_retain(..))` with the options that differ from the defaults; nothing, if none
/// does.
fn options(handler: &Handler<'_>, krate: &syn::Path, occurred_at: &Ident) -> TokenStream {
    let mut options = TokenStream::new();
    if handler.retain != Keep::Forever {
        let retain = handler.retain.expand(krate);
        options.extend(quote!(.with_retain(#retain)));
    }
    if handler.remember != handler.retain {
        let remember = handler.remember.expand(krate);
        options.extend(quote!(.with_remember(#remember)));
    }
    if handler.occurred_at.is_some() {
        options.extend(quote!(.with_occurred_at(#occurred_at)));
    }
    if handler.older == Older::Run {
        let older = older(handler);
        options.extend(quote!(.with_older(#older)));
    }
    if handler.concurrent == Concurrent::Reject {
        options.extend(quote!(.with_concurrent(#krate::Concurrent::Reject)));
    }
    if options.is_empty() {
        return options;
    }
    let claim = local("claim");
    quote!(.map(|#claim| #claim #options))
}

/// Input: `{ .. }`. Output: `async move { if false { .. return } .. }`, with the author's braces.
///
/// The `return` that is never taken stands at the return type and says what the block must give, so that rustc
/// reports a wrong tail, a wrong early `return` and a stray `;` each at its own place.
pub(crate) fn body(function: &Function, output: &Output) -> TokenStream {
    let ty = &output.ty;
    let never = Ident::new("__never", Span::mixed_site().located_at(ty.span()));
    let expected = quote_spanned! {at(ty)=>
        #[allow(unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop, clippy::let_and_return, clippy::needless_return)]
        if false {
            let #never: #ty = loop {};
            return #never;
        }
    };
    let statements = &function.body;
    let block = braced(function.brace.span.join(), quote!(#expected #statements));
    let block_span = Span::call_site().located_at(function.brace.span.join());
    let mut tokens = quote_spanned!(block_span=> async move);
    block.to_tokens(&mut tokens);
    tokens
}
