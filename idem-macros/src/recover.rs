//! The function that is emitted after a mistake, for the editor: names in it still resolve, and its callers still see
//! the generated signature as far as it is known. The invariant: it brings no second error for the same mistake.

use proc_macro2::{Punct, Spacing, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{FnArg, GenericArgument, Path, PathArguments, ReturnType, Type, TypeParamBound};

use crate::expand::{body, emit, emit_with, local};
use crate::signature::{Function, Output, Signature, Tx};

/// Input: a function whose attribute or signature has a mistake. Output: the same, made quiet.
pub(crate) fn recover(function: &Function, signature: &Signature, krate: &Path) -> TokenStream {
    let mut function = function.clone();
    function.attrs.push(syn::parse_quote!(#[allow(unused, clippy::all, clippy::pedantic)]));
    match (&signature.tx, &signature.output) {
        (Some(tx), Some(output)) if function.sig.asyncness.is_some() => {
            emit(&function, tx, output, krate, statements(&function, tx, output))
        }
        _ if signature.rewritten => as_declared(&function, krate),
        _ if signature.borrows => without_borrows(&function),
        _ => emit_with(&function, &function.sig, function.body.clone()),
    }
}

/// The author's statements, checked and never run.
fn statements(function: &Function, tx: &Tx, output: &Output) -> TokenStream {
    let Tx { mutability, ident, ty, .. } = tx;
    let (checked, block) = (local("checked"), body(function, output));
    quote! {
        let #checked = async {
            let #mutability #ident: &mut #ty = loop {};
            #block.await
        };
        loop {}
    }
}

/// Input: `-> Result<&str, E>`, of which a borrow without a lifetime would be a second error.
/// Output: `-> Result<&'static str, E> { loop {} }`.
fn without_borrows(function: &Function) -> TokenStream {
    let mut sig = function.sig.clone();
    if let ReturnType::Type(_, ty) = &mut sig.output {
        **ty = Type::Verbatim(make_static(ty.to_token_stream()));
    }
    emit_with(function, &sig, quote!(loop {}))
}

fn make_static(tokens: TokenStream) -> TokenStream {
    let mut made = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is = |token: &TokenTree, c| matches!(token, TokenTree::Punct(punct) if punct.as_char() == c);
        let borrows = is(&token, '&') && !tokens.peek().is_some_and(|next| is(next, '\''));
        made.extend([match token {
            TokenTree::Group(group) => {
                proc_macro2::Group::new(group.delimiter(), make_static(group.stream())).into()
            }
            other => other,
        }]);
        if borrows {
            made.extend([TokenTree::from(Punct::new('\'', Spacing::Joint))]);
            made.extend(quote!(static));
        }
    }
    made
}

/// Input: what `#[async_trait]` has made of `async fn approve(tx: &mut T) -> R`.
/// Output: what it has made of the declaration in the trait, which has the generated signature.
fn as_declared(function: &Function, krate: &Path) -> TokenStream {
    let mut sig = function.sig.clone();
    let position = usize::from(sig.receiver().is_some());
    if let Some(FnArg::Typed(parameter)) = sig.inputs.get_mut(position)
        && let Type::Reference(reference) = &mut *parameter.ty
    {
        let ty = &reference.elem;
        *reference.elem = Type::Verbatim(quote!((dyn #krate::Store<Tx = #ty>)));
        reference.mutability = None;
    }
    if let ReturnType::Type(_, ty) = &mut sig.output
        && let Some(output) = future_output(ty)
        && let Some(read) = Output::read(output)
    {
        *output = read.wrapped(krate);
    }
    emit_with(function, &sig, quote!(loop {}))
}

/// Input: `Pin<Box<dyn Future<Output = R> + Send>>`. Output: `R`.
fn future_output(ty: &mut Type) -> Option<&mut Type> {
    match ty {
        Type::Path(path) => match &mut path.path.segments.last_mut()?.arguments {
            PathArguments::AngleBracketed(arguments) => {
                arguments.args.iter_mut().find_map(|argument| match argument {
                    GenericArgument::Type(inner) => future_output(inner),
                    GenericArgument::AssocType(output) if output.ident == "Output" => Some(&mut output.ty),
                    _ => None,
                })
            }
            _ => None,
        },
        Type::TraitObject(object) => object.bounds.iter_mut().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => match &mut bound.path.segments.last_mut()?.arguments {
                PathArguments::AngleBracketed(arguments) => {
                    arguments.args.iter_mut().find_map(|argument| match argument {
                        GenericArgument::AssocType(output) if output.ident == "Output" => {
                            Some(&mut output.ty)
                        }
                        _ => None,
                    })
                }
                _ => None,
            },
            _ => None,
        }),
        _ => None,
    }
}
