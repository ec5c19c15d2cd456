//! Pools that this process serves: what the program does for clients.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use cenote_server::{Call, Either, Ended, Handler, Request, ServerError, race, suspended};

use crate::context::{Context, Serving};
use crate::outcome::{FAILED, Outcome, causes, status_of};
use crate::output::Output;

/// The work that this process does for the clients of its pools.
pub(crate) fn clients(context: &Context) -> Arc<dyn Handler> {
    Arc::new(Clients(context.clone()))
}

/// The clients of a pool of this process.
struct Clients(Context);

/// A client's command line.
struct Asked {
    context: Context,
    request: Box<dyn Serving>,
}

impl Handler for Clients {
    fn request(&self, form: serde_json::Value) -> Result<Box<dyn Request>, ServerError> {
        let sent = self.0.program().and_then(|program| program.sent(form));
        let request = sent.context("this is no request that this server knows");
        let request = request.map_err(|error| ServerError::Refused(causes(&error)))?;
        Ok(Box::new(Asked { context: self.0.clone(), request }))
    }
}

impl Request for Asked {
    fn is_for_suspended(&self) -> bool {
        self.request.is_for_suspended()
    }

    fn serve(self: Box<Self>, call: Call<'_>) -> Ended {
        let context = self.context.served_by(call.of, call.client, Output::to(call.out, call.err), call.input);
        let result = context.handle().block_on(serve(&context, self.request));
        let result = result.and_then(|outcome| Ok(context.output().flush().map(|()| outcome)?));
        let (status, error) = match result {
            Ok(Outcome::Good) => (0, None),
            Ok(Outcome::Failed) => (FAILED, None),
            Err(error) => (status_of(&error), Some(causes(&error))),
        };
        Ended { status, error, exports: context.is_to_end() }
    }
}

/// Does what a client asks of the process that has the pool.
async fn serve(context: &Context, request: Box<dyn Serving>) -> Result<Outcome> {
    let pool = context.served().cloned().filter(|_| !request.is_for_suspended());
    let work = request.serve(context);
    let outcome = match pool {
        // Clients that wait for devices would leave no room for one that says that they are back.
        Some(pool) => match race(suspended(&pool), work).await {
            Either::Left(error) => Err(error.into()),
            Either::Right(outcome) => outcome,
        },
        None => work.await,
    };
    // Blocks read of a view that was given up may be of several txgs, whatever came of it.
    let outcome = context.check_views().map_err(Into::into).and(outcome);
    context.close_pools().await;
    outcome
}
