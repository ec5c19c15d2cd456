//! The attribute [`macro@boxed`]: an async function that returns a boxed future.
//!
//! The body of an async function is compiled in each crate that awaits it, with the bodies of all functions that it awaits itself. A program
//! on top of many layers compiles all layers once more, and contains each as often as there are crates above it. A function that returns
//! a `BoxFuture` is compiled once, in its own crate. The attribute keeps the form of an async function, and spares the reader the lifetimes.
//!
//! ```ignore
//! #[boxed]
//! pub async fn lookup(&self, name: &str) -> Result<Option<u64>, Error> { ... }
//! // is
//! pub fn lookup<'call>(&'call self, name: &'call str) -> BoxFuture<'call, Result<Option<u64>, Error>> {
//!     Box::pin(async move { ... })
//! }
//! ```
//!
//! The price is one allocation for each call, so functions that usually return without waiting, such as a read that finds its block in the
//! cache, do not have it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Error, FnArg, GenericParam, Ident, Lifetime, Pat, PatIdent, ReceiverKind, Result, ReturnType,
    Signature, Token, TypeReference, Visibility, WherePredicate, parse_quote,
};

/// Has an async function return a `BoxFuture` (see the crate's documentation).
///
/// The future is `Send`, and lives as long as the shortest reference among the arguments; without references it is `'static`. As with an
/// async function, all arguments live until it has ended. Functions of traits may have it, with a body or without; their implementations then
/// have it too, or name the one lifetime themselves.
#[proc_macro_attribute]
pub fn boxed(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let transformed = if arguments.is_empty() {
        syn::parse::<Function>(item).and_then(transform)
    } else {
        Err(Error::new(Span::call_site(), "`boxed` takes no arguments"))
    };
    transformed.unwrap_or_else(|error| error.to_compile_error()).into()
}

/// An async function: free, of an `impl`, or of a trait, where it may have no body.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    body: Option<Block>,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let (visibility, signature) = (input.parse()?, input.parse()?);
        let body = match input.parse::<Option<Token![;]>>()? {
            Some(_) => None,
            None => Some(input.parse()?),
        };
        Ok(Self { attributes, visibility, signature, body })
    }
}

/// Names the lifetimes that are not named, and notes all that it meets. References get the one of the call. So does `'_` in the output; in
/// an argument it gets one of its own, since a type behind `&mut` may have to keep its lifetime.
struct Lifetimes {
    call: Lifetime,
    has_elided: bool,
    is_output: bool,
    named: Vec<Lifetime>,
    /// Those of `named` that the function has to declare.
    made: Vec<Lifetime>,
}

impl VisitMut for Lifetimes {
    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        if reference.lifetime.is_none() {
            reference.lifetime = Some(self.call.clone());
            self.has_elided = true;
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" && self.is_output {
            *lifetime = self.call.clone();
        } else if lifetime.ident == "_" {
            *lifetime = Lifetime::new(&format!("'within_{}", self.made.len()), Span::call_site());
            self.made.push(lifetime.clone());
            self.named.push(lifetime.clone());
        } else if *lifetime != self.call && lifetime.ident != "static" && !self.named.contains(lifetime) {
            self.named.push(lifetime.clone());
        }
    }
}

fn transform(function: Function) -> Result<TokenStream> {
    let Function { attributes, visibility, mut signature, body } = function;
    if signature.asyncness.take().is_none() {
        return Err(Error::new_spanned(signature.fn_token, "`boxed` is for async functions"));
    }
    let call = Lifetime::new("'call", Span::call_site());
    let mut lifetimes =
        Lifetimes { call: call.clone(), has_elided: false, is_output: false, named: Vec::new(), made: Vec::new() };
    let mut kept = Vec::new();
    let mut owns_self = false;
    for (index, argument) in signature.inputs.iter_mut().enumerate() {
        match argument {
            FnArg::Receiver(receiver) => match &mut receiver.kind {
                ReceiverKind::Reference(_, lifetime, _) => {
                    lifetime.get_or_insert_with(|| call.clone());
                    lifetimes.has_elided = true;
                }
                ReceiverKind::Typed(_, kind) => lifetimes.visit_type_mut(kind),
                ReceiverKind::Value => {
                    owns_self = true;
                    kept.push(quote!(let _ = &self;));
                }
                _ => return Err(Error::new_spanned(receiver, "`boxed` does not know this kind of self")),
            },
            FnArg::Typed(typed) => {
                lifetimes.visit_type_mut(&mut typed.ty);
                if body.is_some() {
                    kept.push(keep(index, &mut typed.pat));
                }
            }
        }
    }
    let output = match &mut signature.output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, output) => {
            lifetimes.is_output = true;
            lifetimes.visit_type_mut(output);
            (**output).clone()
        }
    };
    let generics = &mut signature.generics;
    let is_bound =
        owns_self || lifetimes.has_elided || !lifetimes.named.is_empty() || generics.type_params().next().is_some();
    let bound = if is_bound { call.clone() } else { Lifetime::new("'static", Span::call_site()) };
    if is_bound {
        for made in lifetimes.made.iter().rev().chain([&call]) {
            let parameter: GenericParam = parse_quote!(#made);
            generics.params.insert(0, parameter);
        }
        // Those that the function declares, beside their bounds; those of its `impl`, in a clause of their own.
        for parameter in generics.lifetimes_mut().filter(|parameter| parameter.lifetime != call) {
            parameter.bounds.push(call.clone());
            lifetimes.named.retain(|named| *named != parameter.lifetime);
        }
        for parameter in generics.type_params_mut() {
            parameter.bounds.push(parse_quote!(#call));
        }
        if owns_self {
            generics.make_where_clause().predicates.push(parse_quote!(Self: #call));
        }
        if !lifetimes.named.is_empty() {
            let outliving = &mut generics.make_where_clause().predicates;
            outliving
                .extend(lifetimes.named.iter().map(|lifetime| -> WherePredicate { parse_quote!(#lifetime: #call) }));
        }
    }
    signature.output = parse_quote!(-> ::cenote_taskq::BoxFuture<#bound, #output>);
    let Some(body) = body else {
        return Ok(quote!(#(#attributes)* #visibility #signature;));
    };
    let span = body.brace_token.span.join();
    let body = quote_spanned!(span=> ::std::boxed::Box::pin(async move { #(#kept)* #body }));
    Ok(quote! {
        #(#attributes)*
        #visibility #signature {
            #body
        }
    })
}

/// Moves an argument into the future, also one that its body does not name: the future then drops it, at its end. An argument that is a
/// pattern gets a name, and is matched in the future.
fn keep(index: usize, argument: &mut Pat) -> TokenStream {
    let (inner, name) = match argument {
        Pat::Ident(PatIdent { mutability, ident, by_ref: None, subpat: None, .. }) => {
            let inner = match mutability.take() {
                Some(mutability) => quote!(#mutability #ident),
                None => quote!(#ident),
            };
            (inner, ident.clone())
        }
        pattern => {
            let name = Ident::new(&format!("argument_{index}"), Span::mixed_site());
            let inner = quote!(#pattern);
            *pattern = parse_quote!(#name);
            (inner, name)
        }
    };
    let equals = Token![=](Span::call_site());
    quote! {
        #[allow(clippy::redundant_locals, reason = "the argument is moved into the future")]
        let #inner #equals #name;
    }
}
